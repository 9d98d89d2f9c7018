//! One unary call at the client: encode into the ring, wait, decode from the ring.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use ringmail_transport::endpoint::Turn;
use ringmail_transport::frame::{CallId, Flags, Kind};
use ringmail_transport::ring::Incoming;
use tokio::task::coop;
use tonic::{Code, Request, Response, Status};

use super::alarm;
use super::channel::Channel;
use super::connection::{Connection, Look};
use crate::codec::{Codec, Payload};
use crate::codegen::{Limits, MethodDescriptor};
use crate::error::{connection_lost, deadline_exceeded, too_large};
use crate::fragment::{Attempt, Outgoing};
use crate::metadata_block::{self, Block, Entries};
use crate::timeout;
use crate::wait::{SpinUntil, Wait};

/// Runs a unary call.
pub(super) async fn unary<C: Codec>(
    channel: &Channel,
    method: &'static MethodDescriptor,
    limits: &Limits,
    request: Request<C::Encode>,
    codec: C,
) -> Result<Response<C::Decode>, Status> {
    let timeout = timeout::from_metadata(request.metadata()).or(channel.default_timeout());
    let Some(timeout) = timeout else { return begin(channel, method, limits, request, codec, None).await };
    let exceeded = || deadline_exceeded(&format!("before {} was answered ({timeout:?})", method.path));
    if timeout.is_zero() {
        // Not even a connection is made for it.
        return Err(exceeded());
    }
    let deadline = Instant::now() + timeout;
    let call = pin!(begin(channel, method, limits, request, codec, Some(deadline)));
    let ended = if channel.runs_here() {
        tokio::time::timeout_at(deadline.into(), call).await.ok()
    } else {
        alarm::until(deadline, call).await.map_err(|error| {
            Status::resource_exhausted(format!("cannot start the thread that watches deadlines: {error}"))
        })?
    };
    ended.unwrap_or_else(|| Err(exceeded()))
}

async fn begin<C: Codec>(
    channel: &Channel,
    method: &'static MethodDescriptor,
    limits: &Limits,
    request: Request<C::Encode>,
    codec: C,
    deadline: Option<Instant>,
) -> Result<Response<C::Decode>, Status> {
    let connection = channel.ready().await?;
    if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
        return Err(deadline_exceeded(&format!("before {} was sent", method.path)));
    }
    let length = codec.encoded_len(request.get_ref());
    let index = check_request(&connection, method, limits, &request, length)?;
    let call = Call::begin(&connection).await;
    let (metadata, _, message) = request.into_parts();
    let outgoing = Outgoing {
        kind: Kind::Request,
        flags: match deadline {
            None => Flags::NONE,
            Some(_) => Flags::DEADLINE,
        },
        method_or_status: index,
        call: call.id,
        time: 0,
        entries: Entries::metadata(&metadata),
        before_last: None,
    };
    let outgoing = match deadline.map(|deadline| timeout::to_header(deadline, Instant::now())) {
        None => outgoing,
        Some(Some(time)) => Outgoing { time, ..outgoing },
        Some(None) => Outgoing { flags: Flags::NONE, ..outgoing },
    };
    let frame = match outgoing.try_message(&connection.endpoint, codec, &message, length) {
        Attempt::Committed => {
            connection.endpoint.flush();
            // The request is in the ring: what it held is free while the answer is awaited.
            drop(message);
            call.response().await?
        }
        Attempt::Full | Attempt::TooLarge => {
            let send = async {
                let bytes = outgoing.fragmented_bytes(&connection.endpoint, length);
                if bytes > 0 {
                    connection.take_fragment_room(call.id, bytes).await;
                }
                outgoing.message(&connection.endpoint, codec, message, length).await?;
                connection.give_fragment_room_back(call.id);
                Ok(())
            };
            call.response_while(send).await?
        }
    };
    decode(&connection, limits, frame, codec)
}

fn check_request<M>(
    connection: &Connection,
    method: &'static MethodDescriptor,
    limits: &Limits,
    request: &Request<M>,
    length: usize,
) -> Result<u16, Status> {
    let index = connection.method(method.path).ok_or_else(|| {
        Status::unimplemented(format!(
            "{} is not served at {} ({})",
            method.path, connection.peer, connection.software
        ))
    })?;
    let bytes = length as u64;
    let own = limits.max_encoding_message_size.unwrap_or(usize::MAX) as u64;
    if bytes > own {
        return Err(too_large("request", bytes, own, "of the client (max_encoding_message_size)"));
    }
    if bytes > connection.peer_max_message_bytes {
        let whose = "that the server announced (its max_message_size)";
        return Err(too_large("request", bytes, connection.peer_max_message_bytes, whose));
    }
    let metadata = Entries::metadata(request.metadata()).len();
    let (limit, whose) = metadata_block::limit(connection.endpoint.frame_limit());
    if metadata > limit {
        return Err(too_large("request's metadata", metadata as u64, limit as u64, whose));
    }
    Ok(index)
}

fn decode<C: Codec>(
    connection: &Connection,
    limits: &Limits,
    mut frame: Incoming,
    codec: C,
) -> Result<Response<C::Decode>, Status> {
    let code = Code::from_i32(i32::from(frame.header().method_or_status));
    let mut block = Block::default();
    if frame.header().flags.contains(Flags::METADATA) {
        let (read, length) = Block::read(frame.payload()).map_err(|error| {
            connection.fail(error.into());
            Status::internal(error.to_string())
        })?;
        block = read;
        frame.advance(length);
    }
    if code != Code::Ok {
        return Err(block.into_status(code));
    }
    if let Some(limit) = limits.max_decoding_message_size
        && frame.payload().len() > limit
    {
        let whose = "of the client (max_decoding_message_size)";
        return Err(too_large("response", frame.payload().len() as u64, limit as u64, whose));
    }
    let message = codec.decode(Payload::new(frame)).map_err(|error| {
        Status::internal(format!("the response of {} cannot be decoded: {error}", connection.peer))
    })?;
    Ok(Response::from_parts(block.metadata, message, tonic::Extensions::default()))
}

