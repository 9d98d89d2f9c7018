//! Bytes fields are read where they arrived: in the mailbox, which is a memory file that the process has mapped.

mod peers;
mod support;

use std::sync::Arc;

use bytes::Bytes;
use peers::{Background, within};
use ringmail::codegen::BoxFuture;
use ringmail::{Request, Response, Server, Status};
use support::{Echo, EchoClient, EchoServer, LINKS, Payload, channel};

/// Whether bytes lie in a ring: in a mapping of one of the memory files that rings are made of.
fn in_a_ring(bytes: &[u8]) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc");
    let (start, end) = (bytes.as_ptr() as usize, bytes.as_ptr() as usize + bytes.len());
    maps.lines().filter(|line| line.contains("/memfd:ringmail")).any(|line| {
        let (from, rest) = line.split_once('-').expect("a range");
        let to = rest.split(' ').next().expect("its end");
        let address = |text| usize::from_str_radix(text, 16).expect("an address");
        (address(from)..address(to)).contains(&start) && end <= address(to) + bytes.len()
    })
}

/// Says whether what it received was in a ring; sends back as much.
struct Witness;

impl Echo for Witness {
    fn echo<'a>(&'a self, request: Request<Payload>) -> BoxFuture<'a, Result<Response<Payload>, Status>> {
        Box::pin(async move {
            let data = request.into_inner().data;
            let seen = in_a_ring(&data);
            let mut response = Response::new(Payload { data: Bytes::from(vec![9; data.len()]) });
            response.metadata_mut().insert("in-a-ring", seen.to_string().parse().expect("ASCII"));
            Ok(response)
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_fields_are_neither_copied_for_handlers_nor_for_callers() {
    within(20, async {
        let builder = Server::builder().add_service(EchoServer(Arc::new(Witness)));
        let server = Background::start(builder.listen("127.0.0.1:0"));
        for kind in LINKS {
            let client = EchoClient::new(channel(server.address, kind).await);
            // Several laps of the ring; frames across its end included.
            for size in [1024, 1500, 4096, 10_000, 60_000].into_iter().cycle().take(200) {
                let request = Request::new(Payload { data: Bytes::from(vec![1; size]) });
                let response = client.call(0, request).await.expect("echo");
                assert_eq!(response.metadata().get("in-a-ring").expect("said"), "true", "{kind}, {size}");
                let data = response.into_inner().data;
                assert!(in_a_ring(&data), "{kind}: a response of {size} bytes was copied");
                assert!(data.len() == size && data.iter().all(|byte| *byte == 9), "{kind}, {size}");
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_told_apart_is_the_ring() {
    // The test above means nothing if everything were found to be in a ring.
    assert!(!in_a_ring(&vec![1; 5000]));
    assert!(!in_a_ring(b"static"));
}
