//! Every case serves a call, over shared memory and TCP.

use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use codegen_cases::all::acme::orders::v1 as orders;
use codegen_cases::all::acme::r#type as keywords;
use codegen_cases::all::{self, acme::common, deep};
use ringmail::{
    Channel, Code, LinkKind, LinkPolicy, Request, Response, Server, ServerBuilder, Status, async_trait,
};

async fn serve(builder: ServerBuilder) -> SocketAddr {
    let bound = builder.listen("127.0.0.1:0").bind().await.expect("bind");
    let address = bound.local_addr();
    tokio::spawn(bound.serve());
    address
}

async fn channels(address: SocketAddr) -> [Channel; 2] {
    let connect = |policy| Channel::builder(address.to_string()).link(LinkKind::Shm, policy).connect();
    let both =
        [connect(LinkPolicy::Require).await.expect("shm"), connect(LinkPolicy::Off).await.expect("tcp")];
    assert_eq!(both[0].link_info().kind, Some(LinkKind::Shm));
    assert_eq!(both[1].link_info().kind, Some(LinkKind::Tcp));
    both
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), work).await.expect("the test did not end in time")
}

type Items<T> = Pin<Box<dyn tokio_stream::Stream<Item = Result<T, Status>> + Send>>;

struct Book;

#[async_trait]
impl orders::orders_server::Orders for Book {
    async fn place(&self, request: Request<orders::Order>) -> Result<Response<orders::OrderId>, Status> {
        let order = request.into_inner();
        let tags: usize = order.tags.values().map(|value| value.len()).sum();
        let id =
            format!("{}/{}/{tags}/{}/{:?}", order.id, order.legs.len(), order.blob.len(), order.lifetime);
        Ok(Response::new(orders::OrderId { id }))
    }
    type WatchStream = Items<orders::Fill>;
    async fn watch(&self, _: Request<orders::OrderId>) -> Result<Response<Self::WatchStream>, Status> {
        Ok(Response::new(Box::pin(tokio_stream::empty())))
    }
    async fn upload(&self, _: Request<tonic::Streaming<orders::Order>>) -> Result<Response<()>, Status> {
        Ok(Response::new(()))
    }
    type TradeStream = Items<orders::Fill>;
    async fn trade(
        &self,
        _: Request<tonic::Streaming<orders::Order>>,
    ) -> Result<Response<Self::TradeStream>, Status> {
        Ok(Response::new(Box::pin(tokio_stream::empty())))
    }
    async fn ping(&self, _: Request<()>) -> Result<Response<()>, Status> {
        Ok(Response::new(()))
    }
    async fn get_http_status(
        &self,
        request: Request<orders::OrderId>,
    ) -> Result<Response<orders::Fill>, Status> {
        Ok(Response::new(orders::Fill { id: request.into_inner().id, quantity: 1, price: None }))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_with_everything_in_them() {
    within(async {
        let address =
            serve(Server::builder().add_service(orders::orders_server::OrdersServer::new(Book))).await;
        for channel in channels(address).await {
            let client = orders::orders_client::OrdersClient::new(channel);
            let order = orders::Order {
                id: "o1".into(),
                legs: vec![
                    orders::order::Leg {
                        symbol: "X".into(),
                        side: common::Side::Sell as i32,
                        quantity: 7
                    };
                    3
                ],
                limit: Some(common::Money { currency: "EUR".into(), units: -5, nanos: 9 }),
                lifetime: Some(orders::order::Lifetime::DayOnly(true)),
                tags: [("a".to_owned(), vec![1, 2].into()), ("b".to_owned(), vec![3].into())].into(),
                extension: Some(ringmail::codegen::prost_types::Any::default()),
                blob: vec![1; 5000].into(),
            };
            let placed = client.place(order).await.expect("place").into_inner();
            assert_eq!(placed.id, "o1/3/3/5000/Some(DayOnly(true))");
            client.ping(()).await.expect("ping");
            #[allow(deprecated)]
            let fill = client
                .get_http_status(orders::OrderId { id: "f".into() })
                .await
                .expect("status")
                .into_inner();
            assert_eq!((fill.id.as_str(), fill.quantity), ("f", 1));
        }
    })
    .await;
}

struct Both;

#[async_trait]
impl keywords::loop_server::Loop for Both {
    async fn r#type(&self, request: Request<keywords::Match>) -> Result<Response<keywords::Result>, Status> {
        Ok(Response::new(keywords::Result { ok: format!("loop {}", request.get_ref().r#type) }))
    }
    async fn connect(&self, request: Request<keywords::Match>) -> Result<Response<keywords::Option>, Status> {
        Ok(Response::new(keywords::Option { none: request.into_inner().self_ }))
    }
    async fn new(&self, request: Request<keywords::Option>) -> Result<Response<keywords::Result>, Status> {
        Ok(Response::new(keywords::Result { ok: request.into_inner().none }))
    }
    type CloneStream = Items<keywords::Result>;
    async fn clone(&self, _: Request<keywords::Option>) -> Result<Response<Self::CloneStream>, Status> {
        Ok(Response::new(Box::pin(tokio_stream::empty())))
    }
    async fn r#await(
        &self,
        _: Request<tonic::Streaming<keywords::Match>>,
    ) -> Result<Response<keywords::Match>, Status> {
        Ok(Response::new(keywords::Match::default()))
    }
}

#[async_trait]
impl keywords::self__server::Self_ for Both {
    async fn r#type(&self, request: Request<keywords::Match>) -> Result<Response<keywords::Match>, Status> {
        Ok(Response::new(request.into_inner()))
    }
    async fn drop(&self, request: Request<keywords::Match>) -> Result<Response<keywords::Match>, Status> {
        Ok(Response::new(keywords::Match { r#async: true, ..request.into_inner() }))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_are_keywords_or_the_stubs_own() {
    within(async {
        let server = Server::builder()
            .add_service(keywords::loop_server::LoopServer::new(Both))
            .add_service(keywords::self__server::Self_Server::new(Both));
        let address = serve(server).await;
        for channel in channels(address).await {
            let message =
                keywords::Match { r#type: "t".into(), self_: "s".into(), ..keywords::Match::default() };
            let client = keywords::loop_client::LoopClient::new(channel.clone());
            assert_eq!(client.r#type(message.clone()).await.expect("type").get_ref().ok, "loop t");
            assert_eq!(client.connect_(message.clone()).await.expect("connect").get_ref().none, "s");
            let option = keywords::Option { none: "n".into() };
            assert_eq!(client.new_(option).await.expect("new").get_ref().ok, "n");
            // The same method name in the other service.
            let client = keywords::self__client::Self_Client::new(channel);
            assert_eq!(client.r#type(message.clone()).await.expect("type").into_inner(), message);
            assert!(client.drop_(message).await.expect("drop").get_ref().r#async);
        }
    })
    .await;
}

struct Heart;

#[async_trait]
impl all::root_server::Root for Heart {
    async fn ping(&self, request: Request<all::Beat>) -> Result<Response<all::Beat>, Status> {
        Ok(Response::new(all::Beat { n: request.get_ref().n + 1 }))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_without_a_package() {
    within(async {
        let server = all::root_server::RootServer::new(Heart);
        assert_eq!(ringmail::codegen::Service::descriptor(&server).methods[0].path, "/Root/Ping");
        let address = serve(Server::builder().add_service(server)).await;
        for channel in channels(address).await {
            let client = all::root_client::RootClient::new(channel);
            assert_eq!(client.ping(all::Beat { n: 41 }).await.expect("ping").get_ref().n, 42);
        }
    })
    .await;
}

struct Forest;

fn depth(node: &deep::Node) -> usize {
    1 + node.children.iter().map(depth).max().unwrap_or(0)
}

#[async_trait]
impl deep::tree_server::Tree for Forest {
    async fn depth(&self, request: Request<deep::Node>) -> Result<Response<deep::Node>, Status> {
        let data = depth(request.get_ref()).to_string().into();
        Ok(Response::new(deep::Node { children: Vec::new(), data }))
    }
}

fn nested(levels: usize) -> deep::Node {
    (1..levels).fold(deep::Node::default(), |inner, _| deep::Node {
        children: vec![inner],
        data: Default::default(),
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn deep_messages_decode_and_too_deep_ones_are_refused_with_a_status() {
    within(async {
        let address = serve(Server::builder().add_service(deep::tree_server::TreeServer::new(Forest))).await;
        for channel in channels(address).await {
            let client = deep::tree_client::TreeClient::new(channel);
            assert_eq!(client.depth(nested(40)).await.expect("40 levels").get_ref().data, "40");
            let status = client.depth(nested(200)).await.expect_err("200 levels");
            assert_eq!(status.code(), Code::Internal, "{status}");
            assert!(status.message().contains("recursion"), "{status}");
            assert_eq!(client.depth(nested(3)).await.expect("and it goes on").get_ref().data, "3");
        }
    })
    .await;
}
