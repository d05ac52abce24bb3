//! KV that moves between workers on the wall clock: a prefill worker holds what it computed, a decode worker reads it.
//!
//! The engine cores decide what is held and when a load starts; here is who tells whom, over TCP, so that workers may
//! be processes of their own. `source` is the side that is read from, `claim` the side that reads, `wire` what they say
//! to each other, `config` what vLLM's flag says; in `rooms` both sides meet, as SGLang's do. No KV is sent: a transfer is
//! as long as its law says, or where all workers are in one process, as the `links` that they share let it be.

mod claim;
mod config;
mod links;
mod rooms;
mod source;
mod wire;

pub use config::KvTransferConfig;
pub use links::SharedLinks;
pub use rooms::{FAKE_BOOTSTRAP_HOST, Room, RoomSettings};

use crate::clock::WallClock;
use crate::drive::Command;
use crate::error::LiveError;
use crate::observer::RequestTimes;
use claim::Step;
use links::Timing;
use rooms::Rooms;
use source::{Held, Source};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
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
    /// How the two sides find each other.
    pub way: Way,
    /// How long transfers take.
    pub law: KvTransfer,
    /// Accelerators of a rank.
    pub tensor: u32,
    /// Tokens of a block.
    pub block_size: u32,
    /// Transfers take no time.
    pub no_delay: bool,
}

/// How the side that computes a prompt and the one that goes on find each other.
#[derive(Clone, Debug)]
pub enum Way {
    /// The first one holds what it has computed, and its answer says where; the second one reads it (NIXL's pull
    /// connector of vLLM; TensorRT-LLM).
    Pull(PullSettings),
    /// Both have the request, which says where they meet (SGLang).
    Rooms(RoomSettings),
}

/// Where a worker's held blocks are asked for.
#[derive(Clone, Debug)]
pub struct PullSettings {
    /// What it calls itself.
    pub engine_id: String,
    /// Where the others ask for what it holds: host, and port (0: any).
    pub host: String,
    /// See [`host`](Self::host).
    pub port: u16,
    /// How long blocks are held that nobody asks for.
    pub lease: Duration,
}

impl TransferSettings {
    /// Those of a worker of a process, by its number, with its HTTP server at a port.
    ///
    /// # Errors
    /// There is no such port.
    pub fn of_worker(mut self, number: u32, http_port: u16) -> Result<TransferSettings, LiveError> {
        match &mut self.way {
            Way::Pull(pull) => {
                pull.port = port_of(pull.port, number, "the port for transfers of KV")?;
                if number > 0 {
                    pull.engine_id.push_str(&format!("-{number}"));
                }
            }
            Way::Rooms(rooms) if self.role.produces() => {
                let port = match (&rooms.ports[..], rooms.ports.get(number as usize)) {
                    (&[first], _) => port_of(first, number, "the port of the bootstrap server")?,
                    (_, Some(&port)) => port,
                    (ports, None) => {
                        let message = format!(
                            "--bootstrap-ports: got {} ports, and there is a worker {number}, counted from 0",
                            ports.len()
                        );
                        return Err(LiveError::Settings(message));
                    }
                };
                (rooms.ports, rooms.http_port) = (vec![port], Some(http_port));
            }
            Way::Rooms(_) => {}
        }
        Ok(self)
    }

    /// What is known of transfers by pulling.
    pub fn pull(&self) -> Option<&PullSettings> {
        match &self.way {
            Way::Pull(pull) => Some(pull),
            Way::Rooms(_) => None,
        }
    }

    /// What is known of rooms.
    pub fn rooms(&self) -> Option<&RoomSettings> {
        match &self.way {
            Way::Pull(_) => None,
            Way::Rooms(rooms) => Some(rooms),
        }
    }
}

/// The port of a worker behind that of the first; 0 is any.
fn port_of(first: u16, number: u32, what: &str) -> Result<u16, LiveError> {
    if first == 0 {
        return Ok(0);
    }
    let port = u32::from(first) + number;
    u16::try_from(port)
        .map_err(|_| LiveError::Settings(format!("{what} of worker {number} is {port}, above 65535")))
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
    /// Another worker has it as well; the worker's role says who does what.
    Meet(Arc<Room>),
}

