//! Lines of a file, plain or gzip, one at a time into a reused buffer.
//!
//! Knows where it is (file and line), so that every reader above can say so; knows nothing of JSON.

use crate::TrafficError;
use flate2::bufread::MultiGzDecoder;
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// Longest line accepted, so that a file that is not JSON lines cannot fill the memory.
const MAX_LINE_BYTES: usize = 64 << 20;
const READ_BYTES: usize = 64 << 10;
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

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
        let mut plain = BufReader::with_capacity(READ_BYTES, File::open(path).map_err(fail)?);
        let compressed = plain.fill_buf().map_err(fail)?.starts_with(&GZIP_MAGIC);
        let reader: Box<dyn BufRead + Send> = if compressed {
            Box::new(BufReader::with_capacity(READ_BYTES, MultiGzDecoder::new(plain)))
        } else {
            Box::new(plain)
        };
        Ok(Lines { file: path.to_owned(), reader, buffer: Vec::new(), line: 0 })
    }

    /// The next line that is not blank, without its line end.
    pub(crate) fn next_line(&mut self) -> Option<Result<&[u8], TrafficError>> {
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
            let text = self.buffer.trim_ascii_end();
            if !text.is_empty() {
                let length = text.len();
                return Some(Ok(&self.buffer[..length]));
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
