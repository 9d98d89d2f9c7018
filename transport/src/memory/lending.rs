//! Lending parts of a mailbox to the application, without letting a borrower stop the ring.
//!
//! A `bytes` field is handed to the application where it lies, in the mailbox. The application may keep it for ever,
//! but space in a ring comes back in order, so one kept field would in the end stop the connection. The pointer that
//! the application has cannot be changed any more; what is *mapped* there can:
//!
//! ```text
//!   ring     │▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒│  read by us, written by the peer
//!   window   │▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒│  the same pages, mapped a second time: borrowers point here
//!   later    │▒▒▒▒▒▒▒▒▒░░░░▒▒▒▒▒▒▒▒▒▒▒│  ░ pages replaced by a private copy; the ring moves on
//! ```
//!
//! Borrowers see the same bytes at the same address before and after. When the last one of a page is gone, the ring's
//! page is mapped there again.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, MremapFlags, ProtFlags};

use super::{CONTROL_BYTES, Region};
use crate::ring::{Blocks, Position};

/// Bytes in a page.
const PAGE: usize = 4096;

/// A second mapping of a region's ring, parts of which are lent.
#[derive(Debug)]
pub(crate) struct Window {
    region: Arc<Region>,
    /// Twice the ring, as in the region itself.
    base: NonNull<u8>,
    state: Mutex<State>,
}

// SAFETY: the mapping belongs to this value alone; it is changed only under `state`'s lock, and only in ways that
// leave the bytes under every loan as they are.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

#[derive(Debug)]
struct State {
    pages: Vec<Page>,
    loans: BTreeMap<Position, Lent>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Page {
    loans: u32,
    /// A private copy is mapped here.
    detached: bool,
}

#[derive(Debug)]
struct Lent {
    blocks: Blocks,
    pages: std::ops::Range<usize>,
    detached: bool,
}

/// Bytes at a fixed address, until dropped.
#[derive(Debug)]
pub(crate) struct Loan {
    window: Arc<Window>,
    at: Position,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a loan is a shared, read-only view of memory that its window keeps mapped.
unsafe impl Send for Loan {}
// SAFETY: as above.
unsafe impl Sync for Loan {}

impl Window {
    /// Maps a region's ring a second time.
    pub(crate) fn new(region: Arc<Region>) -> Result<Self, Errno> {
        let ring = region.size().bytes();
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                2 * ring,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(Errno::NOMEM)?;
        let pages = vec![Page::default(); 2 * ring / PAGE];
        // From here on dropping `window` unmaps the reservation.
        let window = Self { region, base, state: Mutex::new(State { pages, loans: BTreeMap::new() }) };
        for half in 0..2 {
            window.map_ring(half * ring / PAGE, ring / PAGE)?;
        }
        Ok(window)
    }

    /// Maps the ring's own pages at these pages of the window, which must not cross its middle.
    fn map_ring(&self, page: usize, count: usize) -> Result<(), Errno> {
        let offset = (page * PAGE) % self.region.size().bytes();
        // SAFETY: the pages lie within this window's reservation, and no loan points at them (at first, or when their
        // last loan has ended): replacing what is mapped there is seen by nobody.
        unsafe {
            rustix::mm::mmap(
                self.base.add(page * PAGE).as_ptr().cast::<c_void>(),
                count * PAGE,
                ProtFlags::READ,
                MapFlags::SHARED | MapFlags::FIXED,
                self.region.file(),
                (CONTROL_BYTES + offset) as u64,
            )
        }
        .map(|_| ())
    }

    /// Lends `bytes` bytes, `skip` bytes into the frame of `blocks` blocks at `at`, which must be held and not lent.
    /// `None` when a page of it still serves an older loan with a private copy.
    pub(crate) fn lend(
        self: &Arc<Self>,
        at: Position,
        blocks: Blocks,
        skip: usize,
        bytes: usize,
    ) -> Option<Loan> {
        let offset = self.region.size().offset(at) + skip;
        let pages = offset / PAGE..(offset + bytes.max(1)).div_ceil(PAGE);
        let mut state = self.state.lock();
        if state.pages[pages.clone()].iter().any(|page| page.detached) {
            return None;
        }
        state.pages[pages.clone()].iter_mut().for_each(|page| page.loans += 1);
        state.loans.insert(at, Lent { blocks, pages, detached: false });
        // SAFETY: the frame was checked to lie within the double mapping, of which this window is another view.
        let start = unsafe { self.base.add(offset) };
        Some(Loan { window: Arc::clone(self), at, start, bytes })
    }

    /// Gives every frame that is lent a private copy, so that its space in the ring can be released; returns those
    /// frames. What cannot be copied for want of memory stays lent.
    pub(crate) fn detach_all(&self) -> Vec<(Position, Blocks)> {
        let mut state = self.state.lock();
        let State { pages, loans } = &mut *state;
        let mut released = Vec::new();
        for (at, lent) in loans.iter_mut().filter(|(_, lent)| !lent.detached) {
            let copied = lent.pages.clone().filter(|page| !pages[*page].detached).collect::<Vec<_>>();
            let copied = copied.into_iter().try_for_each(|page| {
                self.detach(page)?;
                pages[page].detached = true;
                Ok::<_, Errno>(())
            });
            match copied {
                Ok(()) => {
                    lent.detached = true;
                    released.push((*at, lent.blocks));
                }
                Err(error) => {
                    tracing::warn!(%error, "a lent frame cannot be copied and keeps its ring from moving on");
                }
            }
        }
        released
    }

