//! A service written by hand, as `ringmail-build` would generate it, and a server of it on an ephemeral port.

#![allow(dead_code, missing_docs, unreachable_pub)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ringmail::codegen::{
    BoxFuture, CallKind, Client, Handling, MethodDescriptor, ServerCall, Service, ServiceDescriptor,
};
use ringmail::{Channel, LinkKind, LinkPolicy, ProstCodec, Request, Response, Server, ServerBuilder, Status};

#[derive(Clone, PartialEq, prost::Message)]
pub struct Payload {
    #[prost(bytes = "bytes", tag = "1")]
    pub data: Bytes,
}

const fn unary(path: &'static str, name: &'static str) -> MethodDescriptor {
    MethodDescriptor { path, name, kind: CallKind::Unary, idempotent: false }
}

pub static ECHO: ServiceDescriptor = ServiceDescriptor {
    name: "test.Echo",
    methods: &[
        unary("/test.Echo/Echo", "Echo"),
        unary("/test.Echo/Fail", "Fail"),
        unary("/test.Echo/Slow", "Slow"),
    ],
};

pub trait Echo: Send + Sync + 'static {
    fn echo<'a>(&'a self, request: Request<Payload>) -> BoxFuture<'a, Result<Response<Payload>, Status>> {
        Box::pin(async move {
            let (metadata, _, message) = request.into_parts();
            Ok(Response::from_parts(metadata, message, Default::default()))
        })
    }
    fn fail<'a>(&'a self, request: Request<Payload>) -> BoxFuture<'a, Result<Response<Payload>, Status>> {
        Box::pin(async move {
            let text = String::from_utf8_lossy(&request.get_ref().data).into_owned();
            if text == "panic" {
                panic!("as asked");
            }
            let mut status =
                Status::with_details(ringmail::Code::DataLoss, text, Bytes::from_static(b"\0details"));
            status.metadata_mut().insert("trailer", "t".parse().unwrap());
            Err(status)
        })
    }
    /// Sleeps for as many milliseconds as the first byte says.
    fn slow<'a>(&'a self, request: Request<Payload>) -> BoxFuture<'a, Result<Response<Payload>, Status>> {
        Box::pin(async move {
            let millis = request.get_ref().data.first().copied().unwrap_or(0);
            tokio::time::sleep(Duration::from_millis(u64::from(millis))).await;
            Ok(Response::new(request.into_inner()))
        })
    }
}

pub struct Plain;
impl Echo for Plain {}

pub struct EchoServer<T>(pub Arc<T>);

impl<T: Echo> Service for EchoServer<T> {
    fn descriptor(&self) -> &'static ServiceDescriptor {
        &ECHO
    }
    fn call(&self, method: usize, call: ServerCall) -> Handling {
        match method {
            0 => call.unary(&self.0, ProstCodec::new(), T::echo),
            1 => call.unary(&self.0, ProstCodec::new(), T::fail),
            2 => call.unary(&self.0, ProstCodec::new(), T::slow),
            _ => call.unknown_method(),
        }
    }
}

#[derive(Clone)]
pub struct EchoClient(pub Client);

impl EchoClient {
    pub fn new(channel: Channel) -> Self {
        Self(Client::new(channel, &ECHO))
    }
    pub async fn call(&self, method: usize, request: Request<Payload>) -> Result<Response<Payload>, Status> {
        self.0.unary(method, request, ProstCodec::<Payload, Payload>::new()).await
    }
    pub async fn echo(&self, data: impl Into<Bytes>) -> Result<Bytes, Status> {
        Ok(self.call(0, Request::new(Payload { data: data.into() })).await?.into_inner().data)
    }
}

pub fn server() -> ServerBuilder {
    Server::builder().add_service(EchoServer(Arc::new(Plain))).listen("ringmail://127.0.0.1:0")
}

/// Serves until the runtime ends.
pub async fn serve(builder: ServerBuilder) -> SocketAddr {
    let bound = builder.bind().await.expect("bind");
    let address = bound.local_addr();
    tokio::spawn(async move { bound.serve().await.expect("serve") });
    address
}

pub async fn channel(address: SocketAddr, kind: LinkKind) -> Channel {
    let channel = Channel::builder(format!("ringmail://{address}"))
        .link(kind, LinkPolicy::Require)
        .link(if kind == LinkKind::Tcp { LinkKind::Shm } else { LinkKind::Rdma }, LinkPolicy::Off)
        .connect()
        .await
        .expect("connect");
    assert_eq!(channel.link_info().kind, Some(kind));
    channel
}

pub const LINKS: [LinkKind; 2] = [LinkKind::Shm, LinkKind::Tcp];
