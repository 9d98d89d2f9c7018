//! Code generated with options does what they say.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use codegen_cases::all::acme::common;
use codegen_cases::codec::NOTED;
use codegen_cases::options::arc::acme::orders::v1 as arc;
use codegen_cases::options::grpc::helloworld as grpc;
use codegen_cases::options::{own_types, renamed, wrappers};
use ringmail::codegen::{Service, prost_types};
use ringmail::{Code, Request, Response, Server, Status, async_trait};

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), work).await.expect("the test did not end in time")
}

async fn serve(service: impl Service) -> String {
    let bound = Server::builder().add_service(service).listen("127.0.0.1:0").bind().await.expect("bind");
    let address = bound.local_addr().to_string();
    tokio::spawn(bound.serve());
    address
}

struct Greeter;

#[async_trait]
impl grpc::greeter_server::Greeter for Greeter {
    async fn say_hello(
        &self,
        request: Request<grpc::HelloRequest>,
    ) -> Result<Response<grpc::HelloReply>, Status> {
        let mut response =
            Response::new(grpc::HelloReply { message: format!("Hello {}!", request.get_ref().name) });
        if let Some(value) = request.metadata().get("echo") {
            response.metadata_mut().insert("echo", value.clone());
        }
        Ok(response)
    }
}

/// What both clients must get for the same request.
fn assert_greeted(response: Result<Response<grpc::HelloReply>, Status>) {
    let response = response.expect("a greeting");
    assert_eq!(response.get_ref().message, "Hello both!");
    assert_eq!(response.metadata().get("echo").map(|value| value.as_bytes()), Some(&b"yes"[..]));
}

fn greeting() -> Request<grpc::HelloRequest> {
    let mut request = Request::new(grpc::HelloRequest { name: "both".into() });
    request.metadata_mut().insert("echo", "yes".parse().unwrap());
    request
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_server_value_serves_ringmail_and_grpc() {
    within(async {
        let server = grpc::greeter_server::GreeterServer::new(Greeter);

        let address = serve(server.clone()).await;
        let client = grpc::greeter_client::GreeterClient::connect(address).await.expect("connect");
        assert_greeted(client.say_hello(greeting()).await);

        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        let incoming =
            tonic::transport::server::TcpIncoming::bind(local).expect("bind").with_nodelay(Some(true));
        let address = incoming.local_addr().expect("address");
        tokio::spawn(tonic::transport::Server::builder().add_service(server).serve_with_incoming(incoming));
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}")).expect("a URI");
        let channel = endpoint.connect().await.expect("connect");
        let mut client = grpc::greeter_grpc_client::GreeterClient::new(channel);
        assert_greeted(client.say_hello(greeting()).await);

        // With build_transport(true) it also connects by itself.
        let uri = format!("http://{address}");
        let mut client = grpc::greeter_grpc_client::GreeterClient::connect(uri).await.expect("connect");
        assert_greeted(client.say_hello(greeting()).await);

        // Whoever mixes up the two ports is told.
        let error = ringmail::Channel::connect(address.to_string()).await.expect_err("the gRPC port");
        assert!(error.to_string().contains("this is a gRPC server"), "{error}");
    })
    .await;
}

struct Book;

