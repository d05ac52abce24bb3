//! What prefill and decode workers say to each other: lines of JSON over TCP. A worker that wants to read claims a
//! request; while the connection stands, its blocks are held, however long that takes.

use serde::{Deserialize, Serialize};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// Longest line.
const MOST_BYTES: u64 = 64 << 10;
/// Longest time for an answer.
pub(super) const ANSWER: Duration = Duration::from_secs(10);

/// What the side that reads says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Asked {
    /// It wants to read what this engine holds for this request.
    Claim { engine_id: String, request_id: String },
    /// It has read it, or will not.
    Release,
}

/// What the side that is read from answers to a claim.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answered {
    /// The blocks are held, by which worker of its process, and how long their computation took, in nanoseconds.
    Held { worker: u32, prompt_tokens: u32, computed_for: u64 },
    /// They are not.
    Refused { reason: String },
}

/// One connection.
#[derive(Debug)]
pub(super) struct Lines {
    stream: BufReader<TcpStream>,
    /// What has come of the next line.
    line: Vec<u8>,
}

impl Lines {
    pub(super) fn new(stream: TcpStream) -> Lines {
        // A line is to leave at once. Where that cannot be set, it leaves a little later.
        let _ = stream.set_nodelay(true);
        Lines { stream: BufReader::new(stream), line: Vec::new() }
    }

    pub(super) async fn say(&mut self, what: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(what)?;
        line.push(b'\n');
        self.stream.write_all(&line).await
    }

    /// The next line; none where the other side has gone. May be given up and begun again.
    pub(super) async fn hear<T: for<'de> Deserialize<'de>>(&mut self) -> io::Result<Option<T>> {
        let left = MOST_BYTES.saturating_sub(self.line.len() as u64);
        (&mut self.stream).take(left).read_until(b'\n', &mut self.line).await?;
        let line = std::mem::take(&mut self.line);
        if line.last() != Some(&b'\n') {
            return Ok(None);
        }
        Ok(Some(serde_json::from_slice(&line)?))
    }
}
