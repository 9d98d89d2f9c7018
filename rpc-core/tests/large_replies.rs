//! What a server holds while a large reply is on its way to a client that takes its time.

mod peers;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use peers::Background;
use ringmail::codegen::BoxFuture;
use ringmail::{Channel, LinkPolicy, Request, Response, Server, Status, Wait};
use support::{Echo, EchoClient, EchoServer, LINKS, Payload};
use tokio::sync::Notify;

/// Many times what rings and socket buffers hold.
const LARGE: usize = 48 << 20;
const PATIENCE: Duration = Duration::from_secs(10);

/// Memory of a reply that tells when it is given back.
struct Counted(Vec<u8>, Arc<AtomicUsize>);

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

#[derive(Default)]
struct Large {
    called: Notify,
    given_back: Arc<AtomicUsize>,
}

impl Echo for Large {
    fn echo<'a>(&'a self, _: Request<Payload>) -> BoxFuture<'a, Result<Response<Payload>, Status>> {
        Box::pin(async move {
            self.called.notify_one();
            let data = Bytes::from_owner(Counted(vec![7; LARGE], Arc::clone(&self.given_back)));
            Ok(Response::new(Payload { data }))
        })
    }
}

#[test]
fn the_message_is_given_back_once_it_is_encoded_not_once_it_is_received() {
    for kind in LINKS {
        let service = Arc::new(Large::default());
        let server = Server::builder().add_service(EchoServer(Arc::clone(&service))).listen("127.0.0.1:0");
        let server = Background::start(server);
        // Receives only while this thread runs it.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let channel = Channel::builder(server.address.to_string()).link(kind, LinkPolicy::Require);
        let channel = runtime.block_on(channel.wait(Wait::Event).connect()).expect("connect");
        let client = EchoClient::new(channel);
        let call = runtime.spawn(async move { client.echo("large").await });
        runtime.block_on(service.called.notified());
        let stopped = Instant::now();
        while service.given_back.load(Ordering::SeqCst) == 0 {
            assert!(stopped.elapsed() < PATIENCE, "{kind}: the message is held as well as what it became");
            std::thread::sleep(Duration::from_millis(1));
        }
        let reply = async { tokio::time::timeout(PATIENCE, call).await.expect("in time") };
        let reply = runtime.block_on(reply).expect("task").expect("echo");
        assert!(reply.len() == LARGE && reply.iter().all(|byte| *byte == 7), "{kind}");
    }
}
