//! The file of a profile: what Dynamo's profiler saves (numpy's .npz), or the same keys as JSON.

use crate::profile_folder;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;
use windtunnel_perf::Profile;
use zip::ZipArchive;

/// Longest file, and longest array in one: a grid has some thousand numbers.
const MAX_BYTES: u64 = 64 << 20;

/// The arrays, under the names of the profiler.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arrays {
    prefill_isl: Vec<f64>,
    prefill_ttft_ms: Vec<f64>,
    decode_active_kv_tokens: Vec<f64>,
    decode_context_length: Vec<f64>,
    decode_itl: Vec<Vec<f64>>,
}

/// Reads a profile. The ending of the name says which kind of file it is; it may be the profiler's folder.
pub(crate) fn read(path: &Path) -> Result<Profile, String> {
    if path.is_dir() {
        return profile_folder::read(path);
    }
    let file = File::open(path).map_err(|error| format!("cannot be read: {error}"))?;
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    let arrays = match ending {
        "json" => read_json(file, "profile")?,
        "npz" => from_npz(file)?,
        _ => return Err("a profile is a .npz or a .json file".into()),
    };
    Profile::new(
        arrays.prefill_isl,
        arrays.prefill_ttft_ms,
        arrays.decode_active_kv_tokens,
        arrays.decode_context_length,
        arrays.decode_itl,
    )
    .map_err(|error| error.to_string())
}

/// Reads the one value of a JSON file that is called `what`.
pub(crate) fn read_json<T: DeserializeOwned>(file: impl Read, what: &str) -> Result<T, String> {
    let mut text = String::new();
    file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(|error| format!("cannot be read: {error}"))?;
    if text.len() as u64 > MAX_BYTES {
        return Err(too_long());
    }
    serde_json::from_str(&text).map_err(|error| format!("not a {what}: {error}"))
}

fn too_long() -> String {
    format!("longer than {} MiB", MAX_BYTES >> 20)
}

fn from_npz(file: impl Read + Seek) -> Result<Arrays, String> {
    let mut npz = Npz::open(file)?;
    Ok(Arrays {
        prefill_isl: npz.line("prefill_isl")?,
        prefill_ttft_ms: npz.line("prefill_ttft_ms")?,
        decode_active_kv_tokens: npz.line("decode_active_kv_tokens")?,
        decode_context_length: npz.line("decode_context_length")?,
        decode_itl: npz.array("decode_itl")?.rows("decode_itl")?,
    })
}

/// Arrays of numpy by name.
pub(crate) struct Npz<F>(ZipArchive<F>);

impl<F: Read + Seek> Npz<F> {
    pub(crate) fn open(file: F) -> Result<Npz<F>, String> {
        ZipArchive::new(file).map(Npz).map_err(|error| format!("not a .npz file: {error}"))
    }

    /// The numbers of an array of one dimension.
    pub(crate) fn line(&mut self, name: &str) -> Result<Vec<f64>, String> {
        self.array(name)?.line(name)
    }

    fn array(&mut self, name: &str) -> Result<Array, String> {
        let known: Vec<String> =
            self.0.file_names().flatten().map(|file| file.trim_end_matches(".npy").to_owned()).collect();
        let entry = self
            .0
            .by_name(&format!("{name}.npy"))
            .map_err(|_| format!("{name}: missing; it holds {}", known.join(", ")))?;
        let mut bytes = Vec::new();
        entry.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|error| format!("{name}: {error}"))?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(format!("{name}: {}", too_long()));
        }
        parse(&bytes).map_err(|problem| format!("{name}: {problem}"))
    }
}

/// An array of numpy, in row order.
#[derive(Debug)]
struct Array {
    shape: Vec<usize>,
    values: Vec<f64>,
}

impl Array {
    fn line(self, name: &str) -> Result<Vec<f64>, String> {
        match self.shape[..] {
            [_] => Ok(self.values),
            _ => Err(format!("{name}: has {} dimensions, 1 is needed", self.shape.len())),
        }
    }

    fn rows(self, name: &str) -> Result<Vec<Vec<f64>>, String> {
        match self.shape[..] {
            [_, 0] => Err(format!("{name}: is empty")),
            [_, width] => Ok(self.values.chunks(width).map(<[f64]>::to_vec).collect()),
            _ => Err(format!("{name}: has {} dimensions, 2 are needed", self.shape.len())),
        }
    }
}

