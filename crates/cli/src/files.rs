//! Files that are written while a run goes on: under a temporary name, which becomes the real one only
//! when the run has ended well, so that nothing half-written looks whole.

use crate::exit::Failure;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// A file in the making. Dropped without [`finish`](Self::finish), it leaves nothing behind.
#[derive(Debug)]
pub struct PartialFile {
    target: PathBuf,
    partial: PathBuf,
    writer: Option<BufWriter<File>>,
}

impl PartialFile {
    /// Begins a file that will be `target`.
    pub fn create(target: &Path) -> Result<PartialFile, Failure> {
        let problem =
            |cause: &dyn std::fmt::Display| Failure::Input(format!("{}: {cause}", target.display()));
        let Some(name) = target.file_name() else { return Err(problem(&"is not a file name")) };
        if target.is_dir() {
            return Err(problem(&"is a folder"));
        }
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".partial-{}", std::process::id()));
        let partial = target.with_file_name(hidden);
        let file = File::create(&partial).map_err(|e| problem(&e))?;
        let writer = Some(BufWriter::with_capacity(1 << 16, file));
        Ok(PartialFile { target: target.to_owned(), partial, writer })
    }

    /// Makes it the target.
    pub fn finish(mut self) -> Result<(), Failure> {
        let problem = |cause: std::io::Error| Failure::Run(format!("{}: {cause}", self.target.display()));
        if let Some(mut writer) = self.writer.take() {
            writer.flush().map_err(problem)?;
        }
        std::fs::rename(&self.partial, &self.target).map_err(problem)
    }
}

impl Write for PartialFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match &mut self.writer {
            Some(writer) => writer.write(bytes),
            None => Ok(bytes.len()),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.writer.as_mut().map_or(Ok(()), BufWriter::flush)
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        // After `finish` the name is gone; otherwise there is nobody left to tell of a failure.
        let _ = std::fs::remove_file(&self.partial);
    }
}
