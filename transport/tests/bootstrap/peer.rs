//! Peers that speak the bootstrap themselves, and so can say anything.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use ringmail_transport::bootstrap::hello::{Hello, MAGIC};
use ringmail_transport::bootstrap::{Acceptor, BootstrapError, Established, Settings};
use ringmail_transport::link::shm::ShmListener;
use ringmail_transport::ring::RingSize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// The bound on a handshake in these tests.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(400);

pub(crate) fn settings() -> Settings {
    Settings { ring: RingSize::new(RingSize::MIN).unwrap(), timeout: TIMEOUT, ..Settings::default() }
}

/// A server that accepts one connection.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    accepted: JoinHandle<Result<Established, BootstrapError>>,
    shm: JoinHandle<()>,
}

impl Server {
    pub(crate) async fn start(settings: Settings) -> Self {
        let (shm, socket) = ShmListener::bind().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let running = tokio::spawn(Arc::clone(&shm).run(socket, TIMEOUT));
        let accepted = tokio::spawn(async move {
            let acceptor = Acceptor::new(settings, vec!["/a.B/C".to_owned()], Some(shm));
            let (socket, peer) = listener.accept().await.unwrap();
            acceptor.accept(socket, peer).await
        });
        Self { address, accepted, shm: running }
    }

    /// What became of the connection, which must be decided soon.
    pub(crate) async fn outcome(self) -> Result<Established, BootstrapError> {
        let outcome = tokio::time::timeout(3 * TIMEOUT, self.accepted).await.expect("the server still waits");
        self.shm.abort();
        outcome.unwrap()
    }
}

/// A message as it travels.
pub(crate) fn framed(first: bool, message: &impl Message) -> Vec<u8> {
    let mut bytes = if first { MAGIC.to_vec() } else { Vec::new() };
    bytes.extend((message.encoded_len() as u32).to_le_bytes());
    message.encode(&mut bytes).unwrap();
    bytes
}

/// A server of another protocol, which takes a HELLO, says this and hangs up.
pub(crate) async fn impostor(says: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        // Closed with something unread, it would reset the connection, perhaps before it was heard.
        let _ = socket.read(&mut [0; 4096]).await;
        socket.write_all(says).await.unwrap();
    });
    address
}

/// A server that reads a HELLO, answers with one that is made from it, and leaves the socket to the test.
pub(crate) async fn answering(
    answer: impl FnOnce(Hello) -> Hello + Send + 'static,
) -> (SocketAddr, JoinHandle<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answered = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut head = [0; 12];
        socket.read_exact(&mut head).await.unwrap();
        assert_eq!(&head[..8], MAGIC);
        let mut hello = vec![0; u32::from_le_bytes(head[8..].try_into().unwrap()) as usize];
        socket.read_exact(&mut hello).await.unwrap();
        let hello = answer(Hello::decode(&*hello).unwrap());
        socket.write_all(&framed(true, &hello)).await.unwrap();
        socket
    });
    (address, answered)
}
