//! RDMA for connections that have begun on TCP: brought up in the background, and again after it was lost.
//!
//! ```text
//!   client                                                server
//!   (registers the rings)
//!   UPGRADE {epoch, end} ────────────────────────────────▶ (registers the rings)
//!   ◀──────────────────────── UPGRADE {epoch, end, address, token}
//!   connection manager, greetings ◀──────────────────────▶
//!   SWITCH ──────────────────────────────────────────────▶
//!   ◀────────────────────────────────────────────── SWITCH
//! ```
//!
//! The client decides when: at once at first, and after a pause when it has failed or was lost. Whatever fails leaves the
//! connection on TCP, with the reason in [`History`](crate::link::switching::History).

mod pace;

use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use tokio::time::Instant;

use self::pace::{Allowance, Pace};
use super::Settings;
use super::hello::{RdmaEnd, Upgrade};
use super::rdma::{Client, Offered, link_settings, read_address};
use crate::immediate::Epoch;
use crate::link::switching::{MESSAGE_LIMIT, Messages, SwitchingLink};
use crate::link::verbs::{self, BringUpError, Prepared};
use crate::memory::Region;
use crate::ring::{Mailbox, RingSize, Staging};

/// Longest reason that is told, in bytes: it must fit a message.
const REASON: usize = 500;

/// What one side needs to bring RDMA up.
#[derive(Debug)]
pub(super) enum Side {
    Client(Offered),
    Server(Client),
}

/// What is to be upgraded.
struct Session {
    link: Arc<SwitchingLink>,
    messages: Messages,
    staging: Arc<Region>,
    mailbox: Arc<Region>,
    /// The server has not said anything yet about what it was asked last.
    unanswered: bool,
}

impl Side {
    /// Begins to work on it, until the link ends.
    pub(super) fn start(
        self,
        link: &Arc<SwitchingLink>,
        messages: Messages,
        staging: &Staging,
        mailbox: &Mailbox,
    ) {
        let session = Session {
            link: Arc::clone(link),
            messages,
            staging: Arc::clone(staging.region()),
            mailbox: Arc::clone(mailbox.region()),
            unanswered: false,
        };
        match self {
            Self::Client(offered) => {
                link.name_device(offered.context.device_name());
                tokio::spawn(session.ask(offered))
            }
            Self::Server(client) => tokio::spawn(session.answer(client)),
        };
    }
}

/// Why nothing has come of an attempt.
enum Failure {
    /// This side could not go on; the peer is to be told.
    Own(String),
    /// The peer has said so.
    Peers(String),
    /// The connection has ended.
    Ended,
}

impl From<BringUpError> for Failure {
    fn from(error: BringUpError) -> Self {
        Self::Own(error.to_string())
    }
}

impl Session {
    /// The client's part.
    async fn ask(mut self, offered: Offered) {
        let mut pace = Pace::new(offered.settings.settle);
        for epoch in 1.. {
            let mut up_since = None;
            match self.attempt(&offered, epoch).await {
                Ok(()) => {
                    up_since = Some(Instant::now());
                    self.watch(epoch).await;
                }
                Err(failure) => self.give_up(epoch, failure),
            }
            let pause = pace.pause(up_since.map(|since| since.elapsed()));
            if !self.rest(pause, epoch).await {
                return;
            }
        }
    }

    async fn attempt(&mut self, offered: &Offered, epoch: u32) -> Result<(), Failure> {
        let settings = settings_of(epoch, &offered.settings, offered.ring);
        let (lane, domain) = offered.place()?;
        let prepared = Prepared::over(&lane, &domain, &settings, &self.staging, &self.mailbox).await?;
        self.protect(settings.timeout).await?;
        self.tell(&Upgrade { epoch, end: Some(prepared.end().into()), ..Upgrade::default() });
        self.unanswered = true;
        let answered = tokio::time::timeout(settings.timeout, self.reply(epoch));
        let answer = answered.await.map_err(|_| {
            Failure::Own(format!("the server did not answer the wish for RDMA within {:?}", settings.timeout))
        })??;
        let Some(end) = answer.end else {
            return Err(Failure::Peers(cut(&answer.refusal)));
        };
        // Again, because it may listen elsewhere since.
        let address = read_address(&answer.address, offered.address.ip()).map_err(Failure::Own)?;
        let token = answer.token.as_slice().try_into();
        let token =
            token.map_err(|_| Failure::Own("the server's answer carries no valid token".to_owned()))?;
        let ticket = offered.secrets.ticket_with(token);
        self.begin(epoch)?;
        let end = end.into();
        let connecting = verbs::connect(prepared, address, &end, &ticket);
        let connected = tokio::select! {
            connected = connecting => connected?,
            failure = refusal(&mut self.messages, epoch) => return Err(failure),
        };
        self.link.install(connected.into_link());
        Ok(())
    }

