//! An answer as server-sent events, whatever its chunks look like; and what a fault does to an answer.

use super::faults::Interruption;
use super::generation::{Generation, News};
use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use bytes::Bytes;
use futures_util::stream;
use serde_json::Value;
use std::fmt::Write;
use std::io;
use std::time::Duration;

/// What the chunks of an answer look like. Each appends whole events to `out`, or nothing.
pub trait Frames: Send {
    /// Before everything else.
    fn opening(&self, _generation: &Generation, _out: &mut String) {}
    /// What is new of a choice; `first` of it.
    fn chunk(&self, generation: &Generation, news: &News, first: bool, out: &mut String);
    /// Before `[DONE]`.
    fn closing(&self, _generation: &Generation, _out: &mut String) {}
}

/// Chunks that are values, one for each piece of news.
impl<F: Fn(&Generation, &News, bool) -> Value + Send> Frames for F {
    fn chunk(&self, generation: &Generation, news: &News, first: bool, out: &mut String) {
        event(out, &self(generation, news, first));
    }
}

/// Appends one event.
pub fn event(out: &mut String, chunk: &Value) {
    // Writing to a string does not fail.
    let _ = write!(out, "data: {chunk}\n\n");
}

/// The answer to a streaming request, of which a first token or an end is there.
pub fn response(
    generation: Generation,
    interruption: Option<Interruption>,
    frames: Box<dyn Frames>,
) -> Response<Body> {
    let begun = vec![false; generation.choices().len()];
    let state = Stream { generation, interruption, frames, begun, stage: Stage::Opening };
    let chunks = stream::unfold(Box::new(state), |mut state| async move {
        let chunk = state.next().await?;
        Some((chunk, state))
    });
    let mut response = Response::new(Body::from_stream(chunks));
    let events = HeaderValue::from_static("text/event-stream; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, events);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

/// The answer to a request that does not stream, as a fault leaves it.
pub fn whole(mut response: Response<Body>, interruption: Option<Interruption>) -> Response<Body> {
    let Some(interruption) = interruption else { return response };
    let body = std::mem::take(response.body_mut());
    let late = stream::once(async move {
        match interruption {
            Interruption::Cut(_) => Err(cut()),
            Interruption::Stall(_, time) => {
                tokio::time::sleep(time).await;
                axum::body::to_bytes(body, usize::MAX).await.map_err(io::Error::other)
            }
        }
    });
    *response.body_mut() = Body::from_stream(late);
    response
}

/// What makes the server drop a connection.
fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "injected fault")
}

#[derive(Clone, Copy, PartialEq)]
enum Stage {
    Opening,
    Tokens,
    Cut,
    Done,
}

struct Stream {
    generation: Generation,
    interruption: Option<Interruption>,
    frames: Box<dyn Frames>,
    /// Choices of which something has been sent.
    begun: Vec<bool>,
    stage: Stage,
}

impl Stream {
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        let mut out = String::new();
        loop {
            match self.stage {
                Stage::Opening => {
                    self.stage = Stage::Tokens;
                    self.frames.opening(&self.generation, &mut out);
                }
                Stage::Tokens => {
                    if let Some(time) = self.interrupt() {
                        tokio::time::sleep(time).await;
                    }
                    if self.stage == Stage::Tokens {
                        self.tokens(&mut out).await;
                    }
                }
                Stage::Cut => {
                    self.stage = Stage::Done;
                    // What has been said before is on its way first.
                    tokio::task::yield_now().await;
                    return Some(Err(cut()));
                }
                Stage::Done => return None,
            }
            if !out.is_empty() {
                return Some(Ok(Bytes::from(out)));
            }
        }
    }

    /// How long it stalls now, if it does. A cut is the next stage.
    fn interrupt(&mut self) -> Option<Duration> {
        let due = self.generation.completion_tokens();
        let interruption = self.interruption.take_if(|fault| due >= u64::from(fault.after()))?;
        match interruption {
            Interruption::Cut(_) => {
                self.stage = Stage::Cut;
                None
            }
            Interruption::Stall(_, time) => Some(time),
        }
    }

    async fn tokens(&mut self, out: &mut String) {
        match self.generation.next().await {
            Ok(news) if !news.is_empty() => {
                for news in &news {
                    let first = !std::mem::replace(&mut self.begun[news.choice], true);
                    self.frames.chunk(&self.generation, news, first, out);
                }
            }
            Ok(_) => {
                self.stage = Stage::Done;
                self.frames.closing(&self.generation, out);
                out.push_str("data: [DONE]\n\n");
            }
            Err(error) => {
                self.stage = Stage::Done;
                event(out, &error.body(self.generation.app().settings.dialect));
                out.push_str("data: [DONE]\n\n");
            }
        }
    }
}
