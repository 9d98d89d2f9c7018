//! The TCP link: bytes straight from the staging ring to the socket, and from the socket into the mailbox.
//!
//! The ring travels as it is, padding included, so a byte's offset in the stream is its position in the ring, and
//! one system call moves as many frames as have been committed.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::task::{Context, Poll};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};

use super::readiness::Readiness;
use super::sleep::Pause;
use super::{Arrived, Flushed, Interest, Link, LinkError, LinkKind};
use crate::ring::{Acknowledge, BLOCK, Mailbox, Position, Staging};

/// A connected, non-blocking stream socket as a link.
#[derive(Debug)]
pub struct TcpLink {
    /// Exists only while somebody may sleep: while both sides spin, each arrival would otherwise wake the runtime's
    /// thread for nothing.
    readiness: Mutex<Readiness>,
    /// Holds while the mailbox is full, so that the socket is not read.
    pause: Pause,
    socket: Arc<OwnedFd>,
    /// Bytes handed to the kernel so far.
    sent: AtomicU64,
    /// Bytes taken from the kernel so far.
    received: AtomicU64,
    /// The last read took all there was, so that what comes next is a new event.
    drained: AtomicBool,
}

impl TcpLink {
    /// A link over a connected socket, which is made non-blocking and no-delay.
    ///
    /// # Errors
    /// When the socket's options cannot be set.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        // A unix socket has no such option, and no such delay.
        match rustix::net::sockopt::set_tcp_nodelay(&socket, true) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOPROTOOPT) => {}
            Err(errno) => return Err(errno.into()),
        }
        let socket = Arc::new(socket);
        let interest = tokio::io::Interest::READABLE | tokio::io::Interest::WRITABLE;
        Ok(Self {
            readiness: Mutex::new(Readiness::new(LinkKind::Tcp, Arc::clone(&socket), interest)),
            pause: Pause::new(),
            socket,
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            drained: AtomicBool::new(false),
        })
    }

    /// Reads what is there into the mailbox's free space.
    fn receive(&self, mailbox: &Mailbox) -> Result<Arrived, LinkError> {
        let received = self.received.load(Ordering::Relaxed);
        let (start, room) = mailbox.room(received);
        if room == 0 {
            if self.pause.begin_unless(|| mailbox.room(received).1 > 0) {
                return Ok(Arrived { produced: Position(received / BLOCK as u64) });
            }
            return self.receive(mailbox);
        }
        // SAFETY: the `room` bytes from `start` on are free space of the mailbox: released by all frames, not yet
        // announced, and written by nobody but this link, whose polls do not overlap.
        let free = unsafe { std::slice::from_raw_parts_mut(start.cast::<std::mem::MaybeUninit<u8>>(), room) };
        match rustix::net::recv(&self.socket, free, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => Err(LinkError::PeerClosed),
            Ok((_, count)) => {
                self.drained.store(count < room, Ordering::Relaxed);
                let received = received + count as u64;
                self.received.store(received, Ordering::Relaxed);
                Ok(Arrived { produced: Position(received / BLOCK as u64) })
            }
            Err(Errno::INTR) => self.receive(mailbox),
            Err(Errno::AGAIN) => {
                self.drained.store(true, Ordering::Relaxed);
                Ok(Arrived { produced: Position(received / BLOCK as u64) })
            }
            Err(errno) => Err(Self::failed("recv", errno)),
        }
    }

    /// The peer's address; `None` when it is none of IP, or the peer has gone.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        rustix::net::getpeername(&self.socket).ok().flatten()?.try_into().ok()
    }

    /// Sends bytes that belong to no ring; how many were taken, 0 when the socket has no room.
    pub(super) fn send_bytes(&self, bytes: &[u8]) -> Result<usize, LinkError> {
        loop {
            match rustix::net::send(&self.socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(count) => return Ok(count),
                Err(Errno::AGAIN) => return Ok(0),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Self::failed("send", errno)),
            }
        }
    }

    /// Receives bytes that belong to no ring; how many came, 0 when there are none yet.
    pub(super) fn receive_bytes(&self, into: &mut [u8]) -> Result<usize, LinkError> {
        loop {
            return match rustix::net::recv(&self.socket, &mut *into, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => Err(LinkError::PeerClosed),
                Ok((count, _)) => {
                    // Of what there may be besides nobody wants to know yet.
                    self.drained.store(count == into.len(), Ordering::Relaxed);
                    Ok(count)
                }
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => {
                    self.drained.store(true, Ordering::Relaxed);
                    Ok(0)
                }
                Err(errno) => Err(Self::failed("recv", errno)),
            };
        }
    }

    /// Bytes of the ring taken from the kernel so far, in which those count as taken that came another way.
    pub(super) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// What comes from here on is not for the mailbox, so that it does not matter whether that has room; if anybody wants to
    /// know of it yet.
    pub(super) fn leave_mailbox(&self, wanted: bool) {
        self.pause.end();
        self.drained.store(!wanted, Ordering::Relaxed);
    }

    /// What comes next belongs at this position of the mailbox.
    pub(super) fn resume_receiving(&self, position: Position) {
        self.received.store(position.0 * BLOCK as u64, Ordering::Relaxed);
        self.drained.store(false, Ordering::Relaxed);
    }

    /// What is sent next comes from this position of the staging ring.
    pub(super) fn resume_sending(&self, position: Position) {
        self.sent.store(position.0 * BLOCK as u64, Ordering::Release);
    }

    /// What it means that a system call on a connection's TCP socket failed.
    #[must_use]
    pub fn failed(call: &'static str, errno: Errno) -> LinkError {
        match errno {
            Errno::CONNRESET | Errno::PIPE => LinkError::PeerClosed,
            // Given up by TCP, with what it last heard from the network if it heard anything.
            Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::NETUNREACH => LinkError::Silent { errno },
            errno => LinkError::System { kind: LinkKind::Tcp, call, errno },
        }
    }
}

