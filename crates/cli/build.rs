//! Lists the files of `data/perf`, so that they become part of the program: a binary needs nothing beside
//! it. They are mapped, not read, until a pack is asked for.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = Path::new(&std::env::var("CARGO_MANIFEST_DIR")?).join("../../data/perf");
    println!("cargo::rerun-if-changed={}", root.display());
    let mut text = String::from("&[\n");
    for folder in sorted(&root)? {
        if !folder.is_dir() {
            continue;
        }
        println!("cargo::rerun-if-changed={}", folder.display());
        for file in sorted(&folder)? {
            let name = file.strip_prefix(&root)?.display().to_string();
            writeln!(text, "    ({name:?}, include_bytes!({:?})),", file.display().to_string())?;
        }
    }
    text.push_str("]\n");
    std::fs::write(Path::new(&std::env::var("OUT_DIR")?).join("packs.rs"), text)?;
    Ok(())
}

fn sorted(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        paths.push(entry?.path());
    }
    paths.sort();
    Ok(paths)
}
