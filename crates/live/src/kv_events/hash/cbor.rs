//! The bytes of Python's `cbor2.dumps(value, canonical=True)`, as far as vLLM hashes them: byte strings, texts,
//! numbers, tuples and None (vllm/utils/hashing.py, version 0.33.0; RFC 8949 with the shortest heads).

use super::Python;

/// A CBOR document being written.
#[derive(Debug, Default)]
pub(super) struct Cbor(Vec<u8>);

impl Python for Cbor {
    fn none(&mut self) {
        self.0.push(0xf6);
    }

    fn int(&mut self, value: i64) {
        match u64::try_from(value) {
            Ok(value) => self.head(0, value),
            // -1 - n, which is what the complement is.
            Err(_) => self.head(1, !value as u64),
        }
    }

    fn bytes(&mut self, value: &[u8]) {
        self.head(2, value.len() as u64);
        self.0.extend_from_slice(value);
    }

    fn text(&mut self, value: &str) {
        self.head(3, value.len() as u64);
        self.0.extend_from_slice(value.as_bytes());
    }

    fn constant(&mut self, value: &'static str) {
        self.text(value);
    }

    fn tuple(&mut self, length: usize, write: impl FnOnce(&mut Self)) {
        self.head(4, length as u64);
        write(self);
    }
}

impl Cbor {
    /// What `write` writes.
    pub(super) fn of(write: impl FnOnce(&mut Cbor)) -> Vec<u8> {
        let mut cbor = Cbor::default();
        write(&mut cbor);
        cbor.0
    }

    fn head(&mut self, major: u8, value: u64) {
        let major = major << 5;
        if value < 24 {
            self.0.push(major | value as u8);
        } else if let Ok(value) = u8::try_from(value) {
            self.0.extend([major | 24, value]);
        } else if let Ok(value) = u16::try_from(value) {
            self.0.push(major | 25);
            self.0.extend(value.to_be_bytes());
        } else if let Ok(value) = u32::try_from(value) {
            self.0.push(major | 26);
            self.0.extend(value.to_be_bytes());
        } else {
            self.0.push(major | 27);
            self.0.extend(value.to_be_bytes());
        }
    }
}
