//! Calls into libraries that panic at input which they do not expect, or whose recursion goes as deep as their input
//! does: both are errors of that input, not the end of the program.

use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;
use std::thread;

/// The stack of [`on_large_stack`]. Memory is taken only as far as the recursion goes.
const LARGE_STACK: usize = 1 << 30;

thread_local! {
    /// Panics of this thread are caught, and told as errors.
    static CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// What the work gives, or the words of its panic, which are then not written to standard error.
///
/// # Errors
/// It panicked.
pub fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let others = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if !CAUGHT.get() {
                others(panic);
            }
        }));
    });
    let before = CAUGHT.replace(true);
    // What a panic leaves half done belongs to the work, of which nothing is used again but what locks guard.
    let outcome = panic::catch_unwind(AssertUnwindSafe(work));
    CAUGHT.set(before);
    outcome.map_err(|panic| words(panic.as_ref()))
}

/// The same on a thread whose stack has room for deep recursion.
///
/// # Errors
/// It panicked, or there is no such thread to be had.
pub fn on_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, String> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().stack_size(LARGE_STACK).spawn_scoped(scope, || caught(work));
        let thread = thread.map_err(|error| format!("no thread with a large stack: {error}"))?;
        thread.join().unwrap_or_else(|panic| Err(words(panic.as_ref())))
    })
}

/// What a panic says.
fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("it cannot tell why").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_in_its_own_words() {
        assert_eq!(caught(|| 3), Ok(3));
        assert_eq!(caught(|| panic!("one {}", 2)).map(|(): ()| 0), Err("one 2".into()));
        assert_eq!(caught(|| panic!("two")).map(|(): ()| 0), Err("two".into()));
        assert!(!CAUGHT.get());
        assert_eq!(on_large_stack(|| panic!("three")).map(|(): ()| 0), Err("three".into()));
    }

    #[test]
    fn recursion_may_be_deep() {
        // 64 MiB at least: far more than the two of a usual thread.
        fn depth(left: u32) -> u32 {
            let room = std::hint::black_box([left; 64]);
            if left == 0 { 0 } else { depth(left - 1) + u32::from(room[1] == left) }
        }
        assert_eq!(on_large_stack(|| depth(250_000)), Ok(250_000));
    }
}
