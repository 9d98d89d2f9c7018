//! How two processes come to share memory: an abstract unix socket, a token, and passed descriptors.
//!
//! The TCP bootstrap tells the client the socket's name and a single-use token. Over the socket each side checks
//! the other's credentials, then hands over its sealed memory file and its event descriptor. The socket's name is
//! abstract: it lives in no file system and vanishes with the server.

use std::collections::HashMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener as StdUnixListener, UnixStream as StdUnixStream};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;

use super::new_event;
use crate::bootstrap::hello::HostIdentity;
use crate::memory::{MemoryError, Region};
use crate::ring::RingSize;
use crate::spare::{Spare, is_out_of_descriptors};

/// First bytes on the socket, both ways.
const MAGIC: &[u8; 8] = b"RMSHM\0\0\x01";
/// Magic and token.
const MESSAGE: usize = 8 + 16;
/// Time between attempts to connect to a listener whose backlog is full.
const BACKLOG_PAUSE: std::time::Duration = std::time::Duration::from_millis(2);

/// A single-use secret that ties the socket's handshake to a bootstrap connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token(pub [u8; 16]);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(secret)")
    }
}

/// Why two processes did not come to share memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// A system call failed.
    #[error("{call} failed on the shared-memory socket: {source}")]
    System {
        /// The system call.
        call: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The other process runs as another user.
    #[error(
        "the peer process runs as uid {peer}, this one as uid {own}; shared memory is only used between processes of one user"
    )]
    OtherUser {
        /// The peer's user id.
        peer: u32,
        /// Our own.
        own: u32,
    },
    /// The other side did not follow the handshake.
    #[error("the peer broke the shared-memory handshake: {0}")]
    Broken(&'static str),
    /// Memory could not be made or accepted.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

fn system(call: &'static str) -> impl FnOnce(io::Error) -> HandshakeError {
    move |source| HandshakeError::System { call, source }
}

/// What a process needs to run its end of a shared-memory link.
#[derive(Debug)]
pub struct ShmEnd {
    /// The region that this process writes: its staging ring.
    pub ours: Arc<Region>,
    /// The region that the peer writes: this process's mailbox.
    pub theirs: Arc<Region>,
    /// This process sleeps on it.
    pub our_event: OwnedFd,
    /// The peer sleeps on it.
    pub their_event: OwnedFd,
}

/// What this process tells a peer so that both can see whether they share a host.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn same_host_identity() -> io::Result<HostIdentity> {
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
    let net_namespace = std::fs::read_link("/proc/self/ns/net")?.to_string_lossy().into_owned();
    Ok(HostIdentity { boot_id, net_namespace, uid: rustix::process::geteuid().as_raw() })
}

/// Why a peer with this identity cannot share memory with us; `None` when it can.
#[must_use]
pub fn offer_refusal(own: &HostIdentity, peer: &HostIdentity) -> Option<String> {
    if own.boot_id != peer.boot_id {
        return Some("the peer runs on another host".to_owned());
    }
    if own.net_namespace != peer.net_namespace {
        return Some(format!(
            "the peer runs on this host in another network namespace ({} there, {} here); share the namespace \
             (for containers: host network, or one pod) to use shared memory",
            peer.net_namespace, own.net_namespace
        ));
    }
    if own.uid != peer.uid {
        let error = HandshakeError::OtherUser { peer: peer.uid, own: own.uid };
        return Some(error.to_string());
    }
    None
}

/// The server's side: a listening abstract socket and the tokens that it expects.
#[derive(Debug)]
pub struct ShmListener {
    name: String,
    expected: Mutex<HashMap<Token, Expected>>,
    spare: Spare,
}

#[derive(Debug)]
struct Expected {
    size: RingSize,
    done: oneshot::Sender<ShmEnd>,
}

impl ShmListener {
    /// Listens on a fresh abstract name. The returned socket is for [`ShmListener::run`].
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub fn bind() -> Result<(Arc<Self>, UnixListener), HandshakeError> {
        let mut random = [0u8; 8];
        getrandom::fill(&mut random).map_err(|e| system("getrandom")(io::Error::other(e)))?;
        let name = format!("ringmail-{}-{:016x}", std::process::id(), u64::from_le_bytes(random));
        let address = SocketAddr::from_abstract_name(&name).map_err(system("bind"))?;
        let socket = StdUnixListener::bind_addr(&address).map_err(system("bind"))?;
        socket.set_nonblocking(true).map_err(system("ioctl"))?;
        let socket = UnixListener::from_std(socket).map_err(system("epoll_ctl"))?;
        Ok((Arc::new(Self { name, expected: Mutex::default(), spare: Spare::new() }), socket))
    }

