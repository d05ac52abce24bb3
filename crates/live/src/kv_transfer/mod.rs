//! KV that moves between workers on the wall clock: a prefill worker holds what it computed, a decode worker reads it.
//!
//! The engine cores decide what is held and when a load starts; here is who tells whom, over TCP, so that workers may
//! be processes of their own. `source` is the side that is read from, `claim` the side that reads, `wire` what they say
//! to each other, `config` what vLLM's flag says. No KV is sent: a transfer is as long as its law says.

mod claim;
mod config;
mod source;
mod wire;

pub use config::KvTransferConfig;

use crate::clock::WallClock;
use crate::drive::Command;
use crate::error::LiveError;
use claim::Step;
use source::{Held, Source};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use windtunnel_config::{ChargedTokens, KvTransfer, LinkSharing};
use windtunnel_engine::vllm::KvRole;
use windtunnel_engine::{KvLoad, Nanos, RequestId};

/// A worker's part in transfers.
#[derive(Clone, Debug)]
pub struct TransferSettings {
    /// Its part.
    pub role: KvRole,
    /// What it calls itself.
    pub engine_id: String,
    /// Where the others ask for what it holds: host, and port (0: any).
    pub host: String,
    /// See [`host`](Self::host).
    pub port: u16,
    /// How long blocks are held that nobody asks for.
    pub lease: Duration,
    /// How long transfers take.
    pub law: KvTransfer,
    /// Accelerators of a rank.
    pub tensor: u32,
    /// Tokens of a block.
    pub block_size: u32,
    /// Transfers take no time.
    pub no_delay: bool,
}

impl TransferSettings {
    /// Those of a worker of a process, by its number.
    ///
    /// # Errors
    /// There is no such port.
    pub fn of_worker(mut self, number: u32) -> Result<TransferSettings, LiveError> {
        if self.port != 0 {
            let port = u32::from(self.port) + number;
            self.port = u16::try_from(port).map_err(|_| {
                let message =
                    format!("the port for transfers of KV of worker {number} is {port}, above 65535");
                LiveError::Settings(message)
            })?;
        }
        if number > 0 {
            self.engine_id.push_str(&format!("-{number}"));
        }
        Ok(self)
    }
}

/// Where a prompt's KV is, as a request tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteKv {
    /// What the prefill worker calls itself.
    pub engine_id: String,
    /// What the request is called there.
    pub request_id: String,
    /// Where it is asked.
    pub host: String,
    /// See [`host`](Self::host).
    pub port: u16,
    /// Prompt tokens that the prefill worker had cached, if it says so.
    pub cached_tokens: Option<u32>,
}

/// What a request has to do with the KV of others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Remote {
    /// Nothing.
    #[default]
    None,
    /// Others read what it computes.
    Hold,
    /// It reads what others have computed.
    Pull(Arc<RemoteKv>),
}

/// What a rank has done that others wait for.
#[derive(Clone, Debug)]
pub(crate) enum KvMove {
    /// A request has come whose KV is elsewhere.
    Awaited { id: RequestId, remote: Arc<RemoteKv> },
    /// Its load starts.
    Started { id: RequestId, load: KvLoad, at: Nanos },
    /// It ended before.
    Unread { id: RequestId },
    /// A prompt is computed, and its blocks are held.
    Held { id: RequestId, name: String, prompt_tokens: u32, computed_for: Nanos },
}

/// The transfers of one worker.
#[derive(Debug)]
pub struct Transfers {
    settings: TransferSettings,
    source: Source,
    runtime: Handle,
}

impl Transfers {
    /// Opens the socket of a worker that others read from. To be called on the runtime that is to serve it.
    ///
    /// # Errors
    /// A socket that cannot be had, and links whose sharing takes more than one process to know.
    pub async fn open(mut settings: TransferSettings) -> Result<Arc<Transfers>, LiveError> {
        if matches!(settings.law.sharing, LinkSharing::FairShare { .. }) {
            let message = "engine.kv_transfer.links: got \"fair_share\"; live workers do not know of each other's \
                           transfers, allowed is per_request";
            return Err(LiveError::Settings(message.into()));
        }
        let source = Source::new(settings.engine_id.clone());
        if settings.role.produces() {
            settings.port = source.open(&settings.host, settings.port).await?.port();
        }
        Ok(Arc::new(Transfers { settings, source, runtime: Handle::current() }))
    }

