//! One call at the server: decode, handler, respond.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use ringmail_transport::frame::{CallId, Flags, FrameError, Kind};
use ringmail_transport::ring::Incoming;
use tonic::{Code, Request, Response, Status};

use super::connection::Connection;
use super::excess;
use super::handler::HandlerFuture;
use super::pace::Pace;
use crate::codec::{Codec, Payload};
use crate::codegen::{BoxFuture, Limits, MethodDescriptor};
use crate::error::{deadline_exceeded, too_large};
use crate::fragment::{Attempt, Outgoing};
use crate::metadata_block::{self, Block, Entries};

/// Address of the peer, in the extensions of requests when [`ServerBuilder::connect_info`] is on.
///
/// [`ServerBuilder::connect_info`]: crate::ServerBuilder::connect_info
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddr(pub std::net::SocketAddr);

/// A call that has arrived, before its request is decoded.
#[derive(Debug)]
pub struct ServerCall {
    reply: Reply,
    frame: Incoming,
    method: &'static MethodDescriptor,
    /// Of the method, among all of the server.
    index: usize,
    limits: Limits,
}

/// What became of a call when it was begun.
pub enum Handling {
    /// It has been answered.
    Done,
    /// The handler waits for something; this future finishes the call.
    Pending(BoxFuture<'static, ()>),
}

impl Handling {
    /// Does what is left.
    pub(super) async fn finish(self) {
        if let Self::Pending(rest) = self {
            rest.await;
        }
    }
}

impl std::fmt::Debug for Handling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Done => "Done",
            Self::Pending(_) => "Pending",
        })
    }
}

impl ServerCall {
    pub(super) fn new(
        reply: Reply,
        frame: Incoming,
        method: &'static MethodDescriptor,
        index: usize,
    ) -> Self {
        Self { reply, frame, method, index, limits: Limits::default() }
    }

    /// Replaces the server's limits by the service's own.
    pub fn limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// The method called.
    #[must_use]
    pub fn method(&self) -> &'static MethodDescriptor {
        self.method
    }

    /// Handles a unary call: decodes the request from the ring, polls the handler once at once, and responds if it
    /// is ready. A method whose handlers are known to take long is left to the runtime.
    pub fn unary<T, C, F>(self, service: &Arc<T>, codec: C, handler: F) -> Handling
    where
        T: Send + Sync + 'static,
        C: Codec,
        F: for<'a> FnOnce(&'a T, Request<C::Decode>) -> BoxFuture<'a, Result<Response<C::Encode>, Status>>
            + Send
            + 'static,
    {
        let Self { reply, frame, method, index, limits } = self;
        let flags = frame.header().flags;
        let deadline = flags
            .contains(Flags::DEADLINE)
            .then(|| reply.started + Duration::from_micros(u64::from(frame.header().time)));
        let request = match reply.decode(frame, codec, &limits) {
            Ok(request) => request,
            Err(status) => return reply.error(status),
        };
        let waiting = Waiting { deadline, method, codec, limits };
        if reply.pace(index).computes() {
            let (service, reply) = (Arc::clone(service), Reply { inline: false, ..reply });
            return Handling::Pending(Box::pin(async move {
                if waiting.is_late() {
                    return reply.error(waiting.late()).finish().await;
                }
                let mut future = match HandlerFuture::start(&service, |service| handler(service, request)) {
                    Ok(future) => future,
                    Err(status) => return reply.error(status).finish().await,
                };
                let pace = reply.pace(index);
                let first = poll_fn(|cx| Poll::Ready(pace.timed(|| Pin::new(&mut future).poll(cx)))).await;
                match first {
                    Poll::Ready(result) => reply.ended(result, codec, &waiting.limits).finish().await,
                    Poll::Pending => waiting.wait(reply, future).await,
                }
            }));
        }
        let start = reply.pace(index).start();
        let mut future = match HandlerFuture::start(service, |service| handler(service, request)) {
            Ok(future) => future,
            Err(status) => return reply.error(status),
        };
        // Nobody needs to be woken: if it is not ready it is polled again, by the runtime.
        let first = Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop()));
        let spent = reply.started.elapsed();
        reply.pace(index).took(&start, reply.connection.spend(spent));
        match first {
            Poll::Ready(result) => {
                Reply { spent: Some(spent), ..reply }.ended(result, codec, &waiting.limits)
            }
            Poll::Pending => {
                let reply = Reply { inline: false, ..reply };
                Handling::Pending(Box::pin(waiting.wait(reply, future)))
            }
        }
    }

    /// Answers that streaming methods are not carried by Ringmail's links; they work over gRPC.
    #[must_use]
    pub fn streaming(self) -> Handling {
        let path = self.method.path;
        self.reply.error(Status::unimplemented(format!(
            "{path} is a streaming method; this version of Ringmail carries unary calls only"
        )))
    }

    /// Answers that the method does not exist.
    #[must_use]
    pub fn unknown_method(self) -> Handling {
        let status = Status::unimplemented(format!("{} is not implemented by this server", self.method.path));
        self.reply.error(status)
    }
}

