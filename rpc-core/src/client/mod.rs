//! The client: channels, connections, and the calls on them.

mod alarm;
mod arrival;
mod call;
mod channel;
mod connection;
mod driver;
mod fragment_room;

use tonic::{Request, Response, Status};

pub use self::channel::{Channel, ChannelBuilder, LinkInfo};
use crate::codec::Codec;
use crate::codegen::{Limits, ServiceDescriptor};

/// What a generated client consists of: a channel, the service's descriptor, and limits.
#[derive(Clone, Debug)]
pub struct Client {
    channel: Channel,
    service: &'static ServiceDescriptor,
    limits: Limits,
}

impl Client {
    /// A client of `service` over `channel`.
    #[must_use]
    pub fn new(channel: Channel, service: &'static ServiceDescriptor) -> Self {
        Self { channel, service, limits: Limits::default() }
    }

    /// The channel.
    #[must_use]
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Limits of this client.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Replaces the limits of this client.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Calls a unary method, by its index in the descriptor.
    ///
    /// # Errors
    /// The status that the server returned, or why the call did not reach it or its answer did not come back.
    pub async fn unary<C: Codec>(
        &self,
        method: usize,
        request: Request<C::Encode>,
        codec: C,
    ) -> Result<Response<C::Decode>, Status> {
        call::unary(&self.channel, &self.service.methods[method], &self.limits, request, codec).await
    }
}