    /// The server's part.
    async fn answer(mut self, client: Client) {
        let mut last = 0;
        let mut allowance = Allowance::new(Instant::now());
        while let Some(message) = self.next().await {
            let epoch = message.epoch;
            match message.end {
                Some(end) if epoch > last => {
                    last = epoch;
                    if let Err(wait) = allowance.take(Instant::now()) {
                        self.put_off(&client, epoch, wait);
                    } else if let Err(failure) = self.accept(&client, epoch, &end).await {
                        self.give_up(epoch, failure);
                    }
                }
                Some(_) => {
                    tracing::debug!(epoch, "a client asks twice for the same RDMA link");
                    return crate::link::Link::close(&*self.link);
                }
                None if epoch == last => self.link.lose(&cut(&message.refusal)),
                None => {}
            }
        }
    }

    /// A client asks too often. That is not to cost anything, not even a line in a log that others read.
    fn put_off(&self, client: &Client, epoch: u32, wait: Duration) {
        tracing::debug!(peer = %client.peer, epoch, ?wait, "a client asks for RDMA too often");
        let refusal = format!(
            "at the server, RDMA was tried too often on this connection; it may be again in {} s",
            wait.as_secs() + 1
        );
        self.tell(&Upgrade { epoch, refusal, ..Upgrade::default() });
    }

    async fn accept(&mut self, client: &Client, epoch: u32, remote: &RdmaEnd) -> Result<(), Failure> {
        let settings = settings_of(epoch, &client.settings, client.ring);
        let at_server = |reason: String| Failure::Own(format!("at the server, {reason}"));
        // The client has given the last one up, which this side may be about to learn.
        let settled = tokio::time::timeout(settings.timeout, self.link.settled()).await;
        settled.map_err(|_| at_server("the last RDMA link is not done with".to_owned()))?;
        let device = client.host.device(client.local).await.map_err(at_server)?;
        self.link.name_device(device.name());
        let prepared = async {
            let (lane, domain) = device.place(client.peer)?;
            Prepared::over(&lane, &domain, &settings, &self.staging, &self.mailbox).await
        };
        let prepared = prepared.await.map_err(|error| at_server(error.to_string()))?;
        self.protect(settings.timeout).await?;
        let mut token = [0; 16];
        getrandom::fill(&mut token).map_err(|error| at_server(error.to_string()))?;
        self.begin(epoch)?;
        let expectation = device.listener.expect(client.secrets.ticket_with(token), settings.epoch);
        self.tell(&Upgrade {
            epoch,
            end: Some(prepared.end().into()),
            address: device.listener.address().to_string(),
            token: token.to_vec(),
            refusal: String::new(),
        });
        let remote = (*remote).into();
        let accepted = tokio::select! {
            accepted = expectation.accept(prepared, &remote) => {
                accepted.map_err(|error| at_server(error.to_string()))?
            }
            failure = refusal(&mut self.messages, epoch) => return Err(failure),
        };
        self.link.install(accepted.into_link());
        Ok(())
    }

    /// Waits until nobody relies on what lies in the mailbox.
    async fn protect(&self, timeout: Duration) -> Result<(), Failure> {
        tokio::time::timeout(timeout, self.link.protect()).await.map_err(|_| {
            Failure::Own(format!(
                "messages are kept in the receive ring for more than {timeout:?}, where RDMA could change them"
            ))
        })
    }

