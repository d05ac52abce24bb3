//! Tables of measurements: CSV with a header, packed by gzip or not.

use super::AccuracyError;
use flate2::read::MultiGzDecoder;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// The rows of a file, each with its line. Its header has at least the columns `needed`.
pub(super) fn rows<T: DeserializeOwned>(
    path: &Path,
    needed: &[&str],
) -> Result<Vec<(u64, T)>, AccuracyError> {
    let error = |reason: String| AccuracyError { path: path.to_owned(), reason };
    let unreadable = |cause: std::io::Error| error(format!("cannot be read: {cause}"));
    let mut file = BufReader::new(File::open(path).map_err(unreadable)?);
    let packed = file.fill_buf().map_err(unreadable)?.starts_with(&[0x1f, 0x8b]);
    let text: Box<dyn Read> = if packed { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) };
    let mut reader = csv::Reader::from_reader(text);
    let mut rows = Vec::new();
    let header = reader.headers().map_err(|cause| error(cause.to_string()))?.clone();
    if let Some(missing) = needed.iter().find(|name| !header.iter().any(|column| column == **name)) {
        return Err(error(format!("line 1: the column {missing} is missing")));
    }
    let mut record = csv::StringRecord::new();
    loop {
        let line = reader.position().line();
        match reader.read_record(&mut record) {
            Ok(false) => return Ok(rows),
            Ok(true) => {}
            Err(cause) => return Err(error(format!("line {line}: {cause}"))),
        }
        let row = record.deserialize(Some(&header));
        rows.push((line, row.map_err(|cause| error(format!("line {line}: {cause}")))?));
    }
}
