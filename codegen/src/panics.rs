//! Panics of the libraries that parse and generate, as errors.
//!
//! `prost-build` and the parsers panic on some inputs: enum values whose Rust names coincide, invalid default values,
//! names that are no identifiers. A build script that panics prints a backtrace in place of a reason.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    /// Whether a panic of this thread is caught, and so must not be printed.
    static CAUGHT_HERE: Cell<bool> = const { Cell::new(false) };
}

static HOOK: Once = Once::new();

/// What the work returns, or what it panicked with.
pub(crate) fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    HOOK.call_once(|| {
        let previous = take_hook();
        set_hook(Box::new(move |info| {
            if !CAUGHT_HERE.try_with(Cell::get).unwrap_or(false) {
                previous(info);
            }
        }));
    });
    let before = CAUGHT_HERE.replace(true);
    // What a panic leaves half done is never looked at: the run ends with the error.
    let outcome = catch_unwind(AssertUnwindSafe(work));
    CAUGHT_HERE.set(before);
    outcome.map_err(|payload| match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => payload
            .downcast::<&str>()
            .map_or_else(|_| "for no stated reason".to_owned(), |text| (*text).to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::caught;

    #[test]
    fn a_panic_becomes_its_message() {
        assert_eq!(caught(|| 1), Ok(1));
        assert_eq!(caught(|| panic!("plain")), Err::<(), _>("plain".to_owned()));
        let values = [7];
        assert_eq!(caught(|| panic!("formatted {values:?}")), Err::<(), _>("formatted [7]".to_owned()));
    }

    #[test]
    fn an_inner_catch_leaves_the_outer_one_in_place() {
        let outer = caught(|| {
            assert_eq!(caught(|| panic!("inner")), Err::<(), _>("inner".to_owned()));
            panic!("outer")
        });
        assert_eq!(outer, Err::<(), _>("outer".to_owned()));
    }
}