/// A call whose handler has not ended at once.
struct Waiting<C> {
    deadline: Option<Instant>,
    method: &'static MethodDescriptor,
    codec: C,
    limits: Limits,
}

impl<C: Codec> Waiting<C> {
    fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= Instant::now())
    }

    fn late(&self) -> Status {
        deadline_exceeded(&format!("while the server worked on {}", self.method.path))
    }

    /// Waits for the handler until the deadline, and answers.
    async fn wait<T: Send + Sync + 'static>(
        self,
        reply: Reply,
        future: HandlerFuture<T, Result<Response<C::Encode>, Status>>,
    ) {
        let ended = match self.deadline {
            None => future.await,
            Some(deadline) => {
                tokio::time::timeout_at(deadline.into(), future).await.unwrap_or_else(|_| Err(self.late()))
            }
        };
        reply.ended(ended, self.codec, &self.limits).finish().await;
    }
}

/// Where the answer of a call goes.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    pub(super) connection: Arc<Connection>,
    pub(super) call: CallId,
    pub(super) started: Instant,
    /// How long it took, where that is known already.
    pub(super) spent: Option<Duration>,
    /// The lane's turn is not over: what is committed leaves at its end.
    pub(super) inline: bool,
}

impl Reply {
    /// The answer to a call that is received in this turn of its lane.
    pub(super) fn new(connection: &Arc<Connection>, call: CallId, started: Instant) -> Self {
        Self { connection: Arc::clone(connection), call, started, spent: None, inline: true }
    }

    fn pace(&self, method: usize) -> &Pace {
        &self.connection.shared.methods[method].pace
    }

    fn decode<C: Codec>(
        &self,
        mut frame: Incoming,
        codec: C,
        limits: &Limits,
    ) -> Result<Request<C::Decode>, Status> {
        let mut request = Request::new(());
        if frame.header().flags.contains(Flags::METADATA) {
            let (block, length) = Block::read(frame.payload()).map_err(|error| self.broken(error))?;
            *request.metadata_mut() = block.metadata;
            frame.advance(length);
        }
        if self.connection.shared.connect_info {
            request.extensions_mut().insert(PeerAddr(self.connection.peer));
        }
        let limit =
            limits.max_decoding_message_size.unwrap_or(self.connection.shared.max_message_bytes) as u64;
        let length = frame.payload().len() as u64;
        if length > limit {
            return Err(too_large("request", length, limit, "of the server (max_decoding_message_size)"));
        }
        match codec.decode(Payload::new(frame)) {
            Ok(message) => Ok(request.map(|()| message)),
            Err(error) => Err(Status::internal(format!("the request cannot be decoded: {error}"))),
        }
    }

    fn broken(&self, error: FrameError) -> Status {
        self.connection.endpoint.fail(error.into());
        Status::internal(error.to_string())
    }

