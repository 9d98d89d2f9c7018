//! The connecting side.

use std::net::SocketAddr;

use tokio::net::TcpStream;

use super::hello::{self, Choice, Hello};
use super::{
    BootstrapError, Chosen, End, Established, LinkPolicies, Refusal, Rings, Settings, Steps, own_hello,
    stranger,
};
#[cfg(feature = "rdma")]
use super::{rdma, upgrade};
use crate::link::LinkKind;
use crate::link::shm::{self, Token};

/// Connects to `peer` and brings up the best link that both sides allow.
///
/// # Errors
/// When there is nobody, nobody who speaks the protocol, or no link that both sides allow.
pub async fn connect(peer: SocketAddr, settings: &Settings) -> Result<Established, BootstrapError> {
    let steps = Steps::new(peer.to_string(), settings.timeout);
    let mut socket =
        steps.step("connecting", TcpStream::connect(peer)).await.map_err(|error| match error {
            BootstrapError::Broken { peer, source, .. } => BootstrapError::Unreachable { peer, source },
            error => error,
        })?;
    let _ = socket.set_nodelay(true);
    #[cfg_attr(not(feature = "rdma"), allow(unused_mut))]
    let (mut ours, host_problem) = own_hello(settings);
    #[cfg(feature = "rdma")]
    let attempt = rdma::Attempt::prepare(&steps, settings, &socket).await;
    #[cfg(feature = "rdma")]
    {
        ours.rdma = attempt.wish();
    }
    steps.step("sending our HELLO", hello::write(&mut socket, true, &ours)).await?;
    if let Some(protocol) = steps.step("waiting for its HELLO", stranger::meet(&mut socket)).await? {
        return Err(BootstrapError::Stranger { peer: steps.peer, protocol });
    }
    let hello: Hello = steps.step("reading its HELLO", hello::read(&mut socket)).await?;
    // The kernel connects a socket to itself when it happens to choose the port that is dialled.
    if hello == ours && ours.nonce.iter().any(|byte| *byte != 0) {
        return Err(BootstrapError::Mirror { peer: steps.peer });
    }
    if !hello.error.is_empty() {
        return Err(BootstrapError::Refused { peer: steps.peer, reason: hello.error });
    }
    steps.check_version(&hello)?;
    let (ring, agreed) = steps.agree(settings, &hello)?;

    let mut refusals = Vec::new();
    let mut end = None;
    match shm_offer(&settings.links, host_problem, &hello) {
        Ok((name, token)) => {
            match tokio::time::timeout_at(steps.deadline, shm::connect(name, token, ring)).await {
                Ok(Ok(shm)) => end = Some(End::Shm(shm)),
                Ok(Err(error)) => refusals.push(Refusal { kind: LinkKind::Shm, reason: error.to_string() }),
                Err(_) => refusals.push(Refusal {
                    kind: LinkKind::Shm,
                    reason: format!(
                        "the server did not answer on the shared-memory socket within {:?}",
                        steps.timeout
                    ),
                }),
            }
        }
        Err(reason) => refusals.push(Refusal { kind: LinkKind::Shm, reason }),
    }
    #[cfg(feature = "rdma")]
    if end.is_none() {
        let begins_on_tcp = settings.links.allow_upgrades() && Refusal::said(&hello, LinkKind::Tcp).is_none();
        let found = match attempt.accept_offer(&socket, settings, ring, &hello) {
            Ok(offered) if begins_on_tcp => {
                Ok(End::Upgradable(Rings::new(ring)?, upgrade::Side::Client(offered)))
            }
            Ok(offered) => offered.bring_up(&steps, &mut socket).await?.map(End::Rdma),
            Err(reason) => Err(reason),
        };
        match found {
            Ok(found) => end = Some(found),
            Err(reason) => refusals.push(Refusal { kind: LinkKind::Rdma, reason }),
        }
    }
    let end = match end {
        Some(end) => end,
        None => End::Tcp(Rings::new(ring)?),
    };
    let kind = end.kind();
    let verdict = settings
        .links
        .verdict(kind, &refusals, &steps.peer)
        .and_then(|()| server_allows(kind, &hello, &refusals, &steps.peer));
    let choice = Choice {
        link: kind.to_string(),
        refusals: refusals.iter().map(Refusal::to_wire).collect(),
        error: verdict.as_ref().err().map(ToString::to_string).unwrap_or_default(),
        upgrade: end.is_upgradable(),
        ..Choice::default()
    };
    steps.step("sending the choice of link", hello::write(&mut socket, false, &choice)).await?;
    verdict?;
    Chosen { socket, peer, hello, refusals, end, agreed, keepalive: settings.keepalive }.establish()
}

fn shm_offer<'a>(
    links: &LinkPolicies,
    host_problem: Option<String>,
    hello: &'a Hello,
) -> Result<(&'a str, Token), String> {
    if let Some(reason) = links.refusal(LinkKind::Shm, "this side") {
        return Err(reason);
    }
    if let Some(problem) = host_problem {
        // The server can only say that it was told nothing.
        return Err(format!("this process {problem}"));
    }
    match &hello.shm {
        Some(offer) => match offer.token.as_slice().try_into() {
            Ok(token) => Ok((&offer.socket, Token(token))),
            Err(_) => Err("the server's offer carries no valid token".to_owned()),
        },
        None => {
            let said = Refusal::said(hello, LinkKind::Shm);
            Err(said.map_or_else(|| "the server does not offer it".to_owned(), |refusal| refusal.reason))
        }
    }
}

/// Whether the server has not refused the link that is left.
fn server_allows(
    chosen: LinkKind,
    hello: &Hello,
    refusals: &[Refusal],
    peer: &str,
) -> Result<(), BootstrapError> {
    let Some(refused) = Refusal::said(hello, chosen) else { return Ok(()) };
    let reasons: Vec<_> = refusals.iter().chain([&refused]).map(ToString::to_string).collect();
    Err(BootstrapError::NoLink { peer: peer.to_owned(), reasons: reasons.join("; ") })
}
