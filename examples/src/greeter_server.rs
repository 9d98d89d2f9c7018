//! A server. Run it, then `cargo run --example greeter-client`:
//!
//! ```sh
//! cargo run --example greeter-server -- --listen ringmail://127.0.0.1:7400
//! ```
//!
//! `RUST_LOG=ringmail_transport=info` shows which link each client comes over.

#![allow(clippy::print_stdout)] // An example speaks to people.

use std::time::Duration;

use clap::Parser;
use ringmail::{Request, Response, Server, Status, async_trait};
use ringmail_examples::helloworld::greeter_server::{Greeter, GreeterServer};
use ringmail_examples::helloworld::{HelloReply, HelloRequest};

#[derive(Debug, Parser)]
struct Arguments {
    /// Where to listen; port 0 lets the kernel choose.
    #[arg(long, default_value = "ringmail://127.0.0.1:7400")]
    listen: String,
}

struct MyGreeter;

#[async_trait]
impl Greeter for MyGreeter {
    async fn say_hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        let language =
            request.metadata().get("language").and_then(|value| value.to_str().ok()).unwrap_or("en");
        let hello = match language {
            "en" => "Hello",
            "de" => "Hallo",
            other => return Err(Status::invalid_argument(format!("no greeting in {other:?}; try en or de"))),
        };
        let name = &request.get_ref().name;
        if name == "Godot" {
            // The caller's deadline will pass, and this handler will be dropped.
            tokio::time::sleep(Duration::from_secs(3600)).await;
        }
        Ok(Response::new(HelloReply { message: format!("{hello} {name}!") }))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().with_env_filter(tracing_subscriber::EnvFilter::from_default_env()).init();
    let server = Server::builder()
        .add_service(GreeterServer::new(MyGreeter))
        .listen(Arguments::parse().listen)
        .bind()
        .await?;
    println!("listening on ringmail://{}", server.local_addr());
    // On ctrl-c, calls in progress are finished and new ones refused.
    let ctrl_c = async {
        let _ = tokio::signal::ctrl_c().await;
    };
    server.serve_with_shutdown(ctrl_c).await?;
    Ok(())
}
