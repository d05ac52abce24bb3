//! The folder that Dynamo's profiler leaves: what it measured, as arrays of numpy
//! (`selected_prefill_interpolation/raw_data.npz` and `selected_decode_interpolation/raw_data.npz`) or as JSON
//! (`prefill_raw_data.json` and `decode_raw_data.json`).
//!
//! Decodes were measured at some numbers of active tokens for each length of context. The grid has all of these numbers:
//! between two that were measured at a length time is linear, and beyond the last one the line goes on. (Dynamo's own
//! converter puts a smooth surface through the points.)

use crate::profile_file::{Npz, read_json};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::path::Path;
use windtunnel_perf::Profile;

/// What else is in the files, such as throughputs, is not read.
#[derive(Deserialize)]
struct Prefill {
    prefill_isl: Vec<f64>,
    prefill_ttft: Vec<f64>,
}

#[derive(Deserialize)]
struct Decode {
    x_kv_usage: Vec<f64>,
    y_context_length: Vec<f64>,
    z_itl: Vec<f64>,
    max_kv_tokens: f64,
}

/// Reads the folder.
pub(crate) fn read(folder: &Path) -> Result<Profile, String> {
    let prefill = part(folder, "prefill", |npz| {
        let [prefill_isl, prefill_ttft] = ["prefill_isl", "prefill_ttft"].map(|name| npz.line(name));
        Ok(Prefill { prefill_isl: prefill_isl?, prefill_ttft: prefill_ttft? })
    })?;
    let decode = part(folder, "decode", |npz| {
        let capacity = npz.line("max_kv_tokens")?;
        Ok(Decode {
            x_kv_usage: npz.line("x_kv_usage")?,
            y_context_length: npz.line("y_context_length")?,
            z_itl: npz.line("z_itl")?,
            max_kv_tokens: *capacity.first().ok_or("max_kv_tokens: is empty")?,
        })
    })?;
    same_count("prefill_ttft", &prefill.prefill_ttft, "prefill_isl", &prefill.prefill_isl)?;
    same_count("z_itl", &decode.z_itl, "x_kv_usage", &decode.x_kv_usage)?;
    same_count("y_context_length", &decode.y_context_length, "x_kv_usage", &decode.x_kv_usage)?;
    let (isl, ttft) = line(prefill.prefill_isl.into_iter().zip(prefill.prefill_ttft), "prefill_isl")?;
    let (tokens, lengths, itl) = grid(&decode)?;
    Profile::new(isl, ttft, tokens, lengths, itl).map_err(|error| error.to_string())
}

/// One of the two parts: arrays of numpy if they are there, or else JSON.
fn part<T: DeserializeOwned>(
    folder: &Path,
    name: &str,
    arrays: impl Fn(&mut Npz<File>) -> Result<T, String>,
) -> Result<T, String> {
    let numpy = format!("selected_{name}_interpolation/raw_data.npz");
    let json = format!("{name}_raw_data.json");
    if let Ok(file) = File::open(folder.join(&numpy)) {
        return Npz::open(file)
            .and_then(|mut npz| arrays(&mut npz))
            .map_err(|error| format!("{numpy}: {error}"));
    }
    let file = File::open(folder.join(&json));
    let file = file.map_err(|_| format!("a folder of Dynamo's profiler has {numpy} or {json}"))?;
    read_json(file, "measurement").map_err(|error| format!("{json}: {error}"))
}

fn same_count(name: &str, values: &[f64], axis: &str, points: &[f64]) -> Result<(), String> {
    match values.len() == points.len() {
        true => Ok(()),
        false => Err(format!("{name} has {} numbers, {axis} has {}", values.len(), points.len())),
    }
}

/// Points in order of their places, which differ.
fn line(points: impl Iterator<Item = (f64, f64)>, axis: &str) -> Result<(Vec<f64>, Vec<f64>), String> {
    let mut points: Vec<(f64, f64)> = points.collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    match points.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        Some(pair) => Err(format!("{axis}: {} was measured twice", pair[0].0)),
        None => Ok(points.into_iter().unzip()),
    }
}