/// What a rank has done that others wait for.
#[derive(Clone, Debug)]
pub(crate) enum KvMove {
    /// A request has come whose KV is elsewhere.
    Awaited { id: RequestId, remote: Remote },
    /// Its load starts.
    Started { id: RequestId, load: KvLoad, at: Nanos },
    /// A request has come that is computed when somebody has made room for its KV.
    Asked { id: RequestId, room: Arc<Room> },
    /// Nobody waits for what it has to do with others any more: it ended before, or that is done.
    Over { id: RequestId },
    /// A prompt is computed, and its blocks are held.
    Held { id: RequestId, name: String, computed: Computed, times: RequestTimes },
}

/// A transfer that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// How long it took.
    pub took: Nanos,
    /// How much was moved; 0 where the size of a token's KV is not known.
    pub bytes: u64,
}

/// A load that has succeeded.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Loaded {
    /// Its transfer, if there was one.
    pub(crate) moved: Option<Moved>,
    /// How much of the prompt was cached where it was computed, if that is known.
    pub(crate) cached_tokens: Option<u32>,
}

/// Why blocks no longer have to be held.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Let {
    /// They were read, and so many bytes moved, where that is told.
    Read { bytes: Option<u64> },
    /// Nobody has asked for them in time.
    Expired,
    /// Nobody will read them.
    Unread,
}

/// What the side that goes on has to know of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Computed {
    pub(crate) prompt_tokens: u32,
    /// Of those, the ones that were cached.
    pub(crate) cached_tokens: u32,
    /// How long the computation took.
    pub(crate) computed_for: Nanos,
}

/// The transfers of one worker.
#[derive(Debug)]
pub struct Transfers {
    settings: TransferSettings,
    source: Source,
    rooms: Rooms,
    links: Option<SharedLinks>,
    runtime: Handle,
}

impl Transfers {
    /// Opens the sockets of a worker that others read from. Its transfers share `links` with others, if it has any. To
    /// be called on the runtime that is to serve them.
    ///
    /// # Errors
    /// A socket that cannot be had, and interfaces that transfers share without links.
    pub async fn open(
        mut settings: TransferSettings,
        links: Option<SharedLinks>,
    ) -> Result<Arc<Transfers>, LiveError> {
        if matches!(settings.law.sharing, LinkSharing::FairShare { .. }) && links.is_none() {
            let message = "engine.kv_transfer.links: got \"fair_share\"; a mocker's workers do not know of each \
                           other's transfers, allowed is per_request (serve has fair_share as well)";
            return Err(LiveError::Settings(message.into()));
        }
        let produces = settings.role.produces();
        let (tensor, block_size) = (settings.tensor, settings.block_size);
        let (source, rooms) = match &mut settings.way {
            Way::Pull(pull) => {
                let source = Source::new(pull.engine_id.clone());
                if produces {
                    pull.port = source.open(&pull.host, pull.port).await?.port();
                }
                (source, Rooms::default())
            }
            Way::Rooms(room_settings) => {
                let rooms = Rooms::default();
                if produces {
                    rooms.open(room_settings, (tensor, block_size)).await?;
                }
                (Source::new(String::new()), rooms)
            }
        };
        Ok(Arc::new(Transfers { settings, source, rooms, links, runtime: Handle::current() }))
    }

    /// As given, with the ports that the sockets got.
    pub fn settings(&self) -> &TransferSettings {
        &self.settings
    }

    /// Nobody will read what is held for a request of this worker, unless somebody reads it already.
    pub(crate) fn let_go(&self, request_id: &str) {
        self.source.let_go(request_id);
    }

    /// What runs beside its requests.
    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
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
    /// The worker, as its process counts those of its role.
    worker: u32,
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

    fn loaded(&self, at: Nanos, loaded: Loaded) {
        self.tell(Command::LoadEnded { lane: self.lane, id: self.id, loaded: Some(loaded), at });
    }

    fn load_failed(&self) {
        self.tell(Command::LoadEnded { lane: self.lane, id: self.id, loaded: None, at: self.clock.now() });
    }

    fn let_go(&self, why: Let) {
        self.tell(Command::SendEnded { lane: self.lane, id: self.id, why, at: self.clock.now() });
    }

    /// The other side has made room.
    fn wanted(&self) {
        self.tell(Command::Wanted { lane: self.lane, id: self.id, at: self.clock.now() });
    }

    /// There is no other side, or no longer; the operator is told why.
    fn given_up(&self, reason: &str) {
        eprintln!("warning: a request is given up: {reason}");
        self.left();
    }

    /// The other side's client has gone, which is nothing that anybody has to look after.
    fn left(&self) {
        self.tell(Command::GiveUp { lane: self.lane, id: self.id, at: self.clock.now() });
    }
}

