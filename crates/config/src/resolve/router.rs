//! `router`: which worker takes the next request.

use super::Findings;
use crate::document::{PrefillLoadModel, QueueOrder, Router, RouterPolicy, ScorerKeys, ScorerType};
use crate::experiment::{Deployment, Semantics};
use windtunnel_engine::{Nanos, RankConfig};
use windtunnel_router::{
    CacheAwareSettings, Floor, KvRouterSettings, Policy, PrefixHashSettings, QueuePolicy, QueueSettings,
    Scorer, ScorerKind, Serves, TierCredits,
};

/// Seed of what a policy draws, where none is given.
const SEED: u64 = 42;
/// Blocks below this size make an index of caches that knows every token. SGLang's pages are of one token.
const LEAST_BLOCK: u32 = 16;
const USUAL_BLOCK: u32 = 64;
/// What a token budget of a pass counts as where an engine has none (dynamo-kv-router 1.6.1).
const NO_BUDGET: u64 = 10_000_000;

/// The same for prefill and decode workers, each of which have a router of their own.
pub(super) fn resolve_roles(
    keys: &mut Router,
    (prefill, decode): (&mut Deployment, &mut Deployment),
    findings: &mut Findings,
) {
    let before = findings.problems.len();
    if keys.queue_threshold.is_some() {
        let path = "router.queue_threshold";
        let got = findings.shown(path, "");
        let message = format!("got {got}; before separate prefill workers no request is held back");
        findings.problem(path, message);
    }
    let decode_policy = decode_policy(keys, prefill.semantics, findings);
    policy_of(keys, prefill, findings);
    if let Policy::KvRouter(settings) = &mut prefill.router {
        settings.serves = Serves::Prompts;
    }
    if findings.problems.len() > before {
        return;
    }
    // Another stream of draws than that of the prefill workers.
    let seed = keys.seed.unwrap_or(SEED).wrapping_add(1);
    decode.router = match decode_policy {
        RouterPolicy::Random => Policy::Random { seed },
        RouterPolicy::LeastRequests => Policy::LeastRequests { seed },
        RouterPolicy::LeastKv => Policy::LeastKv { seed },
        RouterPolicy::PowerOfTwo => Policy::PowerOfTwo { seed },
        RouterPolicy::Session => Policy::Session { seed },
        RouterPolicy::KvRouter => Policy::KvRouter(KvRouterSettings {
            block_size: decode.engine.block_size(),
            decode_active_request_weight: keys.decode_active_request_weight.unwrap_or(0.0),
            temperature: keys.temperature.unwrap_or(0.0),
            serves: Serves::Outputs,
            seed,
            ..KvRouterSettings::default()
        }),
        _ => Policy::RoundRobin,
    };
}

/// The policy for decode workers: one that need not know their caches.
fn decode_policy(keys: &mut Router, semantics: Semantics, findings: &mut Findings) -> RouterPolicy {
    use RouterPolicy::{CacheAware, KvRouter, PrefixHash, Scorers};
    let looks_at_prompts = |policy| matches!(policy, PrefixHash | CacheAware | Scorers);
    let usual = if looks_at_prompts(keys.policy) { RouterPolicy::LeastRequests } else { keys.policy };
    let policy = *keys.decode_policy.get_or_insert(usual);
    let path = "router.decode_policy";
    if looks_at_prompts(policy) {
        let message = format!(
            "got \"{}\"; decode workers take prompts from others: allowed is a policy that looks at loads or at nothing",
            policy.name()
        );
        findings.problem(path, message);
    } else if policy == KvRouter && keys.policy != KvRouter {
        let message = format!(
            "got \"kv_router\"; that goes with router.policy kv_router, and here is {}",
            keys.policy.name()
        );
        findings.problem(path, message);
    } else if semantics == Semantics::Aisimulate013 && policy != usual {
        let message = format!(
            "got \"{}\"; under engine.semantics aisimulate_0_13 it is that of router.policy: allowed is {}",
            policy.name(),
            usual.name()
        );
        findings.problem(path, message);
    }
    policy
}

