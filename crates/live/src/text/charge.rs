//! What a template may cost: every step takes of its fuel, and so does every piece of text, before it is made.
//!
//! The library charges what its own operators, loops and filters make; here is what the functions of ours make.

use minijinja::{Error, ErrorKind, State};
use std::fmt;
use std::io::{self, Write};

/// What one prompt may take, in steps. A step is one instruction of a template, or 64 bytes of text. Long chats with many
/// tools take some ten thousand; all of it is some tenths of a second, and 256 MB at most.
pub const FUEL: u64 = 4_000_000;
/// Bytes for a step.
const BYTES_PER_STEP: usize = 64;

/// Takes what so many bytes cost.
///
/// # Errors
/// There is not as much left.
pub fn take(state: &State<'_, '_>, bytes: usize) -> Result<(), Error> {
    state.consume_fuel((bytes / BYTES_PER_STEP) as u64 + 1)
}

/// Where the bytes that are written go.
pub trait Sink {
    /// Takes some.
    fn push(&mut self, bytes: &[u8]);
}

/// A text.
impl Sink for String {
    /// They come from `str`s, cut between characters only.
    fn push(&mut self, bytes: &[u8]) {
        self.push_str(&String::from_utf8_lossy(bytes));
    }
}

/// Their number.
impl Sink for usize {
    fn push(&mut self, bytes: &[u8]) {
        *self += bytes.len();
    }
}

/// A writer that pays for each piece before it takes it.
pub struct Charged<'a, 'b, 'c, S> {
    state: &'a State<'b, 'c>,
    sink: S,
    /// Bytes that are not paid yet, fewer than a step is.
    open: usize,
    refused: Option<Error>,
}

impl<'a, 'b, 'c, S: Sink> Charged<'a, 'b, 'c, S> {
    /// One that pays of a template's fuel.
    pub fn new(state: &'a State<'b, 'c>, sink: S) -> Self {
        Charged { state, sink, open: 0, refused: None }
    }

    /// What was written.
    ///
    /// # Errors
    /// It could not be paid.
    pub fn finish(self) -> Result<S, Error> {
        self.refused.map_or(Ok(self.sink), Err)
    }

    fn piece(&mut self, bytes: &[u8]) -> bool {
        self.open += bytes.len();
        let paid =
            self.refused.is_none().then(|| self.state.consume_fuel((self.open / BYTES_PER_STEP) as u64));
        self.open %= BYTES_PER_STEP;
        match paid {
            Some(Ok(())) => self.sink.push(bytes),
            Some(Err(_)) => self.refused = Some(Error::from(ErrorKind::OutOfFuel)),
            None => {}
        }
        self.refused.is_none()
    }
}

impl<S: Sink> Write for Charged<'_, '_, '_, S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.piece(bytes) { Ok(bytes.len()) } else { Err(io::Error::other("too much text")) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<S: Sink> fmt::Write for Charged<'_, '_, '_, S> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.piece(text.as_bytes()) { Ok(()) } else { Err(fmt::Error) }
    }
}
