//! Public bug reports of other mock workers and consumers of KV events as cases with the right values, as far as they have
//! no better place among the other tests of this crate.

mod common;

use common::{FIXED, block_on, deployment, request};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use windtunnel_engine::{BlockKey, KvEvent};
use windtunnel_live::observer::{Observers, PassObserver, PassReport, RequestInfo};
use windtunnel_live::{Worker, WorkerOptions};

/// Blocks that were stored, and the parent of the first of them.
type Store = (Option<BlockKey>, Vec<BlockKey>);

/// What was stored, pass by pass.
#[derive(Clone, Default)]
struct Stores(Arc<Mutex<Vec<Store>>>);

impl PassObserver for Stores {
    fn pass(&mut self, pass: &PassReport<'_>) {
        for event in pass.events.iter() {
            if let KvEvent::Stored { parent, blocks, .. } = event {
                self.0.lock().unwrap().push((parent, blocks.to_vec()));
            }
        }
    }
}

/// K3 (llmd#557): a prompt that reuses two blocks and stores one more: the parent of that one is the last block that was
/// reused, and the first block of a prompt has none.
#[test]
fn k3_the_parent_is_the_last_block_that_was_reused() {
    let stores = Stores::default();
    let mut observers = |_| {
        let mut observers = Observers::default();
        observers.push(Box::new(stores.clone()));
        observers
    };
    let options = WorkerOptions {
        replicas: NonZeroU32::MIN,
        no_delay: true,
        kv_events: true,
        transfers: None,
        routed: false,
        observers: &mut observers,
    };
    let worker = Worker::start(&deployment(FIXED, &[]), options).expect("a worker");
    let first = request(&worker, 40, 1);
    let shared: Vec<u32> = first.info().prompt[..32].to_vec();
    block_on(worker.submit(first, None).expect("taken").stream().ended());
    let second = request(&worker, 50, 1);
    let own = &second.info().prompt[32..];
    let prompt = shared.iter().chain(own).copied().collect();
    let second = common::submission(RequestInfo { prompt, ..(**second.info()).clone() });
    block_on(worker.submit(second, None).expect("taken").stream().ended());
    let stores = stores.0.lock().unwrap();
    let [(none, first), (parent, more)] = &stores[..] else { panic!("{stores:?}") };
    assert_eq!((*none, first.len(), more.len()), (None, 2, 1));
    assert_eq!(*parent, Some(first[1]));
}

/// H22 (dynamo#3833): what watches a rank is called once a pass, not once a token.
#[test]
fn h22_observers_are_called_once_a_pass() {
    let (worker, log) = common::worker(&deployment(FIXED, &[]), false);
    let handles: Vec<_> =
        (0..5).map(|_| worker.submit(request(&worker, 20, 10), None).expect("taken")).collect();
    for handle in &handles {
        block_on(handle.stream().ended());
    }
    let passes: Vec<String> = log.lines().into_iter().filter(|line| line.starts_with("pass ")).collect();
    let tokens = |line: &str| line.split(" ms: ").nth(1)?.split(' ').next()?.parse::<u32>().ok();
    assert_eq!(passes.iter().filter_map(|line| tokens(line)).sum::<u32>(), 50);
    // At most two prefills (one began alone, the others together), their decodes, and two that only announce ends.
    assert!(passes.len() <= 15, "{passes:#?}");
}