/// Makes the policy, fills in its defaults, and gives the time after which changes of a prefix cache are known.
pub(super) fn resolve(keys: &mut Router, deployment: &mut Deployment, findings: &mut Findings) {
    let given = keys.decode_policy.is_some();
    findings.foreign("router.decode_policy", given, "engine.mode disaggregated", "aggregated");
    policy_of(keys, deployment, findings);
}

fn policy_of(keys: &mut Router, deployment: &mut Deployment, findings: &mut Findings) {
    foreign_keys(keys, findings);
    if keys.policy != RouterPolicy::KvRouter {
        keys.prefill_load_model = None;
    }
    if keys.policy == RouterPolicy::RoundRobin {
        return;
    }
    if keys.policy == RouterPolicy::PrefixHash {
        if let Some(settings) = prefix_hash(keys, deployment, findings) {
            deployment.router = Policy::PrefixHash(settings);
        }
        return;
    }
    let seed = *keys.seed.get_or_insert(SEED);
    deployment.router = match keys.policy {
        RouterPolicy::RoundRobin | RouterPolicy::PrefixHash => return,
        RouterPolicy::Session => Policy::Session { seed },
        RouterPolicy::CacheAware => {
            let Some(settings) = cache_aware(keys, seed, deployment, findings) else { return };
            Policy::CacheAware(settings)
        }
        RouterPolicy::Scorers => {
            if keys.scorers.as_ref().is_some_and(Vec::is_empty) {
                findings.problem("router.scorers", "got []; allowed is at least one scorer");
            }
            let Some(block_size) = block_size(keys, deployment, findings) else { return };
            Policy::Scorers { scorers: scorers(keys), block_size, seed }
        }
        RouterPolicy::Random => Policy::Random { seed },
        RouterPolicy::LeastRequests => Policy::LeastRequests { seed },
        RouterPolicy::LeastKv => Policy::LeastKv { seed },
        RouterPolicy::PowerOfTwo => Policy::PowerOfTwo { seed },
        RouterPolicy::KvRouter => {
            let Some(settings) = kv_router(keys, seed, deployment, findings) else { return };
            Policy::KvRouter(settings)
        }
    };
    if deployment.router.needs().cache.is_some() {
        let lag = *keys.kv_event_lag_ms.get_or_insert(0.0);
        deployment.kv_event_lag = findings.time("router.kv_event_lag_ms", lag).unwrap_or(Nanos::ZERO);
    }
}

