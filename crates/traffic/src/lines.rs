//! Lines of a file, plain or gzip, one at a time into a reused buffer. A pipe is read like a file: once,
//! forwards, in whatever pieces it comes.
//!
//! Knows where it is (file and line), so that every reader above can say so; knows nothing of JSON.

use crate::TrafficError;
use crate::gunzip::Gunzip;
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};

/// Longest line accepted, so that a file that is not JSON lines cannot fill the memory.
const MAX_LINE_BYTES: usize = 64 << 20;
const READ_BYTES: usize = 64 << 10;
/// Most blank lines in a row, so that a file of nothing else ends: who waits for a request cannot be
/// interrupted before there is one.
const MAX_BLANK_LINES: u32 = 1 << 16;
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Reads lines and counts them.
pub(crate) struct Lines {
    file: PathBuf,
    reader: Box<dyn BufRead + Send>,
    buffer: Vec<u8>,
    line: u64,
}

impl Lines {
    /// Opens a file. Whether it is compressed is told by its first bytes.
    pub(crate) fn open(path: &Path) -> Result<Lines, TrafficError> {
        let fail = |error| TrafficError::Open { file: path.to_owned(), error };
        let mut file = File::open(path).map_err(fail)?;
        // A pipe may give them one by one.
        let mut first = Vec::with_capacity(GZIP_MAGIC.len());
        file.by_ref().take(GZIP_MAGIC.len() as u64).read_to_end(&mut first).map_err(fail)?;
        let compressed = first == GZIP_MAGIC;
        let plain = BufReader::with_capacity(READ_BYTES, Cursor::new(first).chain(file));
        let reader: Box<dyn BufRead + Send> = if compressed {
            Box::new(BufReader::with_capacity(READ_BYTES, Gunzip::new(plain)))
        } else {
            Box::new(plain)
        };
        Ok(Lines { file: path.to_owned(), reader, buffer: Vec::new(), line: 0 })
    }

    /// The next line that is not blank, without its line end.
    pub(crate) fn next_line(&mut self) -> Option<Result<&[u8], TrafficError>> {
        let (mut blank_lines, mut blank_bytes) = (0, 0);
        loop {
            self.buffer.clear();
            self.line += 1;
            let limit = MAX_LINE_BYTES as u64 + 1;
            match self.reader.by_ref().take(limit).read_until(b'\n', &mut self.buffer) {
                Err(error) => {
                    return Some(Err(TrafficError::Read { file: self.file.clone(), line: self.line, error }));
                }
                Ok(0) => return None,
                Ok(_) if self.buffer.len() > MAX_LINE_BYTES => {
                    return Some(Err(self.syntax(format!("the line is longer than {MAX_LINE_BYTES} bytes"))));
                }
                Ok(_) => {}
            }
            let start = if self.line == 1 && self.buffer.starts_with(BYTE_ORDER_MARK) {
                BYTE_ORDER_MARK.len()
            } else {
                0
            };
            let length = self.buffer.trim_ascii_end().len();
            if length > start {
                return Some(Ok(&self.buffer[start..length]));
            }
            blank_lines += 1;
            blank_bytes += self.buffer.len();
            if blank_lines > MAX_BLANK_LINES {
                return Some(Err(self.syntax(format!("more than {MAX_BLANK_LINES} blank lines in a row"))));
            }
            if blank_bytes > MAX_LINE_BYTES {
                return Some(Err(self.syntax(format!("more than {MAX_LINE_BYTES} blank bytes in a row"))));
            }
        }
    }

    pub(crate) fn empty(&self) -> TrafficError {
        TrafficError::Empty { file: self.file.clone() }
    }

    /// The line read last is not what it should be.
    pub(crate) fn syntax(&self, problem: String) -> TrafficError {
        TrafficError::Syntax { file: self.file.clone(), line: self.line, problem }
    }

    /// A field of the line read last is not what it should be.
    pub(crate) fn field(&self, fault: Fault) -> TrafficError {
        TrafficError::Field {
            file: self.file.clone(),
            line: self.line,
            field: fault.field,
            got: fault.got,
            allowed: fault.allowed,
        }
    }
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lines").field("file", &self.file).field("line", &self.line).finish_non_exhaustive()
    }
}

/// What is wrong with one field, before file and line are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) field: String,
    pub(crate) got: String,
    pub(crate) allowed: String,
}

impl Fault {
    pub(crate) fn new(field: impl Into<String>, got: impl Into<String>, allowed: impl Into<String>) -> Fault {
        Fault { field: field.into(), got: got.into(), allowed: allowed.into() }
    }
}
