//! A server at work: its lanes, and who comes to it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use ringmail_transport::bootstrap::Acceptor;
use ringmail_transport::link::LinkError;
use ringmail_transport::spare::is_out_of_descriptors;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::Shared;
use super::connection::Connection;
use super::handshakes::Handshakes;
use super::lane::{self, Lane, LaneDoor};
use crate::error::ServeError;
use crate::wait::Wait;
use crate::watch;

/// Pause after an accept that failed for a reason that may pass.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A server at work. Dropping it ends everything at once.
pub(super) struct Serving {
    shared: Arc<Shared>,
    lanes: Vec<Arc<LaneDoor>>,
    pub(super) tasks: JoinSet<()>,
}

impl Serving {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::clone(shared), lanes: Vec::new(), tasks: JoinSet::new() }
    }

    pub(super) fn start_lanes(&mut self, count: usize) -> Result<(), ServeError> {
        for index in 0..count {
            let door = Arc::new(LaneDoor::default());
            let own_thread = self.shared.wait == Wait::Busy;
            let mut lane = Lane::new(Arc::clone(&door), own_thread);
            if own_thread {
                let runtime = self.shared.runtime.clone();
                std::thread::Builder::new()
                    .name(format!("ringmail-lane-{index}"))
                    .spawn(move || {
                        let _entered = runtime.enter();
                        lane::run_on_thread(lane);
                    })
                    .map_err(ServeError::Thread)?;
            } else {
                // Readiness of descriptors is not to be rationed: a lane looks at many in a turn.
                let polling = std::future::poll_fn(move |cx| lane.poll(cx));
                self.tasks.spawn(tokio::task::unconstrained(polling));
            }
            self.lanes.push(door);
        }
        Ok(())
    }

    pub(super) async fn accept(
        &mut self,
        listener: &TcpListener,
        acceptor: &Arc<Acceptor>,
        mut handshakes: Handshakes,
    ) {
        let mut accepted = 0_usize;
        loop {
            let (socket, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "accepting a connection failed");
                    if is_out_of_descriptors(&error) {
                        // The oldest handshake has one, which may be of somebody who says nothing.
                        handshakes.oldest_gives_way();
                        let turn_away = async |(socket, peer)| {
                            tracing::warn!(%peer, "turned a client away: no file descriptors are left");
                            acceptor.turn_away(socket).await;
                        };
                        acceptor.spare.turn_one_away(listener.accept(), turn_away).await;
                    } else {
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                    continue;
                }
            };
            let (shared, acceptor) = (Arc::clone(&self.shared), Arc::clone(acceptor));
            let lane = Arc::clone(&self.lanes[accepted % self.lanes.len()]);
            accepted = accepted.wrapping_add(1);
            let give_way = handshakes.begin();
            self.tasks.spawn(async move {
                let established = tokio::select! {
                    biased;
                    established = acceptor.accept(socket, peer) => established,
                    Ok(()) = give_way => {
                        tracing::warn!(%peer, "a handshake gave way to others: too many are under way (max_handshakes)");
                        return;
                    }
                };
                match established {
                    Ok(mut established) => {
                        let watch = established.watch.take();
                        let connection = Arc::new(Connection::new(established, Arc::clone(&shared)));
                        shared.connections.lock().push(Arc::downgrade(&connection));
                        let (weak, ended) = (Arc::downgrade(&connection), connection.ended());
                        lane.admit(connection);
                        if let Some(watch) = watch {
                            let why = watch::until_gone(&watch, &ended).await;
                            if let Some(connection) = weak.upgrade() {
                                connection.endpoint.fail(why);
                            }
                        }
                    }
                    Err(error) => tracing::warn!(%peer, %error, "refused a connection"),
                }
            });
            while self.tasks.try_join_next().is_some() {}
        }
    }

    pub(super) async fn drain(&mut self, grace: Duration) {
        let connections =
            || self.shared.connections.lock().iter().filter_map(Weak::upgrade).collect::<Vec<_>>();
        for connection in connections() {
            connection.go_away();
        }
        let all_ended = async {
            loop {
                let ended = self.shared.ended.notified();
                tokio::pin!(ended);
                ended.as_mut().enable();
                let left = connections();
                if left.is_empty() {
                    return;
                }
                for connection in left {
                    connection.go_away();
                }
                ended.await;
            }
        };
        if tokio::time::timeout(grace, all_ended).await.is_err() {
            tracing::warn!(?grace, connections = connections().len(), "closing with calls still in progress");
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        for connection in self.shared.connections.lock().iter().filter_map(Weak::upgrade) {
            connection.abandon();
            connection.endpoint.fail(LinkError::Closed("the server stopped"));
        }
        for lane in &self.lanes {
            lane.stop();
        }
    }
}
