//! OTLP's two ways of sending spans (opentelemetry-proto, docs/specification.md): a call of gRPC over HTTP/2, or a POST of
//! the same protobuf over HTTP/1. Each batch has a connection of its own, so that nothing is held while nothing is sent.

use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::{http1, http2};
use hyper::header::{CONTENT_TYPE, HOST, TE};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use prost::Message;
use std::fmt;
use std::time::Duration;
use tokio::net::TcpStream;

/// The method of gRPC.
const METHOD: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
/// Longest time for one batch (the specification's default).
const TIMEOUT: Duration = Duration::from_secs(10);
/// Longest answer.
const MOST_BYTES: usize = 1 << 20;

/// How spans are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// `grpc`.
    Grpc,
    /// `http/protobuf`.
    Http,
}

/// Where spans go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collector {
    protocol: Protocol,
    /// Host and port.
    authority: String,
    path: String,
}

impl Collector {
    /// Reads an endpoint: `http://HOST:PORT/PATH`, for gRPC without a path, and also without `http://`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(endpoint: &str, protocol: Protocol) -> Result<Collector, String> {
        let rest = match endpoint.split_once("://") {
            Some(("http", rest)) => rest,
            Some(("https", _)) => {
                return Err(format!("got \"{endpoint}\"; spans are sent without TLS, allowed is http://"));
            }
            None if protocol == Protocol::Grpc => endpoint,
            _ => return Err(format!("got \"{endpoint}\", allowed is http://HOST:PORT/PATH")),
        };
        let (authority, path) =
            rest.split_once('/').map_or((rest, ""), |(authority, path)| (authority, path));
        let (port, path) = match (protocol, path) {
            (Protocol::Grpc, "") => (4317, METHOD.to_owned()),
            (Protocol::Grpc, _) => {
                return Err(format!(
                    "got \"{endpoint}\"; gRPC has no path, OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf \
                                    has one"
                ));
            }
            (Protocol::Http, "") => (4318, "/v1/traces".to_owned()),
            (Protocol::Http, path) => (4318, format!("/{path}")),
        };
        let authority = match authority.rsplit_once(':') {
            Some((_, port)) if port.parse::<u16>().is_ok() => authority.to_owned(),
            Some((_, port)) if !port.ends_with(']') => {
                return Err(format!("got \"{endpoint}\", which has no port"));
            }
            _ => format!("{authority}:{port}"),
        };
        let uri = format!("http://{authority}{path}").parse::<hyper::Uri>();
        match uri.is_ok_and(|uri| uri.host().is_some_and(|host| !host.is_empty())) {
            true => Ok(Collector { protocol, authority, path }),
            false => Err(format!("got \"{endpoint}\", allowed is http://HOST:PORT")),
        }
    }

    /// Sends a batch; says how many of its spans were refused.
    ///
    /// # Errors
    /// What went wrong; it may be sent again.
    pub(super) async fn export(&self, request: &ExportTraceServiceRequest) -> Result<u64, String> {
        let sent = async {
            match self.protocol {
                Protocol::Grpc => self.call(request).await,
                Protocol::Http => self.post(request).await,
            }
        };
        let answer =
            tokio::time::timeout(TIMEOUT, sent).await.map_err(|_| "no answer in time".to_owned())??;
        let answer = ExportTraceServiceResponse::decode(answer).map_err(|error| error.to_string())?;
        let refused = answer.partial_success.map_or(0, |part| part.rejected_spans);
        Ok(u64::try_from(refused).unwrap_or(0))
    }

    async fn post(&self, request: &ExportTraceServiceRequest) -> Result<Bytes, String> {
        let head = Request::post(&self.path).header(HOST, &self.authority);
        let body = Full::new(Bytes::from(request.encode_to_vec()));
        let request = head.header(CONTENT_TYPE, "application/x-protobuf").body(body).map_err(words)?;
        let (mut sender, connection) = http1::handshake(self.connect().await?).await.map_err(words)?;
        // It ends with the answer.
        tokio::spawn(connection);
        let response = sender.send_request(request).await.map_err(words)?;
        match response.status() {
            StatusCode::OK => Ok(whole(response).await?.0),
            status => Err(format!("status {status}")),
        }
    }

    async fn call(&self, request: &ExportTraceServiceRequest) -> Result<Bytes, String> {
        let head = Request::post(format!("http://{}{}", self.authority, self.path));
        let message = request.encode_to_vec();
        // Not compressed, and its length.
        let mut body = BytesMut::with_capacity(5 + message.len());
        body.put_u8(0);
        body.put_u32(u32::try_from(message.len()).map_err(words)?);
        body.put_slice(&message);
        let head = head.header(CONTENT_TYPE, "application/grpc").header(TE, "trailers");
        let request = head.body(Full::new(body.freeze())).map_err(words)?;
        let io = self.connect().await?;
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await.map_err(words)?;
        tokio::spawn(connection);
        let response = sender.send_request(request).await.map_err(words)?;
        let in_head = response.headers().get("grpc-status").cloned();
        let (body, in_trailers) = whole(response).await?;
        match in_trailers.or(in_head) {
            Some(status) if status == "0" => {
                Ok(body.get(5..).map_or_else(Bytes::new, |rest| body.slice_ref(rest)))
            }
            status => Err(format!("gRPC status {status:?}")),
        }
    }

    async fn connect(&self) -> Result<TokioIo<TcpStream>, String> {
        TcpStream::connect(&self.authority).await.map(TokioIo::new).map_err(words)
    }
}

impl fmt::Display for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.protocol {
            Protocol::Grpc => write!(f, "{}", self.authority),
            Protocol::Http => write!(f, "http://{}{}", self.authority, self.path),
        }
    }
}

/// The body of an answer, and the status that may stand behind it.
async fn whole(
    response: Response<hyper::body::Incoming>,
) -> Result<(Bytes, Option<hyper::header::HeaderValue>), String> {
    let body = Limited::new(response.into_body(), MOST_BYTES).collect().await.map_err(words)?;
    let status = body.trailers().and_then(|trailers| trailers.get("grpc-status").cloned());
    Ok((body.to_bytes(), status))
}

fn words(error: impl fmt::Display) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_those_of_both_protocols() {
        let shown = |endpoint, protocol| Collector::parse(endpoint, protocol).map(|to| to.to_string());
        for (endpoint, protocol, expected) in [
            ("localhost:4317", Protocol::Grpc, "localhost:4317"),
            ("http://localhost", Protocol::Grpc, "localhost:4317"),
            ("http://[::1]/", Protocol::Grpc, "[::1]:4317"),
            ("http://a:1", Protocol::Http, "http://a:1/v1/traces"),
            ("http://a:1/x/y", Protocol::Http, "http://a:1/x/y"),
            ("http://a", Protocol::Http, "http://a:4318/v1/traces"),
        ] {
            assert_eq!(shown(endpoint, protocol).as_deref(), Ok(expected), "{endpoint}");
        }
        for (endpoint, protocol, words) in [
            ("https://a:1", Protocol::Grpc, "without TLS"),
            ("a:1", Protocol::Http, "allowed is http://HOST:PORT/PATH"),
            ("http://a:1/v1/traces", Protocol::Grpc, "gRPC has no path"),
            ("http://a:x", Protocol::Http, "which has no port"),
            ("", Protocol::Grpc, "allowed is http://HOST:PORT"),
            ("http://:1", Protocol::Grpc, "allowed is http://HOST:PORT"),
        ] {
            let said = shown(endpoint, protocol).unwrap_err();
            assert!(said.contains(words), "{endpoint}: {said}");
        }
    }
}