    /// As given, with the port that the socket got.
    pub fn settings(&self) -> &TransferSettings {
        &self.settings
    }

    /// What its others call a request of this worker.
    pub fn request_id(id: RequestId, name: &str) -> String {
        // Clients may use a name twice.
        format!("{name}-{}", id.0)
    }
}

/// How a rank group hears of what has ended.
#[derive(Clone, Debug)]
struct Back {
    commands: Weak<Sender<Command>>,
    clock: WallClock,
    lane: usize,
    id: RequestId,
}

impl Back {
    fn tell(&self, command: Command) {
        // A group that is gone has nothing to wait for.
        if let Some(commands) = self.commands.upgrade() {
            let _ = commands.send(command);
        }
    }

    fn load_ended(&self, at: Nanos, succeeded: bool) {
        self.tell(Command::LoadEnded { lane: self.lane, id: self.id, succeeded, at });
    }

    fn send_ended(&self) {
        self.tell(Command::SendEnded { lane: self.lane, id: self.id, at: self.clock.now() });
    }
}

/// What carries out the moves of one rank group.
pub(crate) struct Mover {
    transfers: Arc<Transfers>,
    commands: Weak<Sender<Command>>,
    clock: WallClock,
    /// Requests whose load has not started.
    claims: HashMap<RequestId, UnboundedSender<Step>>,
}

impl Mover {
    pub(crate) fn new(transfers: Arc<Transfers>, commands: &Arc<Sender<Command>>, clock: WallClock) -> Mover {
        Mover { transfers, commands: Arc::downgrade(commands), clock, claims: HashMap::new() }
    }

    /// Lets a move of a rank happen.
    pub(crate) fn carry_out(&mut self, lane: usize, step: KvMove) {
        let back = |id| Back { commands: self.commands.clone(), clock: self.clock, lane, id };
        match step {
            KvMove::Awaited { id, remote } => {
                let (sender, steps) = unbounded_channel();
                self.claims.insert(id, sender);
                self.transfers.runtime.spawn(claim::run(remote, steps, back(id)));
            }
            KvMove::Started { id, load, at } => {
                let Some(claim) = self.claims.remove(&id) else { return };
                let settings = &self.transfers.settings;
                let tokens = match settings.law.charged {
                    ChargedTokens::FullPrompt => load.known_tokens,
                    ChargedTokens::DestinationMissing => load.blocks * settings.block_size,
                };
                let law = if settings.no_delay { KvTransfer::default() } else { settings.law };
                // A claim waits for this.
                let _ = claim.send(Step::Start { at, tokens, law });
            }
            KvMove::Unread { id } => {
                if let Some(claim) = self.claims.remove(&id) {
                    let _ = claim.send(Step::Forget);
                }
            }
            KvMove::Held { id, name, prompt_tokens, computed_for } => {
                let held = Held { back: back(id), prompt_tokens, computed_for };
                let name = Transfers::request_id(id, &name);
                self.transfers.source.hold(
                    &self.transfers.runtime,
                    name,
                    held,
                    self.transfers.settings.lease,
                );
            }
        }
    }
}

/// A socket that cannot be had.
fn refused(host: &str, port: u16, cause: impl ToString) -> LiveError {
    LiveError::Socket { endpoint: format!("{host}:{port}"), cause: cause.to_string() }
}

/// The first address of a host.
async fn resolve(host: &str, port: u16) -> std::io::Result<SocketAddr> {
    let mut addresses = tokio::net::lookup_host((host, port)).await?.collect::<Vec<_>>();
    // "localhost" is often both; the engines listen on IPv4.
    addresses.sort_by_key(|address| !address.is_ipv4());
    addresses.into_iter().next().ok_or_else(|| std::io::Error::other("the host has no address"))
}
