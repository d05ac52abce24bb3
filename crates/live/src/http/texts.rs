//! Work on texts — reading bodies, rendering prompts, cutting them into tokens — beside the threads that serve.
//!
//! Texts may be megabytes, and templates and tokenizers take the time that they take: meanwhile `/health` answers, and
//! tokens of other requests go out. vLLM has a pool of threads for it, too (renderers/base.py, 0.33.0).

use super::app::App;
use super::error::ApiError;
use crate::text::ChatTemplate;
use crate::text::guard::caught;
use axum::http::StatusCode;
use std::sync::Arc;
use std::thread::available_parallelism;
use tokio::sync::Semaphore;

/// Bytes that take no longer than it takes to hand them to another thread.
const QUICK: usize = 16 << 10;
/// Bytes from which on a text waits among its like, so that short ones need not wait behind it.
const LONG: usize = 64 << 10;

/// How many texts are worked on at a time.
#[derive(Debug)]
pub struct TextWork {
    short: Arc<Semaphore>,
    long: Arc<Semaphore>,
}

impl Default for TextWork {
    /// Short ones on as many threads as there are cores, long ones on half as many.
    fn default() -> Self {
        let cores = available_parallelism().map_or(1, usize::from);
        let seats = |count: usize| Arc::new(Semaphore::new(count.max(1)));
        TextWork { short: seats(cores), long: seats(cores / 2) }
    }
}

impl App {
    /// Does work on some bytes of text where it holds up nobody.
    ///
    /// # Errors
    /// Those of the work; 500 when it panics.
    pub async fn work_on<T, W>(self: &Arc<Self>, bytes: usize, work: W) -> Result<T, ApiError>
    where
        T: Send + 'static,
        W: FnOnce(&App) -> Result<T, ApiError> + Send + 'static,
    {
        let built_in = self.tokenizer.is_quick() && matches!(self.template, ChatTemplate::ChatMl);
        if built_in && bytes <= QUICK {
            return caught(|| work(self)).unwrap_or_else(|panic| Err(gave_up(&panic)));
        }
        let lane = if bytes > LONG { &self.texts.long } else { &self.texts.short };
        // A client that is gone while it waits takes its work along; what has begun goes on to its end.
        let seat = lane.clone().acquire_owned().await.map_err(|error| gave_up(&error.to_string()))?;
        let app = self.clone();
        let done = tokio::task::spawn_blocking(move || {
            let _seat = seat;
            caught(|| work(&app))
        });
        match done.await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(panic)) => Err(gave_up(&panic)),
            Err(error) => Err(gave_up(&error.to_string())),
        }
    }

    /// The tokens of a text that shall be a prompt, of which no more than the last are kept if `truncated`.
    ///
    /// # Errors
    /// 400 for a text that is too long in any case, before it is cut (vLLM 0.33.0, renderers/params.py,
    /// `_text_len_check`); 500 when the tokenizer cannot take it.
    pub fn prompt_of(&self, text: &str, truncated: bool) -> Result<Vec<u32>, ApiError> {
        let (context, longest) = (self.settings.max_model_len, self.tokenizer.longest_token());
        let most = u64::from(context) * u64::from(longest);
        // A character is a byte at least.
        if !truncated && text.len() as u64 > most {
            let length = text.chars().count();
            if length as u64 > most {
                let message = format!(
                    "the prompt has {length} characters, allowed are {most}: a context length of {context} tokens of at \
                     most {longest} characters"
                );
                return Err(ApiError::field("input_text", message));
            }
        }
        self.tokens_of(text)
    }

    /// The tokens of any text.
    ///
    /// # Errors
    /// 500 when the tokenizer cannot take it.
    pub fn tokens_of(&self, text: &str) -> Result<Vec<u32>, ApiError> {
        self.tokenizer.encode(text).map_err(untaken)
    }
}

/// 500: the tokenizer cannot take a text.
pub fn untaken(words: String) -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, words)
}

fn gave_up(words: &str) -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, format!("the text cannot be worked on: {words}"))
}
