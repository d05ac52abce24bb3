//! Endpoints of ZeroMQ sockets, as the engines write them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use zeromq::{Socket, ZmqResult};

/// `tcp://HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// A name, an address (IPv6 in brackets), or `*`.
    pub host: String,
    /// 0 is any.
    pub port: u16,
}

impl Endpoint {
    /// Reads one.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Endpoint, String> {
        let wrong = || format!("{text:?} is none, allowed is tcp://HOST:PORT");
        let (host, port) =
            text.strip_prefix("tcp://").and_then(|rest| rest.rsplit_once(':')).ok_or_else(wrong)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_v6 = bare.unwrap_or(host).parse().is_ok_and(|ip: IpAddr| ip.is_ipv6());
        if host.is_empty() || (host.contains(':') && !(is_v6 && bare.is_some())) {
            return Err(wrong());
        }
        let port = port.parse().map_err(|_| wrong())?;
        Ok(Endpoint { host: host.to_owned(), port })
    }

    /// The one for the `offset`th publisher: `offset` ports on. A port of 0 stays.
    ///
    /// # Errors
    /// There is no such port.
    pub fn offset(&self, offset: u32) -> Result<Endpoint, String> {
        let port = match self.port {
            0 => Some(0),
            port => u32::from(port).checked_add(offset).and_then(|port| u16::try_from(port).ok()),
        };
        let port = port.ok_or_else(|| format!("port {} + {offset} of {self} is above 65535", self.port))?;
        Ok(Endpoint { port, ..self.clone() })
    }

    /// Where a socket binds: `*` is every address of IPv4, as with libzmq.
    fn to_bind(&self) -> String {
        let host = if self.host == "*" { "0.0.0.0" } else { &self.host };
        format!("tcp://{host}:{}", self.port)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tcp://{}:{}", self.host, self.port)
    }
}

/// Binds a socket; tells where, with the port that it got if it had asked for any.
pub(crate) async fn bind(socket: &mut impl Socket, endpoint: &Endpoint) -> ZmqResult<Endpoint> {
    let bound = socket.bind(&endpoint.to_bind()).await?;
    let port = match bound {
        zeromq::Endpoint::Tcp(_, port) => port,
        _ => endpoint.port,
    };
    // Who asked for any port of every address is told an address that can be dialled.
    let host = match (endpoint.port, &*endpoint.host) {
        (0, "*" | "0.0.0.0") => Ipv4Addr::LOCALHOST.to_string(),
        (_, host) => host.to_owned(),
    };
    Ok(Endpoint { host, port })
}
