use std::path::PathBuf;
use windtunnel_engine::vllm::Stepper;
use windtunnel_validate::conformance::*;
fn main() {
    let paths: Vec<PathBuf> = std::env::args().skip(1).map(PathBuf::from).collect();
    for stepper in [Stepper::Plain, Stepper::Fast] {
        let (mut steps, mut bad, mut n) = (0, 0, 0);
        for g in find_goldens(&paths).unwrap() {
            match check_golden(&g, stepper) {
                Ok(r) => {
                    n += 1;
                    steps += r.steps;
                    bad += r.differing;
                    if let Some(d) = r.first {
                        println!(
                            "{stepper:?} {} {}/{} step {} {}: ours {} theirs {}",
                            r.name, r.differing, r.steps, d.step, d.key, d.ours, d.theirs
                        )
                    }
                }
                Err(e) => println!("{stepper:?} ERROR {e}"),
            }
        }
        println!("{stepper:?}: {n} scenarios, {steps} steps, {bad} differing");
    }
}