    fn begin(&self, epoch: u32) -> Result<(), Failure> {
        if self.link.begin(epoch) {
            return Ok(());
        }
        Err(Failure::Own("the last RDMA link is not done with".to_owned()))
    }

    fn tell(&self, message: &Upgrade) {
        let bytes = message.encode_to_vec();
        debug_assert!(bytes.len() <= MESSAGE_LIMIT);
        self.link.tell(bytes);
    }

    fn give_up(&self, epoch: u32, failure: Failure) {
        match failure {
            Failure::Own(reason) => {
                let refusal = cut(&reason);
                self.tell(&Upgrade { epoch, refusal, ..Upgrade::default() });
                self.link.abandon(&reason);
            }
            Failure::Peers(reason) => self.link.abandon(&reason),
            Failure::Ended => {}
        }
    }

    /// The peer's next message; `None` when the link has ended.
    async fn next(&mut self) -> Option<Upgrade> {
        next(&mut self.messages, &self.link).await
    }

    /// The peer's answer for this epoch.
    async fn reply(&mut self, epoch: u32) -> Result<Upgrade, Failure> {
        loop {
            match self.next().await {
                None => return Err(Failure::Ended),
                Some(message) if message.epoch == epoch => {
                    self.unanswered = false;
                    return Ok(message);
                }
                Some(_) => {}
            }
        }
    }

    /// Waits until the link that was installed is done with.
    async fn watch(&mut self, epoch: u32) {
        let Self { link, messages, .. } = self;
        let settled = link.settled();
        tokio::pin!(settled);
        loop {
            tokio::select! {
                () = &mut settled => return,
                failure = refusal(messages, epoch) => match failure {
                    Failure::Own(reason) | Failure::Peers(reason) => link.lose(&reason),
                    Failure::Ended => return,
                },
            }
        }
    }

    /// Waits before the next attempt; `false` when the connection has ended.
    async fn rest(&mut self, pause: Duration, epoch: u32) -> bool {
        let until = Instant::now() + pause;
        loop {
            // Who has not answered yet would only be flooded: there are places for few messages.
            let message = if self.unanswered {
                Ok(self.next().await)
            } else {
                tokio::time::timeout_at(until, self.next()).await
            };
            match message {
                Err(_) => return !self.link.is_closed(),
                Ok(None) => return false,
                // It is about a link that is gone.
                Ok(Some(message)) => self.unanswered &= message.epoch != epoch,
            }
        }
    }
}

/// Settings of the link of this epoch, on either side.
fn settings_of(epoch: u32, settings: &Settings, ring: RingSize) -> verbs::Settings {
    let epoch = Epoch::new(epoch as u8);
    verbs::Settings { epoch, ..link_settings(settings, ring, settings.timeout) }
}

async fn next(messages: &mut Messages, link: &SwitchingLink) -> Option<Upgrade> {
    let bytes = messages.next().await?;
    match Upgrade::decode(bytes.as_slice()) {
        Ok(message) => Some(message),
        Err(error) => {
            tracing::debug!(%error, "the peer says something about RDMA that cannot be read");
            crate::link::Link::close(link);
            None
        }
    }
}

/// Waits until the peer says that nothing comes of this epoch.
async fn refusal(messages: &mut Messages, epoch: u32) -> Failure {
    loop {
        let Some(bytes) = messages.next().await else { return Failure::Ended };
        match Upgrade::decode(bytes.as_slice()) {
            Ok(message) if message.epoch == epoch && message.end.is_none() => {
                return Failure::Peers(cut(&message.refusal));
            }
            Ok(_) => {}
            Err(error) => return Failure::Own(format!("the peer speaks of RDMA in riddles: {error}")),
        }
    }
}

/// A reason as it may be told, or has been.
fn cut(reason: &str) -> String {
    reason
        .chars()
        .scan(0, |bytes, letter| {
            *bytes += letter.len_utf8();
            (*bytes <= REASON).then_some(letter)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_cut_between_letters() {
        let long = "ä".repeat(400);
        assert_eq!(cut(&long), "ä".repeat(250));
        assert_eq!(cut("short"), "short");
    }
}
