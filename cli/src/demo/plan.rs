//! What is measured: links, waiting modes, payloads and depths.

use std::fmt;

use ringmail::Wait;

/// A way that calls take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Link {
    /// RDMA.
    Rdma,
    /// Shared memory.
    Shm,
    /// TCP.
    Tcp,
    /// gRPC over TCP, by tonic: the yardstick.
    Grpc,
}

impl Link {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Rdma => "rdma",
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Grpc => "grpc",
        }
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One combination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) link: Link,
    /// `None` for gRPC, which has no such choice.
    pub(crate) wait: Option<Wait>,
    /// Payload bytes, each way.
    pub(crate) payload: usize,
    /// Calls in flight on the one connection.
    pub(crate) depth: usize,
}

impl Cell {
    /// Name of the waiting mode.
    pub(crate) fn mode(&self) -> &'static str {
        self.wait.map_or("-", wait_name)
    }

    /// Which server process serves it.
    pub(crate) fn server_wait(&self) -> Wait {
        self.wait.unwrap_or(Wait::Event)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}, {}, depth {}", self.link, self.mode(), bytes(self.payload), self.depth)
    }
}

/// How modes are called on the command line and in reports.
pub(crate) fn wait_name(wait: Wait) -> &'static str {
    match wait {
        Wait::Busy => "busy",
        Wait::Event => "event",
        Wait::Adaptive => "adaptive",
    }
}

/// A size for people.
pub(crate) fn bytes(count: usize) -> String {
    match count {
        0..1024 => format!("{count} B"),
        1024..1_048_576 => format!("{} KiB", count / 1024),
        _ => format!("{} MiB", count / 1_048_576),
    }
}

/// Payload and depth of each block of rows.
const LOADS: [(usize, usize); 6] = [(32, 1), (1024, 1), (65_536, 1), (1_048_576, 1), (32, 64), (4096, 64)];

/// Everything that is measured, block by block; gRPC ends each block.
pub(crate) fn cells(only: Option<Link>, has_rdma: bool) -> Vec<Cell> {
    let ways = [
        (Link::Rdma, Some(Wait::Busy)),
        (Link::Rdma, Some(Wait::Adaptive)),
        (Link::Rdma, Some(Wait::Event)),
        (Link::Shm, Some(Wait::Busy)),
        (Link::Shm, Some(Wait::Adaptive)),
        (Link::Shm, Some(Wait::Event)),
        (Link::Tcp, Some(Wait::Busy)),
        (Link::Tcp, Some(Wait::Adaptive)),
        (Link::Tcp, Some(Wait::Event)),
        (Link::Grpc, None),
    ];
    LOADS
        .iter()
        .flat_map(|(payload, depth)| {
            ways.iter()
                .filter(|(link, _)| only.is_none_or(|only| *link == only || *link == Link::Grpc))
                .filter(|(link, _)| has_rdma || *link != Link::Rdma)
                .map(|(link, wait)| Cell { link: *link, wait: *wait, payload: *payload, depth: *depth })
        })
        .collect()
}

/// Each link that is measured, once.
pub(crate) fn links(cells: &[Cell]) -> Vec<Link> {
    [Link::Rdma, Link::Shm, Link::Tcp, Link::Grpc]
        .into_iter()
        .filter(|link| cells.iter().any(|cell| cell.link == *link))
        .collect()
}

/// The waiting modes that servers are needed for.
pub(crate) fn waits(cells: &[Cell]) -> Vec<Wait> {
    [Wait::Busy, Wait::Adaptive, Wait::Event]
        .into_iter()
        .filter(|wait| cells.iter().any(|cell| cell.server_wait() == *wait))
        .collect()
}
