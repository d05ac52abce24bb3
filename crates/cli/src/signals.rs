//! Ctrl-C, SIGTERM and SIGHUP: the first asks the run to end in order, the second ends the program.

use crate::exit::Failure;
use crate::process::status;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Exit code of a run that was told to end.
const EXIT_INTERRUPTED: i32 = 130;

/// A flag that any of the signals raises.
pub fn interrupt_flag() -> Result<Arc<AtomicBool>, Failure> {
    let raised = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // `nohup` has the hang-up ignored, and that must stay so.
        if signal == SIGHUP && hangup_is_ignored() {
            continue;
        }
        flag::register_conditional_shutdown(signal, EXIT_INTERRUPTED, raised.clone())
            .and_then(|_| flag::register(signal, raised.clone()))
            .map_err(|e| Failure::run(format!("cannot listen for signals: {e}")))?;
    }
    Ok(raised)
}

/// Whether this process was started with SIGHUP ignored, where the system tells.
fn hangup_is_ignored() -> bool {
    let mask = status("SigIgn:").and_then(|mask| u64::from_str_radix(&mask, 16).ok());
    mask.is_some_and(|mask| mask & (1 << (SIGHUP - 1)) != 0)
}
