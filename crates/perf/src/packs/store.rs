//! Where packs are: a folder, or files that are part of the program. One folder per accelerator, with
//! `gpu.txt` and one `<backend>-<version>.pack.zst` for each engine version.

use super::{Gpu, Pack, PackError};
use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

const ENDING: &str = ".pack.zst";
const GPU: &str = "gpu.txt";

/// Files that are part of the program: path below the folder of the packs, content.
pub type Files = &'static [(&'static str, &'static [u8])];

/// A place with packs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Store {
    /// A folder.
    Folder(PathBuf),
    /// The program itself.
    Embedded(Files),
}

/// Which pack.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PackName {
    /// The accelerator.
    pub system: String,
    /// The engine.
    pub backend: String,
    /// Its version.
    pub version: String,
}

impl PackName {
    /// Path below the folder of the packs.
    pub fn path(&self) -> String {
        format!("{}/{}-{}{ENDING}", self.system, self.backend, self.version)
    }

    fn of(path: &str) -> Option<PackName> {
        let (system, file) = path.split_once('/')?;
        let (backend, version) = file.strip_suffix(ENDING)?.split_once('-')?;
        Some(PackName { system: system.into(), backend: backend.into(), version: version.into() })
    }
}

/// Names the folder of the packs, before all other places.
pub const FOLDER_VARIABLE: &str = "WINDTUNNEL_DATA";

static OF_THE_PROGRAM: OnceLock<Files> = OnceLock::new();

/// Makes files that are part of the program the packs of [`Store::standard`]. Once, before it is asked for.
pub fn provide(files: Files) {
    // A second call has nothing to add: a program has one set of files.
    let _ = OF_THE_PROGRAM.set(files);
}

impl Store {
    /// Where packs are looked for unless told otherwise: the folder that `WINDTUNNEL_DATA` names, the files
    /// that the program brings, or `data/perf` of the checkout that it was built from.
    pub fn standard() -> Store {
        if let Some(folder) = std::env::var_os(FOLDER_VARIABLE).filter(|folder| !folder.is_empty()) {
            return Store::Folder(folder.into());
        }
        match OF_THE_PROGRAM.get() {
            Some(files) => Store::Embedded(files),
            None => Store::Folder(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/perf")),
        }
    }

    /// All packs, sorted.
    ///
    /// # Errors
    /// A folder that cannot be read.
    pub fn list(&self) -> Result<Vec<PackName>, PackError> {
        let mut names: Vec<PackName> = match self {
            Store::Embedded(files) => files.iter().filter_map(|(path, _)| PackName::of(path)).collect(),
            Store::Folder(folder) => {
                let mut names = Vec::new();
                for system in entries(folder)? {
                    if !folder.join(&system).is_dir() {
                        continue;
                    }
                    let files = entries(&folder.join(&system))?;
                    names.extend(files.iter().filter_map(|file| PackName::of(&format!("{system}/{file}"))));
                }
                names
            }
        };
        names.sort();
        Ok(names)
    }

    /// Reads a pack.
    ///
    /// # Errors
    /// There is none of this name, or it cannot be read.
    pub fn pack(&self, name: &PackName) -> Result<Pack, PackError> {
        let path = name.path();
        Pack::read(&path, &self.file(&path)?)
    }

    /// Reads the description of an accelerator.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    pub fn gpu(&self, system: &str) -> Result<Gpu, PackError> {
        let path = format!("{system}/{GPU}");
        let bytes = self.file(&path)?;
        let text = str::from_utf8(&bytes).map_err(|_| PackError::new(&path, "is not text"))?;
        Gpu::parse(&path, text)
    }

    fn file(&self, path: &str) -> Result<Cow<'static, [u8]>, PackError> {
        match self {
            Store::Embedded(files) => files
                .iter()
                .find(|(name, _)| *name == path)
                .map(|(_, bytes)| Cow::Borrowed(*bytes))
                .ok_or_else(|| PackError::new(path, "is not part of this program")),
            Store::Folder(folder) => {
                let file = folder.join(path);
                let read = std::fs::read(&file).map(Cow::Owned);
                read.map_err(|error| PackError::new(file.display().to_string(), error.to_string()))
            }
        }
    }
}

fn entries(folder: &Path) -> Result<Vec<String>, PackError> {
    let failed = |error: std::io::Error| PackError::new(folder.display().to_string(), error.to_string());
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        if let Ok(name) = entry.map_err(failed)?.file_name().into_string() {
            names.push(name);
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_paths() {
        let name =
            PackName { system: "h200_sxm".into(), backend: "trtllm".into(), version: "1.3.0rc20".into() };
        assert_eq!(name.path(), "h200_sxm/trtllm-1.3.0rc20.pack.zst");
        assert_eq!(PackName::of(&name.path()), Some(name));
        assert_eq!(PackName::of("h200_sxm/gpu.txt"), None);
    }
}
