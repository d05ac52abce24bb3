//! The sockets of a server: accepting, limits of what a client may send, and an orderly end.

use super::{App, router};
use crate::error::LiveError;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

/// Longest time for the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Most headers of a request, and most bytes of its head.
const MOST_HEADERS: usize = 256;
const MOST_HEAD_BYTES: usize = 256 << 10;
/// Pause after an accept that failed, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// Connections that wait to be accepted.
const BACKLOG: u32 = 16_384;

/// Listens at an address.
///
/// # Errors
/// It is taken, or not ours.
pub fn listen(address: SocketAddr) -> Result<TcpListener, LiveError> {
    let failed = |cause| LiveError::Listen { address, cause };
    let socket = match address {
        SocketAddr::V4(_) => tokio::net::TcpSocket::new_v4(),
        SocketAddr::V6(_) => tokio::net::TcpSocket::new_v6(),
    }
    .map_err(failed)?;
    socket.set_reuseaddr(true).map_err(failed)?;
    socket.bind(address).map_err(failed)?;
    socket.listen(BACKLOG).map_err(failed)
}

/// Serves until `stop` says so; then takes no new connection and no new request, and returns when those at work
/// are done.
pub async fn serve(listener: TcpListener, app: Arc<App>, stop: watch::Receiver<bool>) {
    let at_work = accept(listener, router(app.clone()), stop).await;
    app.draining.store(true, Ordering::Relaxed);
    at_work.done().await;
}

/// The same of any routes.
pub(crate) async fn serve_routes(listener: TcpListener, routes: axum::Router, stop: watch::Receiver<bool>) {
    accept(listener, routes, stop).await.done().await;
}

/// Connections that have not ended.
struct AtWork(mpsc::Receiver<()>);

impl AtWork {
    async fn done(mut self) {
        let _ = self.0.recv().await;
    }
}

async fn accept(listener: TcpListener, routes: axum::Router, mut stop: watch::Receiver<bool>) -> AtWork {
    let service = TowerToHyperService::new(routes);
    // Every connection holds a sender; when the last is gone, all are done.
    let (alive, all_done) = mpsc::channel::<()>(1);
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let connection = connection(stream, service.clone(), stop.clone());
                    let alive = alive.clone();
                    tokio::spawn(async move {
                        connection.await;
                        drop(alive);
                    });
                }
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            },
            () = told(&mut stop) => break,
        }
    }
    AtWork(all_done)
}

/// Waits until it is time to stop, or nobody is left who could say so.
async fn told(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

async fn connection(
    stream: TcpStream,
    service: TowerToHyperService<axum::Router>,
    mut stop: watch::Receiver<bool>,
) {
    // A token is to leave at once. Where that cannot be set, it leaves a little later.
    let _ = stream.set_nodelay(true);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_headers(MOST_HEADERS)
        .max_buf_size(MOST_HEAD_BYTES);
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        // What ends a connection early is its client's doing: there is nobody to tell.
        _ = connection.as_mut() => {}
        () = told(&mut stop) => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
}