/// A call that has its place on the connection. Dropped before it was answered, it is cancelled.
struct Call<'a> {
    connection: &'a Arc<Connection>,
    id: CallId,
    answered: AtomicBool,
}

impl<'a> Call<'a> {
    async fn begin(connection: &'a Arc<Connection>) -> Self {
        Self { connection, id: connection.begin().await, answered: AtomicBool::new(false) }
    }

    /// Waits for the response.
    async fn response(&self) -> Result<Incoming, Status> {
        let mut first = true;
        std::future::poll_fn(|cx| {
            // A caller that polls for itself would never let go of its thread: now and then it does, with its call on
            // the way, so that timers fire and the calls of other tasks are found to overlap with this one.
            let share = ready!(coop::poll_proceed(cx));
            let poll = self.poll(cx, std::mem::take(&mut first));
            if poll.is_ready() {
                share.made_progress();
                self.answered.store(true, Ordering::Relaxed);
            }
            poll
        })
        .await
    }

    /// Waits for the response while the request is still being sent: it may come before, as a refusal does.
    async fn response_while(
        &self,
        send: impl Future<Output = Result<(), ringmail_transport::endpoint::SendError>>,
    ) -> Result<Incoming, Status> {
        let mut send = pin!(send);
        let mut sent = false;
        // Somebody must receive what frees the ring.
        self.connection.call_driver();
        std::future::poll_fn(|cx| {
            if !sent && let Poll::Ready(result) = send.as_mut().poll(cx) {
                sent = true;
                if let Err(error) = result {
                    self.answered.store(true, Ordering::Relaxed);
                    return Poll::Ready(Err(Status::unavailable(format!(
                        "the request to {} could not be sent: {error}",
                        self.connection.peer
                    ))));
                }
            }
            match self.connection.look(self.id, Some(cx.waker())) {
                Look::Ended(outcome) => {
                    self.answered.store(true, Ordering::Relaxed);
                    Poll::Ready(outcome)
                }
                Look::Waiting => {
                    self.connection.call_driver();
                    Poll::Pending
                }
            }
        })
        .await
    }

    fn poll(&self, cx: &mut Context<'_>, first: bool) -> Poll<Result<Incoming, Status>> {
        // Only who is alone polls: it holds the thread, and others may have to run on it.
        if (first || self.connection.spin.mode() == Wait::Busy)
            && let Some(outcome) = self.poll_link()
        {
            return Poll::Ready(outcome);
        }
        match self.connection.look(self.id, Some(cx.waker())) {
            Look::Ended(outcome) => return Poll::Ready(outcome),
            Look::Waiting => {}
        }
        if self.connection.spin.mode() == Wait::Busy && self.connection.in_flight() == 1 {
            // Other tasks of this thread get their turn, then it goes on.
            cx.waker().wake_by_ref();
        } else {
            self.connection.call_driver();
        }
        Poll::Pending
    }

    /// Receives for itself, as long as that pays.
    fn poll_link(&self) -> Option<Result<Incoming, Status>> {
        let connection = self.connection;
        if connection.in_flight() != 1 || !connection.spin.mode().lets_callers_poll() {
            return None;
        }
        if !connection.endpoint.staging().is_settled() {
            // The request waits for others to leave together; whoever holds it may need this thread.
            return None;
        }
        let budget = connection.spin.budget();
        if budget.is_zero() {
            return None;
        }
        if !connection.callers_poll.load(Ordering::Relaxed) {
            connection.callers_poll.store(true, Ordering::SeqCst);
            connection.driver.notify_one();
        }
        // Only ever compared with itself: a lost count does no harm.
        let polls = connection.caller_polls.load(Ordering::Relaxed);
        connection.caller_polls.store(polls.wrapping_add(1), Ordering::Relaxed);
        let outcome = self.spin(budget);
        if !connection.callers_poll.load(Ordering::SeqCst) {
            // The driver was called meanwhile and may have gone to sleep before the last turn, which took back what
            // would have woken it.
            connection.driver.notify_one();
        }
        outcome
    }

    fn spin(&self, budget: Duration) -> Option<Result<Incoming, Status>> {
        let connection = self.connection;
        let mut spin = SpinUntil::new(budget);
        loop {
            match connection.turn(Some(self.id)) {
                Ok((_, Some(frame))) => {
                    connection.spin.hit();
                    return Some(Ok(frame));
                }
                Ok((Turn::Frames(1..), None)) => {
                    if let Look::Ended(outcome) = connection.look(self.id, None) {
                        return Some(outcome);
                    }
                }
                Ok((Turn::Frames(0) | Turn::Busy, None)) => {}
                Err(reason) => return Some(Err(connection_lost(&connection.peer, &reason))),
            }
            if !spin.again() {
                connection.spin.miss();
                return None;
            }
            if connection.in_flight() != 1 {
                return None;
            }
        }
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if self.answered.load(Ordering::Relaxed) {
            self.connection.end(self.id);
        } else {
            self.connection.cancel(self.id);
        }
    }
}
