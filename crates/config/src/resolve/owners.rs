//! Which engine has which key: a key that is given for an engine that does not have it is a problem, unless
//! its value means that it is not used. Such a value is taken out, so that only what is in effect remains.

use super::Findings;
use super::engine::{SCHEDULER, name};
use super::role::RoleKeys;
use crate::document::{Backend, CapacityType, Defaults, PreemptionMode, QueuePolicy, Scheduler, Semantics};

const VLLM: &[Backend] = &[Backend::Vllm];
const SGLANG: &[Backend] = &[Backend::Sglang];
const TRTLLM: &[Backend] = &[Backend::Trtllm];

/// Refuses the keys of other engines, and those that other keys call for.
pub(super) fn check(keys: &mut RoleKeys, findings: &mut Findings) {
    let backend = keys.backend;
    let here = format!("backend {}", name(backend));
    let scheduler = &mut keys.worker.scheduler;
    drop_unused(scheduler, backend);
    for (key, given, owners) in owned(scheduler) {
        if given && !owners.contains(&backend) {
            findings.foreign(&format!("{SCHEDULER}.{key}"), true, &belongs_to(key, owners), &here);
        }
    }
    if backend == Backend::Sglang && keys.semantics == Semantics::Native {
        let path = format!("{SCHEDULER}.max_batched_tokens");
        if scheduler.max_batched_tokens.is_some() {
            let got = findings.shown(&path, "");
            let message = format!(
                "got {got}; SGLang has no such budget: give chunked_prefill_size and max_prefill_tokens \
                 (it is let pass, unused, under engine.semantics aisimulate_0_13)"
            );
            findings.problem(&path, message);
        }
    }
    by_policy(scheduler, findings);
    if backend == Backend::Sglang && (keys.role != "decode" || keys.semantics != Semantics::Native) {
        let semantics = if keys.semantics == Semantics::Native { "native" } else { "aisimulate_0_13" };
        let here = format!("workers.{} under {semantics}", keys.role);
        for (key, given) in [
            ("num_reserved_decode_tokens", scheduler.num_reserved_decode_tokens.is_some()),
            ("disaggregation_decode_extra_slots", scheduler.disaggregation_decode_extra_slots.is_some()),
        ] {
            let owner = "workers.decode under engine.semantics native";
            findings.foreign(&format!("{SCHEDULER}.{key}"), given, owner, &here);
        }
    }
    let path = "engine.gpu_memory_gib";
    let given = keys.gpu_memory_gib.is_some();
    if keys.worker.kv_cache.capacity.kind == CapacityType::Default {
        // Blocks are to fit into it.
    } else if backend == Backend::Trtllm {
        findings.foreign(path, given, "backend vllm and sglang", &here);
    } else if keys.defaults == Defaults::Aisimulate {
        let owner = "engine.defaults native or capacity.type default";
        findings.foreign(path, given, owner, "engine.defaults aisimulate");
    }
}

/// The keys that go with one policy of admission.
fn by_policy(scheduler: &Scheduler, findings: &mut Findings) {
    let priority = scheduler.policy == Some(QueuePolicy::Priority);
    let fifo = scheduler.preemption_mode == Some(PreemptionMode::Fifo);
    let path = format!("{SCHEDULER}.preemption_mode");
    findings.foreign(&path, priority && fifo, "scheduler.policy fcfs", "scheduler.policy priority");
    for (key, given) in [
        ("schedule_low_priority_values_first", scheduler.schedule_low_priority_values_first.is_some()),
        ("priority_preemption_threshold", scheduler.priority_preemption_threshold.is_some()),
    ] {
        let path = format!("{SCHEDULER}.{key}");
        let alone = given && !priority;
        findings.foreign(&path, alone, "scheduler.policy priority", "scheduler.policy fcfs");
    }
}

/// Takes out what other engines have, with the values that mean "not used": files of AISimulate hold them.
fn drop_unused(scheduler: &mut Scheduler, backend: Backend) {
    if backend != Backend::Vllm {
        scheduler.prefill_schedule_interval = scheduler.prefill_schedule_interval.filter(|every| *every != 1);
    }
    if backend != Backend::Sglang {
        scheduler.prefill_decode_interval = scheduler.prefill_decode_interval.filter(|passes| *passes != 0);
    }
}

/// The keys that not every engine has: whether one is given, and who has it.
fn owned(keys: &Scheduler) -> [(&'static str, bool, &'static [Backend]); 25] {
    const NOT_TRTLLM: &[Backend] = &[Backend::Vllm, Backend::Sglang];
    const NOT_VLLM: &[Backend] = &[Backend::Sglang, Backend::Trtllm];
    [
        ("prefill_schedule_interval", keys.prefill_schedule_interval.is_some(), VLLM),
        ("prefill_decode_interval", keys.prefill_decode_interval.is_some(), SGLANG),
        ("max_num_active_seqs", keys.max_num_active_seqs.is_some(), VLLM),
        ("async_scheduling", keys.async_scheduling.is_some(), VLLM),
        ("overlap", keys.overlap.is_some(), NOT_VLLM),
        ("preemption_mode", keys.preemption_mode.is_some(), VLLM),
        ("long_prefill_token_threshold", keys.long_prefill_token_threshold.is_some(), VLLM),
        ("long_prefill_token_threshold_adaptive", keys.long_prefill_token_threshold_adaptive.is_some(), VLLM),
        ("policy", keys.policy == Some(QueuePolicy::Priority), NOT_TRTLLM),
        ("watermark", keys.watermark.is_some(), VLLM),
        ("reserve_full_isl", keys.reserve_full_isl.is_some(), VLLM),
        ("max_num_queued_reqs", keys.max_num_queued_reqs.is_some(), VLLM),
        ("max_num_queued_tokens", keys.max_num_queued_tokens.is_some(), VLLM),
        ("schedule_policy", keys.schedule_policy.is_some(), SGLANG),
        ("chunked_prefill_size", keys.chunked_prefill_size.is_some(), SGLANG),
        ("max_prefill_tokens", keys.max_prefill_tokens.is_some(), SGLANG),
        ("clip_max_new_tokens", keys.clip_max_new_tokens.is_some(), SGLANG),
        ("schedule_conservativeness", keys.schedule_conservativeness.is_some(), SGLANG),
        ("mixed_chunk", keys.mixed_chunk.is_some(), SGLANG),
        ("ignore_eos", keys.ignore_eos.is_some(), SGLANG),
        ("schedule_low_priority_values_first", keys.schedule_low_priority_values_first.is_some(), SGLANG),
        ("priority_preemption_threshold", keys.priority_preemption_threshold.is_some(), SGLANG),
        ("num_reserved_decode_tokens", keys.num_reserved_decode_tokens.is_some(), SGLANG),
        ("disaggregation_decode_extra_slots", keys.disaggregation_decode_extra_slots.is_some(), SGLANG),
        ("capacity_policy", keys.capacity_policy.is_some(), TRTLLM),
    ]
}

/// The owners of a key, with what the same thing is called elsewhere.
fn belongs_to(key: &str, owners: &[Backend]) -> String {
    let names: Vec<&str> = owners.iter().map(|owner| name(*owner)).collect();
    let elsewhere = match key {
        "async_scheduling" => " (elsewhere it is called overlap)",
        "overlap" => " (for vllm it is called async_scheduling)",
        _ => "",
    };
    format!("backend {}{elsewhere}", names.join(" and "))
}
