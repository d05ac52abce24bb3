//! One pack: lines of text. A table begins with its name, the names of its key fields and its axis; then come
//! the positions on the axis and one line for each key with the time at every position, in microseconds.
//! Lines are found by their key and read when they are asked for.
//!
//! ```text
//! windtunnel-perf 1
//! system h200_sxm
//! backend vllm
//! version 0.24.0
//! source aiconfigurator-core 0.12.0
//! table gemm dtype,n,k m
//! from 0 gemm/vllm/0.24.0/gemm_perf.parquet
//! axis 1 2 4
//! bfloat16,4096,4096<TAB>0<TAB>9.81 9.79 -
//! ```
//!
//! The field between the tabs names the origin of the line among the `from` lines. `-` is a position that
//! was not measured; positions after the last measured one are left out.

use super::PackError;
use std::cmp::Ordering;
use std::io::Read;
use std::ops::Range;

/// Version of the text.
pub const FORMAT: &str = "windtunnel-perf 1";

/// Bytes of an unpacked pack at most, so that a damaged file cannot fill the memory.
const MOST_BYTES: u64 = 512 << 20;

/// The tables of one accelerator, engine and version.
#[derive(Debug)]
pub struct Pack {
    text: String,
    /// Where the times come from.
    pub source: String,
    tables: Vec<Table>,
}

/// One kind of operation.
#[derive(Debug)]
pub struct Table {
    /// Its name.
    pub name: String,
    /// The fields of a key.
    pub keys: Vec<String>,
    /// The quantity along the lines.
    pub axis_name: String,
    /// Its values, ascending.
    pub axis: Vec<u32>,
    /// The files that the lines come from.
    pub origins: Vec<String>,
    /// Where the lines stand in the text, sorted by key.
    lines: Vec<Line>,
}

#[derive(Debug)]
struct Line {
    key: Range<usize>,
    origin: u8,
    values: Range<usize>,
}

/// A line of a table.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// Its key, fields separated by commas.
    pub key: &'a str,
    /// The file that it comes from.
    pub origin: &'a str,
    values: &'a str,
    axis: &'a [u32],
}

impl<'a> Row<'a> {
    /// The measured points: position, microseconds.
    pub fn points(&self) -> Vec<(u32, f64)> {
        let values = self.values.split(' ').zip(self.axis);
        values.filter_map(|(value, &at)| Some((at, value.parse().ok()?))).collect()
    }

    /// A field of the key, as a number; none if it is not one.
    pub fn number(&self, field: usize) -> Option<u32> {
        self.field(field)?.parse().ok()
    }

    /// A field of the key.
    pub fn field(&self, field: usize) -> Option<&'a str> {
        self.key.split(',').nth(field)
    }
}

impl Pack {
    /// Unpacks and indexes the file `name`.
    ///
    /// # Errors
    /// A file that is not a pack of this version.
    pub fn read(name: &str, packed: &[u8]) -> Result<Pack, PackError> {
        let broken =
            |error: &dyn std::fmt::Display| PackError::new(name, format!("cannot be unpacked: {error}"));
        let decoder = ruzstd::decoding::StreamingDecoder::new(packed).map_err(|e| broken(&e))?;
        let mut text = String::new();
        decoder.take(MOST_BYTES).read_to_string(&mut text).map_err(|e| broken(&e))?;
        Pack::parse(name, text)
    }

    fn parse(name: &str, text: String) -> Result<Pack, PackError> {
        let mut source = String::new();
        let mut tables: Vec<Table> = Vec::new();
        let mut at = 0;
        for (number, line) in text.split_inclusive('\n').enumerate() {
            let start = at;
            at += line.len();
            let line = line.trim_end_matches('\n');
            let wrong = |what: &str| PackError::new(name, format!("line {}: {what}", number + 1));
            if number == 0 {
                if line != FORMAT {
                    return Err(wrong(&format!("got {:?}; this version reads {FORMAT:?}", shortened(line))));
                }
                continue;
            }
            if let Some(key_end) = line.find('\t') {
                let table = tables.last_mut().ok_or_else(|| wrong("a line before the first table"))?;
                table.lines.push(
                    indexed(line, start, key_end, table.origins.len())
                        .ok_or_else(|| wrong("a broken line"))?,
                );
                continue;
            }
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            match (word, tables.last_mut()) {
                ("system" | "backend" | "version", None) => {}
                ("source", None) => rest.clone_into(&mut source),
                ("table", _) => tables.push(begun(rest).ok_or_else(|| wrong("a broken table"))?),
                ("from", Some(table)) => {
                    let (_, file) = rest.split_once(' ').ok_or_else(|| wrong("a broken origin"))?;
                    table.origins.push(file.to_owned());
                }
                ("axis", Some(table)) => {
                    let axis: Result<Vec<u32>, _> = rest.split(' ').map(str::parse).collect();
                    table.axis = axis.map_err(|_| wrong("a broken axis"))?;
                }
                _ => return Err(wrong(&format!("got {:?}; it means nothing", shortened(line)))),
            }
        }
        for table in &tables {
            let sorted = table.lines.is_sorted_by(|a, b| text[a.key.clone()] < text[b.key.clone()]);
            if !sorted || !table.axis.is_sorted_by(|a, b| a < b) {
                return Err(PackError::new(name, format!("table {}: not sorted", table.name)));
            }
        }
        Ok(Pack { text, source, tables })
    }

