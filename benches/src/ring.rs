//! Writing and checking headers; claiming, committing, sealing and releasing space.

#![allow(missing_docs)] // The macros below define public functions without any.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use ringmail_transport::frame::{CallId, Check, Flags, HEADER, Header, Kind};
use ringmail_transport::memory::Region;
use ringmail_transport::ring::{Blocks, Frontier, Position, RingSize, Room, Staging};

fn header() -> Header {
    let call = CallId { index: 3, generation: 77 };
    Header { call, flags: Flags::METADATA, ..Header::new(Kind::Request, 100) }
}

fn frames(criterion: &mut Criterion) {
    criterion.bench_function("header: encode", |bench| bench.iter(|| black_box(header()).encode()));
    for (name, check) in [("header: decode", Check::Off), ("header: decode with its check", Check::Header)] {
        let mut bytes = header().encode();
        Header::seal(&mut bytes, 1, 2, check);
        bench_decode(criterion, name, bytes, check);
    }
}

fn bench_decode(criterion: &mut Criterion, name: &str, bytes: [u8; HEADER], check: Check) {
    criterion.bench_function(name, |bench| bench.iter(|| Header::decode(black_box(&bytes), 4096, check)));
}

fn rings(criterion: &mut Criterion) {
    let region = Region::create(RingSize::DEFAULT).expect("ring memory");
    let staging = Staging::new(Arc::new(region));
    criterion.bench_function("staging: claim, commit and walk over a frame of 100 bytes", |bench| {
        bench.iter(|| {
            staging.claim(100, Room::Data).expect("there is room").commit(&header());
            let mut advance = staging.enter().expect("nobody else is inside");
            while advance.step().is_some() {}
            assert!(advance.leave().is_none());
            staging.free_to(staging.sealed());
        });
    });
    let frontier = Frontier::new(RingSize::DEFAULT);
    let mut at = Position(0);
    criterion.bench_function("frontier: release two frames in the wrong order", |bench| {
        bench.iter(|| {
            frontier.mark(at.plus(Blocks(2)), Blocks(1));
            frontier.mark(at, Blocks(2));
            let mut advance = frontier.enter().expect("nobody else is inside");
            while advance.step().is_some() {}
            assert!(advance.leave().is_none());
            at = frontier.head();
        });
    });
}

criterion_group!(benches, frames, rings);
criterion_main!(benches);
