//! A client of the greeter: which link it got, a call, metadata, an error, and a deadline.
//!
//! ```sh
//! cargo run --example greeter-client -- --connect ringmail://127.0.0.1:7400
//! ```

#![allow(clippy::print_stdout)] // An example speaks to people.

use std::time::Duration;

use clap::Parser;
use ringmail::{Code, Request};
use ringmail_examples::helloworld::HelloRequest;
use ringmail_examples::helloworld::greeter_client::GreeterClient;

#[derive(Debug, Parser)]
struct Arguments {
    /// The server's address.
    #[arg(long, default_value = "ringmail://127.0.0.1:7400")]
    connect: String,
    /// Whom to greet.
    #[arg(default_value = "world")]
    name: String,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::parse();
    let client = GreeterClient::connect(arguments.connect).await?;
    println!("link: {}", client.channel().link_info());

    let reply = client.say_hello(HelloRequest { name: arguments.name.clone() }).await?;
    println!("reply: {}", reply.get_ref().message);

    let mut request = Request::new(HelloRequest { name: arguments.name });
    request.metadata_mut().insert("language", "de".parse()?);
    println!("with metadata: {}", client.say_hello(request).await?.get_ref().message);

    let mut request = Request::new(HelloRequest::default());
    request.metadata_mut().insert("language", "tlh".parse()?);
    if let Err(status) = client.say_hello(request).await {
        println!("an error: {:?}: {}", status.code(), status.message());
    }

    let mut request = Request::new(HelloRequest { name: "Godot".into() });
    request.set_timeout(Duration::from_millis(100));
    let status = client.say_hello(request).await.expect_err("Godot does not come");
    assert_eq!(status.code(), Code::DeadlineExceeded);
    println!("a deadline: {}", status.message());
    Ok(())
}