#[async_trait]
impl arc::orders_server::Orders for Book {
    async fn place(self: Arc<Self>, request: Request<arc::Order>) -> Result<Response<arc::OrderId>, Status> {
        let order = request.into_inner();
        // The types that the options ask for.
        let _: (&Vec<u8>, &std::collections::BTreeMap<String, Vec<u8>>) = (&order.blob, &order.tags);
        let _: &Option<common::Money> = &order.limit;
        Ok(Response::new(arc::OrderId {
            id: format!("{}/{}", order.blob.len(), Arc::strong_count(&self) > 1),
        }))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn traits_with_arc_self_and_default_methods() {
    within(async {
        let address = serve(arc::orders_server::OrdersServer::new(Book)).await;
        let client = arc::orders_client::OrdersClient::connect(address).await.expect("connect");
        let order = arc::Order { blob: vec![1; 3000], ..arc::Order::default() };
        assert_eq!(client.place(order).await.expect("place").get_ref().id, "3000/true");
        // A method that was not written.
        assert_eq!(client.ping(()).await.expect_err("ping").code(), Code::Unimplemented);
    })
    .await;
}

struct Values;

#[async_trait]
impl wrappers::wrappers_server::Wrappers for Values {
    async fn length(&self, request: Request<String>) -> Result<Response<u64>, Status> {
        Ok(Response::new(request.get_ref().len() as u64))
    }
    async fn invert(&self, request: Request<bool>) -> Result<Response<bool>, Status> {
        Ok(Response::new(!request.get_ref()))
    }
    async fn halve(&self, request: Request<f64>) -> Result<Response<f32>, Status> {
        Ok(Response::new((request.get_ref() / 2.0) as f32))
    }
    async fn negate(&self, request: Request<i32>) -> Result<Response<i64>, Status> {
        Ok(Response::new(-i64::from(*request.get_ref())))
    }
    async fn count(&self, request: Request<u32>) -> Result<Response<Vec<u8>>, Status> {
        Ok(Response::new((0..*request.get_ref()).map(|n| n as u8).collect()))
    }
    async fn wait(&self, _: Request<prost_types::Duration>) -> Result<Response<()>, Status> {
        Ok(Response::new(()))
    }
    async fn look(&self, _: Request<()>) -> Result<Response<wrappers::Old>, Status> {
        Ok(Response::new(wrappers::Old { maybe: Some(true), ..wrappers::Old::default() }))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn well_known_types_are_requests_and_responses_as_rust_has_them() {
    within(async {
        let server = wrappers::wrappers_server::WrappersServer::new(Values);
        let idempotent = server.descriptor().methods.iter().filter(|method| method.idempotent);
        assert_eq!(idempotent.map(|method| method.name).collect::<Vec<_>>(), ["Wait", "Look"]);
        let address = serve(server).await;
        let client = wrappers::wrappers_client::WrappersClient::connect(address).await.expect("connect");
        assert_eq!(client.length("four".to_owned()).await.expect("length").into_inner(), 4);
        assert!(!client.invert(true).await.expect("invert").into_inner());
        assert_eq!(client.halve(3.0).await.expect("halve").into_inner(), 1.5);
        assert_eq!(client.negate(i32::MIN).await.expect("negate").into_inner(), -i64::from(i32::MIN));
        assert_eq!(client.count(3_u32).await.expect("count").into_inner(), [0, 1, 2]);
        client.wait(prost_types::Duration::default()).await.expect("wait");
        assert_eq!(client.look(()).await.expect("look").get_ref().maybe, Some(true));
    })
    .await;
}

#[test]
fn well_known_types_can_be_generated_too() {
    let value: own_types::google::protobuf::BoolValue =
        own_types::google::protobuf::BoolValue { value: true };
    let old = own_types::wrappers::Old { maybe: Some(value), ..own_types::wrappers::Old::default() };
    assert!(old.maybe.is_some_and(|maybe| maybe.value));
}

struct Heart;

#[async_trait]
impl renamed::root_server::Root for Heart {
    async fn ping(&self, request: Request<renamed::Beat>) -> Result<Response<renamed::Beat>, Status> {
        Ok(Response::new(request.into_inner()))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_codec_carries_every_message() {
    within(async {
        let address = serve(renamed::root_server::RootServer::new(Heart)).await;
        let client = renamed::root_client::RootClient::connect(address).await.expect("connect");
        let before = NOTED.load(Ordering::Relaxed);
        assert_eq!(client.ping(renamed::Beat { n: 7 }).await.expect("ping").get_ref().n, 7);
        assert_eq!(NOTED.load(Ordering::Relaxed) - before, 4, "encoded and decoded, both ways");
        assert!(renamed::Beat { n: 1 } < renamed::Beat { n: 2 }, "the attribute is there");
    })
    .await;
}

#[test]
fn reflection_finds_the_descriptors_under_the_name_of_the_package() {
    use ringmail::codegen::prost::Message;
    let set = prost_types::FileDescriptorSet::decode(codegen_cases::bootstrap::DESCRIPTORS).unwrap();
    assert_eq!(set.file[0].package(), "ringmail.bootstrap");
}
