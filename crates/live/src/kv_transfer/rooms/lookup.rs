//! Asking a bootstrap server where a prefill worker is, and remembering it.

use super::super::resolve;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::net::TcpStream;

/// Longest answer that is read.
const MOST_BYTES: usize = 64 << 10;

/// What is read of a server's answers.
#[derive(Debug, Deserialize)]
struct Prefill {
    page_size: Option<u32>,
}

#[derive(Debug, Deserialize)]
struct RankPlace {
    rank_ip: String,
    rank_port: u16,
}

/// Where prefill workers are, by host and port of their bootstrap servers.
#[derive(Debug, Default)]
pub(super) struct Routes(Mutex<HashMap<(String, u16), SocketAddr>>);

impl Routes {
    fn known(&self) -> MutexGuard<'_, HashMap<(String, u16), SocketAddr>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was known of a server may be wrong.
    pub(super) fn forget(&self, server: &(String, u16)) {
        self.known().remove(server);
    }

    /// Where the worker of a bootstrap server is. Its ranks are at one place.
    ///
    /// # Errors
    /// It cannot be asked, or knows nothing yet; of kind `InvalidInput` if the two sides do not fit together.
    pub(super) async fn find(&self, server: &(String, u16), page_size: u32) -> io::Result<SocketAddr> {
        if let Some(&address) = self.known().get(server) {
            return Ok(address);
        }
        let (host, port) = server;
        let prefill: Prefill = get(host, *port, &route(-1)).await?;
        if let Some(theirs) = prefill.page_size.filter(|&theirs| theirs != page_size) {
            let message =
                format!("the prefill worker has pages of {theirs} tokens, and this one of {page_size}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let rank: RankPlace = get(host, *port, &route(0)).await?;
        let address = resolve(&rank.rank_ip, rank.rank_port).await?;
        self.known().insert(server.clone(), address);
        Ok(address)
    }
}

/// Where a server tells of one of its ranks, or with -1 of itself.
fn route(rank: i32) -> String {
    format!(
        "/route?prefill_dp_rank={rank}&prefill_cp_rank={rank}&target_tp_rank={rank}&target_pp_rank={rank}"
    )
}

async fn get<T: DeserializeOwned>(host: &str, port: u16, path: &str) -> io::Result<T> {
    let stream = TcpStream::connect(resolve(host, port).await?).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    let connection = tokio::spawn(connection);
    let name = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let request = Request::get(path).header(header::HOST, name).body(Empty::<Bytes>::new());
    let answer = sender.send_request(request.map_err(io::Error::other)?).await.map_err(io::Error::other)?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), MOST_BYTES).collect().await.map_err(io::Error::other)?;
    connection.abort();
    if status != StatusCode::OK {
        return Err(io::Error::other(format!("the bootstrap server answers {status}")));
    }
    serde_json::from_slice(&body.to_bytes()).map_err(io::Error::other)
}
