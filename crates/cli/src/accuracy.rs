//! `windtunnel accuracy`: predictions beside measured deployments.

use crate::args::Accuracy;
use crate::exit::Failure;
use crate::signals::interrupt_flag;
use serde::Serialize;
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use windtunnel_validate::accuracy::points;
use windtunnel_validate::accuracy::report::PointsReport;
use windtunnel_validate::accuracy::run::{Outcome, Tried, predict};

/// What is printed as JSON.
#[derive(Serialize)]
struct Report {
    points: PointsReport,
}

/// Runs the command.
pub fn run(arguments: &Accuracy) -> Result<(), Failure> {
    let tried = Tried {
        pass_us: arguments.pass_us,
        gpu_scale: arguments.gpu_scale,
        communication_scale: arguments.communication_scale,
    };
    let outcomes = outcomes(arguments, tried)?;
    if let Some(path) = &arguments.rows {
        let rows: String = outcomes.iter().map(|outcome| outcome.csv_row() + "\n").collect();
        let text = format!("{}\n{rows}", Outcome::CSV_HEADER);
        std::fs::write(path, text).map_err(|error| Failure::Input(format!("{}: {error}", path.display())))?;
    }
    let points = PointsReport::new(&outcomes);
    let text = if arguments.json {
        serde_json::to_string_pretty(&Report { points }).map_err(Failure::run)? + "\n"
    } else {
        points.table()
    };
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Failure::output)
}

/// Predicts every measurement, on all cores; the order is that of the file.
fn outcomes(arguments: &Accuracy, tried: Tried) -> Result<Vec<Outcome>, Failure> {
    let mut measured = points::read(&arguments.points).map_err(Failure::input)?;
    if let Some(every) = arguments.every {
        measured = measured.into_iter().step_by(every as usize).collect();
    }
    let interrupt = interrupt_flag()?;
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let threads = arguments.threads.map_or(cores, |threads| threads as usize).min(measured.len().max(1));
    let next = AtomicUsize::new(0);
    let mut done: Vec<(usize, Outcome)> = std::thread::scope(|scope| {
        let work = || {
            let mut own = Vec::new();
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(point) = measured.get(at).filter(|_| !interrupt.load(Ordering::Relaxed)) else {
                    break;
                };
                own.push((at, predict(point, tried, interrupt.clone())));
            }
            own
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        // invariant: a prediction does not panic; if one did, its panic goes on here
        workers
            .into_iter()
            .flat_map(|worker| worker.join().unwrap_or_else(|e| std::panic::resume_unwind(e)))
            .collect()
    });
    if interrupt.load(Ordering::Relaxed) {
        return Err(Failure::Interrupted);
    }
    done.sort_by_key(|(at, _)| *at);
    Ok(done.into_iter().map(|(_, outcome)| outcome).collect())
}