/// Keys that the policy does not read.
fn foreign_keys(keys: &Router, findings: &mut Findings) {
    use RouterPolicy::{CacheAware, KvRouter, PrefixHash, RoundRobin, Scorers};
    let here = format!("router.policy {}", keys.policy.name());
    let drawless = matches!(keys.policy, RoundRobin | PrefixHash);
    findings.foreign("router.seed", drawless && keys.seed.is_some(), "the policies that draw", &here);
    // What AISimulate accepts beside any policy.
    let model = keys.prefill_load_model.is_some_and(|model| model != PrefillLoadModel::NONE);
    let given: [(&str, bool, &[RouterPolicy]); 19] = [
        ("block_size", keys.block_size.is_some(), &[KvRouter, PrefixHash, CacheAware, Scorers]),
        ("overlap_score_credit", keys.overlap_score_credit.is_some(), &[KvRouter]),
        ("overlap_score_credit_decay", keys.overlap_score_credit_decay.is_some(), &[KvRouter]),
        ("host_cache_hit_weight", keys.host_cache_hit_weight.is_some(), &[KvRouter]),
        ("disk_cache_hit_weight", keys.disk_cache_hit_weight.is_some(), &[KvRouter]),
        ("prefill_load_scale", keys.prefill_load_scale.is_some(), &[KvRouter]),
        ("decode_active_request_weight", keys.decode_active_request_weight.is_some(), &[KvRouter]),
        ("temperature", keys.temperature.is_some(), &[KvRouter]),
        ("prefill_load_model", model, &[KvRouter]),
        ("queue_threshold", keys.queue_threshold.is_some(), &[KvRouter]),
        ("queue_policy", keys.queue_policy.is_some(), &[KvRouter]),
        ("prefix_blocks", keys.prefix_blocks.is_some(), &[PrefixHash]),
        ("load_factor", keys.load_factor.is_some(), &[PrefixHash]),
        ("cache_threshold", keys.cache_threshold.is_some(), &[CacheAware]),
        ("balance_abs_threshold", keys.balance_abs_threshold.is_some(), &[CacheAware]),
        ("balance_rel_threshold", keys.balance_rel_threshold.is_some(), &[CacheAware]),
        ("max_tree_tokens", keys.max_tree_tokens.is_some(), &[CacheAware]),
        ("scorers", keys.scorers.is_some(), &[Scorers]),
        ("kv_event_lag_ms", keys.kv_event_lag_ms.is_some(), &[KvRouter, Scorers]),
    ];
    for (key, given, owners) in given {
        let names: Vec<&str> = owners.iter().map(|owner| owner.name()).collect();
        let owner = format!("router.policy {}", names.join(", "));
        findings.foreign(&format!("router.{key}"), given && !owners.contains(&keys.policy), &owner, &here);
    }
}

fn prefix_hash(
    keys: &mut Router,
    deployment: &Deployment,
    findings: &mut Findings,
) -> Option<PrefixHashSettings> {
    let factor = *keys.load_factor.get_or_insert(1.25);
    if factor > 0.0 && factor < 1.0 {
        findings
            .problem("router.load_factor", format!("got {factor}; allowed is 0, or a number of at least 1"));
    }
    Some(PrefixHashSettings {
        block_size: block_size(keys, deployment, findings)?,
        prefix_blocks: *keys.prefix_blocks.get_or_insert(4),
        load_factor: (factor > 0.0).then_some(factor),
    })
}

fn cache_aware(
    keys: &mut Router,
    seed: u64,
    deployment: &Deployment,
    findings: &mut Findings,
) -> Option<CacheAwareSettings> {
    Some(CacheAwareSettings {
        block_size: block_size(keys, deployment, findings)?,
        cache_threshold: *keys.cache_threshold.get_or_insert(0.3),
        balance_abs_threshold: *keys.balance_abs_threshold.get_or_insert(64),
        balance_rel_threshold: *keys.balance_rel_threshold.get_or_insert(1.5),
        max_tree_tokens: *keys.max_tree_tokens.get_or_insert(1 << 24),
        seed,
    })
}

/// Prefixes count more than each of the two loads, and less than both.
fn scorers(keys: &mut Router) -> Vec<Scorer> {
    let usual = [(ScorerType::PrefixCache, 3.0), (ScorerType::Queue, 2.0), (ScorerType::KvUsage, 2.0)];
    let usual = || usual.map(|(kind, weight)| ScorerKeys { kind, weight }).to_vec();
    let scorers = keys.scorers.get_or_insert_with(usual);
    let scorer = |keys: &ScorerKeys| Scorer {
        kind: match keys.kind {
            ScorerType::PrefixCache => ScorerKind::PrefixCache,
            ScorerType::Queue => ScorerKind::Queue,
            ScorerType::KvUsage => ScorerKind::KvUsage,
            ScorerType::ActiveRequests => ScorerKind::ActiveRequests,
            ScorerType::Session => ScorerKind::Session,
        },
        weight: keys.weight,
    };
    scorers.iter().map(scorer).collect()
}

