//! `engine`: the deployment. What is common to all engines stands here; the settings of a rank are made by
//! the file of its engine.

use super::calibrated::pass_model;
use super::capacity::Blocks;
use super::role::RoleKeys;
use super::timing::timing;
use super::{Findings, host, owners, sglang, trtllm, vllm};
use crate::document::{
    Backend, BytesPerToken, ContextLength, Defaults, RankPlacement, Semantics as SemanticsKey, TimingType,
    Worker,
};
use crate::experiment::{Deployment, Parallelism, Placement, Semantics};
use std::num::NonZeroU32;
use std::path::Path;
use windtunnel_engine::{ConfigError, Nanos, RankConfig};
use windtunnel_router::Policy as RouterPolicy;

/// The context length of a rank without a limit: larger than every prompt and output together that a
/// workload can hold.
pub const NO_CONTEXT_LIMIT: u32 = u32::MAX / 2;

pub(super) const WORKER: &str = "engine.workers.aggregated";
pub(super) const SCHEDULER: &str = "engine.workers.aggregated.scheduler";
pub(super) const KV_CACHE: &str = "engine.workers.aggregated.kv_cache";
pub(super) const TIMING: &str = "engine.workers.aggregated.timing";

/// Ranks of a deployment at most: each takes a few kilobytes before it has anything to do.
const MOST_RANKS: u64 = 100_000;

/// Makes the deployment and fills in the defaults that depend on other keys.
pub(super) fn deployment(keys: &mut RoleKeys, folder: &Path, findings: &mut Findings) -> Option<Deployment> {
    let semantics = match keys.semantics {
        SemanticsKey::Native => Semantics::Native,
        SemanticsKey::Aisimulate013 => Semantics::Aisimulate013,
    };
    owners::check(keys, findings);
    let block_size = block_size(keys, semantics, findings);
    let rank = match keys.backend {
        Backend::Vllm => vllm::rank(keys, folder, semantics, findings).map(|rank| rank.of(RankConfig::Vllm)),
        Backend::Sglang => {
            sglang::rank(keys, folder, semantics, findings).map(|rank| rank.of(RankConfig::Sglang))
        }
        Backend::Trtllm => {
            trtllm::rank(keys, folder, semantics, findings).map(|rank| rank.of(RankConfig::Trtllm))
        }
    };
    let group = group(keys.backend, &mut keys.worker, semantics, findings);
    let calibrated = match keys.worker.timing.kind {
        TimingType::Default => pass_model(keys, folder, findings),
        _ => None,
    };
    let worker = &mut keys.worker;
    // Without a rank there is no deployment; its timing is checked all the same.
    let blocks = rank.as_ref().map_or(1, |rank| rank.blocks.number);
    let capacity_tokens = u64::from(blocks) * u64::from(block_size);
    let timing = timing(&mut worker.timing, folder, (capacity_tokens, calibrated), semantics, findings);
    let startup = findings.time(&format!("{WORKER}.startup_seconds"), worker.startup_seconds * 1e3);
    let spread = &worker.parallelism;
    let all_ranks = u64::from(spread.replicas) * u64::from(spread.attention_data);
    if all_ranks > MOST_RANKS {
        let message = format!(
            "got {} replicas of {} ranks (attention_data), {all_ranks} ranks; allowed are {MOST_RANKS}",
            spread.replicas, spread.attention_data
        );
        findings.problem(&format!("{WORKER}.parallelism"), message);
        return None;
    }
    let host_offload = host::offload(keys, folder, findings);
    let disk_offload = host::disk(keys, folder, findings);
    let worker = &mut keys.worker;
    let spread = &worker.parallelism;
    let Rank { config, blocks } = rank?;
    Some(Deployment {
        semantics,
        model: keys.model.clone(),
        hardware: keys.hardware.clone(),
        backend_version: keys.backend_version.clone(),
        role: keys.role,
        replicas: NonZeroU32::new(spread.replicas)?,
        startup: startup?,
        parallelism: Parallelism {
            tensor: spread.tensor,
            moe_tensor: spread.moe_tensor,
            moe_expert: spread.moe_expert,
        },
        // Pipeline stages multiply it too, and are one in this version. The schema bounds both factors, so
        // the product fits.
        gpus_per_worker: spread.tensor * spread.attention_data,
        ranks: group.ranks,
        placement: group.placement,
        barrier: group.barrier,
        ignore_eos: worker.scheduler.ignore_eos.unwrap_or(false),
        engine: config,
        capacity: blocks.budget,
        timing: timing?,
        kv_bytes_per_token: match worker.kv_cache.bytes_per_token {
            BytesPerToken::Bytes(bytes) => Some(bytes),
            BytesPerToken::Auto(_) => None,
        },
        host_offload,
        disk_offload,
        // Both are filled in when the router is known.
        router: RouterPolicy::RoundRobin,
        kv_event_lag: Nanos::ZERO,
    })
}

/// The settings of a rank, and how its blocks came about.
pub(super) struct Rank<C> {
    pub config: C,
    pub blocks: Blocks,
}

