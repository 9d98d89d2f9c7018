//! Generates the stubs of the probe service.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    ringmail_build::compile_protos("proto/probe.proto")?;
    Ok(())
}
