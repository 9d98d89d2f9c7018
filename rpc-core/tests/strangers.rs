//! Whoever speaks another protocol on a server's port, or none, gets a clear end; those who speak it notice nothing.

mod peers;
mod support;

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use peers::{Background, within};
use support::{EchoClient, LINKS, channel, server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const HANDSHAKE: Duration = Duration::from_millis(300);
/// How late an end may be noticed on a busy machine.
const LATE: Duration = Duration::from_millis(700);

/// Reads until the server ends the connection; what it said.
async fn until_end(mut stranger: TcpStream) -> Vec<u8> {
    let mut said = Vec::new();
    let end = tokio::time::timeout(HANDSHAKE + LATE, stranger.read_to_end(&mut said)).await;
    match end.expect("the server ends the connection in time") {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
    said
}

async fn say(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stranger = TcpStream::connect(address).await.expect("connect");
    stranger.write_all(bytes).await.expect("write");
    until_end(stranger).await
}

/// Does something while calls go on over both links; none may fail or be slow.
async fn beside_calls(address: SocketAddr, stranger: impl Future<Output = ()>) {
    let mut callers = Vec::new();
    let stop = Arc::new(AtomicBool::new(false));
    for kind in LINKS {
        let client = EchoClient::new(channel(address, kind).await);
        let stop = Arc::clone(&stop);
        callers.push(tokio::spawn(async move {
            let mut slowest = Duration::ZERO;
            while !stop.load(Ordering::Relaxed) {
                let started = Instant::now();
                assert_eq!(client.echo("among strangers").await.expect("echo"), "among strangers");
                slowest = slowest.max(started.elapsed());
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            // The same connection is still good.
            assert_eq!(client.echo("after strangers").await.expect("echo"), "after strangers");
            slowest
        }));
    }
    stranger.await;
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        let slowest = caller.await.expect("calls go on");
        assert!(slowest < LATE, "{slowest:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn http_clients_are_told_what_this_is() {
    within(20, async {
        let server = Background::start(server().handshake_timeout(HANDSHAKE));
        beside_calls(server.address, async {
            for request in [
                "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
                "POST /x HTTP/1.0\r\n\r\n",
                "OPTIONS * HTTP/1.1\r\n\r\n",
            ] {
                let answer = String::from_utf8(say(server.address, request.as_bytes()).await).expect("text");
                assert!(answer.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{answer}");
                assert!(answer.contains("Ringmail") && answer.contains("Connection: close"), "{answer}");
                let (head, body) = answer.split_once("\r\n\r\n").expect("head and body");
                assert!(head.contains(&format!("Content-Length: {}", body.len())), "{answer}");
            }
        })
        .await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_protocols_are_ended_at_once() {
    within(20, async {
        let server = Background::start(server().handshake_timeout(Duration::from_secs(10)));
        beside_calls(server.address, async {
            let tls = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 and so on";
            let http2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
            for hello in [&tls[..], http2, b"SSH-2.0-OpenSSH_9.2\r\n", &[0; 64], &[0xff; 5000]] {
                let started = Instant::now();
                assert_eq!(say(server.address, hello).await, b"", "there is nothing to say to them");
                assert!(started.elapsed() < LATE, "{:?}", started.elapsed());
            }
        })
        .await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn random_bytes_do_no_harm() {
    within(30, async {
        let server = Background::start(server().handshake_timeout(HANDSHAKE));
        beside_calls(server.address, async {
            let mut random = fastrand::Rng::with_seed(7);
            for round in 0..200 {
                let mut bytes: Vec<u8> = (0..random.usize(8..2000)).map(|_| random.u8(..)).collect();
                // Every other one begins as it should, and goes on at random.
                if round % 2 == 0 {
                    bytes.splice(0..0, *b"RINGMAIL");
                    let length = (bytes.len() as u32 - 12).to_le_bytes();
                    bytes[8..12].copy_from_slice(&length);
                }
                let mut stranger = TcpStream::connect(server.address).await.expect("connect");
                // It may have hung up on the first bytes.
                let _ = stranger.write_all(&bytes).await;
                let _ = stranger.shutdown().await;
                until_end(stranger).await;
            }
        })
        .await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_says_nothing_is_ended_after_the_handshakes_time() {
    within(20, async {
        let server = Background::start(server().handshake_timeout(HANDSHAKE));
        beside_calls(server.address, async {
            for first in [&b""[..], b"RING", b"RINGMAIL", b"RINGMAIL\x10\0\0\0", b"RINGMAIL\x10\0\0\0abc"] {
                let started = Instant::now();
                assert_eq!(say(server.address, first).await, b"");
                assert!(started.elapsed() >= HANDSHAKE / 2, "{:?}", started.elapsed());
            }
        })
        .await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_speaks_a_byte_at_a_time_gets_no_more_time_than_others() {
    within(20, async {
        let server = Background::start(server().handshake_timeout(HANDSHAKE));
        beside_calls(server.address, async {
            let mut stranger = TcpStream::connect(server.address).await.expect("connect");
            stranger.set_nodelay(true).expect("nodelay");
            let started = Instant::now();
            for byte in b"RINGMAIL\xff\xff\0\0".iter().copied().chain(std::iter::repeat(8)) {
                if stranger.write_all(&[byte]).await.is_err() {
                    break;
                }
                assert!(started.elapsed() < HANDSHAKE + LATE, "it is still listened to");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hello_that_announces_gigabytes_is_refused_unread() {
    within(20, async {
        let server = Background::start(server().handshake_timeout(Duration::from_secs(10)));
        beside_calls(server.address, async {
            let started = Instant::now();
            assert_eq!(say(server.address, b"RINGMAIL\xff\xff\xff\xff and the first of them").await, b"");
            assert!(started.elapsed() < LATE, "{:?}", started.elapsed());
        })
        .await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_that_says_nothing_keeps_nobody_out() {
    const PLACES: usize = 100;
    within(30, async {
        let server = server().handshake_timeout(Duration::from_secs(20)).max_handshakes(PLACES);
        let server = Background::start(server);
        beside_calls(server.address, async {
            // Some that say nothing, some that say a part of what they should.
            let mut crowd = Vec::new();
            for number in 0..3 * PLACES {
                let mut stranger = TcpStream::connect(server.address).await.expect("connect");
                if number % 2 == 0 {
                    stranger.write_all(b"RINGMAIL\x10\0\0\0\x08").await.expect("write");
                }
                crowd.push(stranger);
            }
            let started = Instant::now();
            for kind in LINKS {
                let client = EchoClient::new(channel(server.address, kind).await);
                assert_eq!(client.echo("x").await.expect("echo"), "x");
            }
            assert!(started.elapsed() < LATE, "{:?}", started.elapsed());
            // The oldest have been sent away, long before their time was up.
            crowd.truncate(PLACES);
            for stranger in crowd {
                assert_eq!(until_end(stranger).await, b"");
            }
            assert!(started.elapsed() < 2 * LATE, "{:?}", started.elapsed());
        })
        .await;
    })
    .await;
}

/// A server of something else, at which a client finds what it sends answered with `answer`.
async fn impostor(answer: &'static [u8], hangs_up: bool) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("listen");
    let address = listener.local_addr().expect("address");
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.expect("accept");
            tokio::spawn(async move {
                let mut heard = [0; 4096];
                // The client's HELLO is taken first, so that closing does not reset what was said.
                let _ = socket.read(&mut heard).await;
                let _ = socket.write_all(answer).await;
                if hangs_up {
                    let _ = socket.shutdown().await;
                } else {
                    std::future::pending::<()>().await;
                }
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_say_what_they_found_instead_of_a_server() {
    within(20, async {
        let cases: [(&[u8], bool, &str); 8] = [
            (
                b"HTTP/1.1 400 Bad Request\r\n\r\n",
                true,
                "speaks HTTP/1, not the Ringmail protocol; check the address",
            ),
            (b"PRI * HTTP/2.0\r\n\r\n", true, "speaks HTTP/2 (gRPC)"),
            (b"\x16\x03\x03\0\x40\0\0\0\0\0", true, "speaks TLS"),
            (b"SSH-2.0-OpenSSH_9.2\r\n", true, "speaks SSH"),
            (b"", true, "waiting for its HELLO"),
            (b"RINGMAIL", true, "reading its HELLO"),
            (b"RINGMAIL\xff\xff\xff\xff", false, "exceeds the limit"),
            (b"RINGMAIL\x04\0\0\0\xff\xff\xff\xff", false, "reading its HELLO"),
        ];
        for (answer, hangs_up, says) in cases {
            let address = impostor(answer, hangs_up).await;
            let started = Instant::now();
            let error = ringmail::Channel::connect(address.to_string()).await.expect_err("no server");
            assert!(started.elapsed() < LATE, "{says}: {:?}", started.elapsed());
            let text = error.to_string();
            assert!(text.contains(says) && text.contains(&address.to_string()), "{text}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_without_overlap_is_named_with_what_to_do() {
    within(20, async {
        // HELLO {version_min: 7, version_max: 9, software: "future 7"}, and a server's check of the same.
        let hello: &[u8] = b"RINGMAIL\x0e\0\0\0\x08\x07\x10\x09\x62\x08future 7";
        let address = impostor(hello, false).await;
        let text = ringmail::Channel::connect(address.to_string()).await.expect_err("too new").to_string();
        for part in [&address.to_string(), "future 7", "versions 7 to 9", "1 to 1", "upgrade the older one"] {
            assert!(text.contains(part), "{text}");
        }
        let server = Background::start(server());
        let said = String::from_utf8_lossy(&say(server.address, hello).await).into_owned();
        assert!(said.starts_with("RINGMAIL") && said.contains("versions 7 to 9"), "{said}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_connected_to_itself_notices() {
    within(20, async {
        // Whatever sends back what it is sent looks the same. It happens in earnest when a port in the ephemeral range
        // is dialled while nobody listens there, as a client does whose server is being restarted.
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("listen");
        let address = listener.local_addr().expect("address");
        tokio::spawn(async move {
            loop {
                let (mut socket, _) = listener.accept().await.expect("accept");
                tokio::spawn(async move {
                    let (mut from, mut to) = socket.split();
                    let _ = tokio::io::copy(&mut from, &mut to).await;
                });
            }
        });
        let text = ringmail::Channel::connect(address.to_string()).await.expect_err("no server").to_string();
        assert!(text.contains("sends back") && text.contains(&address.to_string()), "{text}");
    })
    .await;
}
