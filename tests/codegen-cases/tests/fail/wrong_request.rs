//! A call with another message than the file says.

use codegen_cases::all::acme::orders::v1::OrderId;
use codegen_cases::all::root_client::RootClient;

async fn call(client: RootClient) {
    let _ = client.ping(OrderId::default()).await;
}

fn main() {}
