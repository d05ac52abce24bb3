//! SGLang's way: both sides have a request from the beginning, and it says in which room they meet. The side that goes
//! on finds the other one by its bootstrap server (`registry`, asked by `lookup`), enters the room (`receive`), says when
//! it has room for the KV, and hears when the prompt is computed (`wait`). Rooms are numbers that a router draws.

mod lookup;
mod receive;
mod registry;
mod wait;

pub(super) use receive::{Meeting, receive};

use super::wire::Lines;
use super::{Back, Computed, Let, reachable, refused};
use crate::error::LiveError;
use crate::http::server;
use lookup::Routes;
use registry::Registry;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::watch;
use wait::Occupants;
use windtunnel_engine::RequestId;

/// The host of a request that has no other side: KV for it is there at once, and what it computes is read at once. So
/// health probes are answered (srt/disaggregation/utils.py, 0.5.23).
pub const FAKE_BOOTSTRAP_HOST: &str = "2.2.2.2";

/// Pause after an accept that failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// How a worker meets others.
#[derive(Clone, Debug)]
pub struct RoomSettings {
    /// Where the bootstrap server of a prefill worker listens.
    pub host: IpAddr,
    /// Its port (0: any): of the first worker, the others behind it, or of each. Of a decode worker, the port that a
    /// request means which names none.
    pub ports: Vec<u16>,
    /// The address that others are told to find the worker at, if that is another one than `host`.
    pub told_host: Option<String>,
    /// The port of the HTTP server, which the bootstrap server tells.
    pub http_port: Option<u16>,
    /// Data-parallel ranks.
    pub ranks: u32,
    /// How often a decode worker tries to reach the other side, a second apart.
    pub attempts: u32,
    /// How long a prefill worker waits for the other side to have room.
    pub bootstrap_timeout: Duration,
    /// How long a decode worker that has made room waits for the KV.
    pub waiting_timeout: Duration,
}

/// Where the two sides of a request meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// Its number.
    pub number: u64,
    /// Host and port of the bootstrap server of the side that computes the prompt; none if there is no other side.
    pub server: Option<(String, u16)>,
}

/// What the side that goes on says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Said {
    /// It has the request of this room.
    Enter { room: u64 },
    /// It has made room for its KV, of so many bytes as far as it knows.
    Ready { bytes: u64 },
    /// It has read it.
    Release,
    /// Its request has ended.
    Leave,
}

/// What the side that computes the prompt answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Told {
    /// The prompt is computed by this worker of its process, which took so many nanoseconds.
    Computed { worker: u32, prompt_tokens: u32, cached_tokens: u32, computed_for: u64 },
    /// It will not be: its request has ended.
    Left,
    /// It will not be, for another reason.
    Refused { reason: String },
}

/// The rooms of a worker.
#[derive(Clone, Debug, Default)]
pub(super) struct Rooms {
    /// Of a worker that computes prompts.
    rooms: Arc<Mutex<HashMap<u64, Occupants>>>,
    /// Of one that goes on: where others are.
    routes: Arc<Routes>,
    /// The bootstrap server ends with its worker.
    stop: Arc<watch::Sender<bool>>,
}

impl Rooms {
    /// Opens the bootstrap server of a worker that computes prompts, and where it hears who enters.
    pub(super) async fn open(
        &self,
        settings: &mut RoomSettings,
        (tensor, page_size): (u32, u32),
    ) -> Result<(), LiveError> {
        let port = settings.ports.first().copied().unwrap_or(0);
        let listener = server::listen(SocketAddr::new(settings.host, port))?;
        let address = listener.local_addr().map_err(|cause| refused("bootstrap", port, cause))?;
        settings.ports = vec![address.port()];
        let doors = server::listen(SocketAddr::new(settings.host, 0))?;
        let door = doors.local_addr().map_err(|cause| refused("rooms", 0, cause))?;
        let told = settings.told_host.clone().unwrap_or_else(|| reachable(settings.host));
        let registry = Registry::default();
        let sizes = (settings.ranks, tensor, page_size);
        registry.register_all(sizes, settings.http_port, &told, door.port());
        let stop = self.stop.subscribe();
        tokio::spawn(async move { server::serve_routes(listener, registry::router(registry), stop).await });
        tokio::spawn(self.clone().accept(doors, self.stop.subscribe()));
        Ok(())
    }

    /// Lets in who comes, until the worker is gone.
    async fn accept(self, doors: TcpListener, mut stop: watch::Receiver<bool>) {
        let rooms = Rooms { stop: Arc::default(), ..self };
        loop {
            tokio::select! {
                accepted = doors.accept() => match accepted {
                    Ok((stream, _)) => drop(tokio::spawn(rooms.clone().serve(Lines::new(stream)))),
                    Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
                },
                _ = stop.changed() => return,
            }
        }
    }

    /// A request of this worker waits in a room for somebody who has made room for its KV.
    pub(super) fn ask(&self, runtime: &Handle, room: &Room, back: Back, timeout: Duration) {
        match room.server {
            None => back.wanted(),
            Some(_) => self.enter_request(runtime, room.number, back, timeout),
        }
    }

    /// Its prompt is computed.
    pub(super) fn computed(&self, room: &Room, back: &Back, computed: Computed) {
        match room.server {
            None => back.let_go(Let::Unread),
            Some(_) => self.tell_computed(room.number, back.worker, computed),
        }
    }

    /// It has left before.
    pub(super) fn forget(&self, room: &Room, id: RequestId) {
        if room.server.is_some() {
            self.leave(room.number, id);
        }
    }

    /// What a request of a worker that goes on has to know to meet the other side.
    pub(super) fn meeting(&self, room: Arc<Room>, settings: &RoomSettings, page_size: u32) -> Meeting {
        Meeting {
            room,
            routes: self.routes.clone(),
            page_size,
            attempts: settings.attempts,
            waiting_timeout: settings.waiting_timeout,
        }
    }
}
