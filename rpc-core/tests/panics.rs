//! Handlers that panic fail their own calls, wherever they do it.

mod peers;
mod support;

use std::sync::Arc;
use std::time::Duration;

use peers::{Background, within};
use ringmail::codegen::{BoxFuture, Handling, ServerCall, Service, ServiceDescriptor};
use ringmail::{Code, Codec, DecodeError, ProstCodec, Request, Response, Server, Status};
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

/// A codec that cannot encode what the handlers below answer.
#[derive(Clone, Copy)]
struct Faulty;

impl Codec for Faulty {
    type Encode = Payload;
    type Decode = Payload;

    fn encoded_len(&self, message: &Payload) -> usize {
        prost::Message::encoded_len(message)
    }

    fn encode(&self, message: &Payload, slot: &mut [u8]) {
        assert_ne!(message.data, "unencodable", "with a secret");
        ProstCodec::<Payload, Payload>::new().encode(message, slot);
    }

    fn decode(&self, payload: ringmail::codegen::Payload) -> Result<Payload, DecodeError> {
        ProstCodec::<Payload, Payload>::new().decode(payload)
    }
}

/// Handlers that need a moment, with the faulty codec.
struct Later;

impl Later {
    async fn answer(request: Request<Payload>) -> Result<Response<Payload>, Status> {
        tokio::time::sleep(Duration::from_millis(1)).await;
        Ok(Response::new(request.into_inner()))
    }
}

struct LaterServer(Arc<Later>);

impl Service for LaterServer {
    fn descriptor(&self) -> &'static ServiceDescriptor {
        &support::ECHO
    }

    fn call(&self, _: usize, call: ServerCall) -> Handling {
        call.unary(&self.0, Faulty, |_, request| Box::pin(Later::answer(request)))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_behind_the_handler_is_answered_and_gives_the_calls_place_back() {
    within(20, async {
        let server = Background::start(
            Server::builder()
                .max_calls_per_connection(1)
                .add_service(LaterServer(Arc::new(Later)))
                .listen("127.0.0.1:0"),
        );
        for kind in LINKS {
            let client = EchoClient::new(channel(server.address, kind).await);
            for _ in 0..3 {
                let status = client.echo("unencodable").await.expect_err("it cannot be encoded");
                assert_eq!(status.code(), Code::Internal, "{kind}: {status}");
                assert!(!status.message().contains("secret"), "{kind}: {status}");
                assert_eq!(client.echo("next").await.expect("echo"), "next", "{kind}");
            }
        }
    })
    .await;
}
