//! One address for prefill and decode workers: what a router outside would do with a request that both have a part in.
//!
//! By their engine's own way, over the same connections as workers in processes of their own: the prompt first, and what
//! follows where the KV then is (vLLM, TensorRT-LLM); or both at once, who meet in a room (SGLang).

use super::app::App;
use super::error::ApiError;
use super::generation::{Ask, Choice, Generation};
use super::kv_transfer::held_at;
use crate::kv_transfer::{Remote, Room, RoomSettings, Transfers, Way, reachable};
use std::sync::Arc;

/// The prefill workers behind a server whose own workers decode.
pub struct Behind {
    prefill: Arc<App>,
}

impl Behind {
    /// Those of a server of their own, which nobody else asks.
    pub fn new(prefill: Arc<App>) -> Behind {
        Behind { prefill }
    }

    /// Empties the prefix caches of the prefill workers. False where a request is at work.
    pub async fn reset_cache(&self) -> bool {
        self.prefill.worker.reset_cache().await
    }

    /// Begins a request on both sides.
    ///
    /// # Errors
    /// What either of them refuses.
    pub async fn start(&self, app: &Arc<App>, ask: Ask) -> Result<Generation, ApiError> {
        match self.prefill.transfers.as_ref().map(|transfers| &transfers.settings().way) {
            None => Generation::start(app, ask).await,
            Some(Way::Pull(_)) => self.prompt_first(app, ask).await,
            Some(Way::Rooms(rooms)) => self.both_at_once(app, ask, rooms).await,
        }
    }

    async fn prompt_first(&self, app: &Arc<App>, ask: Ask) -> Result<Generation, ApiError> {
        let choices = ask.prompts.len() * ask.choices as usize;
        let mut prompt = ask.clone();
        prompt.max_tokens = Some(1);
        prompt.limits.min_tokens = prompt.limits.min_tokens.min(1);
        prompt.streaming = false;
        prompt.dp_rank = None;
        prompt.remotes = vec![Remote::Hold; choices];
        // Before the prompt is computed for nothing.
        Generation::check(app, &ask)?;
        let computing = Computing(Some(Generation::begin(&self.prefill, prompt).await?));
        let remotes = computing.finish().await?;
        let unread = Unread::new(&self.prefill, &remotes);
        Ok(Generation::start(app, Ask { remotes, ..ask }).await?.behind(unread))
    }

    async fn both_at_once(
        &self,
        app: &Arc<App>,
        ask: Ask,
        rooms: &RoomSettings,
    ) -> Result<Generation, ApiError> {
        let choices = ask.prompts.len() as u64 * u64::from(ask.choices);
        let port = rooms.ports.first().copied().unwrap_or(0);
        let first = self.prefill.take_numbers(choices);
        let room = |number| Arc::new(Room { number, server: Some((reachable(rooms.host), port)) });
        let remotes: Vec<_> = (first..first + choices).map(|number| Remote::Meet(room(number))).collect();
        let prompt = Ask { remotes: remotes.clone(), streaming: false, dp_rank: None, ..ask.clone() };
        let prefill = self.prefill.clone();
        let prompt = async move {
            let mut computed = Generation::start(&prefill, prompt).await?;
            computed.finish().await
        };
        let decode = Generation::start(app, Ask { remotes, ..ask });
        let mut prompt = Box::pin(prompt);
        tokio::pin!(decode);
        tokio::select! {
            biased;
            // A prompt that is refused, or given up, is no use to wait for.
            computed = &mut prompt => {
                computed?;
                decode.await
            }
            // The first token may be there before the prefill worker has heard that its KV was read.
            begun = &mut decode => Ok(begun?.beside(tokio::spawn(prompt))),
        }
    }
}

/// A prompt on its way through the prefill workers. If its client goes meanwhile, nothing is held.
struct Computing(Option<Generation>);

impl Computing {
    /// Waits until it is computed; where its KV is then, for each choice.
    async fn finish(mut self) -> Result<Vec<Remote>, ApiError> {
        let Some(computing) = &mut self.0 else { return Ok(Vec::new()) };
        computing.wait_for_first().await?;
        computing.finish().await?;
        let remotes = remotes(computing);
        self.0 = None;
        Ok(remotes)
    }
}

impl Drop for Computing {
    fn drop(&mut self) {
        let Some(computing) = self.0.take() else { return };
        let Some(transfers) = computing.app().transfers.clone() else { return };
        // Some choice may be computed before it can be ended.
        let runtime = transfers.runtime().clone();
        runtime.spawn(async move {
            computing.cancel();
            computing.ended().await;
            drop(Unread::new(computing.app(), &remotes(&computing)));
        });
    }
}

/// Where the KV of each choice is held.
fn remotes(computed: &Generation) -> Vec<Remote> {
    let remote = |choice: &Choice| {
        held_at(computed.app(), choice).map_or(Remote::None, |held| Remote::Pull(Arc::new(held)))
    };
    computed.choices().iter().map(remote).collect()
}

/// What prefill workers hold for a request. When it is dropped, they let go of what nobody has asked for: the client has
/// gone before, or no decode worker takes it.
pub(super) struct Unread {
    transfers: Option<Arc<Transfers>>,
    request_ids: Vec<String>,
}

impl Unread {
    fn new(prefill: &App, remotes: &[Remote]) -> Unread {
        let pulled = remotes.iter().filter_map(|remote| match remote {
            Remote::Pull(held) => Some(held.request_id.clone()),
            Remote::None | Remote::Hold | Remote::Meet(_) => None,
        });
        Unread { transfers: prefill.transfers.clone(), request_ids: pulled.collect() }
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        let Some(transfers) = &self.transfers else { return };
        self.request_ids.iter().for_each(|request_id| transfers.let_go(request_id));
    }
}
