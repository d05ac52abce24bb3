//! The roles that an engine's workers have: one for all, or prefill and decode apart, and how KV gets from these to
//! those.

use super::engine::deployment;
use super::role::{RoleKeys, token_bytes};
use super::{Findings, gpu};
use crate::document::{
    BytesPerToken, Engine, KvTransfer as TransferKeys, LinkSharing as SharingKey, Mode, TransferTiming,
    Worker,
};
use crate::experiment::{ChargedTokens, Deployment, KvTransfer, LinkSharing, Prefill};
use std::path::Path;

const TRANSFER: &str = "engine.kv_transfer";

/// Makes the deployments: that of the workers that give the tokens, and that of prefill workers, if there are any.
pub(super) fn deployments(
    keys: &mut Engine,
    folder: &Path,
    findings: &mut Findings,
) -> Option<(Deployment, Option<Prefill>)> {
    check_roles(keys, findings);
    match keys.mode {
        Mode::Aggregated => {
            let worker = keys.workers.aggregated.take()?;
            let given = worker.hardware.is_some();
            let path = "engine.workers.aggregated.hardware";
            findings.foreign(path, given, "engine.mode disaggregated (give engine.hardware)", "aggregated");
            let (worker, deployment) = role("aggregated", keys, worker, folder, findings);
            keys.workers.aggregated = Some(worker);
            Some((deployment?, None))
        }
        Mode::Disaggregated => {
            let (prefill, decode) = (keys.workers.prefill.take()?, keys.workers.decode.take()?);
            let (prefill, first) = role("prefill", keys, prefill, folder, findings);
            let (decode, second) = role("decode", keys, decode, folder, findings);
            (keys.workers.prefill, keys.workers.decode) = (Some(prefill), Some(decode));
            let tensor = keys.workers.prefill.as_ref().map_or(1, |worker| worker.parallelism.tensor);
            let token = token_bytes(&keys.model, keys.kvcache_quant_mode, folder, tensor);
            let transfer = transfer(keys.kv_transfer.get_or_insert_default(), token, findings);
            let (deployment, transfer) = (first?, transfer?);
            Some((second?, Some(Prefill { deployment, transfer, scaling: None, faults: None })))
        }
    }
}

/// The deployment of one role, and its worker with what is in effect filled in.
fn role(
    role: &'static str,
    keys: &mut Engine,
    worker: Worker,
    folder: &Path,
    findings: &mut Findings,
) -> (Worker, Option<Deployment>) {
    let mut of_role = RoleKeys::new(role, keys, worker);
    findings.role = role;
    of_role.gpu = gpu::described(&of_role, folder, findings);
    let deployment = deployment(&mut of_role, folder, findings);
    findings.role = "aggregated";
    (of_role.into_worker(keys), deployment)
}

/// Each mode has its roles, and no others.
fn check_roles(keys: &Engine, findings: &mut Findings) {
    let workers = &keys.workers;
    let roles = [
        ("aggregated", workers.aggregated.is_some(), Mode::Aggregated),
        ("prefill", workers.prefill.is_some(), Mode::Disaggregated),
        ("decode", workers.decode.is_some(), Mode::Disaggregated),
    ];
    let mode = |mode| match mode {
        Mode::Aggregated => "aggregated",
        Mode::Disaggregated => "disaggregated",
    };
    let here = mode(keys.mode);
    for (role, given, of) in roles {
        let path = format!("engine.workers.{role}");
        if given && of != keys.mode {
            let message = format!("given, but it belongs to engine.mode {}, and here is {here}", mode(of));
            findings.problem(&path, message);
        } else if !given && of == keys.mode {
            findings.problem(&path, format!("missing; engine.mode {here} needs it"));
        }
    }
    if keys.mode == Mode::Aggregated && keys.kv_transfer.is_some() {
        let message = "given, but it belongs to engine.mode disaggregated, and here is aggregated";
        findings.problem(TRANSFER, message);
    }
}

fn transfer(keys: &mut TransferKeys, token: Option<u64>, findings: &mut Findings) -> Option<KvTransfer> {
    let path = |key: &str| format!("{TRANSFER}.{key}");
    let before = findings.problems.len();
    let fair = keys.links == SharingKey::FairShare;
    if keys.nic_gb_per_second.is_some() && !fair {
        findings.foreign(&path("nic_gb_per_second"), true, "links fair_share", "links per_request");
    }
    if keys.overlap_layers.is_some() && fair {
        findings.foreign(&path("overlap_layers"), true, "links per_request", "links fair_share");
    }
    let sharing = match (keys.links, keys.nic_gb_per_second) {
        (SharingKey::PerRequest, _) => LinkSharing::PerRequest,
        (SharingKey::FairShare, Some(interface)) => LinkSharing::FairShare { interface },
        (SharingKey::FairShare, None) => {
            findings.problem(&path("nic_gb_per_second"), "missing; links fair_share needs it");
            LinkSharing::PerRequest
        }
    };
    let timed = keys.bandwidth_gb_per_second.is_some() || fair;
    let bytes_per_token = match keys.bytes_per_token {
        BytesPerToken::Bytes(bytes) => bytes,
        BytesPerToken::Auto(_) if timed => token.unwrap_or_else(|| {
            let got = findings.shown(&path("bytes_per_token"), "auto");
            let message = format!(
                "got {got}; that needs an engine.model that `windtunnel models` lists, or a config.json: give one of \
                 these, or a number here"
            );
            findings.problem(&path("bytes_per_token"), message);
            0
        }),
        BytesPerToken::Auto(_) => 0,
    };
    let transfer = KvTransfer {
        bytes_per_token,
        bandwidth: keys.bandwidth_gb_per_second,
        charged: match keys.timing_mode {
            TransferTiming::DestinationMissing => ChargedTokens::DestinationMissing,
            TransferTiming::FullPrompt => ChargedTokens::FullPrompt,
        },
        sharing,
        overlap_layers: keys.overlap_layers,
    };
    (findings.problems.len() == before).then_some(transfer)
}