impl Link for TcpLink {
    fn kind(&self) -> LinkKind {
        LinkKind::Tcp
    }

    fn announces_whole_frames(&self) -> bool {
        false
    }

    fn flush(&self, staging: &Staging, from: Position, to: Position) -> Result<Flushed, LinkError> {
        let mut sent = self.sent.load(Ordering::Relaxed);
        let end = to.0 * BLOCK as u64;
        let bytes = staging.bytes(from, to);
        let mut blocked = false;
        while sent < end {
            let rest = &bytes[(sent - from.0 * BLOCK as u64) as usize..];
            match rustix::net::send(&self.socket, rest, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(count) => sent += count as u64,
                Err(Errno::AGAIN) => {
                    blocked = true;
                    break;
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Self::failed("send", errno)),
            }
        }
        self.sent.store(sent, Ordering::Release);
        // Sending frees: whoever begins to wait for space sees it, or is seen by who flushes.
        fence(Ordering::SeqCst);
        Ok(Flushed { until: Position(sent / BLOCK as u64), blocked })
    }

    fn freed(&self, _sealed: Position) -> Result<Position, LinkError> {
        // The kernel has its own copy of what was sent.
        Ok(Position(self.sent.load(Ordering::Acquire) / BLOCK as u64))
    }

    fn frees_by_header(&self) -> bool {
        false
    }

    fn poll(&self, mailbox: &Mailbox, _known: Position) -> Result<Arrived, LinkError> {
        self.receive(mailbox)
    }

    fn arm(&self, cx: &mut Context<'_>, interest: Interest) -> Poll<Result<(), LinkError>> {
        let mut readiness = self.readiness.lock();
        let mut ready = false;
        // Nothing is read while the mailbox is full; `acknowledge` wakes.
        if self.pause.poll_over(cx).is_ready() {
            if !self.drained.load(Ordering::Relaxed) {
                ready = true;
            } else if let Poll::Ready(result) = readiness.poll(cx, false) {
                result?;
                ready = true;
            }
        }
        // Always: a flush that comes later may find the socket full, and only a task registered here is woken.
        if let Poll::Ready(result) = readiness.poll(cx, true) {
            result?;
            ready |= interest.blocked;
            if let Poll::Ready(result) = readiness.poll(cx, true) {
                result?;
                ready = true;
            }
        }
        if ready { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn woken(&self) {
        self.readiness.lock().clear();
    }

    fn starve(&self, _freed: Position) -> bool {
        // Space comes back by sending, and whoever sends wakes those who wait.
        false
    }

    fn fed(&self) {}

    fn disarm(&self) {}

    fn rest(&self) {
        self.readiness.lock().rest();
    }

    fn close(&self) {
        // Fails only when the peer has closed already.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }
}

impl Acknowledge for TcpLink {
    fn acknowledge(&self, _consumed: Position) {
        self.pause.end();
    }
}
