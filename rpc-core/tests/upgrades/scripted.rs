//! Servers that offer RDMA and then do not have it, and clients that ask for it in the wrong way.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use prost::Message;
use ringmail::{Channel, LinkKind, LinkPolicy};
use ringmail_transport::bootstrap::hello::{Choice, Hello, MAGIC, RdmaEnd, RdmaOffer, Upgrade};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::{calls_until, history};
use crate::peers::within;
use crate::support::{EchoClient, server};
use crate::{BOUND, addresses, at};

const UPGRADE: u8 = 16;
const PING: u8 = 10;
const PONG: u8 = 11;
const SWITCH: u8 = 13;

/// One side of a connection, written by hand.
pub struct Script {
    socket: TcpStream,
    sequence: u32,
    /// Blocks sent so far.
    blocks: u64,
}

impl Script {
    pub async fn accept(listener: TcpListener) -> Self {
        let (socket, _) = listener.accept().await.expect("a client");
        Self { socket, sequence: 0, blocks: 0 }
    }

    /// Takes what comes until the other side has closed.
    pub async fn until_closed(&mut self) {
        while matches!(self.socket.read(&mut [0; 512]).await, Ok(1..)) {}
    }

    pub async fn say(&mut self, first: bool, message: &impl Message) {
        let mut bytes = if first { MAGIC.to_vec() } else { Vec::new() };
        bytes.extend((message.encoded_len() as u32).to_le_bytes());
        message.encode(&mut bytes).expect("room");
        self.socket.write_all(&bytes).await.expect("it reads");
    }

    pub async fn hear<M: Message + Default>(&mut self, first: bool) -> M {
        if first {
            let mut magic = [0; 8];
            self.socket.read_exact(&mut magic).await.expect("the magic");
        }
        let mut message = vec![0; self.socket.read_u32_le().await.expect("a length") as usize];
        self.socket.read_exact(&mut message).await.expect("a message");
        M::decode(message.as_slice()).expect("that message")
    }

    async fn send(&mut self, kind: u8, call: u32, payload: &[u8]) {
        let mut frame = vec![0; 32];
        frame[..4].copy_from_slice(&(32 + payload.len() as u32).to_le_bytes());
        frame[4] = kind;
        frame[8..12].copy_from_slice(&call.to_le_bytes());
        frame[24..28].copy_from_slice(&self.sequence.to_le_bytes());
        self.sequence += 1;
        self.blocks += (32 + payload.len()).div_ceil(64) as u64;
        frame.extend(payload);
        frame.resize(frame.len().next_multiple_of(64), 0);
        self.socket.write_all(&frame).await.expect("it reads");
    }

    pub async fn upgrade(&mut self, upgrade: &Upgrade) {
        self.send(UPGRADE, 0, &upgrade.encode_to_vec()).await;
    }

    /// The next frame: its kind and payload. `None` when the other side has closed.
    async fn receive(&mut self) -> Option<(u8, Vec<u8>)> {
        let mut frame = vec![0; 64];
        self.socket.read_exact(&mut frame).await.ok()?;
        let length = u32::from_le_bytes(frame[..4].try_into().expect("four bytes")) as usize;
        frame.resize(length.next_multiple_of(64), 0);
        self.socket.read_exact(&mut frame[64..]).await.ok()?;
        Some((frame[4], frame[32..length].to_vec()))
    }

    pub async fn asked(&mut self) -> Upgrade {
        loop {
            let (kind, payload) = self.receive().await.expect("the client goes on");
            if kind == UPGRADE {
                return Upgrade::decode(payload.as_slice()).expect("an UPGRADE");
            }
        }
    }
}

/// What such a server answers when it is asked for RDMA.
#[derive(Clone, Copy, Debug)]
pub enum Answer {
    /// That the connection manager listens at a port where nobody does.
    Nobody,
    No,
    Nothing,
    /// An address elsewhere.
    Elsewhere,
    NoToken,
}