    /// The tables.
    pub fn tables(&self) -> &[Table] {
        &self.tables
    }

    /// The table of this name.
    pub fn table(&self, name: &str) -> Option<&Table> {
        self.tables.iter().find(|table| table.name == name)
    }

    /// The line of a key.
    pub fn row<'a>(&'a self, table: &'a Table, key: &str) -> Option<Row<'a>> {
        let found = table.lines.binary_search_by(|line| self.text[line.key.clone()].cmp(key));
        found.ok().map(|index| self.at(table, &table.lines[index]))
    }

    /// All lines whose key begins with `prefix`, in order.
    pub fn rows<'a>(&'a self, table: &'a Table, prefix: &str) -> impl Iterator<Item = Row<'a>> + use<'a> {
        let below = |line: &Line| self.text[line.key.clone()].cmp(prefix) == Ordering::Less;
        let first = table.lines.partition_point(below);
        let prefix = prefix.to_owned();
        let lines = table.lines[first..].iter();
        lines.map(move |line| self.at(table, line)).take_while(move |row| row.key.starts_with(&prefix))
    }

    fn at<'a>(&'a self, table: &'a Table, line: &Line) -> Row<'a> {
        Row {
            key: &self.text[line.key.clone()],
            origin: table.origins.get(usize::from(line.origin)).map_or("", String::as_str),
            values: &self.text[line.values.clone()],
            axis: &table.axis,
        }
    }
}

impl Table {
    /// Number of its lines.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// It has no lines.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }
}

fn begun(rest: &str) -> Option<Table> {
    let mut words = rest.split(' ');
    let (name, keys, axis) = (words.next()?, words.next()?, words.next()?);
    Some(Table {
        name: name.to_owned(),
        keys: keys.split(',').map(str::to_owned).collect(),
        axis_name: axis.to_owned(),
        axis: Vec::new(),
        origins: Vec::new(),
        lines: Vec::new(),
    })
}

fn indexed(line: &str, start: usize, key_end: usize, origins: usize) -> Option<Line> {
    let (origin, _) = line[key_end + 1..].split_once('\t')?;
    let values = start + key_end + 1 + origin.len() + 1;
    let number: u8 = origin.parse().ok()?;
    (usize::from(number) < origins).then_some(Line {
        key: start..start + key_end,
        origin: number,
        values: values..start + line.len(),
    })
}

fn shortened(text: &str) -> String {
    text.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "windtunnel-perf 1\nsystem x\nsource y\ntable gemm dtype,n,k m\nfrom 0 a.parquet\n\
                        axis 1 2 4\nbf16,1,2\t0\t9.5 - 11\nbf16,1,4\t0\t3\n";

    #[test]
    fn lines_are_found_by_key_and_prefix() {
        let pack = Pack::parse("t", TEXT.into()).unwrap();
        let table = pack.table("gemm").unwrap();
        let row = pack.row(table, "bf16,1,2").unwrap();
        assert_eq!((row.origin, row.number(2)), ("a.parquet", Some(2)));
        assert_eq!(row.points(), [(1, 9.5), (4, 11.0)]);
        assert_eq!(
            pack.rows(table, "bf16,1,").map(|row| row.key).collect::<Vec<_>>(),
            ["bf16,1,2", "bf16,1,4"]
        );
        assert!(pack.row(table, "bf16,1,3").is_none());
    }

    #[test]
    fn damage_is_said_with_its_line() {
        let damaged = [
            (TEXT.replace("perf 1", "perf 2"), "line 1"),
            (TEXT.replace("\t0\t3", "\t7\t3"), "line 8"),
            (TEXT.replace("axis 1 2 4", "axis 1 x 4"), "line 6"),
            (TEXT.replace("source y", "sauce y"), "line 3"),
            (TEXT.replace("bf16,1,4", "bf16,0,4"), "not sorted"),
        ];
        for (text, what) in damaged {
            let error = Pack::parse("t", text).unwrap_err();
            assert!(error.message.contains(what), "{error}");
        }
        assert!(Pack::read("t", b"no zstd").unwrap_err().message.contains("unpacked"));
    }
}
