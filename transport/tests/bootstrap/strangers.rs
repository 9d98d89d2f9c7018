//! Strangers: they get a clear end within the bound, and the error says what they seemed to be.

use std::time::Instant;

use ringmail_transport::bootstrap::hello::{Hello, MESSAGE_LIMIT, Stranger};
use ringmail_transport::bootstrap::{self, BootstrapError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::peer::{Server, TIMEOUT, answering, framed, impostor, settings};

/// What a server makes of a client that says this and then waits.
async fn outcome_of(said: &[u8]) -> (BootstrapError, Vec<u8>) {
    let server = Server::start(settings()).await;
    let mut client = TcpStream::connect(server.address).await.unwrap();
    client.write_all(said).await.unwrap();
    let error = server.outcome().await.expect_err("a stranger was let in");
    let mut answer = Vec::new();
    // A reset is an end, too.
    let _ = client.read_to_end(&mut answer).await;
    (error, answer)
}

#[tokio::test]
async fn strangers_are_named() {
    for (said, expected) in [
        (&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], Stranger::Http1),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Stranger::Http2),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", Stranger::Tls),
        (b"SSH-2.0-OpenSSH_9\r\n", Stranger::Ssh),
        (b"RINGMAIM\0\0\0\0", Stranger::Unknown),
    ] {
        let started = Instant::now();
        let (error, answer) = outcome_of(said).await;
        assert!(started.elapsed() < TIMEOUT, "it was made to wait");
        assert!(
            matches!(error, BootstrapError::Stranger { protocol, .. } if protocol == expected),
            "{expected}: {error}"
        );
        assert!(error.to_string().contains("check the address and port"), "{error}");
        assert_eq!(answer.starts_with(b"HTTP/1.1 400 "), expected == Stranger::Http1);
    }
}

#[tokio::test]
async fn servers_of_other_protocols_are_named_with_what_to_do() {
    // What each says to whoever sends it a HELLO, recorded.
    let grpc = "this is a gRPC server: use tonic's client, or the Ringmail port";
    for (answer, expected, hint) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], Stranger::Http1, "check the address and port"),
        (b"\0\0\x12\x04\0\0\0\0\0\0\x03\0\0\0\xc8", Stranger::GrpcServer, grpc),
        (b"\0\0\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0\x01", Stranger::GrpcServer, grpc),
        (b"\x15\x03\x03\0\x02\x02\x46", Stranger::Tls, "(Ringmail has no TLS)"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", Stranger::Ssh, "check the address and port"),
        (b"hi\n", Stranger::Unknown, "check the address and port"),
    ] {
        let address = impostor(answer).await;
        let error = bootstrap::connect(address, &settings()).await.expect_err("no Ringmail server");
        assert!(
            matches!(error, BootstrapError::Stranger { protocol, .. } if protocol == expected),
            "{expected}: {error}"
        );
        let text = error.to_string();
        assert!(text.contains(&format!("{address} speaks {expected}")) && text.ends_with(hint), "{text}");
    }
}

#[tokio::test]
async fn whoever_hangs_up_within_the_magic_is_no_stranger() {
    for answer in [&b""[..], b"RING"] {
        let address = impostor(answer).await;
        let error = bootstrap::connect(address, &settings()).await.expect_err("no Ringmail server");
        assert!(matches!(error, BootstrapError::Broken { .. }), "{error}");
    }
}

#[tokio::test]
async fn software_without_a_name_is_called_so() {
    let hello = Hello { version_min: 7, version_max: 9, ring_bytes: 16384, ..Hello::default() };
    let (error, _) = outcome_of(&framed(true, &hello)).await;
    assert!(error.to_string().contains("(unnamed software) speaks protocol versions 7 to 9"), "{error}");
}

