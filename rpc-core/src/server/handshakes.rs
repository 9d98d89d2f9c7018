//! Handshakes under way.
//!
//! A handshake takes a moment for whoever means it, so one that has taken longest when too many are under way is likely
//! to be of somebody who says nothing. It gives way: a crowd of those keeps nobody out.

use std::collections::VecDeque;

use tokio::sync::oneshot;

/// Tells a handshake that it has to give way.
pub(super) type GiveWay = oneshot::Receiver<()>;

/// The handshakes of one server, the oldest first.
#[derive(Debug)]
pub(super) struct Handshakes {
    most: usize,
    under_way: VecDeque<oneshot::Sender<()>>,
}

impl Handshakes {
    pub(super) fn new(most: usize) -> Self {
        Self { most: most.max(1), under_way: VecDeque::new() }
    }

    /// Begins one, which has ended when what this returns is dropped.
    pub(super) fn begin(&mut self) -> GiveWay {
        if self.under_way.len() >= self.most {
            self.under_way.retain(|handshake| !handshake.is_closed());
        }
        if self.under_way.len() >= self.most {
            self.oldest_gives_way();
        }
        let (tell, told) = oneshot::channel();
        self.under_way.push_back(tell);
        told
    }

    /// Ends the oldest; `false` when there is none.
    pub(super) fn oldest_gives_way(&mut self) -> bool {
        while let Some(oldest) = self.under_way.pop_front() {
            if oldest.send(()).is_ok() {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_that_is_still_under_way_gives_way() {
        let mut handshakes = Handshakes::new(3);
        let [first, mut second, mut third] = std::array::from_fn(|_| handshakes.begin());
        drop(first);
        let mut fourth = handshakes.begin();
        assert!([&mut second, &mut third, &mut fourth].into_iter().all(|it| it.try_recv().is_err()));
        let mut fifth = handshakes.begin();
        assert_eq!(second.try_recv(), Ok(()));
        assert!([&mut third, &mut fourth, &mut fifth].into_iter().all(|it| it.try_recv().is_err()));
        assert!(handshakes.oldest_gives_way());
        assert_eq!(third.try_recv(), Ok(()));
    }

    #[test]
    fn where_none_is_under_way_none_gives_way() {
        let mut handshakes = Handshakes::new(2);
        drop(handshakes.begin());
        assert!(!handshakes.oldest_gives_way());
    }
}
