//! Which workers of a deployment a process runs, and their part in transfers of KV: the flags of vLLM and of the
//! reference's launcher for prefill and decode apart.

use super::{Mocker, overrides};
use crate::exit::Failure;
use clap::{Args, ValueEnum};
use std::hash::{BuildHasher, RandomState};
use windtunnel_config::{ChargedTokens, Deployment, Experiment, KvTransfer, Semantics};
use windtunnel_engine::RankConfig;
use windtunnel_engine::vllm::KvRole;
use windtunnel_live::kv_transfer::{KvTransferConfig, TransferSettings};
use windtunnel_live::mocker::Pool;

/// Where vLLM's workers ask each other for KV, unless its environment variables say otherwise.
const SIDE_CHANNEL: (&str, u16) = ("localhost", 5600);

/// What workers do for each other.
#[derive(Debug, Args)]
pub struct RoleArguments {
    /// Which workers: those that do all, those that compute prompts, or those that decode. Of a file with both, both
    /// run if this is not given
    #[arg(long, value_enum)]
    disaggregation_mode: Option<DisaggregationMode>,
    /// How KV gets from worker to worker, as vLLM's own JSON
    #[arg(long, value_name = "JSON")]
    kv_transfer_config: Option<String>,
    /// Bandwidth of a transfer of KV in GB/s; without one, and with 0, transfers take no time
    #[arg(long, value_name = "GB/S")]
    kv_transfer_bandwidth: Option<f64>,
    /// KV bytes of one token
    #[arg(long, value_name = "BYTES")]
    kv_bytes_per_token: Option<u64>,
    /// Which tokens a transfer is charged
    #[arg(long, value_enum)]
    kv_transfer_timing_mode: Option<TimingMode>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DisaggregationMode {
    #[value(alias = "null")]
    Agg,
    Prefill,
    Decode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum TimingMode {
    /// Those of the blocks that the decode worker does not have
    DestinationMissing,
    /// All of the prompt
    FullPrompt,
}

/// The workers that the arguments ask for.
pub(super) fn pools(arguments: &Mocker, together: bool) -> Result<Vec<Pool>, Failure> {
    let roles = &arguments.roles;
    let config = roles.kv_transfer_config.as_deref().map(KvTransferConfig::parse);
    let config = config.transpose().map_err(Failure::Input)?;
    let apart = is_apart(arguments);
    let mode = roles.disaggregation_mode;
    let names: &[&str] = match (apart, mode) {
        (false, _) => &["aggregated"],
        (true, None) => &["prefill", "decode"],
        (true, Some(DisaggregationMode::Prefill)) => &["prefill"],
        (true, Some(DisaggregationMode::Decode)) => &["decode"],
        (true, Some(DisaggregationMode::Agg)) => {
            let message = "--disaggregation-mode: got agg, but the file has prefill and decode workers";
            return Err(Failure::Input(message.into()));
        }
    };
    // The flags say later what the file and --set say, so they win.
    let mut all: Vec<String> = arguments.set.iter().cloned().chain(overrides(arguments, names)?).collect();
    if apart {
        all.extend(roles.transfer_keys());
    }
    let experiment = match &arguments.config {
        Some(file) => windtunnel_config::load(file, &all),
        None => windtunnel_config::from_str("(no file)", super::NO_FILE, &all),
    };
    let experiment = experiment.map_err(Failure::input)?;
    windtunnel_live::limits::check(&experiment, together).map_err(Failure::input)?;
    let no_delay = arguments.speedup_ratio == Some(0.0);
    let Experiment { deployment, prefill, .. } = experiment;
    let Some(prefill) = prefill else {
        let role = match mode {
            None | Some(DisaggregationMode::Agg) => config.as_ref().map(|config| config.role),
            Some(DisaggregationMode::Prefill) => Some(agreed(config.as_ref(), KvRole::Producer)?),
            Some(DisaggregationMode::Decode) => Some(agreed(config.as_ref(), KvRole::Consumer)?),
        };
        let law = roles.law(role.is_some())?;
        return Ok(vec![pool(deployment, role, law, config.as_ref(), no_delay)?]);
    };
    let law = prefill.transfer;
    let sides = [(prefill.deployment, KvRole::Producer), (deployment, KvRole::Consumer)];
    let asked = sides.into_iter().filter(|(side, _)| names.contains(&side.role));
    asked
        .map(|(side, role)| {
            let role = agreed(config.as_ref(), role)?;
            pool(side, Some(role), law, config.as_ref(), no_delay)
        })
        .collect()
}

/// The file has prefill and decode workers apart. One that cannot be read says why later, with the flags.
fn is_apart(arguments: &Mocker) -> bool {
    let file = arguments.config.as_ref().map(|file| windtunnel_config::load(file, &arguments.set));
    file.is_some_and(|file| file.is_ok_and(|experiment| experiment.prefill.is_some()))
}

/// The part that workers take, where another flag names one, too.
fn agreed(config: Option<&KvTransferConfig>, role: KvRole) -> Result<KvRole, Failure> {
    match config {
        Some(config) if config.role != role && config.role != KvRole::Both => Err(Failure::Input(format!(
            "--kv-transfer-config: kv_role is that of the other side; these are the workers that {}",
            if role == KvRole::Producer { "compute prompts" } else { "decode" }
        ))),
        _ => Ok(role),
    }
}

fn pool(
    mut deployment: Deployment,
    role: Option<KvRole>,
    law: KvTransfer,
    config: Option<&KvTransferConfig>,
    no_delay: bool,
) -> Result<Pool, Failure> {
    let Some(role) = role else { return Ok(Pool { deployment, transfers: None }) };
    let config = config.cloned().unwrap_or_default();
    if deployment.semantics == Semantics::Aisimulate013 {
        let message = "engine.semantics: live workers apart for prefill and decode have native ones only";
        return Err(Failure::Input(message.into()));
    }
    match &mut deployment.engine {
        RankConfig::Vllm(engine) => {
            (engine.kv_role, engine.kv_load_failure_policy) = (Some(role), config.failure_policy);
        }
        RankConfig::Sglang(_) | RankConfig::Trtllm(_) => {
            let message = "--disaggregation-mode and --kv-transfer-config: live workers of vLLM only, yet";
            return Err(Failure::Input(message.into()));
        }
    }
    let (host, port) = side_channel()?;
    let transfers = TransferSettings {
        role,
        engine_id: config.engine_id.unwrap_or_else(engine_id),
        host,
        port,
        lease: config.lease,
        law,
        tensor: deployment.parallelism.tensor,
        block_size: deployment.engine.block_size(),
        no_delay,
    };
    Ok(Pool { deployment, transfers: Some(transfers) })
}

/// A name that no other process has, and that this one did not have before.
fn engine_id() -> String {
    let drawn = || RandomState::new().hash_one(std::process::id());
    format!("{:016x}{:016x}", drawn(), drawn())
}

fn side_channel() -> Result<(String, u16), Failure> {
    let host = std::env::var("VLLM_NIXL_SIDE_CHANNEL_HOST").unwrap_or_else(|_| SIDE_CHANNEL.0.to_owned());
    let port = match std::env::var("VLLM_NIXL_SIDE_CHANNEL_PORT") {
        Ok(text) => text.parse().map_err(|_| {
            Failure::Input(format!("VLLM_NIXL_SIDE_CHANNEL_PORT: got \"{text}\", allowed is a port"))
        })?,
        Err(_) => SIDE_CHANNEL.1,
    };
    Ok((host, port))
}

impl RoleArguments {
    /// What the flags say, as keys of a file that has both roles.
    fn transfer_keys(&self) -> Vec<String> {
        let bandwidth = self.kv_transfer_bandwidth.map(|number| match number {
            0.0 => "null".to_owned(),
            number => format!("{number:?}"),
        });
        let timing = self.kv_transfer_timing_mode.map(|mode| match mode {
            TimingMode::DestinationMissing => "destination_missing",
            TimingMode::FullPrompt => "full_prompt",
        });
        let keys = [
            ("bandwidth_gb_per_second", bandwidth),
            ("bytes_per_token", self.kv_bytes_per_token.map(|bytes| bytes.to_string())),
            ("timing_mode", timing.map(str::to_owned)),
        ];
        let given = keys.into_iter().filter_map(|(key, value)| Some((key, value?)));
        given.map(|(key, value)| format!("engine.kv_transfer.{key}={value}")).collect()
    }

    /// The same where no file says anything of transfers.
    fn law(&self, transfers: bool) -> Result<KvTransfer, Failure> {
        let given = self.kv_transfer_bandwidth.is_some()
            || self.kv_bytes_per_token.is_some()
            || self.kv_transfer_timing_mode.is_some();
        if given && !transfers {
            let message = "--kv-transfer-bandwidth, --kv-bytes-per-token and --kv-transfer-timing-mode need \
                           --disaggregation-mode or --kv-transfer-config";
            return Err(Failure::Input(message.into()));
        }
        let bandwidth = self.kv_transfer_bandwidth.filter(|bandwidth| *bandwidth != 0.0);
        if let Some(bandwidth) = bandwidth.filter(|bandwidth| !(bandwidth.is_finite() && *bandwidth > 0.0)) {
            let message = format!("--kv-transfer-bandwidth: got {bandwidth}, allowed is 0 or more");
            return Err(Failure::Input(message));
        }
        if bandwidth.is_some() && self.kv_bytes_per_token.is_none() {
            return Err(Failure::Input("--kv-transfer-bandwidth: needs --kv-bytes-per-token".into()));
        }
        Ok(KvTransfer {
            bytes_per_token: self.kv_bytes_per_token.unwrap_or(0),
            bandwidth,
            charged: match self.kv_transfer_timing_mode {
                Some(TimingMode::FullPrompt) => ChargedTokens::FullPrompt,
                Some(TimingMode::DestinationMissing) | None => ChargedTokens::DestinationMissing,
            },
            ..KvTransfer::default()
        })
    }
}