impl<C> Rank<C> {
    fn of<D>(self, engine: impl Fn(C) -> D) -> Rank<D> {
        Rank { config: engine(self.config), blocks: self.blocks }
    }
}

/// Fills in the tokens of a block.
fn block_size(keys: &mut RoleKeys, semantics: Semantics, findings: &mut Findings) -> u32 {
    let default = match (keys.backend, keys.defaults) {
        (Backend::Vllm, Defaults::Aisimulate) => 64,
        (Backend::Vllm, Defaults::Native) => vllm::BLOCK_SIZE,
        (Backend::Sglang, _) => 1,
        (Backend::Trtllm, _) => 32,
    };
    let size = *keys.worker.kv_cache.block_size.get_or_insert(default);
    if size < 2 && keys.backend != Backend::Sglang && semantics == Semantics::Aisimulate013 {
        let message = format!(
            "got {size}; under engine.semantics aisimulate_0_13 backend {} needs at least 2",
            name(keys.backend)
        );
        findings.problem(&format!("{KV_CACHE}.block_size"), message);
    }
    size
}

/// The ranks of a worker.
struct Group {
    ranks: NonZeroU32,
    placement: Placement,
    barrier: bool,
}

/// How the ranks of a worker share requests and passes. Of the engines' own rules: vLLM's front end
/// balances by load (v1/engine/core_client.py of 0.33.0), and only its models with experts spread over the
/// ranks step together (v1/engine/core.py); attention data parallelism of the others always does.
fn group(backend: Backend, worker: &mut Worker, semantics: Semantics, findings: &mut Findings) -> Group {
    let ranks = NonZeroU32::new(worker.parallelism.attention_data).unwrap_or(NonZeroU32::MIN);
    let theirs = semantics == Semantics::Aisimulate013;
    let path = format!("{WORKER}.rank_placement");
    let given = worker.rank_placement == Some(RankPlacement::VllmBalancer);
    if given && backend != Backend::Vllm {
        findings.foreign(&path, true, "backend vllm", &format!("backend {}", name(backend)));
    } else if given && theirs {
        let message =
            "got \"vllm_balancer\"; engine.semantics aisimulate_0_13 places in turn: allowed is round_robin";
        findings.problem(&path, message);
    }
    let own = if backend == Backend::Vllm && !theirs {
        RankPlacement::VllmBalancer
    } else {
        RankPlacement::RoundRobin
    };
    let placement = match *worker.rank_placement.get_or_insert(own) {
        RankPlacement::RoundRobin => Placement::RoundRobin,
        RankPlacement::VllmBalancer => Placement::VllmBalancer,
    };
    let several = ranks.get() > 1;
    let whose = if theirs { "engine.semantics aisimulate_0_13" } else { name(backend) };
    if worker.barrier == Some(false) && several && (theirs || backend != Backend::Vllm) {
        let message = format!("got false; with several ranks {whose} always has it: allowed is true");
        findings.problem(&format!("{WORKER}.barrier"), message);
    }
    let experts = worker.parallelism.moe_tensor > 1 || worker.parallelism.moe_expert > 1;
    let barrier = several && worker.barrier.unwrap_or(theirs || backend != Backend::Vllm || experts);
    worker.barrier = Some(barrier);
    Group { ranks, placement, barrier }
}

/// A backend as the file spells it.
pub(super) fn name(backend: Backend) -> &'static str {
    match backend {
        Backend::Vllm => "vllm",
        Backend::Sglang => "sglang",
        Backend::Trtllm => "trtllm",
    }
}

pub(super) fn context_length(key: ContextLength) -> u32 {
    match key {
        ContextLength::Tokens(tokens) => tokens,
        ContextLength::Max(_) => NO_CONTEXT_LIMIT,
    }
}

/// Fills in whether pass n+1 is scheduled before pass n is processed: the engines do, AISimulate does not.
pub(super) fn ahead(
    key: &mut Option<bool>,
    name: &str,
    semantics: Semantics,
    findings: &mut Findings,
) -> bool {
    if *key == Some(true) && semantics == Semantics::Aisimulate013 {
        let message = "got true; engine.semantics aisimulate_0_13 schedules synchronously: allowed is false";
        findings.problem(&format!("{SCHEDULER}.{name}"), message);
    }
    *key.get_or_insert(semantics == Semantics::Native)
}

/// What an engine refuses about the settings of a rank: the fields that have another name here or stand
/// elsewhere, as (theirs, path here), and what is wrong.
pub(super) fn refuse(names: &[(&str, &str)], error: &ConfigError, findings: &mut Findings) {
    let path = match names.iter().find(|(theirs, _)| *theirs == error.field) {
        Some((_, path)) => (*path).to_owned(),
        None => format!("{SCHEDULER}.{}", error.field),
    };
    let unlimited = "context_length (max: no limit is known, give one)";
    let mut problem = error.problem.replace(&format!("max_model_len ({NO_CONTEXT_LIMIT})"), unlimited);
    for (theirs, path) in names {
        let ours = path.rsplit('.').next().unwrap_or(path);
        problem = problem.replace(theirs, ours);
    }
    let got = findings.shown(&path, &error.got);
    findings.problem(&path, format!("{got} {problem}"));
}
