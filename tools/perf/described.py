"""Writes a file of measured deployments anew, with descriptions in place of the names of accelerators.

    python3 tools/perf/described.py POINTS.csv[.gz] FOLDER

FOLDER gets points.csv and one description for each accelerator, made of data/perf and its memory, so that
`windtunnel accuracy --points FOLDER/points.csv --allow-roofline` predicts all of them from peak figures alone.
"""

import csv
import gzip
import pathlib
import sys

# GiB, as `nvidia-smi` shows them; the same figures as in crates/perf/src/hardware.rs.
MEMORY_MIB = {
    "a100_sxm": 81_920,
    "b200_sxm": 183_359,
    "b300_sxm": 275_040,
    "gb200": 189_471,
    "gb300": 284_208,
    "h100_sxm": 81_559,
    "h200_sxm": 143_771,
    "l40s": 46_068,
    "rtx_pro_6000_server": 97_887,
}


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    figures = pathlib.Path(__file__).parents[2] / "data" / "perf"
    opened = gzip.open(source, "rt") if source.suffix == ".gz" else source.open()
    with opened as lines:
        rows = list(csv.DictReader(lines))
    folder.mkdir(parents=True, exist_ok=True)
    for name in sorted({row["system"] for row in rows} & MEMORY_MIB.keys()):
        text = (figures / name / "gpu.txt").read_text()
        (folder / f"{name}.gpu").write_text(f"{text}memory_gib {MEMORY_MIB[name] / 1024}\n")
    for row in rows:
        if row["system"] in MEMORY_MIB:
            row["system"] = str(folder / f"{row['system']}.gpu")
    with (folder / "points.csv").open("w", newline="") as out:
        writer = csv.DictWriter(out, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)


main()
