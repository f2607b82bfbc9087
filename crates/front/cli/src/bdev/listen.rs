//! The addresses of `--listen`, and warnings if other machines can reach them.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _};
use std::str::FromStr;

use nbd::Listener;

use super::args::ServeArgs;

/// `10809` (this machine only), `:10809` (all addresses), or `HOST:10809`; port 0 is any free port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// A port that only this machine can reach.
    Loopback(u16),
    /// A port of all addresses.
    Any(u16),
    /// A name or an address with a port.
    Host(String),
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let how = || {
            format!(
                "`{text}` is no address: write a port (10809, for this machine only), :PORT (for all addresses) or HOST:PORT, \
                 such as localhost:0 or [::1]:10809"
            )
        };
        if let Ok(port) = text.parse() {
            return Ok(Self::Loopback(port));
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(how)?;
        let port = port.parse().map_err(|_| how())?;
        let is_bare_v6 = host.contains(':') && !host.starts_with('[');
        match host {
            "" => Ok(Self::Any(port)),
            _ if is_bare_v6 => Err(how()),
            _ => Ok(Self::Host(text.to_owned())),
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loopback(port) => write!(f, "port {port}"),
            Self::Any(port) => write!(f, ":{port}"),
            Self::Host(text) => f.write_str(text),
        }
    }
}

impl ListenAddress {
    /// Listens at the first of the addresses that exists on this machine.
    pub fn listen(&self) -> io::Result<Listener> {
        let addresses: Vec<SocketAddr> = match self {
            Self::Loopback(port) => vec![(Ipv4Addr::LOCALHOST, *port).into()],
            // With IPv6, the first address accepts clients of both protocols.
            Self::Any(port) => {
                vec![(Ipv6Addr::UNSPECIFIED, *port).into(), (Ipv4Addr::UNSPECIFIED, *port).into()]
            }
            Self::Host(text) => text.to_socket_addrs()?.collect(),
        };
        let mut failed = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for address in addresses {
            match Listener::tcp(address) {
                Err(err) if err.kind() == io::ErrorKind::AddrInUse => return Err(err),
                Err(err) => failed = err,
                listener => return listener,
            }
        }
        Err(failed)
    }
}

/// Returns warnings for listeners that other machines can reach.
pub fn warnings(args: &ServeArgs, listeners: &[Listener]) -> Vec<String> {
    let who = "every client that can connect to it may use the exports";
    let (danger, remedy) = match (args.tls_required, args.tls_verify_peer) {
        (true, true) => return Vec::new(),
        (true, false) => (who.to_owned(), "--tls-verify-peer"),
        (false, _) => (
            format!("{who}, and others can read what is sent without TLS"),
            "--tls-certificates DIR --tls-required --tls-verify-peer",
        ),
    };
    let foreign = listeners.iter().filter(|listener| listener.is_foreign());
    let warning = |listener: &Listener| {
        format!("{}: {danger}; add {remedy}, or listen on localhost only", listener.address())
    };
    foreign.map(warning).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_what_people_write() {
        use ListenAddress::{Any, Host, Loopback};
        let host = |text: &str| Host(text.to_owned());
        for (text, address) in [
            ("10809", Loopback(10809)),
            (":10809", Any(10809)),
            ("localhost:0", host("localhost:0")),
            ("127.0.0.1:10809", host("127.0.0.1:10809")),
            ("[::]:10809", host("[::]:10809")),
        ] {
            assert_eq!(text.parse(), Ok(address), "{text}");
        }
        for text in ["", "localhost", ":", "::1", "::1:10809x", "localhost:70000", "[::1]"] {
            assert!(text.parse::<ListenAddress>().is_err(), "{text}");
        }
    }

    #[test]
    fn ports_that_are_free_are_found() {
        for (text, foreign) in [("0", false), (":0", true), ("localhost:0", false)] {
            let listener = text.parse::<ListenAddress>().unwrap().listen().unwrap();
            assert!(listener.address().starts_with("nbd://"), "{}", listener.address());
            assert_eq!(listener.is_foreign(), foreign, "{text}");
        }
    }
}