    /// The abstract name, without its leading NUL.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The descriptor with which it turns clients away when there are none left.
    pub(crate) fn spare(&self) -> &Spare {
        &self.spare
    }

    /// Expects a client with the returned token; what it brings arrives at the receiver. Dropping the
    /// [`Expectation`] forgets the token.
    ///
    /// # Errors
    /// When no random token can be had.
    pub fn expect(self: &Arc<Self>, size: RingSize) -> Result<Expectation, HandshakeError> {
        let mut token = [0u8; 16];
        getrandom::fill(&mut token).map_err(|e| system("getrandom")(io::Error::other(e)))?;
        let token = Token(token);
        let (done, end) = oneshot::channel();
        self.expected.lock().insert(token, Expected { size, done });
        Ok(Expectation { listener: Arc::clone(self), token, end })
    }

    /// Accepts clients until the future is dropped. Each handshake is bounded by `timeout`.
    pub async fn run(self: Arc<Self>, socket: UnixListener, timeout: std::time::Duration) {
        loop {
            match socket.accept().await {
                Ok((stream, _)) => {
                    let listener = Arc::clone(&self);
                    tokio::spawn(async move {
                        match tokio::time::timeout(timeout, listener.serve(stream)).await {
                            Ok(Ok(())) => {}
                            Ok(Err(error)) => tracing::warn!(%error, "refused a shared-memory client"),
                            Err(_) => tracing::warn!(?timeout, "a shared-memory client fell silent"),
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "accepting a shared-memory client failed");
                    if is_out_of_descriptors(&error) {
                        // Who waited here would be told nothing. Closed, it tries another link.
                        self.spare.turn_one_away(socket.accept(), async |_| {}).await;
                    } else {
                        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                    }
                }
            }
        }
    }

    async fn serve(&self, stream: UnixStream) -> Result<(), HandshakeError> {
        check_peer(&stream)?;
        let (token, file, their_event) = receive(&stream).await?;
        let Some(expected) = self.expected.lock().remove(&token) else {
            return Err(HandshakeError::Broken("its token is unknown, expired or used before"));
        };
        let (ours, our_event) = (Region::create(expected.size)?, own_event()?);
        send(&stream, token, [ours.file(), our_event.as_fd()]).await?;
        let theirs = Region::open(file, expected.size)?;
        let end = ShmEnd { ours: Arc::new(ours), theirs: Arc::new(theirs), our_event, their_event };
        // Nobody waits any more when the bootstrap connection has ended.
        let _ = expected.done.send(end);
        Ok(())
    }
}

/// A token that a [`ShmListener`] waits for.
#[derive(Debug)]
pub struct Expectation {
    listener: Arc<ShmListener>,
    token: Token,
    end: oneshot::Receiver<ShmEnd>,
}

impl Expectation {
    /// The token to send to the client.
    #[must_use]
    pub fn token(&self) -> Token {
        self.token
    }

    /// Waits until the client has come and both have each other's memory. `None` when its handshake failed.
    pub async fn end(&mut self) -> Option<ShmEnd> {
        (&mut self.end).await.ok()
    }
}

impl Drop for Expectation {
    fn drop(&mut self) {
        self.listener.expected.lock().remove(&self.token);
    }
}

/// The client's side of the handshake.
///
/// # Errors
/// When the server cannot be reached, is another user's, or breaks the handshake.
pub(crate) async fn connect(name: &str, token: Token, size: RingSize) -> Result<ShmEnd, HandshakeError> {
    let stream = reach(name).await?;
    check_peer(&stream)?;
    let (ours, our_event) = (Region::create(size)?, own_event()?);
    send(&stream, token, [ours.file(), our_event.as_fd()]).await?;
    let (echoed, file, their_event) = receive(&stream).await?;
    if echoed != token {
        return Err(HandshakeError::Broken("it answered with another token"));
    }
    let theirs = Region::open(file, size)?;
    Ok(ShmEnd { ours: Arc::new(ours), theirs: Arc::new(theirs), our_event, their_event })
}

/// Connects without ever waiting in the kernel: for a listener whose backlog is full it would, holding the thread, and
/// the name came from the peer.
async fn reach(name: &str) -> Result<UnixStream, HandshakeError> {
    let failed = |errno: Errno| system("connect")(errno.into());
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(failed)?;
    loop {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(|errno| system("socket")(errno.into()))?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) => return UnixStream::from_std(StdUnixStream::from(socket)).map_err(system("epoll_ctl")),
            // The bootstrap's time-out is over all of this.
            Err(Errno::AGAIN) => tokio::time::sleep(BACKLOG_PAUSE).await,
            Err(errno) => return Err(failed(errno)),
        }
    }
}

