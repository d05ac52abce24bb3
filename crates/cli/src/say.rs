//! What is said to a person, on standard error. If nobody can hear it (a full disk, a closed terminal),
//! the work goes on and the exit code tells the rest; `eprintln!` would panic.

use std::fmt::Arguments;
use std::io::Write;

/// Says one line.
pub fn say(line: Arguments<'_>) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
