//! A process that shares memory, written from `docs/protocol.md` alone: it passes its descriptors by hand and reads and
//! writes the memory as a file, at the offsets given there.

use std::fs::File;
use std::io::{ErrorKind, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use prost::Message;
use ringmail_transport::bootstrap::hello::{Choice, Hello, HostIdentity};
use ringmail_transport::bootstrap::{Acceptor, Established, Settings};
use ringmail_transport::endpoint::Turn;
use ringmail_transport::frame::{Flags, Header, Kind};
use ringmail_transport::link::LinkKind;
use ringmail_transport::link::shm::ShmListener;
use ringmail_transport::ring::Room;
use rustix::event::EventfdFlags;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const DOCUMENT: &str = include_str!("../../docs/protocol.md");
/// Size of the rings.
const R: usize = 65_536;
const PRODUCED: u64 = 0;
const CONSUMED: u64 = 128;
const SLEEPING: u64 = 256;
const STARVING: u64 = 384;
const RING: u64 = 4_096;

/// The bytes of the document's example with this name.
fn example(name: &str) -> Vec<u8> {
    let (_, rest) = DOCUMENT.split_once(&format!("```text {name}\n")).expect("no such example");
    let (shown, _) = rest.split_once("```").expect("the end of the example");
    let digits: Vec<_> = shown.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

fn word(memory: &File, at: u64) -> u64 {
    let mut bytes = [0; 8];
    memory.read_exact_at(&mut bytes, at).unwrap();
    u64::from_le_bytes(bytes)
}

fn odd(memory: &File, at: u64) -> bool {
    word(memory, at) & 1 == 1
}

/// How often the event was written since it was last looked at.
fn wakes(event: &File) -> u64 {
    let mut count = [0; 8];
    match (&*event).read_exact(&mut count) {
        Ok(()) => u64::from_ne_bytes(count),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            0
        }
    }
}

/// A memory file with one frame in its ring, whose owner sleeps and waits for space. It can be written only before it is
/// sealed.
fn own_memory(frame: &[u8]) -> File {
    let memory = rustix::fs::memfd_create("golden", MemfdFlags::ALLOW_SEALING).unwrap();
    let memory = File::from(memory);
    memory.set_len(RING + R as u64).unwrap();
    memory.write_all_at(&1u64.to_le_bytes(), PRODUCED).unwrap();
    memory.write_all_at(&1u32.to_le_bytes(), SLEEPING).unwrap();
    memory.write_all_at(&1u32.to_le_bytes(), STARVING).unwrap();
    memory.write_all_at(frame, RING).unwrap();
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&memory, seals).unwrap();
    memory
}

