//! A publisher of numbered messages, as the engines have it: PUB with the frames topic, number, payload, and a
//! ROUTER that repeats what was missed (vllm/distributed/kv_events.py `ZmqEventPublisher`, 0.33.0; SGLang 0.5.23 the
//! same).
//!
//! It knows nothing of what it sends. Publishing never waits: sockets are served by tasks of their own.

use crate::error::LiveError;
use crate::zmq::{Endpoint, bind};
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use zeromq::{
    PubSocket, RouterSocket, Socket, SocketEvent, SocketOptions, SocketRecv, SocketSend, ZmqMessage,
};

/// How soon it is seen that a subscriber it had gone to is gone.
const WATCH: Duration = Duration::from_millis(100);

/// The number behind the last repeated message.
const END: [u8; 8] = [0xff; 8];

/// Where and how messages go out.
#[derive(Clone, Debug)]
pub(crate) struct PublisherSettings {
    /// PUB.
    pub(crate) endpoint: Endpoint,
    /// It waits for subscribers there, or goes to one.
    pub(crate) binds: bool,
    /// ROUTER.
    pub(crate) replay_endpoint: Option<Endpoint>,
    /// First frame.
    pub(crate) topic: String,
    /// Messages that can be repeated.
    pub(crate) buffer_steps: usize,
    /// Messages that may wait for the socket.
    pub(crate) max_queue_size: usize,
}

/// The latest messages.
type Ring = Arc<Mutex<VecDeque<(u64, Bytes)>>>;

/// The end that publishes.
#[derive(Debug)]
pub(crate) struct Publisher {
    queue: mpsc::Sender<(u64, Bytes)>,
    next: u64,
    settings: PublisherSettings,
    has_complained: bool,
}

impl Publisher {
    /// Opens the sockets, and starts to serve them on this runtime until the publisher is dropped.
    ///
    /// # Errors
    /// A socket that cannot be had.
    pub(crate) async fn start(mut settings: PublisherSettings) -> Result<Publisher, LiveError> {
        let ring = Ring::default();
        let mut options = SocketOptions::default();
        options.no_connect_timeout();
        let mut socket = PubSocket::with_options(options);
        if settings.binds {
            settings.endpoint = bound(&mut socket, &settings.endpoint).await?;
        }
        if let Some(endpoint) = &settings.replay_endpoint {
            let mut router = RouterSocket::new();
            settings.replay_endpoint = Some(bound(&mut router, endpoint).await?);
            tokio::spawn(repeat(router, ring.clone(), Bytes::from(settings.topic.clone())));
        }
        let (queue, messages) = mpsc::channel(settings.max_queue_size);
        let outlet = Outlet {
            socket,
            messages,
            ring,
            topic: Bytes::from(settings.topic.clone()),
            buffer_steps: settings.buffer_steps,
        };
        match settings.binds {
            true => tokio::spawn(outlet.serve()),
            false => tokio::spawn(outlet.serve_at(settings.endpoint.to_string())),
        };
        Ok(Publisher { queue, next: 0, settings, has_complained: false })
    }

    /// Sends a message on its way. Where the queue is full it is lost, and its number is missing.
    pub(crate) fn publish(&mut self, payload: Vec<u8>) {
        let message = (self.next, Bytes::from(payload));
        self.next += 1;
        if self.queue.try_send(message).is_err() && !std::mem::replace(&mut self.has_complained, true) {
            eprintln!("warning: {}: messages are lost, the queue is full", self.settings.endpoint);
        }
    }

    /// As given, with the ports that the sockets got.
    pub(crate) fn settings(&self) -> &PublisherSettings {
        &self.settings
    }
}

async fn bound(socket: &mut impl Socket, endpoint: &Endpoint) -> Result<Endpoint, LiveError> {
    bind(socket, endpoint)
        .await
        .map_err(|cause| LiveError::Socket { endpoint: endpoint.to_string(), cause: cause.to_string() })
}

