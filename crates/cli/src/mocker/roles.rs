//! Which workers of a deployment a process runs, and their part in transfers of KV: the flags of vLLM and of the
//! reference's launcher for prefill and decode apart.

use super::keys::overrides;
use super::{Engine, Mocker, NO_FILE};
use crate::exit::Failure;
use clap::{Args, ValueEnum};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::time::Duration;
use windtunnel_config::{ChargedTokens, Deployment, Experiment, KvTransfer, Semantics};
use windtunnel_engine::RankConfig;
use windtunnel_engine::sglang::Disaggregation;
use windtunnel_engine::vllm::KvRole;
use windtunnel_live::kv_transfer::{
    KvTransferConfig, PullSettings, RoomSettings, TransferSettings, Way, reachable,
};
use windtunnel_live::mocker::Pool;

/// Where vLLM's workers ask each other for KV, unless its environment variables say otherwise.
const SIDE_CHANNEL: (&str, u16) = ("localhost", 5600);

/// Where SGLang's bootstrap servers listen, and how often a decode worker asks one
/// (srt/disaggregation/decode.py `_max_ensure_retries`).
const BOOTSTRAP_PORT: u16 = 8998;
const ATTEMPTS: u32 = 15;

/// How long a worker of TensorRT-LLM holds KV that nobody asks for (`kv_transfer_timeout_ms` of its
/// `cache_transceiver_config`).
const KV_TRANSFER_TIMEOUT: Duration = Duration::from_secs(60);

/// What stands in place of a file where workers have to be of one role.
const NO_FILE_APART: &str = "
engine:
  mode: disaggregated
  model: mock
  hardware: mock
  context_length: 131072
  workers:
    prefill:
      kv_cache: {capacity: {type: fixed, blocks: 16384}}
      timing: {type: polynomial}
    decode:
      kv_cache: {capacity: {type: fixed, blocks: 16384}}
      timing: {type: polynomial}
";

/// What workers do for each other.
#[derive(Debug, Args)]
pub struct RoleArguments {
    /// Which workers: those that do all, those that compute prompts, or those that decode. Of a file with both, both
    /// run if this is not given
    #[arg(long, value_enum)]
    disaggregation_mode: Option<DisaggregationMode>,
    /// The older name of --disaggregation-mode prefill
    #[arg(long, conflicts_with_all = ["disaggregation_mode", "is_decode_worker"])]
    is_prefill_worker: bool,
    /// The older name of --disaggregation-mode decode
    #[arg(long, conflicts_with = "disaggregation_mode")]
    is_decode_worker: bool,
    /// Port of the bootstrap server of the first prefill worker, the others behind it; 0: any. Of a decode worker, the port
    /// that a request means which names none (SGLang) [default: 8998]
    #[arg(long, value_name = "PORT", conflicts_with = "bootstrap_ports")]
    disaggregation_bootstrap_port: Option<u16>,
    /// Ports of the bootstrap servers, one for each prefill worker (SGLang)
    #[arg(long, value_name = "PORT", num_args = 1.., value_delimiter = ',')]
    bootstrap_ports: Vec<u16>,
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
    let mode = roles.mode();
    let no_file = no_file(arguments);
    let apart = is_apart(arguments) || no_file == NO_FILE_APART;
    if let Some(side) = mode.filter(|mode| together && *mode != DisaggregationMode::Agg) {
        let message = format!(
            "--disaggregation-mode: got {}, and serve runs both sides, of a file with engine.mode disaggregated",
            if side == DisaggregationMode::Prefill { "prefill" } else { "decode" }
        );
        return Err(Failure::Input(message));
    }
    if together && !roles.bootstrap_ports.is_empty() {
        let message = "--bootstrap-ports: serve has one bootstrap server, at --disaggregation-bootstrap-port";
        return Err(Failure::Input(message.into()));
    }
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
    // The flags say later what the file and --set say, so they win. Without a file, both sides are alike.
    let meant = if no_file == NO_FILE_APART { &["prefill", "decode"] } else { names };
    let mut all: Vec<String> = arguments.set.iter().cloned().chain(overrides(arguments, meant)?).collect();
    if apart {
        all.extend(roles.transfer_keys());
    }
    let experiment = match &arguments.config {
        Some(file) => windtunnel_config::load(file, &all),
        None => windtunnel_config::from_str("(no file)", no_file, &all),
    };
    let experiment = experiment.map_err(Failure::input)?;
    windtunnel_live::limits::check(&experiment).map_err(Failure::input)?;
    let Experiment { deployment, prefill, .. } = experiment;
    let Some(prefill) = prefill else {
        let role = match mode {
            None | Some(DisaggregationMode::Agg) => config.as_ref().map(|config| config.role),
            Some(DisaggregationMode::Prefill) => Some(agreed(config.as_ref(), KvRole::Producer)?),
            Some(DisaggregationMode::Decode) => Some(agreed(config.as_ref(), KvRole::Consumer)?),
        };
        let law = roles.law(role.is_some())?;
        return Ok(vec![pool(arguments, deployment, role, law, config.as_ref())?]);
    };
    let law = prefill.transfer;
    let sides = [(prefill.deployment, KvRole::Producer), (deployment, KvRole::Consumer)];
    let asked = sides.into_iter().filter(|(side, _)| names.contains(&side.role));
    asked
        .map(|(side, role)| {
            let role = agreed(config.as_ref(), role)?;
            pool(arguments, side, Some(role), law, config.as_ref())
        })
        .collect()
}