/// The format of numpy's arrays (numpy.lib.format, versions 1 to 3): magic, version, length of the header, the
/// header as a Python dictionary, and the numbers.
fn parse(bytes: &[u8]) -> Result<Array, String> {
    let none = || "not an array of numpy".to_owned();
    let rest = bytes.strip_prefix(b"\x93NUMPY").ok_or_else(none)?;
    let (length, rest) = match rest {
        [1, _, a, b, rest @ ..] => (usize::from(u16::from_le_bytes([*a, *b])), rest),
        [2 | 3, _, a, b, c, d, rest @ ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, rest),
        _ => return Err(none()),
    };
    let header = rest.get(..length).and_then(|header| std::str::from_utf8(header).ok()).ok_or_else(none)?;
    let kind = quoted_after(header, "'descr':").ok_or_else(none)?;
    let by_columns = header.contains("'fortran_order': True");
    let shape =
        header.split_once("'shape':").and_then(|(_, after)| after.split_once('(')).ok_or_else(none)?.1;
    let shape = shape.split_once(')').ok_or_else(none)?.0.split(',').map(str::trim).filter(|n| !n.is_empty());
    let shape: Vec<usize> = shape.map(|n| n.parse().map_err(|_| none())).collect::<Result<_, _>>()?;
    let count = shape.iter().try_fold(1usize, |all, &n| all.checked_mul(n)).ok_or_else(none)?;
    let values = numbers(kind, &rest[length..])?;
    if values.len() != count {
        return Err(format!("has {} numbers, its shape says {count}", values.len()));
    }
    Ok(Array { values: if by_columns { by_rows(&shape, &values)? } else { values }, shape })
}

/// The text in quotes that follows `key`.
fn quoted_after<'a>(header: &'a str, key: &str) -> Option<&'a str> {
    let (_, after) = header.split_once(key)?;
    after.split('\'').nth(1)
}

fn numbers(kind: &str, bytes: &[u8]) -> Result<Vec<f64>, String> {
    fn each<const N: usize>(bytes: &[u8], number: impl Fn([u8; N]) -> f64) -> Vec<f64> {
        bytes.as_chunks::<N>().0.iter().map(|&chunk| number(chunk)).collect()
    }
    match kind {
        "<f8" => Ok(each(bytes, f64::from_le_bytes)),
        "<f4" => Ok(each(bytes, |b| f32::from_le_bytes(b).into())),
        "<i8" => Ok(each(bytes, |b| i64::from_le_bytes(b) as f64)),
        "<i4" => Ok(each(bytes, |b| i32::from_le_bytes(b).into())),
        other => {
            Err(format!("holds numbers of the kind {other}; float64, float32, int64 and int32 are read"))
        }
    }
}

/// Numbers that stand column after column, row after row.
fn by_rows(shape: &[usize], values: &[f64]) -> Result<Vec<f64>, String> {
    match *shape {
        [rows, columns] => {
            let at = |i: usize| values[(i % columns) * rows + i / columns];
            Ok((0..rows * columns).map(at).collect())
        }
        [_] => Ok(values.to_vec()),
        _ => Err(format!("has {} dimensions, 1 or 2 are needed", shape.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(header: &str, numbers: &[u8]) -> Vec<u8> {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(numbers);
        bytes
    }

    fn floats(values: &[f64]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    #[test]
    fn arrays_are_read_in_either_order() {
        let values = floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let rows = "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), }\n";
        let read = parse(&array(rows, &values)).unwrap().rows("x").unwrap();
        assert_eq!(read, [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]);
        let columns = "{'descr': '<f8', 'fortran_order': True, 'shape': (2, 3), }\n";
        let read = parse(&array(columns, &values)).unwrap().rows("x").unwrap();
        assert_eq!(read, [[1.0, 3.0, 5.0], [2.0, 4.0, 6.0]]);
        let line = "{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }\n";
        let integers: Vec<u8> = [7i64, 9].iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(parse(&array(line, &integers)).unwrap().line("x").unwrap(), [7.0, 9.0]);
    }

    #[test]
    fn what_is_no_array_is_refused() {
        let shape = |text: &str| format!("{{'descr': '<f8', 'fortran_order': False, 'shape': {text}, }}\n");
        let refused = |bytes: &[u8]| parse(bytes).unwrap_err();
        assert_eq!(refused(b"PK"), "not an array of numpy");
        assert_eq!(refused(b"\x93NUMPY\x01\x00\xff\xff{"), "not an array of numpy");
        assert_eq!(refused(&array(&shape("(3,)"), &floats(&[1.0]))), "has 1 numbers, its shape says 3");
        assert_eq!(refused(&array(&shape("(18446744073709551615, 2)"), &[])), "not an array of numpy");
        let kind = shape("(1,)").replace("<f8", "|O");
        assert_eq!(
            refused(&array(&kind, &[])),
            "holds numbers of the kind |O; float64, float32, int64 and int32 are read"
        );
        let flat = parse(&array(&shape("(1,)"), &floats(&[1.0]))).unwrap();
        assert_eq!(flat.rows("decode_itl").unwrap_err(), "decode_itl: has 1 dimensions, 2 are needed");
    }
}