#[tokio::test]
async fn silence_and_trickles_end_at_the_time_out() {
    // Nothing, a part of the magic, a part of a HELLO.
    for said in [&b""[..], b"RING", b"RINGMAIL\x10\0\0\0\x08"] {
        let started = Instant::now();
        let (error, _) = outcome_of(said).await;
        assert!(matches!(error, BootstrapError::TimedOut { .. }), "{error}");
        assert!((TIMEOUT..2 * TIMEOUT).contains(&started.elapsed()), "{:?}", started.elapsed());
    }
    // A byte now and then does not buy time.
    let server = Server::start(settings()).await;
    let mut client = TcpStream::connect(server.address).await.unwrap();
    let hello = framed(true, &Hello { ring_bytes: 16384, software: "x".repeat(1000), ..Hello::default() });
    let drips = tokio::spawn(async move {
        for byte in hello {
            if client.write_all(&[byte]).await.is_err() {
                break;
            }
            tokio::time::sleep(TIMEOUT / 50).await;
        }
    });
    let started = Instant::now();
    let error = server.outcome().await.unwrap_err();
    assert!(matches!(error, BootstrapError::TimedOut { .. }), "{error}");
    assert!(started.elapsed() < 2 * TIMEOUT);
    drips.abort();
}

#[tokio::test]
async fn a_length_beyond_the_limit_is_refused_before_anything_is_read() {
    for length in [MESSAGE_LIMIT + 1, u32::MAX] {
        let started = Instant::now();
        let (error, _) = outcome_of(&[b"RINGMAIL", &length.to_le_bytes()[..]].concat()).await;
        assert!(started.elapsed() < TIMEOUT, "it waited for the rest");
        assert!(error.to_string().contains(&format!("exceeds the limit of {MESSAGE_LIMIT}")), "{error}");
    }
}

#[tokio::test]
async fn random_bytes_behind_the_magic_are_refused() {
    let mut rng = fastrand::Rng::with_seed(9);
    for _ in 0..50 {
        let mut said = b"RINGMAIL".to_vec();
        let length = rng.u32(1..300);
        said.extend(length.to_le_bytes());
        said.extend((0..length).map(|_| rng.u8(..)));
        let (error, _) = outcome_of(&said).await;
        // What happens to be a HELLO has no ring or no version that is spoken.
        assert!(
            matches!(
                error,
                BootstrapError::Broken { .. } | BootstrapError::Ring { .. } | BootstrapError::Version { .. }
            ),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_client_whose_version_is_not_spoken_is_told() {
    for (theirs_min, theirs_max) in [(0, 0), (2, 9)] {
        let hello = Hello {
            version_min: theirs_min,
            version_max: theirs_max,
            ring_bytes: 16384,
            software: "the other 1.0".to_owned(),
            ..Hello::default()
        };
        let (error, answer) = outcome_of(&framed(true, &hello)).await;
        assert!(matches!(error, BootstrapError::Version { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("the other 1.0") && text.contains("upgrade the older one"), "{text}");
        let answer: Hello = bootstrap::hello::decode(&answer[12..]).unwrap();
        assert_eq!(answer.error, text);
        assert!(answer.methods.is_empty() && answer.shm.is_none(), "it was told more than that");
    }
}

#[tokio::test]
async fn a_server_whose_version_is_not_spoken_is_named() {
    let (address, answered) =
        answering(|hello| Hello { version_min: 7, version_max: 8, software: "later 7".to_owned(), ..hello })
            .await;
    let error = bootstrap::connect(address, &settings()).await.unwrap_err();
    assert!(matches!(error, BootstrapError::Version { theirs_min: 7, theirs_max: 8, .. }), "{error}");
    drop(answered.await);
}

#[tokio::test]
async fn impossible_rings_are_refused_with_the_reason() {
    for ring_bytes in [0, 1, 12345, u32::MAX] {
        let hello = Hello { version_min: 1, version_max: 1, ring_bytes, ..Hello::default() };
        let (error, _) = outcome_of(&framed(true, &hello)).await;
        assert!(matches!(error, BootstrapError::Ring { .. }), "{error}");
        assert!(error.to_string().contains("power of two"), "{error}");
    }
}
