//! Generates the greeter's stubs.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    ringmail_build::compile_protos("../proto/greeter.proto")?;
    Ok(())
}
