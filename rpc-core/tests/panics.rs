//! Handlers that panic fail their own calls, wherever they do it.

mod peers;
mod support;

use std::sync::Arc;
use std::time::Duration;

use peers::{Background, within};
use ringmail::codegen::BoxFuture;
use ringmail::{Code, Request, Response, Server, Status};
use support::{Echo, EchoClient, EchoServer, LINKS, Payload, channel};

/// Panics where the request says.
struct Explosive;

/// Panics when it is dropped.
struct Grenade;

impl Drop for Grenade {
    fn drop(&mut self) {
        panic!("on being dropped, with a secret");
    }
}

impl Echo for Explosive {
    fn fail<'a>(&'a self, request: Request<Payload>) -> BoxFuture<'a, Result<Response<Payload>, Status>> {
        let place = String::from_utf8_lossy(&request.get_ref().data).into_owned();
        assert_ne!(place, "before the future", "with a secret");
        Box::pin(async move {
            assert_ne!(place, "at the first poll", "with a secret");
            tokio::time::sleep(Duration::from_millis(1)).await;
            assert_ne!(place, "after waiting", "with a secret");
            let _grenade = (place == "at the end").then(|| Grenade);
            if place == "while given up" {
                let _grenade = Grenade;
                std::future::pending::<()>().await;
            }
            Ok(Response::new(Payload::default()))
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_fails_one_call_and_keeps_its_message_to_itself() {
    within(20, async {
        let server = Background::start(
            Server::builder().add_service(EchoServer(Arc::new(Explosive))).listen("127.0.0.1:0"),
        );
        for kind in LINKS {
            let client = EchoClient::new(channel(server.address, kind).await);
            let fail = |place: &'static str| client.call(1, Request::new(Payload { data: place.into() }));
            for place in ["before the future", "at the first poll", "after waiting", "at the end"] {
                let status = fail(place).await.expect_err(place);
                assert_eq!(status.code(), Code::Internal, "{kind}, {place}: {status}");
                assert!(!status.message().contains("secret"), "{kind}, {place}: {status}");
                assert!(status.message().contains("log"), "it says where to look: {status}");
                assert_eq!(client.echo("next").await.expect("echo"), "next", "{kind}, {place}");
            }
            let given_up = tokio::time::timeout(Duration::from_millis(20), fail("while given up")).await;
            assert!(given_up.is_err(), "{kind}: it never ends by itself: {given_up:?}");
            assert_eq!(client.echo("next").await.expect("echo"), "next", "{kind}");
            fail("nowhere").await.expect("no panic");
        }
    })
    .await;
}