fn own_event() -> Result<OwnedFd, HandshakeError> {
    new_event().map_err(|errno| system("eventfd")(errno.into()))
}

fn check_peer(stream: &UnixStream) -> Result<(), HandshakeError> {
    let peer = stream.peer_cred().map_err(system("getsockopt(SO_PEERCRED)"))?.uid();
    let own = rustix::process::geteuid().as_raw();
    if peer == own { Ok(()) } else { Err(HandshakeError::OtherUser { peer, own }) }
}

async fn send(stream: &UnixStream, token: Token, fds: [BorrowedFd<'_>; 2]) -> Result<(), HandshakeError> {
    let mut message = [0u8; MESSAGE];
    message[..8].copy_from_slice(MAGIC);
    message[8..].copy_from_slice(&token.0);
    let sent = stream
        .async_io(Interest::WRITABLE, || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let fits = control.push(SendAncillaryMessage::ScmRights(&fds));
            debug_assert!(fits);
            rustix::net::sendmsg(stream, &[IoSlice::new(&message)], &mut control, SendFlags::NOSIGNAL)
                .map_err(io::Error::from)
        })
        .await
        .map_err(system("sendmsg"))?;
    // The first message on a stream socket always fits its buffer.
    if sent == MESSAGE {
        Ok(())
    } else {
        Err(HandshakeError::Broken("the socket took only part of the message"))
    }
}

async fn receive(stream: &UnixStream) -> Result<(Token, OwnedFd, OwnedFd), HandshakeError> {
    let mut message = [0u8; MESSAGE];
    let (count, fds) = stream
        .async_io(Interest::READABLE, || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let received = rustix::net::recvmsg(
                stream,
                &mut [IoSliceMut::new(&mut message)],
                &mut control,
                RecvFlags::CMSG_CLOEXEC,
            )
            .map_err(io::Error::from)?;
            // Every descriptor is taken, so that surplus ones are closed.
            let mut fds = Vec::new();
            for received in control.drain() {
                if let RecvAncillaryMessage::ScmRights(passed) = received {
                    fds.extend(passed);
                }
            }
            Ok((received.bytes, fds))
        })
        .await
        // Closed with something unread, it is reset.
        .or_else(|error| match error.kind() {
            io::ErrorKind::ConnectionReset => Ok((0, Vec::new())),
            _ => Err(system("recvmsg")(error)),
        })?;
    if count == 0 {
        return Err(HandshakeError::Broken("it closed the socket instead of answering; its log says why"));
    }
    if count != MESSAGE || &message[..8] != MAGIC {
        return Err(HandshakeError::Broken("its message is not a shared-memory handshake"));
    }
    let [file, event] = <[OwnedFd; 2]>::try_from(fds).map_err(|_| {
        HandshakeError::Broken("it did not pass exactly a memory file and an event descriptor")
    })?;
    check_event(&event)?;
    let mut token = [0u8; 16];
    token.copy_from_slice(&message[8..]);
    Ok((Token(token), file, event))
}

/// A peer that passed something else than a non-blocking eventfd could make our wake-ups block.
fn check_event(event: &OwnedFd) -> Result<(), HandshakeError> {
    let flags = rustix::fs::fcntl_getfl(event).map_err(|errno| system("fcntl")(errno.into()))?;
    let target =
        rustix::fs::readlink(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(event)), Vec::new())
            .map_err(|errno: Errno| system("readlink")(errno.into()))?;
    if flags.contains(rustix::fs::OFlags::NONBLOCK) && target.as_bytes() == b"anon_inode:[eventfd]" {
        Ok(())
    } else {
        Err(HandshakeError::Broken("the second descriptor is not a non-blocking eventfd"))
    }
}
