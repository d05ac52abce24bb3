//! A progress line on standard error, on a terminal only.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;
use windtunnel_sim::Progress;

/// The line.
pub struct ProgressLine {
    bar: ProgressBar,
}

impl ProgressLine {
    /// A line, hidden when standard error is not a terminal.
    pub fn new() -> ProgressLine {
        let bar = ProgressBar::no_length();
        if std::io::stderr().is_terminal() {
            bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
        } else {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        if let Ok(style) = ProgressStyle::with_template("{spinner} {pos} requests sent, {msg} ({elapsed})") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        ProgressLine { bar }
    }

    /// Shows how far the run is.
    pub fn show(&self, progress: Progress) {
        self.bar.set_position(progress.sent);
        if progress.now < windtunnel_engine::Nanos::NEVER {
            self.bar.set_message(format!("virtual time {:.0} s", progress.now.as_seconds()));
        }
    }

    /// Takes the line away.
    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }
}