/// Passes memory and event, and gets the other side's.
fn exchange(socket: &str, token: &[u8], memory: &File, event: &File) -> (File, OwnedFd) {
    let address = std::os::unix::net::SocketAddr::from_abstract_name(socket).unwrap();
    let stream = UnixStream::connect_addr(&address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut message = example("shm");
    message[8..].copy_from_slice(token);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [memory.as_fd(), event.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    rustix::net::sendmsg(&stream, &[IoSlice::new(&message)], &mut control, SendFlags::empty()).unwrap();

    let mut answer = [0; 64];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let buffers = &mut [IoSliceMut::new(&mut answer)];
    let received = rustix::net::recvmsg(&stream, buffers, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
    assert_eq!(answer[..received.bytes], message);
    let mut passed = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            passed.extend(descriptors);
        }
    }
    let [memory, event] = <[OwnedFd; 2]>::try_from(passed).expect("two descriptors");
    (File::from(memory), event)
}

/// What a `Hello` says of where this process runs.
fn host() -> HostIdentity {
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let net_namespace = std::fs::read_link("/proc/self/ns/net").unwrap();
    HostIdentity {
        boot_id: boot_id.trim_end().to_owned(),
        net_namespace: net_namespace.to_str().unwrap().to_owned(),
        uid: rustix::process::geteuid().as_raw(),
    }
}

struct Client {
    /// Open as long as the connection is.
    _tcp: TcpStream,
    event: File,
    theirs: File,
}

async fn connect(address: SocketAddr, frame: &[u8]) -> Client {
    let mut tcp = TcpStream::connect(address).await.unwrap();
    let example = example("hello");
    let hello = Hello { host: Some(host()), ..Hello::decode(&example[12..]).unwrap() };
    let mut bytes = example[..8].to_vec();
    bytes.extend((hello.encoded_len() as u32).to_le_bytes());
    bytes.extend(hello.encode_to_vec());
    tcp.write_all(&bytes).await.unwrap();
    tcp.read_exact(&mut [0; 8]).await.unwrap();
    let mut hello = vec![0; tcp.read_u32_le().await.unwrap() as usize];
    tcp.read_exact(&mut hello).await.unwrap();
    let offer = Hello::decode(&*hello).unwrap().shm.expect("an offer");

    let memory = own_memory(frame);
    let event = rustix::event::eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let event = File::from(event);
    let ours = event.try_clone().unwrap();
    let exchanged =
        tokio::task::spawn_blocking(move || exchange(&offer.socket, &offer.token, &memory, &ours));
    let (theirs, _their_event) = exchanged.await.unwrap();
    let choice = Choice { link: "shm".to_owned(), ..Choice::default() };
    let mut bytes = (choice.encoded_len() as u32).to_le_bytes().to_vec();
    bytes.extend(choice.encode_to_vec());
    tcp.write_all(&bytes).await.unwrap();
    Client { _tcp: tcp, event, theirs }
}

/// The transport's side of the connection, and ours, which has sent `frame`.
async fn connected(frame: &[u8]) -> (Established, Client) {
    let (shm, socket) = ShmListener::bind().unwrap();
    let running = tokio::spawn(Arc::clone(&shm).run(socket, Duration::from_secs(5)));
    let acceptor = Acceptor::new(Settings::default(), Vec::new(), Some(shm));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let accept = async {
        let (socket, peer) = listener.accept().await.unwrap();
        acceptor.accept(socket, peer).await.unwrap()
    };
    let both = async { tokio::join!(accept, connect(address, frame)) };
    let both = tokio::time::timeout(Duration::from_secs(20), both).await.expect("no connection in time");
    running.abort();
    assert_eq!(both.0.endpoint.link_kind(), LinkKind::Shm);
    both
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_is_shared_as_documented() {
    let (server, client) = connected(&example("request")).await;
    let Client { event, theirs, .. } = &client;
    assert_eq!(theirs.metadata().unwrap().len(), RING + R as u64);
    let seals = rustix::fs::fcntl_get_seals(theirs).unwrap();
    let needed = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    assert!(seals.contains(needed), "{seals:?}");
    assert_eq!([PRODUCED, CONSUMED, SLEEPING, STARVING].map(|at| word(theirs, at)), [0; 4]);

    // The frame that was there from the beginning.
    let mut request = None;
    let turn = server.endpoint.turn(&mut |frame| request = Some(frame)).unwrap();
    assert_eq!(turn, Turn::Frames(1));
    let request = request.unwrap();
    assert_eq!((request.header().kind, request.payload()), (Kind::Request, &b"\x0a\x02hi"[..]));
    assert_eq!((word(theirs, CONSUMED), wakes(event)), (0, 0));
    drop(request);
    assert_eq!((word(theirs, CONSUMED), wakes(event)), (1, 1), "who waits for space is woken");

    // The answer to it.
    let respond = || {
        let mut claim = server.endpoint.claim(36, Room::Data).unwrap();
        claim[32..].copy_from_slice(b"\x0a\x02hi");
        claim.commit(&Header { flags: Flags::END, ..Header::new(Kind::Response, 36) });
        server.endpoint.flush();
    };
    respond();
    assert_eq!((word(theirs, PRODUCED), wakes(event)), (1, 1), "who sleeps is woken");
    let mut response = [0; 36];
    theirs.read_exact_at(&mut response, RING).unwrap();
    assert_eq!(response[..], example("response"));
    respond();
    assert_eq!((word(theirs, PRODUCED), wakes(event)), (2, 0), "each wait is ended once");
}

#[tokio::test(flavor = "multi_thread")]
async fn words_say_who_sleeps_and_who_waits_for_space() {
    let (server, client) = connected(&example("request")).await;
    let endpoint = &server.endpoint;
    let theirs = &client.theirs;
    let mut cx = Context::from_waker(Waker::noop());
    assert_eq!(endpoint.turn(&mut drop).unwrap(), Turn::Frames(1));
    let mut sleeps = Vec::new();
    for _ in 0..3 {
        assert!(endpoint.arm(&mut cx).is_pending());
        assert!(odd(theirs, SLEEPING));
        sleeps.push(word(theirs, SLEEPING));
        assert_eq!(endpoint.turn(&mut drop).unwrap(), Turn::Frames(0));
        assert!(!odd(theirs, SLEEPING));
    }
    assert!(sleeps.is_sorted_by(|one, next| one < next), "no value comes twice: {sleeps:?}");

    while let Ok(claim) = endpoint.claim(R / 8, Room::Data) {
        claim.commit(&Header::new(Kind::Skip, R as u32 / 8));
    }
    assert!(!odd(theirs, STARVING));
    let mut waiting = std::pin::pin!(endpoint.claim_wait(R / 8, Room::Data));
    assert!(waiting.as_mut().poll(&mut cx).is_pending());
    assert!(odd(theirs, STARVING));
    let first = word(theirs, STARVING);
    // A second wait, while the first was perhaps ended already.
    let mut another = std::pin::pin!(endpoint.claim_wait(R / 8, Room::Data));
    assert!(another.as_mut().poll(&mut cx).is_pending());
    assert!(odd(theirs, STARVING) && word(theirs, STARVING) > first);
}
