//! `windtunnel perf`: what the data packs cover, and how they are built.

use crate::args::PerfAction;
use crate::exit::Failure;
#[cfg(feature = "pack-builder")]
use crate::files::PartialFile;
use serde::Serialize;
use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use windtunnel_perf::packs::{PackName, Store};

/// Runs the command.
pub fn run(action: &PerfAction) -> Result<(), Failure> {
    match action {
        PerfAction::List { data, json } => list(data.as_deref(), *json),
        PerfAction::Build { from, system, out } => build(from, system, out),
    }
}

/// One pack, as it is listed.
#[derive(Serialize)]
struct Listed {
    system: String,
    backend: String,
    version: String,
    source: String,
    tables: Vec<ListedTable>,
}

#[derive(Serialize)]
struct ListedTable {
    name: String,
    lines: usize,
    types: Vec<String>,
}

fn list(data: Option<&Path>, json: bool) -> Result<(), Failure> {
    let store = data.map_or_else(Store::standard, |folder| Store::Folder(folder.to_owned()));
    let mut all = Vec::new();
    for name in store.list().map_err(Failure::input)? {
        all.push(listed(&store, name)?);
    }
    let text = if json {
        serde_json::to_string_pretty(&all).map_err(Failure::run)? + "\n"
    } else {
        let rows = all.iter().map(|pack| {
            let column = |name: &str| pack.tables.iter().find(|table| table.name == name);
            let types = |name: &str| column(name).map_or("-".into(), |table| table.types.join(" "));
            let engine = format!("{} {}", pack.backend, pack.version);
            vec![
                pack.system.clone(),
                engine,
                types("gemm"),
                types("generation_attention"),
                types("moe"),
                latent(pack),
            ]
        });
        let head = ["System", "Engine", "Matrix products", "KV cache", "Experts", "Latent attention"];
        windtunnel_report::columns(&head, &rows.collect::<Vec<_>>())
    };
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Failure::output)
}

fn listed(store: &Store, name: PackName) -> Result<Listed, Failure> {
    let pack = store.pack(&name).map_err(Failure::input)?;
    let tables = pack.tables().iter().map(|table| {
        let types: BTreeSet<&str> = pack.rows(table, "").filter_map(|row| row.field(0)).collect();
        ListedTable {
            name: table.name.clone(),
            lines: table.len(),
            types: types.into_iter().map(str::to_owned).collect(),
        }
    });
    Ok(Listed {
        tables: tables.collect(),
        source: pack.source.clone(),
        system: name.system,
        backend: name.backend,
        version: name.version,
    })
}

fn latent(pack: &Listed) -> String {
    let has = |name: &str| pack.tables.iter().any(|table| table.name == name);
    let kinds = [("modules", has("mla_generation_module")), ("kernels", has("generation_mla"))];
    let present: Vec<&str> = kinds.iter().filter(|(_, there)| *there).map(|(kind, _)| *kind).collect();
    if present.is_empty() { "-".into() } else { present.join(" ") }
}

#[cfg(not(feature = "pack-builder"))]
fn build(_: &Path, _: &[String], _: &Path) -> Result<(), Failure> {
    Err(Failure::Input(
        "perf build: this program cannot read parquet; build one that can with `cargo build --release --features pack-builder`".into(),
    ))
}

#[cfg(feature = "pack-builder")]
fn build(from: &Path, systems: &[String], out: &Path) -> Result<(), Failure> {
    use crate::say::say;
    use windtunnel_perf::packs::build;

    let known = build::known_systems(from).map_err(Failure::input)?;
    if let Some(unknown) = systems.iter().find(|system| !known.contains(system)) {
        let message = format!("--system: got {unknown:?}; allowed are {}", known.join(", "));
        return Err(Failure::Input(message));
    }
    let mut screened = Vec::new();
    for system in known.iter().filter(|name| systems.is_empty() || systems.contains(name)) {
        let (written, found) = build::system(from, system, out).map_err(Failure::input)?;
        for pack in written {
            let kib = pack.bytes.div_ceil(1024);
            say(format_args!("{}: {} points, {kib} KiB", pack.name.path(), pack.points));
        }
        screened.extend(found);
    }
    let mut text = String::from(SCREENED);
    for found in &screened {
        let name = &found.name;
        text += &format!(
            "| {} | {} {} | {} | {} | {} of {} | {:.1} |\n",
            name.system,
            name.backend,
            name.version,
            found.dtype,
            found.rule,
            found.points,
            found.of,
            found.largest
        );
    }
    let path = out.join("SCREENED.md");
    PartialFile::create(&path)?.fill(&text)
}

#[cfg(feature = "pack-builder")]
const SCREENED: &str = "# Times that were replaced\n\nWritten by `windtunnel perf build`. Matrix products whose public time \
cannot be one of the accelerator; what the rules are and what takes the place of such a time is told in \
`crates/perf/src/packs/build/screen.rs`. The largest factor is that between the two.\n\n\
| system | engine | type | rule | times | largest factor |\n|---|---|---|---|---|---|\n";