/// What carries out the moves of one rank group.
pub(crate) struct Mover {
    transfers: Arc<Transfers>,
    commands: Weak<Sender<Command>>,
    clock: WallClock,
    worker: u32,
    /// Requests that wait for their KV: until its load has started, or where both sides meet, ended.
    claims: HashMap<RequestId, UnboundedSender<Step>>,
    /// Requests whose KV others want, or will.
    asked: HashMap<RequestId, Arc<Room>>,
}

impl Mover {
    pub(crate) fn new(
        transfers: Arc<Transfers>,
        commands: &Arc<Sender<Command>>,
        clock: WallClock,
        worker: u32,
    ) -> Mover {
        let commands = Arc::downgrade(commands);
        Mover { transfers, commands, clock, worker, claims: HashMap::new(), asked: HashMap::new() }
    }

    /// How long transfers to this worker take.
    fn timing(&self) -> Timing {
        let Transfers { settings, links, .. } = &*self.transfers;
        match links {
            _ if settings.no_delay => Timing::Alone(KvTransfer::default()),
            Some(links) => Timing::Shared(links.clone(), self.worker as usize),
            None => Timing::Alone(settings.law),
        }
    }

    /// Lets a move of a rank happen.
    pub(crate) fn carry_out(&mut self, lane: usize, step: KvMove) {
        let (clock, worker) = (self.clock, self.worker);
        let back = |id| Back { commands: self.commands.clone(), clock, worker, lane, id };
        let timing = self.timing();
        let Transfers { settings, source, rooms, runtime, .. } = &*self.transfers;
        match step {
            KvMove::Awaited { id, remote } => {
                let (sender, steps) = unbounded_channel();
                self.claims.insert(id, sender);
                match (remote, &settings.way) {
                    (Remote::Pull(remote), _) => drop(runtime.spawn(claim::run(remote, steps, back(id)))),
                    (Remote::Meet(room), Way::Rooms(of)) => {
                        let meeting = rooms.meeting(room, of, settings.block_size);
                        runtime.spawn(rooms::receive(meeting, steps, back(id)));
                    }
                    (Remote::None | Remote::Hold | Remote::Meet(_), _) => {}
                }
            }
            KvMove::Started { id, load, at } => {
                let Some(claim) = self.claims.get(&id) else { return };
                let tokens = match settings.law.charged {
                    ChargedTokens::FullPrompt => load.known_tokens,
                    ChargedTokens::DestinationMissing => load.blocks * settings.block_size,
                };
                let bytes = u64::from(tokens) * settings.law.bytes_per_token;
                // A claim waits for this.
                let _ = claim.send(Step { at, tokens, bytes, timing });
            }
            KvMove::Asked { id, room } => {
                if let Way::Rooms(of) = &settings.way {
                    rooms.ask(runtime, &room, back(id), of.bootstrap_timeout);
                    self.asked.insert(id, room);
                }
            }
            KvMove::Over { id } => {
                // A claim that hears no more lets go.
                self.claims.remove(&id);
                if let Some(room) = self.asked.remove(&id) {
                    rooms.forget(&room, id);
                }
            }
            KvMove::Held { id, name, computed, times: _ } => match (&settings.way, self.asked.remove(&id)) {
                (Way::Pull(pull), _) => {
                    let held = Held { back: back(id), computed };
                    source.hold(runtime, Transfers::request_id(id, &name), held, pull.lease);
                }
                (Way::Rooms(_), Some(room)) => rooms.computed(&room, &back(id), computed),
                (Way::Rooms(_), None) => {}
            },
        }
    }
}

/// A socket that cannot be had.
fn refused(host: &str, port: u16, cause: impl ToString) -> LiveError {
    LiveError::Socket { endpoint: format!("{host}:{port}"), cause: cause.to_string() }
}

/// Where others find a socket of this machine that listens at `host`: there, or where it listens everywhere, by the
/// machine's name.
pub fn reachable(host: IpAddr) -> String {
    if !host.is_unspecified() {
        return host.to_string();
    }
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "localhost".to_owned() } else { name.trim().to_owned() }
}

/// The first address of a host.
async fn resolve(host: &str, port: u16) -> std::io::Result<SocketAddr> {
    let mut addresses = tokio::net::lookup_host((host, port)).await?.collect::<Vec<_>>();
    // "localhost" is often both; the engines listen on IPv4.
    addresses.sort_by_key(|address| !address.is_ipv4());
    addresses.into_iter().next().ok_or_else(|| std::io::Error::other("the host has no address"))
}
