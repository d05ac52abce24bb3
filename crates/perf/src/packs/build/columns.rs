//! The columns of a parquet file, whole, as plain vectors. The tables are small enough for that.

use crate::packs::PackError;
use parquet::basic::Type;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::DataType;
use parquet::file::reader::{FileReader, SerializedFileReader};
use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

/// What a file has in the columns that were asked for; none for those that it lacks.
pub(super) struct Columns {
    pub(super) rows: usize,
    columns: HashMap<String, Column>,
}

enum Column {
    Numbers(Vec<i64>),
    Floats(Vec<f64>),
    /// Indices into the list of different texts.
    Texts(Vec<u32>, Vec<String>),
}

impl Columns {
    /// Reads the columns named of a file.
    pub(super) fn read(path: &Path, names: &[&str]) -> Result<Columns, PackError> {
        let failed =
            |error: &dyn std::fmt::Display| PackError::new(path.display().to_string(), error.to_string());
        let file = File::open(path).map_err(|e| failed(&e))?;
        let reader = SerializedFileReader::new(file).map_err(|e| failed(&e))?;
        let mut read = Columns { rows: 0, columns: HashMap::new() };
        for group in 0..reader.num_row_groups() {
            let group = reader.get_row_group(group).map_err(|e| failed(&e))?;
            let rows = usize::try_from(group.metadata().num_rows()).map_err(|e| failed(&e))?;
            for index in 0..group.num_columns() {
                let name = group.metadata().column(index).column_path().string();
                if names.contains(&name.as_str()) {
                    let column = group.get_column_reader(index).map_err(|e| failed(&e))?;
                    let kind = group.metadata().column(index).column_type();
                    read.append(&name, kind, column, rows)
                        .map_err(|e| failed(&format!("column {name}: {e}")))?;
                }
            }
            read.rows += rows;
        }
        Ok(read)
    }

    fn append(&mut self, name: &str, kind: Type, column: ColumnReader, rows: usize) -> Result<(), String> {
        let entry = self.columns.entry(name.to_owned());
        match column {
            ColumnReader::Int64ColumnReader(reader) => {
                match entry.or_insert_with(|| Column::Numbers(Vec::new())) {
                    Column::Numbers(all) => all.extend(values(reader, rows)?),
                    _ => return Err("changes its type".into()),
                }
            }
            ColumnReader::DoubleColumnReader(reader) => {
                match entry.or_insert_with(|| Column::Floats(Vec::new())) {
                    Column::Floats(all) => all.extend(values(reader, rows)?),
                    _ => return Err("changes its type".into()),
                }
            }
            ColumnReader::ByteArrayColumnReader(reader) => {
                let texts = values(reader, rows)?;
                match entry.or_insert_with(|| Column::Texts(Vec::new(), Vec::new())) {
                    Column::Texts(indices, different) => {
                        for text in texts {
                            let text = text.as_utf8().map_err(|e| e.to_string())?;
                            let known = different.iter().position(|other| other == text);
                            let index = known.unwrap_or_else(|| {
                                different.push(text.to_owned());
                                different.len() - 1
                            });
                            indices.push(index as u32);
                        }
                    }
                    _ => return Err("changes its type".into()),
                }
            }
            _ => return Err(format!("is of type {kind}")),
        }
        Ok(())
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.columns.contains_key(name)
    }

    pub(super) fn number(&self, name: &str, row: usize) -> Option<u64> {
        match self.columns.get(name)? {
            Column::Numbers(all) => all.get(row).and_then(|&value| value.try_into().ok()),
            _ => None,
        }
    }

    pub(super) fn float(&self, name: &str, row: usize) -> Option<f64> {
        match self.columns.get(name)? {
            Column::Floats(all) => all.get(row).copied(),
            Column::Numbers(all) => all.get(row).map(|&value| value as f64),
            Column::Texts(..) => None,
        }
    }

    pub(super) fn text(&self, name: &str, row: usize) -> Option<&str> {
        match self.columns.get(name)? {
            Column::Texts(indices, different) => {
                indices.get(row).and_then(|&index| different.get(index as usize)).map(String::as_str)
            }
            _ => None,
        }
    }
}

fn values<T: DataType>(mut reader: ColumnReaderImpl<T>, rows: usize) -> Result<Vec<T::T>, String> {
    let (mut all, mut levels) = (Vec::with_capacity(rows), Vec::new());
    while levels.len() < rows {
        let before = levels.len();
        reader.read_records(rows, Some(&mut levels), None, &mut all).map_err(|e| e.to_string())?;
        if levels.len() == before {
            break;
        }
    }
    if all.len() == rows { Ok(all) } else { Err(format!("has {} values for {rows} rows", all.len())) }
}
