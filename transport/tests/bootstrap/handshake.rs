//! The handshake in which memory is shared, with clients that break it.

use std::fs::File;
use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use ringmail_transport::link::shm::{Expectation, ShmListener, Token};
use ringmail_transport::memory::Region;
use ringmail_transport::ring::RingSize;
use rustix::event::EventfdFlags;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use tokio::task::JoinHandle;

const TIMEOUT: Duration = Duration::from_millis(300);

struct Listening {
    listener: Arc<ShmListener>,
    running: JoinHandle<()>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.running.abort();
    }
}

fn size() -> RingSize {
    RingSize::new(RingSize::MIN).unwrap()
}

impl Listening {
    fn start() -> Self {
        let (listener, socket) = ShmListener::bind().unwrap();
        let running = tokio::spawn(Arc::clone(&listener).run(socket, TIMEOUT));
        Self { listener, running }
    }

    fn expect(&self) -> Expectation {
        self.listener.expect(size()).unwrap()
    }

    /// Sends a message with descriptors; what the server answers before it hangs up or falls silent.
    async fn offer(&self, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> Vec<u8> {
        let address = SocketAddr::from_abstract_name(self.listener.name()).unwrap();
        let mut client = UnixStream::connect_addr(&address).unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
        }
        let message = [IoSlice::new(message)];
        rustix::net::sendmsg(&client, &message, &mut control, SendFlags::NOSIGNAL).unwrap();
        client.set_read_timeout(Some(2 * TIMEOUT)).unwrap();
        let answer = tokio::task::spawn_blocking(move || {
            let mut answer = Vec::new();
            // The descriptors that come along are not taken; a reset is an end, too.
            let _ = client.read_to_end(&mut answer);
            answer
        });
        answer.await.unwrap()
    }
}

fn message(token: Token) -> Vec<u8> {
    [b"RMSHM\0\0\x01", &token.0[..]].concat()
}

fn event(flags: EventfdFlags) -> OwnedFd {
    rustix::event::eventfd(0, flags).unwrap()
}

/// What an honest client passes.
fn honest() -> (Region, OwnedFd) {
    (Region::create(size()).unwrap(), event(EventfdFlags::NONBLOCK))
}

/// That the server has refused whoever came, without an answer.
async fn refused(expected: &mut Expectation, answer: &[u8]) {
    assert!(answer.is_empty(), "it was answered");
    let end = tokio::time::timeout(Duration::from_millis(20), expected.end()).await;
    assert!(!matches!(end, Ok(Some(_))), "it was let in");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_honest_client_gets_the_servers_memory() {
    let listening = Listening::start();
    let mut expected = listening.expect();
    let (region, event) = honest();
    let offered = message(expected.token());
    let answer = listening.offer(&offered, &[region.file(), event.as_fd()]).await;
    assert_eq!(answer, offered, "the server echoes the token");
    assert_eq!(expected.end().await.unwrap().theirs.size(), size());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_good_once() {
    let listening = Listening::start();
    let mut expected = listening.expect();
    let (region, event) = honest();
    let offered = message(expected.token());
    assert!(!listening.offer(&offered, &[region.file(), event.as_fd()]).await.is_empty());
    assert!(expected.end().await.is_some());
    let answer = listening.offer(&offered, &[region.file(), event.as_fd()]).await;
    assert!(answer.is_empty(), "a token was good twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_and_forgotten_tokens_are_refused() {
    let listening = Listening::start();
    let mut expected = listening.expect();
    let (region, event) = honest();
    let answer = listening.offer(&message(Token([3; 16])), &[region.file(), event.as_fd()]).await;
    refused(&mut expected, &answer).await;
    let forgotten = message(expected.token());
    drop(expected);
    assert!(listening.offer(&forgotten, &[region.file(), event.as_fd()]).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_are_not_the_handshake_are_refused() {
    let listening = Listening::start();
    let mut expected = listening.expect();
    let (region, event) = honest();
    let good = message(expected.token());
    let mut other_magic = good.clone();
    other_magic[0] = b'X';
    for said in [&good[..10], &other_magic, b"GET / HTTP/1.1\r\n\r\n"] {
        let answer = listening.offer(said, &[region.file(), event.as_fd()]).await;
        refused(&mut expected, &answer).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn exactly_two_descriptors_are_taken() {
    let listening = Listening::start();
    let (region, event) = honest();
    let (file, event) = (region.file(), event.as_fd());
    for descriptors in [&[][..], &[file], &[file, event, event], &[file; 8]] {
        let mut expected = listening.expect();
        let answer = listening.offer(&message(expected.token()), descriptors).await;
        refused(&mut expected, &answer).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_non_blocking_event_descriptor_is_slept_on() {
    let listening = Listening::start();
    let (region, _) = honest();
    let pipe = OwnedFd::from(std::io::pipe().unwrap().0);
    let null = OwnedFd::from(File::open("/dev/null").unwrap());
    // The first would block whoever wakes its owner.
    for other in [event(EventfdFlags::empty()), pipe, null, region.file().try_clone_to_owned().unwrap()] {
        let mut expected = listening.expect();
        let answer = listening.offer(&message(expected.token()), &[region.file(), other.as_fd()]).await;
        refused(&mut expected, &answer).await;
    }
}

fn memory(bytes: u64, seals: SealFlags) -> OwnedFd {
    let file = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, bytes).unwrap();
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    file
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_that_could_be_taken_away_is_not_mapped() {
    let listening = Listening::start();
    let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    let whole = (4096 + RingSize::MIN) as u64;
    let null = OwnedFd::from(File::open("/dev/null").unwrap());
    for file in [
        memory(whole, SealFlags::empty()),
        memory(whole, all - SealFlags::SHRINK),
        memory(whole, all - SealFlags::SEAL),
        memory(whole - 4096, all),
        memory(0, all),
        null,
    ] {
        let mut expected = listening.expect();
        let event = event(EventfdFlags::NONBLOCK);
        listening.offer(&message(expected.token()), &[file.as_fd(), event.as_fd()]).await;
        assert!(expected.end().await.is_none(), "its memory was mapped");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_says_nothing_is_let_go() {
    let listening = Listening::start();
    let address = SocketAddr::from_abstract_name(listening.listener.name()).unwrap();
    let mut silent = UnixStream::connect_addr(&address).unwrap();
    silent.set_read_timeout(Some(4 * TIMEOUT)).unwrap();
    let said = tokio::task::spawn_blocking(move || silent.read(&mut [0]));
    assert_eq!(said.await.unwrap().expect("the server still waits"), 0);
}
