//! The bytes of a gzip file: its members one after the other, as gzip joins them, and nothing behind them.
//!
//! The decompressor's own reader of several members cannot tell a broken one from bytes that never were
//! one. Lines and JSON are not known here.

use flate2::bufread::GzDecoder;
use std::io::{self, BufRead, Read};

/// First byte of every member.
const MEMBER_BEGINS: u8 = 0x1f;

/// Reads what the members hold.
pub(crate) struct Gunzip<R> {
    /// None after the last one, and after an error between two.
    member: Option<GzDecoder<R>>,
}

impl<R: BufRead> Gunzip<R> {
    pub(crate) fn new(packed: R) -> Gunzip<R> {
        Gunzip { member: Some(GzDecoder::new(packed)) }
    }
}

impl<R: BufRead> Read for Gunzip<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.member {
            let read = member.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            let Some(mut packed) = self.member.take().map(GzDecoder::into_inner) else { break };
            match packed.fill_buf()?.first() {
                None => break,
                Some(&MEMBER_BEGINS) => self.member = Some(GzDecoder::new(packed)),
                Some(_) => {
                    let message = "bytes that are not gzip follow the compressed data";
                    return Err(io::Error::new(io::ErrorKind::InvalidData, message));
                }
            }
        }
        Ok(0)
    }
}
