//! The side that computes prompts: who is in which room, and what becomes of a request when the other side comes, is
//! ready, or goes.

use super::super::wire::{ANSWER, Lines};
use super::super::{Back, Computed, Let};
use super::{Rooms, Said, Told};
use std::collections::HashMap;
use std::io;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;
use windtunnel_engine::RequestId;

/// Who is in a room.
#[derive(Debug, Default)]
pub(super) struct Occupants {
    /// The request of this worker, once it has come.
    request: Option<Waiting>,
    /// The other side, once it has come, and what is to be told to it.
    peer: Option<UnboundedSender<Told>>,
    /// It has made room, for so many bytes.
    ready: Option<u64>,
}

#[derive(Debug)]
struct Waiting {
    back: Back,
    /// Its prompt is to be computed.
    wanted: bool,
    /// Its prompt is computed.
    computed: bool,
    /// Who gives it up when nobody comes in time.
    watch: Option<AbortHandle>,
}

impl Waiting {
    /// It is wanted, or has gone.
    fn end_watch(&mut self) {
        self.watch.take().inspect(AbortHandle::abort);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.end_watch();
    }
}

impl Occupants {
    /// The prompt is computed from now on, if the request has come and the other side is ready.
    fn begin(&mut self) {
        if let Some(request) = self.request.as_mut().filter(|request| self.ready.is_some() && !request.wanted)
        {
            request.wanted = true;
            request.end_watch();
            request.back.wanted();
        }
    }
}

impl Rooms {
    fn rooms(&self) -> MutexGuard<'_, HashMap<u64, Occupants>> {
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request waits for so long at most; or ends, if there is another one.
    pub(super) fn enter_request(&self, runtime: &Handle, room: u64, back: Back, timeout: Duration) {
        let mut rooms = self.rooms();
        let occupants = rooms.entry(room).or_default();
        if occupants.request.is_some() {
            drop(rooms);
            return back.given_up(&format!("another request of this worker is in bootstrap_room {room}"));
        }
        let watch = runtime.spawn(self.clone().watch(room, back.id, timeout)).abort_handle();
        occupants.request = Some(Waiting { back, wanted: false, computed: false, watch: Some(watch) });
        occupants.begin();
    }

    /// Gives a request up for which nobody has made room in time.
    async fn watch(self, room: u64, id: RequestId, timeout: Duration) {
        tokio::time::sleep(timeout).await;
        let mut rooms = self.rooms();
        let waits = |waiting: &Waiting| waiting.back.id == id && !waiting.wanted;
        if rooms.get(&room).is_some_and(|occupants| occupants.request.as_ref().is_some_and(waits)) {
            let request = rooms.remove(&room).and_then(|occupants| occupants.request);
            drop(rooms);
            let reason = format!("nobody has made room for the KV of bootstrap_room {room} in {timeout:?}");
            request.inspect(|request| request.back.given_up(&reason));
        }
    }

    pub(super) fn tell_computed(&self, room: u64, worker: u32, computed: Computed) {
        let Computed { prompt_tokens, cached_tokens, computed_for } = computed;
        let told = Told::Computed { worker, prompt_tokens, cached_tokens, computed_for: computed_for.0 };
        let mut rooms = self.rooms();
        let Some(occupants) = rooms.get_mut(&room) else { return };
        let heard = occupants.peer.as_ref().is_some_and(|peer| peer.send(told).is_ok());
        match &mut occupants.request {
            Some(request) if heard => request.computed = true,
            _ => {
                let request = rooms.remove(&room).and_then(|occupants| occupants.request);
                drop(rooms);
                request.inspect(|request| request.back.given_up(&gone(room)));
            }
        }
    }

    /// A request is no longer there. The other side hears it.
    pub(super) fn leave(&self, room: u64, id: RequestId) {
        let mut rooms = self.rooms();
        let is_it = |waiting: &Waiting| waiting.back.id == id;
        if rooms.get(&room).is_some_and(|occupants| occupants.request.as_ref().is_some_and(is_it)) {
            rooms.remove(&room);
        }
    }

    /// Serves one who enters.
    pub(super) async fn serve(self, mut lines: Lines) {
        // Who says nothing, or something else, is let in nowhere.
        let Ok(Ok(Some(Said::Enter { room }))) = tokio::time::timeout(ANSWER, lines.hear()).await else {
            return;
        };
        let Some(computed) = self.enter_peer(room) else {
            let reason = format!("somebody else is in bootstrap_room {room}");
            let _ = lines.say(&Told::Refused { reason }).await;
            return;
        };
        match self.attend(room, &mut lines, computed).await {
            Ok(how) => self.end_peer(room, how),
            Err(_) => self.end_peer(room, Leaves::Lost),
        }
    }

    fn enter_peer(&self, room: u64) -> Option<UnboundedReceiver<Told>> {
        let mut rooms = self.rooms();
        let occupants = rooms.entry(room).or_default();
        if occupants.peer.is_some() {
            return None;
        }
        let (sender, receiver) = unbounded_channel();
        occupants.peer = Some(sender);
        Some(receiver)
    }

    /// Goes between the two sides until one of them leaves.
    async fn attend(
        &self,
        room: u64,
        lines: &mut Lines,
        mut computed: UnboundedReceiver<Told>,
    ) -> io::Result<Leaves> {
        loop {
            tokio::select! {
                said = lines.hear() => match said? {
                    Some(Said::Ready { bytes }) => {
                        if let Some(occupants) = self.rooms().get_mut(&room) {
                            occupants.ready = Some(bytes);
                            occupants.begin();
                        }
                    }
                    Some(Said::Release) => return Ok(Leaves::Served),
                    Some(Said::Leave) => return Ok(Leaves::Unserved),
                    Some(Said::Enter { .. }) | None => return Err(io::Error::other("it is gone")),
                },
                told = computed.recv() => match told {
                    Some(told) => lines.say(&told).await?,
                    // The request left, and the room with it.
                    None => {
                        lines.say(&Told::Left).await?;
                        return Ok(Leaves::Unserved);
                    }
                },
            }
        }
    }

    /// The other side has gone, with the KV or without.
    fn end_peer(&self, room: u64, how: Leaves) {
        let mut rooms = self.rooms();
        let Some(occupants) = rooms.get_mut(&room) else { return };
        occupants.peer = None;
        match &occupants.request {
            // What is being computed is given up when that is over.
            Some(request) if request.wanted && !request.computed => return,
            _ => {}
        }
        let bytes = occupants.ready;
        let request = rooms.remove(&room).and_then(|occupants| occupants.request);
        drop(rooms);
        match request {
            Some(request) if how == Leaves::Served && request.computed => {
                request.back.let_go(Let::Read { bytes });
            }
            Some(request) if how == Leaves::Unserved => request.back.left(),
            Some(request) => request.back.given_up(&gone(room)),
            None => {}
        }
    }
}

/// How somebody leaves a room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaves {
    /// It has read the KV.
    Served,
    /// One of the two requests has ended.
    Unserved,
    /// It is not known why.
    Lost,
}

fn gone(room: u64) -> String {
    format!("the other side of bootstrap_room {room} is gone")
}
