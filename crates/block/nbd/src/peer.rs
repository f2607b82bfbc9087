//! The peers among which places for clients are divided: users of this machine, and addresses.
//!
//! - **peer-P1** No peer has more than half of the places that others leave free. So each new peer
//!   gets a place, and earlier peers cannot keep it out.

use rustix::net::{getpeername, sockopt};
use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

/// The number of places from which on peers share them. With fewer, the first clients get them.
const SHARED_FROM: usize = 16;

/// The peer of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// A user of this machine.
    User(u32),
    /// Another machine, or a network of IPv6, all of whose addresses may belong to one user.
    Address(IpAddr),
    Unknown,
}

impl Peer {
    /// Returns the peer at the other end of a socket.
    pub fn of(socket: &OwnedFd) -> Self {
        let Ok(Some(address)) = getpeername(socket) else { return Self::Unknown };
        let Ok(address) = SocketAddr::try_from(address.clone()) else {
            let is_unix = address.address_family() == rustix::net::AddressFamily::UNIX;
            let user = sockopt::socket_peercred(socket).ok().filter(|_| is_unix);
            return user.map_or(Self::Unknown, |user| Self::User(user.uid.as_raw()));
        };
        match address.ip().to_canonical() {
            ip if ip.is_loopback() => {
                user_of(SocketAddr::new(ip, address.port())).map_or(Self::Address(ip), Self::User)
            }
            IpAddr::V6(ip) => Self::Address(Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into()),
            ip => Self::Address(ip),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(uid) => write!(f, "user {uid}"),
            Self::Address(ip) => write!(f, "{ip}"),
            Self::Unknown => f.write_str("an unknown user"),
        }
    }
}

/// Returns the number of `max` places that a peer may have if other peers have `others` (peer-P1).
pub(crate) fn share(max: usize, others: usize) -> usize {
    let left = max.saturating_sub(others);
    if max < SHARED_FROM { left } else { left.div_ceil(2) }
}

/// Returns the user of the socket on this machine with this address.
fn user_of(address: SocketAddr) -> Option<u32> {
    let table = if address.is_ipv4() { "/proc/net/tcp" } else { "/proc/net/tcp6" };
    let (table, own) = (fs::read_to_string(table).ok()?, in_table(address));
    table.lines().find_map(|line| {
        // `0: 0100007F:B5A6 0100007F:2AA5 01 00000000:00000000 00:00000000 00000000 1000 0 …`
        let mut fields = line.split_ascii_whitespace();
        let is_it = fields.nth(1)? == own;
        is_it.then(|| fields.nth(5)?.parse().ok())?
    })
}

/// Formats an address as in the kernel's table: words of four bytes in the CPU's byte order.
fn in_table(address: SocketAddr) -> String {
    let octets = match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let (words, _) = octets.as_chunks();
    let words = words.iter().map(|word| format!("{:08X}", u32::from_ne_bytes(*word)));
    format!("{}:{:04X}", words.collect::<String>(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    #[test]
    fn clients_of_this_machine_are_known_by_their_user() {
        let own = Peer::User(rustix::process::getuid().as_raw());
        let (socket, _other) = UnixStream::pair().unwrap();
        assert_eq!(Peer::of(&socket.into()), own);
        for address in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let port = listener.local_addr().unwrap().port();
            let to =
                if address == "[::]:0" { "127.0.0.1" } else { address.rsplit_once(':').unwrap().0 };
            let _client = TcpStream::connect(format!("{to}:{port}")).unwrap();
            assert_eq!(Peer::of(&listener.accept().unwrap().0.into()), own, "{address}");
        }
    }

    #[test]
    fn there_is_a_place_for_each_that_comes() {
        for max in [16, 17, 256] {
            let mut others = 0;
            while others < max {
                let share = share(max, others);
                assert!(share > 0 && others + share <= max, "{others} of {max}");
                others += share;
            }
        }
        assert_eq!((share(2, 0), share(2, 1), share(2, 2)), (2, 1, 0));
    }
}
