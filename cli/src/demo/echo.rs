//! The echo service, and clients of it over each link.

use ringmail::{Channel, LinkKind, LinkPolicy, Request, Response, Status, async_trait};
use tonic::transport::Endpoint;

use super::DemoError;
use super::plan::{Cell, Link};
use super::server::{PATIENCE, ServerProcess};

/// Generated from `proto/echo.proto`.
#[allow(missing_docs, unreachable_pub, unused_qualifications, dead_code)]
pub(crate) mod pb {
    ringmail::include_proto!("ringmail.bench");
}

/// Largest message of the demo, with room to spare.
pub(crate) const MAX_MESSAGE: usize = 4 * 1024 * 1024 + 1024;

/// Sends back what it gets, over Ringmail and gRPC alike.
#[derive(Debug)]
pub(crate) struct Echo;

#[async_trait]
impl pb::echo_server::Echo for Echo {
    async fn echo(&self, request: Request<pb::Payload>) -> Result<Response<pb::Payload>, Status> {
        Ok(Response::new(request.into_inner()))
    }
}

/// A connected client.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Ringmail(pb::echo_client::EchoClient),
    Grpc(pb::echo_grpc_client::EchoClient<tonic::transport::Channel>),
}

impl Target {
    /// Connects over the cell's link, and over no other; with `reads`, large messages are read by RDMA READ.
    pub(crate) async fn connect(cell: &Cell, server: &ServerProcess, reads: bool) -> Result<Self, DemoError> {
        let failed = |reason: String| DemoError::Connect { link: cell.link, reason };
        use LinkPolicy::{Off, Require};
        let (shm, rdma, kind) = match cell.link {
            Link::Grpc => return Self::connect_grpc(server).await.map_err(failed),
            Link::Rdma => (Off, Require, LinkKind::Rdma),
            Link::Shm => (Require, Off, LinkKind::Shm),
            Link::Tcp => (Off, Off, LinkKind::Tcp),
        };
        let channel = Channel::builder(server.ringmail.clone())
            .wait(cell.server_wait())
            .link(LinkKind::Shm, shm)
            .link(LinkKind::Rdma, rdma)
            .rdma_reads(reads)
            .connect()
            .await
            .map_err(|error| failed(error.to_string()))?;
        if channel.link_info().kind != Some(kind) {
            return Err(failed(channel.link_info().to_string()));
        }
        Ok(Self::Ringmail(pb::echo_client::EchoClient::new(channel)))
    }

    async fn connect_grpc(server: &ServerProcess) -> Result<Self, String> {
        let endpoint =
            Endpoint::from_shared(format!("http://{}", server.grpc)).map_err(|error| error.to_string())?;
        let channel = endpoint
            .tcp_nodelay(true)
            .connect_timeout(PATIENCE)
            .connect()
            .await
            .map_err(|error| error.to_string())?;
        let client = pb::echo_grpc_client::EchoClient::new(channel);
        Ok(Self::Grpc(client.max_decoding_message_size(MAX_MESSAGE).max_encoding_message_size(MAX_MESSAGE)))
    }

    /// One call.
    pub(crate) async fn echo(&mut self, payload: pb::Payload) -> Result<pb::Payload, Status> {
        match self {
            Self::Ringmail(client) => client.echo(payload).await.map(Response::into_inner),
            Self::Grpc(client) => client.echo(payload).await.map(Response::into_inner),
        }
    }
}