pub async fn serve(listener: TcpListener, address: IpAddr, answer: Answer) -> (Script, Upgrade) {
    let mut script = Script::accept(listener).await;
    let theirs: Hello = script.hear(true).await;
    assert!(theirs.rdma.is_some(), "it has a device");
    let manager = SocketAddr::new(address, 9).to_string();
    let offer = RdmaOffer {
        device: "none".into(),
        address: manager.clone(),
        session: vec![1; 16],
        token: vec![2; 16],
        key: vec![3; 32],
    };
    let hello = Hello { host: None, rdma: Some(offer), methods: vec!["/test.Echo/Echo".into()], ..theirs };
    script.say(true, &Hello { nonce: vec![9; 16], ..hello }).await;
    let choice: Choice = script.hear(false).await;
    assert!(choice.upgrade && choice.link == "tcp", "{choice:?}");
    let wish = script.asked().await;
    assert_eq!(wish.epoch, 1);
    let end = wish.end.expect("the client's end");
    let told =
        Upgrade { epoch: 1, end: Some(end), address: manager, token: vec![4; 16], ..Upgrade::default() };
    match answer {
        Answer::Nobody => script.upgrade(&told).await,
        Answer::No => {
            let refusal = "the device has gone".to_owned();
            script.upgrade(&Upgrade { epoch: 1, refusal, ..Upgrade::default() }).await;
        }
        Answer::Elsewhere => script.upgrade(&Upgrade { address: "192.0.2.1:9".into(), ..told }).await,
        Answer::NoToken => script.upgrade(&Upgrade { token: vec![1; 15], ..told }).await,
        Answer::Nothing => {}
    }
    let refusal = match answer {
        Answer::No => Upgrade::default(),
        _ => script.asked().await,
    };
    (script, refusal)
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_fails_leaves_the_connection_on_tcp_and_says_why() {
    for address in addresses() {
        for (answer, reason) in [
            (Answer::Nobody, "refused the RDMA connection"),
            (Answer::No, "the device has gone"),
            (Answer::Nothing, "did not answer the wish for RDMA"),
            (Answer::Elsewhere, "192.0.2.1"),
            (Answer::NoToken, "no valid token"),
        ] {
            within(BOUND, async {
                let listener = TcpListener::bind((address, 0)).await.expect("listen");
                let there = listener.local_addr().expect("an address");
                let serving = tokio::spawn(serve(listener, address, answer));
                let channel = Channel::builder(there.to_string())
                    .link(LinkKind::Shm, LinkPolicy::Off)
                    .connect_timeout(Duration::from_secs(3))
                    .connect()
                    .await
                    .expect("TCP");
                let (_open, refusal) = serving.await.expect("the script");
                let patience = Instant::now() + Duration::from_secs(10);
                while history(&channel).failures == 0 {
                    assert!(Instant::now() < patience, "{}", channel.link_info());
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                let info = channel.link_info();
                assert_eq!(info.kind, Some(LinkKind::Tcp));
                assert!(info.to_string().contains(reason), "{answer:?}: {info}");
                assert_eq!(history(&channel).upgrades, 0);
                // And the server knows.
                assert!(matches!(answer, Answer::No) || refusal.refusal.contains(reason), "{refusal:?}");
            })
            .await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_slow_to_answer_is_not_asked_again_before() {
    for address in addresses() {
        within(BOUND, async {
            let listener = TcpListener::bind((address, 0)).await.expect("listen");
            let there = listener.local_addr().expect("an address");
            let serving = tokio::spawn(serve(listener, address, Answer::Nothing));
            let _channel = Channel::builder(there.to_string())
                .link(LinkKind::Shm, LinkPolicy::Off)
                .connect_timeout(Duration::from_millis(2000))
                .rdma_settle_time(Duration::from_millis(1))
                .connect()
                .await
                .expect("TCP");
            let (mut script, _) = serving.await.expect("the script");
            let again = tokio::time::timeout(Duration::from_millis(1500), script.asked()).await;
            assert!(again.is_err(), "{again:?}");
            let refusal = "at last".to_owned();
            script.upgrade(&Upgrade { epoch: 1, refusal, ..Upgrade::default() }).await;
            assert_eq!(script.asked().await.epoch, 2);
        })
        .await;
    }
}

/// A client that may ask for RDMA.
async fn client(server: SocketAddr) -> Script {
    let socket = TcpStream::connect(server).await.expect("connect");
    let mut script = Script { socket, sequence: 0, blocks: 0 };
    let hello = Hello {
        version_min: 1,
        version_max: 1,
        nonce: vec![5; 16],
        ring_bytes: 65_536,
        max_message_bytes: 1 << 20,
        max_calls: 4,
        rdma: Some(RdmaOffer { device: "none".into(), ..RdmaOffer::default() }),
        ..Hello::default()
    };
    script.say(true, &hello).await;
    let answer: Hello = script.hear(true).await;
    assert!(answer.rdma.is_some(), "{:?}", answer.refusals);
    script.say(false, &Choice { link: "tcp".into(), upgrade: true, ..Choice::default() }).await;
    script
}

fn end() -> RdmaEnd {
    RdmaEnd {
        ring_address: 1 << 40,
        ring_key: 1,
        desk_address: 1 << 41,
        desk_key: 2,
        ring_bytes: 65_536,
        notifications: 64,
        immediates: false,
        reads: false,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_asks_and_never_comes_is_told_and_served_on_tcp() {
    for address in addresses() {
        within(BOUND, async {
            let server = at(address, server().handshake_timeout(Duration::from_secs(2)));
            let mut script = client(server.address).await;
            script.upgrade(&Upgrade { epoch: 1, end: Some(end()), ..Upgrade::default() }).await;
            let answer = script.asked().await;
            assert!(answer.end.is_some() && answer.token.len() == 16, "{answer:?}");
            let refusal = script.asked().await;
            assert!(refusal.refusal.contains("took too long"), "{refusal:?}");
            // SWITCH for what was given up is answered with SWITCH and FALLBACK to what is behind it.
            script.send(SWITCH, 1, &[]).await;
            assert_eq!(script.receive().await.expect("SWITCH").0, SWITCH);
            let mut record = [0; 16];
            script.socket.read_exact(&mut record).await.expect("FALLBACK");
            assert_eq!((record[0], record[4]), (1, 1));
            assert_eq!(record[8..], script.blocks.to_le_bytes());
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_asks_again_and_again_is_put_off_and_served_on_tcp() {
    const ASKED: u32 = 60;
    for address in addresses() {
        within(BOUND, async {
            let server = at(address, server().handshake_timeout(Duration::from_secs(2)));
            let mut script = client(server.address).await;
            let began = Instant::now();
            let (mut granted, mut put_off) = (0, 0);
            for epoch in 1..=ASKED {
                script.upgrade(&Upgrade { epoch, end: Some(end()), ..Upgrade::default() }).await;
                let answer = script.asked().await;
                assert_eq!(answer.epoch, epoch);
                if answer.end.is_some() {
                    granted += 1;
                    // It has made a queue pair and registered memory, and may take them down again.
                    let refusal = "not any more".to_owned();
                    script.upgrade(&Upgrade { epoch, refusal, ..Upgrade::default() }).await;
                } else {
                    assert!(answer.refusal.contains("tried too often"), "{answer:?}");
                    put_off += 1;
                }
            }
            // Some at first, then one every five seconds.
            let most = 16 + began.elapsed().as_secs() as u32 / 5;
            assert!((1..=most).contains(&granted), "{granted} of {ASKED} in {:?}", began.elapsed());
            assert_eq!(granted + put_off, ASKED);
            // The connection is as good as ever.
            script.send(PING, 7, &[]).await;
            assert_eq!(script.receive().await.expect("an answer").0, PONG);
            eprintln!("{granted} of {ASKED} in {:?}", began.elapsed());
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nonsense_about_rdma_ends_the_connection_and_nothing_else() {
    for address in addresses() {
        within(BOUND, async {
            let server = at(address, server());
            for nonsense in 0..3 {
                let mut script = client(server.address).await;
                let wish = Upgrade { epoch: 1, end: Some(end()), ..Upgrade::default() };
                match nonsense {
                    0 => script.send(UPGRADE, 0, &[0xff; 40]).await,
                    1 => {
                        script.upgrade(&wish).await;
                        script.asked().await;
                        script
                            .upgrade(&Upgrade { epoch: 1, refusal: "no".into(), ..Upgrade::default() })
                            .await;
                        script.upgrade(&wish).await;
                    }
                    _ => script.send(SWITCH, 7, &[]).await,
                }
                while script.receive().await.is_some() {}
            }
            let channel = Channel::builder(server.address.to_string())
                .link(LinkKind::Shm, LinkPolicy::Off)
                .connect()
                .await
                .expect("TCP");
            let client = EchoClient::new(channel);
            calls_until("others have RDMA", &client, super::is_on(LinkKind::Rdma)).await;
        })
        .await;
    }
}