/// What stands in place of a file.
fn no_file(arguments: &Mocker) -> &'static str {
    let apart =
        matches!(arguments.roles.mode(), Some(DisaggregationMode::Prefill | DisaggregationMode::Decode));
    let by_role = matches!(arguments.engine, Some(Engine::Sglang | Engine::Trtllm));
    if apart && by_role && arguments.config.is_none() { NO_FILE_APART } else { NO_FILE }
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
    arguments: &Mocker,
    mut deployment: Deployment,
    role: Option<KvRole>,
    law: KvTransfer,
    config: Option<&KvTransferConfig>,
) -> Result<Pool, Failure> {
    arguments.roles.check_ports(&deployment, role)?;
    let Some(role) = role else { return Ok(Pool { deployment, transfers: None }) };
    if deployment.semantics == Semantics::Aisimulate013 {
        let message = "engine.semantics: live workers apart for prefill and decode have native ones only";
        return Err(Failure::Input(message.into()));
    }
    if config.is_some() && !matches!(deployment.engine, RankConfig::Vllm(_)) {
        return Err(Failure::Input("--kv-transfer-config: only vLLM has it".into()));
    }
    let way = match &mut deployment.engine {
        RankConfig::Vllm(engine) => {
            let config = config.cloned().unwrap_or_default();
            (engine.kv_role, engine.kv_load_failure_policy) = (Some(role), config.failure_policy);
            let (host, port) = side_channel()?;
            let engine_id = config.engine_id.unwrap_or_else(engine_id);
            Way::Pull(PullSettings { engine_id, host, port, lease: config.lease })
        }
        RankConfig::Sglang(engine) if engine.disaggregation == Disaggregation::Off => {
            let message = "--disaggregation-mode: of SGLang, a file has to have engine.mode disaggregated";
            return Err(Failure::Input(message.into()));
        }
        RankConfig::Sglang(_) => Way::Rooms(arguments.roles.rooms(arguments.host, deployment.ranks.get())?),
        RankConfig::Trtllm(_) => Way::Pull(PullSettings {
            engine_id: engine_id(),
            host: reachable(arguments.host),
            port: 0,
            lease: KV_TRANSFER_TIMEOUT,
        }),
    };
    let transfers = TransferSettings {
        role,
        way,
        law,
        tensor: deployment.parallelism.tensor,
        block_size: deployment.engine.block_size(),
        no_delay: arguments.speedup_ratio == Some(0.0),
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

/// A time in seconds of the environment, as SGLang's server reads it.
fn seconds_of(variable: &str, usual: u64) -> Result<Duration, Failure> {
    let Ok(text) = std::env::var(variable) else { return Ok(Duration::from_secs(usual)) };
    let seconds = text.trim().parse().ok().filter(|seconds| *seconds < 3_000_000_000);
    let seconds = seconds.ok_or_else(|| {
        Failure::Input(format!("{variable}: got \"{text}\", allowed is a number of seconds from 0 to 3e9"))
    })?;
    Ok(Duration::from_secs(seconds))
}

impl RoleArguments {
    fn mode(&self) -> Option<DisaggregationMode> {
        match (self.is_prefill_worker, self.is_decode_worker) {
            (true, _) => Some(DisaggregationMode::Prefill),
            (_, true) => Some(DisaggregationMode::Decode),
            (false, false) => self.disaggregation_mode,
        }
    }

    /// Refuses ports that nobody would listen at.
    fn check_ports(&self, deployment: &Deployment, role: Option<KvRole>) -> Result<(), Failure> {
        let flag = match (self.disaggregation_bootstrap_port, &self.bootstrap_ports[..]) {
            (None, []) => return Ok(()),
            (Some(_), _) => "--disaggregation-bootstrap-port",
            (None, _) => "--bootstrap-ports",
        };
        if !matches!(deployment.engine, RankConfig::Sglang(_)) {
            return Err(Failure::Input(format!("{flag}: only SGLang has it")));
        }
        if role.is_none() {
            return Err(Failure::Input(format!("{flag}: needs --disaggregation-mode")));
        }
        let (ports, workers) = (self.bootstrap_ports.len(), deployment.replicas.get());
        let alone = self.mode() == Some(DisaggregationMode::Decode);
        if ports > 0 && alone {
            return Err(Failure::Input("--bootstrap-ports: decode workers have no bootstrap server".into()));
        }
        if ports > 0 && role == Some(KvRole::Producer) && ports != workers as usize {
            let message =
                format!("--bootstrap-ports: got {ports}, allowed is one for each of {workers} workers");
            return Err(Failure::Input(message));
        }
        Ok(())
    }

    /// How SGLang's workers meet; times are those of its environment variables.
    fn rooms(&self, host: IpAddr, ranks: u32) -> Result<RoomSettings, Failure> {
        let ports = match &self.bootstrap_ports[..] {
            [] => vec![self.disaggregation_bootstrap_port.unwrap_or(BOOTSTRAP_PORT)],
            ports => ports.to_vec(),
        };
        let told = ["SGLANG_HOST_IP", "HOST_IP"].iter().find_map(|name| std::env::var(name).ok());
        Ok(RoomSettings {
            host,
            ports,
            told_host: told.filter(|host| !host.is_empty()),
            http_port: None,
            ranks,
            attempts: ATTEMPTS,
            bootstrap_timeout: seconds_of("SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT", 300)?,
            waiting_timeout: seconds_of("SGLANG_DISAGGREGATION_WAITING_TIMEOUT", 300)?,
        })
    }

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