fn kv_router(
    keys: &mut Router,
    seed: u64,
    deployment: &Deployment,
    findings: &mut Findings,
) -> Option<KvRouterSettings> {
    let model = *keys.prefill_load_model.get_or_insert(PrefillLoadModel::NONE);
    Some(KvRouterSettings {
        block_size: block_size(keys, deployment, findings)?,
        overlap_score_credit: *keys.overlap_score_credit.get_or_insert(1.0),
        overlap_score_credit_decay: *keys.overlap_score_credit_decay.get_or_insert(0.0),
        floor: match deployment.semantics {
            Semantics::Native => Floor::None,
            Semantics::Aisimulate013 => Floor::Zero,
        },
        prefill_load_scale: *keys.prefill_load_scale.get_or_insert(1.0),
        decode_active_request_weight: *keys.decode_active_request_weight.get_or_insert(0.0),
        temperature: *keys.temperature.get_or_insert(0.0),
        expects_prefill_times: model != PrefillLoadModel::NONE,
        tiers: tiers(keys, deployment, findings),
        queue: queue(keys, deployment, findings),
        serves: Serves::Whole,
        seed,
    })
}

/// What blocks below the accelerator's memory are worth, where there is such a tier.
fn tiers(keys: &mut Router, deployment: &Deployment, findings: &mut Findings) -> Option<TierCredits> {
    let (host, disk) = (deployment.host_offload.is_some(), deployment.disk_offload.is_some());
    for (key, given, tier, there) in [
        ("host_cache_hit_weight", keys.host_cache_hit_weight.is_some(), "host_offload", host),
        ("disk_cache_hit_weight", keys.disk_cache_hit_weight.is_some(), "g3_offload", disk),
    ] {
        let owner = format!("engine.workers.aggregated.kv_cache.{tier}");
        findings.foreign(&format!("router.{key}"), given && !there, &owner, "no such tier");
    }
    let usual = TierCredits::default();
    let host = host.then(|| *keys.host_cache_hit_weight.get_or_insert(usual.host))?;
    let disk = if disk { *keys.disk_cache_hit_weight.get_or_insert(usual.disk) } else { usual.disk };
    Some(TierCredits { host, disk })
}

fn queue(keys: &mut Router, deployment: &Deployment, findings: &mut Findings) -> Option<QueueSettings> {
    let Some(threshold) = keys.queue_threshold else {
        let given = keys.queue_policy.is_some();
        findings.foreign("router.queue_policy", given, "router.queue_threshold", "no such threshold");
        return None;
    };
    let policy = match *keys.queue_policy.get_or_insert(QueueOrder::Fcfs) {
        QueueOrder::Fcfs => QueuePolicy::Fcfs,
        QueueOrder::Lcfs => QueuePolicy::Lcfs,
        QueueOrder::Wspt => QueuePolicy::Wspt,
    };
    let max_batched_tokens = match &deployment.engine {
        RankConfig::Vllm(config) => config.max_num_batched_tokens.into(),
        RankConfig::Trtllm(config) => config.max_num_tokens.into(),
        RankConfig::Sglang(config) => config.chunked_prefill_size.map_or(NO_BUDGET, u64::from),
    };
    Some(QueueSettings { threshold, max_batched_tokens, policy })
}

/// Tokens of the blocks in which the router knows the caches: the engine's, or of SGLang several pages.
fn block_size(keys: &mut Router, deployment: &Deployment, findings: &mut Findings) -> Option<u32> {
    let engine = deployment.engine.block_size();
    let default = match deployment.semantics {
        Semantics::Native if engine < LEAST_BLOCK => engine * USUAL_BLOCK.div_ceil(engine),
        _ => engine,
    };
    let pages = matches!(deployment.engine, RankConfig::Sglang(_));
    let size = *keys.block_size.get_or_insert(if pages { default } else { engine });
    let fits = if pages { size.is_multiple_of(engine) } else { size == engine };
    if fits {
        return Some(size);
    }
    let allowed =
        if pages { format!("a multiple of a page, {engine}") } else { format!("{engine}, the engine's") };
    findings.problem("router.block_size", format!("got {size}; allowed is {allowed}"));
    None
}
