//! Checks the addresses to which a server connects at a client's request.

use std::net::{IpAddr, SocketAddr};

/// Why a server that sends for clients does not connect there. `near`: this machine and its neighbours by link-local addresses are
/// allowed.
///
/// Services that listen at loopback and link-local addresses often trust whoever reaches them (such as those that tell virtual
/// machines their secrets), and must not be reached through a server by its clients.
pub(crate) fn refused(to: SocketAddr, near: bool) -> Option<&'static str> {
    if to.port() == 0 {
        return Some("it has no port");
    }
    let ip = to.ip().to_canonical();
    let (nowhere, close) = match ip {
        IpAddr::V4(a) => (
            a.is_unspecified() || a.is_multicast() || a.is_broadcast() || a.octets()[0] == 0,
            a.is_loopback() || a.is_link_local(),
        ),
        IpAddr::V6(a) => {
            (a.is_unspecified() || a.is_multicast(), a.is_loopback() || a.is_unicast_link_local())
        }
    };
    match (nowhere, close) {
        (true, _) => Some("it is the address of no single machine"),
        (_, true) if !near => Some("it is a loopback or link-local address"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_and_link_local_addresses_are_refused_unless_allowed() {
        let no = |a: &str, near| refused(a.parse().unwrap(), near).is_some();
        for a in [
            "127.0.0.1:1",
            "127.9.9.9:1",
            "169.254.169.254:80",
            "[::1]:1",
            "[fe80::1]:1",
            "[::ffff:127.0.0.1]:1",
            "[::ffff:169.254.169.254]:1",
        ] {
            assert!(no(a, false) && !no(a, true), "{a}");
        }
        for a in [
            "0.0.0.0:1",
            "0.1.2.3:1",
            "255.255.255.255:1",
            "224.0.0.1:1",
            "[::]:1",
            "[ff02::1]:1",
            "[::ffff:0.0.0.0]:1",
            "192.0.2.1:0",
        ] {
            assert!(no(a, false) && no(a, true), "{a}");
        }
        for a in ["192.0.2.1:1", "10.0.0.1:4460", "[2001:db8::1]:1", "[fd00::1]:1"] {
            assert!(!no(a, false), "{a}");
        }
    }
}
