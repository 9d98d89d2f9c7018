//! The other side of the wire, written from `docs/protocol.md` alone: what the client sends, byte by byte, and what it
//! makes of bytes that it is sent. A change here is a change of the protocol.

mod support;

use std::time::Duration;

use ringmail::{Channel, Code, LinkKind, LinkPolicy};
use support::EchoClient;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// The example of a `Hello` in the documentation, with magic and length.
const HELLO: &str = "52494e474d41494c 0e000000 0801 1001 20808004 28808040 3010";
/// The request's example.
const REQUEST: &str = "24000000 01 00 0000 00000000 00000000 00000000 00000000 00000000 00000000 0a026869";
/// The response's example.
const RESPONSE: &str = "34000000 02 09 0500 00000000 00000000 01000000 00000000 00000000 00000000
                        10000000 0800 02000000 3a6d657373616765 6e6f";

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<_> = hex.chars().filter(|digit| !digit.is_whitespace()).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap()).collect()
}

fn padded(hex: &str) -> Vec<u8> {
    let mut block = bytes(hex);
    block.resize(block.len().next_multiple_of(64), 0);
    block
}

async fn message(socket: &mut TcpStream) -> Vec<u8> {
    let length = socket.read_u32_le().await.unwrap();
    let mut message = vec![0; length as usize];
    socket.read_exact(&mut message).await.unwrap();
    message
}

/// A server's `Hello`: the example, and one method (field 8).
fn server_hello() -> Vec<u8> {
    let example = bytes(HELLO);
    let path = b"/test.Echo/Echo";
    let mut body = example[12..].to_vec();
    body.extend([0x42, path.len() as u8]);
    body.extend(path);
    let mut hello = example[..8].to_vec();
    hello.extend((body.len() as u32).to_le_bytes());
    hello.extend(body);
    hello
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_speaks_as_documented() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut magic = [0; 8];
        socket.read_exact(&mut magic).await.unwrap();
        assert_eq!(&magic, b"RINGMAIL");
        let hello = message(&mut socket).await;
        assert_eq!(hello[..4], [0x08, 1, 0x10, 1], "versions 1 to 1 come first");
        socket.write_all(&server_hello()).await.unwrap();
        let choice = message(&mut socket).await;
        assert_eq!(choice[..5], [0x0a, 3, b't', b'c', b'p'], "the choice is tcp");
        let mut request = vec![0; 64];
        socket.read_exact(&mut request).await.unwrap();
        // What pads a frame to its block is not defined.
        assert_eq!(request[..36], bytes(REQUEST));
        socket.write_all(&padded(RESPONSE)).await.unwrap();
        // The client takes no more calls to this socket; it stays open until it closes.
        let _ = socket.read(&mut [0; 64]).await;
    });
    let work = async {
        let builder = Channel::builder(address.to_string()).link(LinkKind::Shm, LinkPolicy::Off);
        let channel = builder.connect().await.unwrap();
        assert_eq!(channel.link_info().ring_bytes, 65_536);
        let client = EchoClient::new(channel);
        let status = client.echo("hi").await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::NotFound, "no"));
        drop(client);
        server.await.unwrap();
    };
    tokio::time::timeout(Duration::from_secs(20), work).await.expect("the test did not end in time");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_breaks_a_rule_is_left_with_the_rule_named() {
    let breaches = [
        ("1f000000", "frame length 31 is below"),
        ("34000000 ff", "frame kind 255 is not known"),
        ("34000000 02 80", "flags 0b10000000"),
        ("34000000 02 09 0500 00000000 00000000 01000000 00000000 07000000", "sequence 7 where 0 was next"),
        ("34000000 02 09 0500 00000000 00000000 ff000000", "255 acknowledged where only"),
        ("34000000 01 08", "Request frame cannot be sent in this direction"),
        ("34000000 02 09 0500 00000000 00000000 01000000 00000000 00000000 01000000", "header check"),
    ];
    for (start, rule) in breaches {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await.unwrap();
            socket.read_exact(&mut [0; 8]).await.unwrap();
            message(&mut socket).await;
            socket.write_all(&server_hello()).await.unwrap();
            message(&mut socket).await;
            socket.read_exact(&mut [0; 64]).await.unwrap();
            let mut response = padded(RESPONSE);
            let start = bytes(start);
            response[..start.len()].copy_from_slice(&start);
            socket.write_all(&response).await.unwrap();
            let _ = socket.read(&mut [0; 64]).await;
        });
        let builder = Channel::builder(address.to_string()).link(LinkKind::Shm, LinkPolicy::Off);
        let client = EchoClient::new(builder.connect().await.unwrap());
        let status =
            tokio::time::timeout(Duration::from_secs(5), client.echo("hi")).await.unwrap().unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        assert!(status.message().contains(rule), "{rule:?} is not in {status}");
        assert!(status.message().contains(&address.to_string()), "{status}");
    }
}
