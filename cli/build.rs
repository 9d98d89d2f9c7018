//! Generates the stubs of the echo service, for Ringmail and for gRPC.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    ringmail_build::configure()
        .build_grpc_client(true)
        .compile_protos(&["../proto/echo.proto"], &["../proto"])?;
    Ok(())
}
