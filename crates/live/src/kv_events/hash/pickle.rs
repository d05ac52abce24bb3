//! The bytes of Python's `pickle.dumps(value, protocol=5)`, as far as vLLM hashes them: byte strings, texts,
//! numbers, tuples and None (vllm/utils/hashing.py, version 0.33.0, over CPython's `_pickle`).
//!
//! The writer knows the format, not what is hashed. Python remembers objects, not values: a text that is one
//! object in two places is written once. [`Pickle::constant`] is for those.

use super::Python;

/// Python closes a frame that has reached this many bytes.
const FRAME_TARGET: usize = 64 * 1024;
const FRAME_HEADER: usize = 9;

/// A pickle being written.
#[derive(Debug, Default)]
pub(super) struct Pickle {
    bytes: Vec<u8>,
    frame: Option<usize>,
    memo: u32,
    constants: Vec<(&'static str, u32)>,
}

impl Python for Pickle {
    fn none(&mut self) {
        self.boundary();
        self.put(b"N");
    }

    fn int(&mut self, value: i64) {
        self.boundary();
        if let Ok(byte) = u8::try_from(value) {
            self.put(&[b'K', byte]);
        } else if let Ok(short) = u16::try_from(value) {
            self.put(b"M");
            self.put(&short.to_le_bytes());
        } else if let Ok(word) = i32::try_from(value) {
            self.put(b"J");
            self.put(&word.to_le_bytes());
        } else {
            // The fewest bytes that hold number and sign.
            let bytes = value.to_le_bytes();
            let magnitude = if value < 0 { !value } else { value };
            let length = (64 - magnitude.leading_zeros()) as usize / 8 + 1;
            self.put(&[0x8a, length as u8]);
            self.put(&bytes[..length]);
        }
    }

    fn bytes(&mut self, value: &[u8]) {
        self.boundary();
        match u8::try_from(value.len()) {
            Ok(length) => self.put_long(&[b'C', length], value),
            Err(_) => {
                let mut header = vec![b'B'];
                header.extend((value.len() as u32).to_le_bytes());
                self.put_long(&header, value);
            }
        }
        self.memoize();
    }

    fn text(&mut self, value: &str) {
        self.boundary();
        match u8::try_from(value.len()) {
            Ok(length) => self.put_long(&[0x8c, length], value.as_bytes()),
            Err(_) => {
                let mut header = vec![b'X'];
                header.extend((value.len() as u32).to_le_bytes());
                self.put_long(&header, value.as_bytes());
            }
        }
        self.memoize();
    }

    fn constant(&mut self, value: &'static str) {
        let Some(&(_, index)) = self.constants.iter().find(|(known, _)| *known == value) else {
            self.constants.push((value, self.memo));
            self.text(value);
            return;
        };
        self.boundary();
        match u8::try_from(index) {
            Ok(index) => self.put(&[b'h', index]),
            Err(_) => {
                self.put(b"j");
                self.put(&index.to_le_bytes());
            }
        }
    }

    fn tuple(&mut self, length: usize, write: impl FnOnce(&mut Self)) {
        self.boundary();
        if length > 3 {
            self.put(b"(");
        }
        write(self);
        match length {
            0 => return self.put(b")"),
            1..=3 => self.put(&[0x84 + length as u8]),
            _ => self.put(b"t"),
        }
        self.memoize();
    }
}

impl Pickle {
    /// The pickle of what `write` writes, which must be one value.
    pub(super) fn of(write: impl FnOnce(&mut Pickle)) -> Vec<u8> {
        let mut pickle = Pickle { bytes: vec![0x80, 5], ..Pickle::default() };
        write(&mut pickle);
        pickle.put(b".");
        pickle.close_frame();
        pickle.bytes
    }

    fn memoize(&mut self) {
        self.memo += 1;
        self.put(&[0x94]);
    }

    /// Between two values a full frame ends.
    fn boundary(&mut self) {
        let full = |start| self.bytes.len() - start - FRAME_HEADER >= FRAME_TARGET;
        if self.frame.is_some_and(full) {
            self.close_frame();
        }
    }

    fn put(&mut self, bytes: &[u8]) {
        if self.frame.is_none() {
            self.frame = Some(self.bytes.len());
            self.bytes.extend([0; FRAME_HEADER]);
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// A header and what may be too long for a frame.
    fn put_long(&mut self, header: &[u8], value: &[u8]) {
        if value.len() < FRAME_TARGET {
            self.put(header);
            self.put(value);
            return;
        }
        self.close_frame();
        self.bytes.extend_from_slice(header);
        self.bytes.extend_from_slice(value);
    }

    fn close_frame(&mut self) {
        let Some(start) = self.frame.take() else { return };
        let length = self.bytes.len() - start - FRAME_HEADER;
        if length >= 4 {
            self.bytes[start] = 0x95;
            self.bytes[start + 1..start + FRAME_HEADER].copy_from_slice(&(length as u64).to_le_bytes());
        } else {
            self.bytes.drain(start..start + FRAME_HEADER);
        }
    }
}
