//! One side of a connection, and the little that an application does with it: send, receive, sleep.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ringmail_transport::endpoint::{Endpoint, SendError, Turn};
use ringmail_transport::frame::{CallId, HEADER, Header, Kind};
use ringmail_transport::immediate::{Epoch, Immediate, Notice};
use ringmail_transport::link::sim::SimNet;
#[cfg(feature = "rdma")]
use ringmail_transport::link::verbs::VerbsLink;
use ringmail_transport::link::{LinkError, LinkKind};
use ringmail_transport::ring::{Incoming, Position, Room};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// One side of a connection.
pub(crate) struct Side {
    pub(crate) endpoint: Arc<Endpoint>,
    /// The bootstrap's connection, where it is not the link itself.
    watch: Option<Arc<TcpStream>>,
    /// The simulated network, and which of its sides this is.
    net: Option<(SimNet, usize)>,
    /// The RDMA link, where it is one.
    #[cfg(feature = "rdma")]
    rdma: Option<Arc<VerbsLink>>,
}

impl Drop for Side {
    fn drop(&mut self) {
        if let Some((net, _)) = &self.net
            && !std::thread::panicking()
        {
            assert_eq!(net.statistics().not_ready, 0, "a notification found no receive request");
        }
    }
}

impl Side {
    pub(crate) fn new(endpoint: Endpoint, watch: Option<TcpStream>) -> Self {
        Self {
            endpoint: Arc::new(endpoint),
            watch: watch.map(Arc::new),
            net: None,
            #[cfg(feature = "rdma")]
            rdma: None,
        }
    }

    pub(crate) fn with_net(mut self, net: SimNet, side: usize) -> Self {
        self.net = Some((net, side));
        self
    }

    #[cfg(feature = "rdma")]
    pub(crate) fn with_rdma(mut self, link: Arc<VerbsLink>) -> Self {
        self.rdma = Some(link);
        self
    }

    /// Announces a position that has nothing to do with what was written; `false` on links that tell none.
    pub(crate) fn misannounce(&self, produced: Position) -> bool {
        if let Some((net, side)) = &self.net {
            net.inject(1 - side, Immediate::new(Notice::Frames, Epoch::default(), produced).encode());
            return true;
        }
        #[cfg(feature = "rdma")]
        if let Some(link) = &self.rdma {
            link.misannounce(produced).expect("a live link");
            return true;
        }
        if self.endpoint.link_kind() == LinkKind::Shm {
            self.endpoint.staging().region().control().produced.0.store(produced.0, Ordering::Release);
            // Wakes the peer if it sleeps.
            let wakes = self.endpoint.link().flush(self.endpoint.staging(), produced, produced);
            return wakes.is_ok();
        }
        false
    }

    /// Another handle of the same side.
    pub(crate) fn handle(&self) -> Self {
        Self {
            endpoint: Arc::clone(&self.endpoint),
            watch: self.watch.clone(),
            net: self.net.clone(),
            #[cfg(feature = "rdma")]
            rdma: self.rdma.clone(),
        }
    }

    /// Commits a frame with this payload, without flushing it.
    pub(crate) async fn commit(&self, call: CallId, payload: &[u8]) -> Result<(), SendError> {
        let length = HEADER + payload.len();
        let mut claim = self.endpoint.claim_wait(length, Room::Data).await?;
        claim[HEADER..].copy_from_slice(payload);
        claim.commit(&Header { call, ..Header::new(Kind::Message, length as u32) });
        Ok(())
    }

    /// Sends a frame with this payload.
    pub(crate) async fn send(&self, call: CallId, payload: &[u8]) -> Result<(), SendError> {
        self.commit(call, payload).await?;
        self.endpoint.flush();
        Ok(())
    }

    /// Looks once.
    pub(crate) fn turn(&self, deliver: &mut (dyn FnMut(Incoming) + Send)) -> Result<usize, LinkError> {
        match self.endpoint.turn(deliver)? {
            Turn::Frames(frames) => {
                if self.endpoint.is_crowded() {
                    self.endpoint.mailbox().detach_lent();
                }
                Ok(frames)
            }
            Turn::Busy => Ok(0),
        }
    }

    /// Sleeps until a turn would achieve something.
    pub(crate) async fn sleep(&self) -> Result<(), LinkError> {
        let armed = std::future::poll_fn(|cx| self.endpoint.arm(cx));
        let gone = async {
            let Some(watch) = &self.watch else { return std::future::pending().await };
            while watch.readable().await.is_ok() {
                match watch.try_read(&mut [0]) {
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                    Ok(_) | Err(_) => return,
                }
            }
        };
        tokio::select! {
            biased;
            result = armed => {
                self.endpoint.link().woken();
                result
            }
            () = gone => {
                self.endpoint.fail(LinkError::PeerClosed);
                Ok(())
            }
        }
    }

    /// Receives until at least one frame has come.
    pub(crate) async fn receive(
        &self,
        deliver: &mut (dyn FnMut(Incoming) + Send),
    ) -> Result<usize, LinkError> {
        loop {
            match self.turn(deliver)? {
                0 => self.sleep().await?,
                frames => return Ok(frames),
            }
        }
    }

    /// Receives until the connection ends, in a task of its own, which returns why.
    pub(crate) fn drive(&self, mut deliver: impl FnMut(Incoming) + Send + 'static) -> JoinHandle<LinkError> {
        let side = self.handle();
        tokio::spawn(async move {
            loop {
                let went_on = match side.turn(&mut deliver) {
                    Ok(0) => side.sleep().await,
                    other => other.map(|_| ()),
                };
                if let Err(error) = went_on {
                    return error;
                }
                // While frames keep coming nothing here waits; timers and other tasks need the thread as well.
                tokio::task::coop::consume_budget().await;
            }
        })
    }
}