    fn outgoing<'a>(&self, code: Code, entries: Entries<'a>) -> Outgoing<'a> {
        let spent = self.spent.unwrap_or_else(|| self.started.elapsed());
        Outgoing {
            kind: Kind::Response,
            flags: Flags::END,
            method_or_status: code as u16,
            call: self.call,
            time: u32::try_from(spent.as_micros()).unwrap_or(u32::MAX),
            entries,
            before_last: None,
        }
    }

    /// Responds with how the handler ended.
    fn ended<C: Codec>(
        self,
        ended: Result<Result<Response<C::Encode>, Status>, Status>,
        codec: C,
        limits: &Limits,
    ) -> Handling {
        match ended {
            Ok(result) => self.result(result, codec, limits),
            Err(status) => self.error(status),
        }
    }

    /// Responds with what the handler returned.
    fn result<C: Codec>(
        self,
        result: Result<Response<C::Encode>, Status>,
        codec: C,
        limits: &Limits,
    ) -> Handling {
        let response = match result {
            Ok(response) => response,
            Err(status) => return self.error(status),
        };
        let length = codec.encoded_len(response.get_ref());
        let own = limits.max_encoding_message_size.unwrap_or(usize::MAX) as u64;
        if length as u64 > own {
            return self.error(too_large(
                "response",
                length as u64,
                own,
                "of the server (max_encoding_message_size)",
            ));
        }
        let theirs = self.connection.peer_max_message_bytes;
        if length as u64 > theirs {
            let whose = "that the client announced (max_message_size of its channel)";
            return self.error(too_large("response", length as u64, theirs, whose));
        }
        let entries = Entries::metadata(response.metadata());
        if let Err(status) = self.check_metadata(&entries) {
            return self.error(status);
        }
        let give_back = || self.connection.give_place_back(self.call);
        let outgoing =
            Outgoing { before_last: self.holds_place(&give_back), ..self.outgoing(Code::Ok, entries) };
        match outgoing.try_message(&self.connection.endpoint, codec, response.get_ref(), length) {
            Attempt::Committed => self.committed(),
            Attempt::Full | Attempt::TooLarge => Handling::Pending(Box::pin(async move {
                let (metadata, message, _) = response.into_parts();
                let outgoing = self.outgoing(Code::Ok, Entries::metadata(&metadata));
                let give_back = || self.connection.give_place_back(self.call);
                let outgoing = Outgoing { before_last: Some(&give_back), ..outgoing };
                // Fails only with the connection: then there is nobody to answer.
                let _ = outgoing.message(&self.connection.endpoint, codec, message, length).await;
            })),
        }
    }

    /// What is to be done before the answer leaves: calls that are answered within the turn have taken no place.
    fn holds_place<'a>(
        &self,
        give_back: &'a (dyn Fn() + Send + Sync),
    ) -> Option<&'a (dyn Fn() + Send + Sync)> {
        (!self.inline).then_some(give_back)
    }

    fn committed(&self) -> Handling {
        if !self.inline {
            self.connection.endpoint.flush();
        }
        Handling::Done
    }

    fn check_metadata(&self, entries: &Entries<'_>) -> Result<(), Status> {
        let bytes = entries.len();
        let (limit, whose) = metadata_block::limit(self.connection.endpoint.frame_limit());
        if bytes <= limit {
            return Ok(());
        }
        Err(too_large("response's metadata", bytes as u64, limit as u64, whose))
    }

    /// Responds with a status, or as much of it as fits.
    pub(super) fn error(self, status: Status) -> Handling {
        let status = excess::cut(status, metadata_block::limit(self.connection.endpoint.frame_limit()));
        let entries = Entries::status(&status);
        let give_back = || self.connection.give_place_back(self.call);
        let outgoing =
            Outgoing { before_last: self.holds_place(&give_back), ..self.outgoing(status.code(), entries) };
        match outgoing.try_bare(&self.connection.endpoint) {
            Attempt::Committed => self.committed(),
            Attempt::Full | Attempt::TooLarge => Handling::Pending(Box::pin(async move {
                let give_back = || self.connection.give_place_back(self.call);
                let outgoing = self.outgoing(status.code(), Entries::status(&status));
                let outgoing = Outgoing { before_last: Some(&give_back), ..outgoing };
                // As above.
                let _ = outgoing.bare(&self.connection.endpoint).await;
            })),
        }
    }
}
