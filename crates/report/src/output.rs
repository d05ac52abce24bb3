//! The output folder. Every file is written under a temporary name beside its place and gets its own
//! name only when the whole run has been written, so that a killed run leaves nothing that looks whole.
//!
//! Only the names listed here are ever replaced or removed; whatever else a user keeps in the folder
//! stays.

use crate::error::ReportError;
use serde::Serialize;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// The files of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileName {
    /// The prediction: summary, rank rows, configuration.
    Prediction,
    /// How fast the simulator itself was.
    Run,
    /// One line per request.
    Requests,
}

impl FileName {
    /// All of them. The prediction comes last: where it stands, everything beside it is in place.
    pub const ALL: [FileName; 3] = [FileName::Run, FileName::Requests, FileName::Prediction];

    /// Its name in the folder.
    pub fn as_str(self) -> &'static str {
        match self {
            FileName::Prediction => "prediction.json",
            FileName::Run => "run.json",
            FileName::Requests => "requests.jsonl",
        }
    }
}

const PARTIAL_PREFIX: &str = ".windtunnel-";
const PARTIAL_SUFFIX: &str = ".partial";

/// A temporary file's name: with the process in it, so that two runs that were given the same folder
/// by mistake do not write into each other's files.
fn partial_name(name: FileName) -> String {
    format!("{PARTIAL_PREFIX}{}-{}{PARTIAL_SUFFIX}", name.as_str(), std::process::id())
}

fn is_partial(name: &str) -> bool {
    name.starts_with(PARTIAL_PREFIX) && name.ends_with(PARTIAL_SUFFIX)
}

/// A temporary file, removed when it is dropped without having been renamed.
#[derive(Debug)]
struct Partial {
    path: PathBuf,
    name: FileName,
    renamed: bool,
}

impl Partial {
    fn write_error(&self, error: io::Error) -> io::Error {
        io::Error::new(error.kind(), ReportError::file("write", &self.path)(error))
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.renamed {
            // Already on the way out with another error, or abandoned on purpose: nothing left to report.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A file that is being written. Dropped without [`OutputDir::keep`], it disappears.
#[derive(Debug)]
pub struct OutputFile {
    writer: BufWriter<File>,
    partial: Partial,
}

/// Errors carry a [`ReportError`] with the path, which `ReportError::from` takes out again.
impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes).map_err(|error| self.partial.write_error(error))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush().map_err(|error| self.partial.write_error(error))
    }
}

/// The folder of one run, until [`OutputDir::commit`].
#[derive(Debug)]
pub struct OutputDir {
    path: PathBuf,
    kept: Vec<Partial>,
}

impl OutputDir {
    /// Makes the folder where it is missing. One that holds anything is an error without `overwrite`;
    /// temporary files of a killed run do not count. Nothing is replaced before [`OutputDir::commit`];
    /// what would stop it then, a folder that cannot be written or one in a file's place, is an error now.
    pub fn prepare(path: &Path, overwrite: bool) -> Result<OutputDir, ReportError> {
        if path.exists() && !path.is_dir() {
            return Err(ReportError::NotAFolder { path: path.to_owned() });
        }
        fs::create_dir_all(path).map_err(ReportError::file("create", path))?;
        for entry in fs::read_dir(path).map_err(ReportError::file("list", path))? {
            let entry = entry.map_err(ReportError::file("list", path))?;
            let found = entry.file_name().to_string_lossy().into_owned();
            if is_partial(&found) {
                if overwrite {
                    fs::remove_file(entry.path()).map_err(ReportError::file("remove", &entry.path()))?;
                }
            } else if !overwrite {
                return Err(ReportError::NotEmpty { path: path.to_owned(), found });
            }
        }
        for name in FileName::ALL {
            let path = path.join(name.as_str());
            if path.is_dir() {
                return Err(ReportError::NotAFile { path });
            }
        }
        let folder = OutputDir { path: path.to_owned(), kept: Vec::new() };
        // Dropped at once, which removes it: the folder can be written.
        folder.create(FileName::Prediction)?;
        Ok(folder)
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a file for writing, under a temporary name.
    pub fn create(&self, name: FileName) -> Result<OutputFile, ReportError> {
        let path = self.path.join(partial_name(name));
        let file = File::create(&path).map_err(ReportError::file("create", &path))?;
        let partial = Partial { path, name, renamed: false };
        Ok(OutputFile { writer: BufWriter::with_capacity(1 << 16, file), partial })
    }

    /// Takes a file that is complete; it gets its name with [`OutputDir::commit`].
    pub fn keep(&mut self, mut file: OutputFile) -> Result<(), ReportError> {
        file.flush()?;
        self.kept.push(file.partial);
        Ok(())
    }

    /// Writes one value as JSON, indented by two spaces, and keeps the file.
    pub fn write_json(&mut self, name: FileName, value: &impl Serialize) -> Result<(), ReportError> {
        self.write(name, |file| {
            serde_json::to_writer_pretty(&mut *file, value)?;
            file.write_all(b"\n")
        })
    }

    /// Writes a whole file and keeps it.
    pub fn write(
        &mut self,
        name: FileName,
        content: impl FnOnce(&mut OutputFile) -> io::Result<()>,
    ) -> Result<(), ReportError> {
        let mut file = self.create(name)?;
        content(&mut file)?;
        self.keep(file)
    }

    /// Gives every kept file its name and removes our files of an earlier run that this one did not
    /// write, so that all that stands there belongs together. The paths written, in that order.
    pub fn commit(mut self) -> Result<Vec<PathBuf>, ReportError> {
        // The earlier prediction goes first and the new one comes last: a run killed in between leaves
        // no prediction rather than one with another run's requests.
        for name in FileName::ALL.iter().rev() {
            let path = self.path.join(name.as_str());
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(ReportError::file("remove", &path)(error));
                }
                _ => {}
            }
        }
        let mut written = Vec::with_capacity(self.kept.len());
        for name in FileName::ALL {
            for partial in self.kept.iter_mut().filter(|partial| partial.name == name) {
                let path = self.path.join(name.as_str());
                fs::rename(&partial.path, &path).map_err(ReportError::file("write", &path))?;
                partial.renamed = true;
                written.push(path);
            }
        }
        Ok(written)
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_an_error_with_the_path() {
        let path = PathBuf::from("/dev/full");
        let file = File::options().write(true).open(&path).unwrap();
        // Named as renamed, so that nobody tries to remove the device.
        let partial = Partial { path, name: FileName::Requests, renamed: true };
        let mut out = OutputFile { writer: BufWriter::new(file), partial };
        let written = out.write_all(b"x").and_then(|()| out.flush());
        let error = ReportError::from(written.unwrap_err());
        assert!(matches!(error, ReportError::File { .. }));
        assert!(error.to_string().starts_with("cannot write /dev/full: No space left"), "{error}");
    }
}