/// What became of an attempt to reach a subscriber.
enum Connection {
    Made,
    Failed,
    NoLongerWanted,
}

/// The end that sends.
struct Outlet {
    socket: PubSocket,
    messages: mpsc::Receiver<(u64, Bytes)>,
    ring: Ring,
    topic: Bytes,
    buffer_steps: usize,
}

impl Outlet {
    async fn serve(mut self) {
        while let Some((number, payload)) = self.messages.recv().await {
            self.send(number, payload).await;
        }
    }

    /// Goes to a subscriber, and again when it is gone. What comes meanwhile can only be repeated.
    async fn serve_at(mut self, endpoint: String) {
        let mut events = self.socket.monitor();
        loop {
            match self.connect(&endpoint).await {
                Connection::Made => {}
                Connection::Failed => {
                    tokio::time::sleep(WATCH).await;
                    continue;
                }
                Connection::NoLongerWanted => return,
            }
            let mut watch = tokio::time::interval(WATCH);
            loop {
                tokio::select! {
                    message = self.messages.recv() => match message {
                        Some((number, payload)) => self.send(number, payload).await,
                        None => return,
                    },
                    _ = watch.tick() => {
                        if matches!(events.try_recv(), Ok(SocketEvent::Disconnected(_))) {
                            break;
                        }
                    }
                }
            }
        }
    }

    async fn connect(&mut self, endpoint: &str) -> Connection {
        let connecting = self.socket.connect(endpoint);
        tokio::pin!(connecting);
        loop {
            tokio::select! {
                done = &mut connecting => {
                    return if done.is_ok() { Connection::Made } else { Connection::Failed };
                }
                message = self.messages.recv() => match message {
                    Some((number, payload)) => keep(&self.ring, self.buffer_steps, number, payload),
                    None => return Connection::NoLongerWanted,
                },
            }
        }
    }

    async fn send(&mut self, number: u64, payload: Bytes) {
        let frames = [self.topic.clone(), Bytes::copy_from_slice(&number.to_be_bytes()), payload.clone()];
        keep(&self.ring, self.buffer_steps, number, payload);
        // PUB cannot fail: who is not there, or too slow, misses the message.
        let _ = self.socket.send(message(frames)).await;
    }
}

fn keep(ring: &Ring, most: usize, number: u64, payload: Bytes) {
    let mut ring = ring.lock().unwrap_or_else(PoisonError::into_inner);
    if ring.len() == most {
        ring.pop_front();
    }
    ring.push_back((number, payload));
}

fn message<const N: usize>(frames: [Bytes; N]) -> ZmqMessage {
    let mut frames = frames.into_iter();
    let mut message = ZmqMessage::from(frames.next().unwrap_or_default());
    frames.for_each(|frame| message.push_back(frame));
    message
}

/// Answers `[client, "", first number]` with the messages from that number on, and an end.
async fn repeat(mut router: RouterSocket, ring: Ring, topic: Bytes) {
    while let Ok(request) = router.recv().await {
        let Ok([client, _, first]) = <[Bytes; 3]>::try_from(request.into_vec()) else { continue };
        let first = first.iter().fold(0u64, |value, &byte| value << 8 | u64::from(byte));
        let wanted: Vec<(u64, Bytes)> = {
            let ring = ring.lock().unwrap_or_else(PoisonError::into_inner);
            ring.iter().filter(|(number, _)| *number >= first).cloned().collect()
        };
        for (number, payload) in wanted {
            let number = Bytes::copy_from_slice(&number.to_be_bytes());
            let frames = [client.clone(), Bytes::new(), topic.clone(), number, payload];
            if router.send(message(frames)).await.is_err() {
                break;
            }
        }
        let end = [client, Bytes::new(), Bytes::new(), Bytes::from_static(&END), Bytes::new()];
        // A client that is gone needs no end.
        let _ = router.send(message(end)).await;
    }
}
