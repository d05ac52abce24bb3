//! Files that are written while a run goes on: under a temporary name, which becomes the real one only
//! when the run has ended well, so that nothing half-written looks whole. What is not a file (a pipe, a
//! device such as /dev/stdout) is written to directly: it cannot be replaced, and must not be.

use crate::exit::Failure;
use std::fs::File;
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// A file in the making. Dropped without [`finish`](Self::finish), it leaves nothing behind.
#[derive(Debug)]
pub struct PartialFile {
    target: PathBuf,
    /// The temporary name, if there is one.
    partial: Option<PathBuf>,
    writer: Option<BufWriter<File>>,
}

impl PartialFile {
    /// Begins a file that will be `target`.
    pub fn create(target: &Path) -> Result<PartialFile, Failure> {
        let problem =
            |cause: &dyn std::fmt::Display| Failure::Input(format!("{}: {cause}", target.display()));
        let target = resolved(target);
        let Some(name) = target.file_name() else { return Err(problem(&"is not a file name")) };
        let (partial, file) = match target.metadata() {
            Ok(found) if found.is_dir() => return Err(problem(&"is a folder")),
            Ok(found) if !found.is_file() => (None, File::options().write(true).open(&target)),
            _ => {
                let mut hidden = std::ffi::OsString::from(".");
                hidden.push(name);
                hidden.push(format!(".partial-{}", std::process::id()));
                let partial = target.with_file_name(hidden);
                let file = File::create(&partial);
                (Some(partial), file)
            }
        };
        let file = file.map_err(|e| problem(&e))?;
        let writer = Some(BufWriter::with_capacity(1 << 16, file));
        Ok(PartialFile { target, partial, writer })
    }

    /// As [`create`](Self::create), for what an option names, unless that is one of the files that are read.
    pub fn apart(
        option: &str,
        target: &Path,
        inputs: &[(&str, Option<&Path>)],
    ) -> Result<PartialFile, Failure> {
        let file = PartialFile::create(target)?;
        match inputs.iter().find(|(_, input)| input.is_some_and(|input| file.replaces(input))) {
            Some((of, _)) => {
                Err(Failure::Input(format!("{option}: {} is the file of {of}", target.display())))
            }
            None => Ok(file),
        }
    }

    /// Writes all of it at once, and makes it the target.
    pub fn fill(mut self, content: &str) -> Result<(), Failure> {
        match self.write_all(content.as_bytes()) {
            Ok(()) => self.finish(),
            Err(cause) => Err(self.failed(&cause)),
        }
    }

    fn failed(&self, cause: &std::io::Error) -> Failure {
        match cause.kind() {
            ErrorKind::BrokenPipe => Failure::ClosedPipe,
            _ => Failure::Run(format!("{}: {cause}", self.target.display())),
        }
    }

    /// Whether it will be, or replace, the file at `path`.
    pub fn replaces(&self, path: &Path) -> bool {
        is_same_file(&self.target, path)
    }

    /// Whether two files in the making are the same one.
    pub fn is(&self, other: &PartialFile) -> bool {
        self.partial.is_some() && self.partial == other.partial
    }

    /// Makes it the target.
    pub fn finish(mut self) -> Result<(), Failure> {
        if let Some(mut writer) = self.writer.take() {
            writer.flush().map_err(|cause| self.failed(&cause))?;
        }
        match &self.partial {
            Some(partial) => std::fs::rename(partial, &self.target).map_err(|cause| self.failed(&cause)),
            None => Ok(()),
        }
    }
}

/// Whether two paths lead to one file, there already or not, also through links.
pub fn is_same_file(a: &Path, b: &Path) -> bool {
    resolved(a) == resolved(b) || is_same_inode(a, b)
}

/// Two names of one file on the disk.
#[cfg(unix)]
fn is_same_inode(a: &Path, b: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (a.metadata(), b.metadata()) {
        (Ok(a), Ok(b)) => a.is_file() && (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

#[cfg(not(unix))]
fn is_same_inode(_: &Path, _: &Path) -> bool {
    false
}

/// One name for one file. A link stays what it is, and what it points at is written.
fn resolved(target: &Path) -> PathBuf {
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let beside = || Some(folder.canonicalize().ok()?.join(target.file_name()?));
    target.canonicalize().ok().or_else(beside).unwrap_or_else(|| target.to_owned())
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
        if let Some(partial) = &self.partial {
            let _ = std::fs::remove_file(partial);
        }
    }
}