type Grid = (Vec<f64>, Vec<f64>, Vec<Vec<f64>>);

/// Active tokens, lengths of context, and a row of times for each number of tokens.
fn grid(decode: &Decode) -> Result<Grid, String> {
    let tokens: Vec<f64> = decode.x_kv_usage.iter().map(|share| share * decode.max_kv_tokens).collect();
    let ascending = |values: &[f64]| {
        let mut values = values.to_vec();
        values.sort_by(f64::total_cmp);
        values.dedup();
        values
    };
    let (rows, lengths) = (ascending(&tokens), ascending(&decode.y_context_length));
    let columns = lengths.iter().map(|&length| {
        let measured = (0..tokens.len()).filter(|&at| decode.y_context_length[at] == length);
        line(measured.map(|at| (tokens[at], decode.z_itl[at])), "x_kv_usage")
    });
    let columns = columns.collect::<Result<Vec<_>, _>>()?;
    let row = |&at: &f64| columns.iter().map(|(places, times)| value(places, times, at)).collect();
    let times = rows.iter().map(row).collect();
    Ok((rows, lengths, times))
}

/// Of the line through points of which there is at least one; at least 0.
fn value(places: &[f64], values: &[f64], at: f64) -> f64 {
    if places.len() < 2 {
        return values[0];
    }
    let right = places.partition_point(|&place| place < at).clamp(1, places.len() - 1);
    let share = (at - places[right - 1]) / (places[right] - places[right - 1]);
    (values[right - 1] + share * (values[right] - values[right - 1])).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const PREFILL: &str =
        r#"{"prefill_isl": [300, 100], "prefill_ttft": [50, 10], "prefill_thpt_per_gpu": [1, 1]}"#;
    const DECODE: &str = r#"{"x_kv_usage": [0.1, 0.3, 0.2], "y_context_length": [100, 100, 400],
        "z_itl": [5, 9, 8], "z_thpt_per_gpu": [1, 1, 1], "max_kv_tokens": 10000}"#;

    fn read_of(prefill: &str, decode: &str) -> Result<Profile, String> {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("prefill_raw_data.json"), prefill).unwrap();
        fs::write(folder.path().join("decode_raw_data.json"), decode).unwrap();
        read(folder.path())
    }

    /// At context 100 time is 5 ms at 1000 tokens and 9 at 3000, so 7 at 2000; at 400 it was measured once.
    #[test]
    fn the_grid_has_every_measured_number_of_tokens() {
        let expected = Profile::new(
            vec![100.0, 300.0],
            vec![10.0, 50.0],
            vec![1000.0, 2000.0, 3000.0],
            vec![100.0, 400.0],
            vec![vec![5.0, 8.0], vec![7.0, 8.0], vec![9.0, 8.0]],
        );
        assert_eq!(read_of(PREFILL, DECODE).unwrap(), expected.unwrap());
    }

    #[test]
    fn what_is_no_folder_of_the_profiler_is_refused() {
        let twice = DECODE.replace("0.3", "0.1");
        assert_eq!(read_of(PREFILL, &twice).unwrap_err(), "x_kv_usage: 1000 was measured twice");
        let short = DECODE.replace("[5, 9, 8]", "[5, 9]");
        assert_eq!(read_of(PREFILL, &short).unwrap_err(), "z_itl has 2 numbers, x_kv_usage has 3");
        let without = PREFILL.replace("prefill_isl", "isl");
        assert!(read_of(&without, DECODE).unwrap_err().contains("prefill_raw_data.json: not a measurement"));
        let empty = tempfile::tempdir().unwrap();
        let said = read(empty.path()).unwrap_err();
        assert!(
            said.contains("selected_prefill_interpolation/raw_data.npz or prefill_raw_data.json"),
            "{said}"
        );
    }
}