    fn detach(&self, page: usize) -> Result<(), Errno> {
        // SAFETY: `copy` is a fresh page that only this function knows until it is moved. The page of the window is
        // mapped and readable. Moving replaces it in one step under the kernel's lock on the address space: a borrower
        // that reads meanwhile waits, then finds the same bytes. If moving fails nothing has changed.
        unsafe {
            let target = self.base.add(page * PAGE).as_ptr();
            let copy = rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                PAGE,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )?;
            std::ptr::copy_nonoverlapping(target, copy.cast::<u8>(), PAGE);
            let moved = rustix::mm::mprotect(copy, PAGE, MprotectFlags::READ).and_then(|()| {
                rustix::mm::mremap_fixed(copy, PAGE, PAGE, MremapFlags::MAYMOVE, target.cast::<c_void>())
            });
            if let Err(errno) = moved {
                let _ = rustix::mm::munmap(copy, PAGE);
                return Err(errno);
            }
        }
        Ok(())
    }

    /// Ends a loan; `Some` when the frame's space has not been released yet.
    fn end(&self, at: Position) -> Option<Blocks> {
        let mut state = self.state.lock();
        let lent = state.loans.remove(&at)?;
        for page in lent.pages.clone() {
            state.pages[page].loans -= 1;
            // Should mapping fail the page stays as it is, and nothing is lent there any more.
            if state.pages[page].loans == 0 && state.pages[page].detached && self.map_ring(page, 1).is_ok() {
                state.pages[page].detached = false;
            }
        }
        (!lent.detached).then_some(lent.blocks)
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let length = 2 * self.region.size().bytes();
        // SAFETY: the reservation belongs to this value alone, and loans keep it alive.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), length) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

impl Loan {
    /// Ends the loan; `Some` when the frame's space in the ring must be released now.
    pub(crate) fn end(&self) -> Option<(Position, Blocks)> {
        Some((self.at, self.window.end(self.at)?))
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: the range lies within the window, which is mapped as long as `self.window` exists. Its bytes stay the
        // same until the loan ends: the ring does not reuse pages under a loan before they are detached.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::ring::RingSize;

    fn window() -> Arc<Window> {
        let region = Region::create(RingSize::new(RingSize::MIN).unwrap()).unwrap();
        Arc::new(Window::new(Arc::new(region)).unwrap())
    }

    fn write(window: &Window, offset: usize, byte: u8, count: usize) {
        // SAFETY: tests stay within the double mapping of a region that this process created.
        unsafe { window.region.ring().add(offset).as_ptr().write_bytes(byte, count) };
    }

    #[test]
    fn a_lent_frame_keeps_its_bytes_when_the_ring_moves_on() {
        let window = window();
        write(&window, 128, 7, 2000);
        let loan = window.lend(Position(2), Blocks(32), 0, 2000).unwrap();
        assert_eq!(loan.as_slice(), [7; 2000]);
        assert_eq!(window.detach_all(), [(Position(2), Blocks(32))]);
        write(&window, 128, 9, 2000);
        assert_eq!(loan.as_slice(), [7; 2000]);
        assert_eq!(loan.end(), None, "its space was released when it was detached");
        let next = window.lend(Position(2 + 256), Blocks(32), 0, 2000).unwrap();
        assert_eq!(next.as_slice(), [9; 2000], "the ring's page is mapped again");
        assert_eq!(next.end(), Some((Position(258), Blocks(32))));
    }

    #[test]
    fn a_frame_across_the_end_of_the_ring_is_lent_in_one_piece() {
        let window = window();
        write(&window, RingSize::MIN - 64, 5, 4096);
        let loan = window.lend(Position(255), Blocks(64), 0, 4096).unwrap();
        window.detach_all();
        write(&window, RingSize::MIN - 64, 6, 4096);
        assert_eq!(loan.as_slice(), [5; 4096]);
        loan.end();
    }

    #[test]
    fn nothing_is_lent_where_an_older_loan_has_a_private_copy() {
        let window = window();
        let old = window.lend(Position(0), Blocks(16), 0, 1024).unwrap();
        window.detach_all();
        assert!(window.lend(Position(16), Blocks(16), 0, 1024).is_none());
        old.end();
        assert!(window.lend(Position(16), Blocks(16), 0, 1024).is_some());
    }

    #[test]
    fn borrowers_that_read_all_the_time_never_see_a_change() {
        let window = window();
        write(&window, 0, 3, 8192);
        let loan = window.lend(Position(0), Blocks(128), 0, 8192).unwrap();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    assert!(loan.as_slice().iter().all(|byte| *byte == 3));
                }
            });
            std::thread::sleep(std::time::Duration::from_millis(5));
            window.detach_all();
            write(&window, 0, 4, 8192);
            std::thread::sleep(std::time::Duration::from_millis(5));
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            reader.join().unwrap();
        });
        loan.end();
    }
}
