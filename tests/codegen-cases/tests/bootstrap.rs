//! The bootstrap's messages are written by hand in the transport, so that it needs no code generator: they must be what
//! `proto/ringmail/bootstrap.proto` says.

use codegen_cases::bootstrap as file;
use ringmail::codegen::prost::Message;
use ringmail_transport::bootstrap::hello as hand;

/// Encoded as one, decoded and encoded again as the other: no field may be lost or change its place.
fn same<A: Message, B: Message + Default>(message: &A) {
    let bytes = message.encode_to_vec();
    assert_eq!(B::decode(bytes.as_slice()).unwrap().encode_to_vec(), bytes);
}

#[test]
fn the_messages_written_by_hand_are_those_of_the_file() {
    let refusal = || file::Refusal { link: "shm".into(), reason: "r".into() };
    let hello = file::Hello {
        version_min: 1,
        version_max: 2,
        nonce: vec![3; 16].into(),
        ring_bytes: 4,
        max_message_bytes: u64::MAX,
        max_calls: 6,
        header_check: true,
        methods: vec!["/a/B".into(), "/a/C".into()],
        host: Some(file::HostIdentity { boot_id: "b".into(), net_namespace: "n".into(), uid: 7 }),
        shm: Some(file::ShmOffer { socket: "s".into(), token: vec![8; 16].into() }),
        refusals: vec![refusal(), refusal()],
        software: "w".into(),
        error: "e".into(),
        rdma: Some(file::RdmaOffer {
            device: "d".into(),
            address: "a".into(),
            session: vec![9; 16].into(),
            token: vec![10; 16].into(),
            key: vec![11; 32].into(),
        }),
        max_fragmented_bytes: 12,
    };
    same::<_, hand::Hello>(&hello);
    let end = file::RdmaEnd {
        ring_address: 1 << 60,
        ring_key: 2,
        desk_address: 3,
        desk_key: 4,
        ring_bytes: 5,
        notifications: 6,
        immediates: true,
        reads: true,
    };
    same::<_, hand::Choice>(&file::Choice {
        link: "tcp".into(),
        refusals: vec![refusal()],
        error: "e".into(),
        attempt: Some(end),
        upgrade: true,
    });
    same::<_, hand::Upgrade>(&file::Upgrade {
        epoch: 1,
        end: Some(end),
        address: "a".into(),
        token: vec![2; 16].into(),
        refusal: "r".into(),
    });
    same::<_, hand::RdmaAnswer>(&file::RdmaAnswer { end: Some(end), refusal: "r".into() });
    // And the other way: nothing in the hand-written ones that the file does not have.
    let theirs = hand::Hello::decode(hello.encode_to_vec().as_slice()).unwrap();
    assert_eq!(file::Hello::decode(theirs.encode_to_vec().as_slice()).unwrap(), hello);
}
