//! URLs of served files: `longhaul://HOST[:PORT]/PATH`.

use crate::exit::{Code, Failure, Outcome};
use lhio::identity::Host;
use std::net::{SocketAddr, ToSocketAddrs};

/// The port used when none is named.
pub const DEFAULT_PORT: u16 = 4460;
/// Addresses of one name that are tried.
const MAX_ADDRESSES: usize = 4;
const SCHEME: &str = "longhaul://";
const IWARP: &str = "iwarp://";

/// A host and port as the user named them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Name or address, without brackets.
    pub name: String,
    /// UDP port, or of iWARP, TCP port.
    pub port: u16,
    /// It is reached by iWARP.
    pub iwarp: bool,
}

impl Server {
    /// Reads `host`, `host:port`, `[address]:port` or a bare IPv6 address, perhaps behind a scheme.
    pub fn parse(text: &str, usual: u16) -> Result<Server, String> {
        let (iwarp, authority) = match split_scheme(text) {
            Some((iwarp, rest)) => (iwarp, rest.strip_suffix('/').unwrap_or(rest)),
            None => (false, text),
        };
        let host = Host::parse(authority).map_err(|e| e.to_string())?;
        Ok(Server { name: host.name().to_owned(), port: host.port().unwrap_or(usual), iwarp })
    }

    /// As `known_hosts` names it: with the port when it is not the usual one.
    pub fn host(&self) -> Outcome<Host> {
        let text = if self.port == DEFAULT_PORT { self.name.clone() } else { self.to_string() };
        Host::parse(&text).map_err(|e| Failure::new(Code::Usage, e.to_string()))
    }

    /// Its addresses, in the resolver's order.
    pub fn resolve(&self) -> Outcome<Vec<SocketAddr>> {
        let found = (self.name.as_str(), self.port).to_socket_addrs();
        let mut list: Vec<SocketAddr> = match found {
            Ok(addresses) => addresses.take(MAX_ADDRESSES).collect(),
            Err(e) => {
                let text = format!("cannot resolve {}: {e}; try another spelling, or an address", self.name);
                return Err(Failure::new(Code::Connect, text));
            }
        };
        list.dedup();
        if list.is_empty() {
            return Err(Failure::new(
                Code::Connect,
                format!(
                    "cannot resolve {}: it has no address; try another name, \
                     or an address",
                    self.name
                ),
            ));
        }
        Ok(list)
    }
}

impl core::fmt::Display for Server {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        if self.name.contains(':') {
            write!(f, "[{}]:{}", self.name, self.port)
        } else {
            write!(f, "{}:{}", self.name, self.port)
        }
    }
}

/// A served file or folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Where it is served.
    pub server: Server,
    /// Its path there: bytes, since names on Linux are bytes. Without the slash after the host.
    pub path: Vec<u8>,
}

impl Url {
    /// Reads `longhaul://HOST[:PORT]/PATH`, or `iwarp://` in front. `%NN` stands for a byte; all other bytes for themselves.
    pub fn parse(text: &str) -> Result<Url, String> {
        let Some((iwarp, rest)) = split_scheme(text) else {
            return Err(format!("not an address of a server; try {SCHEME}host/path or {IWARP}host/path"));
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.contains('@') {
            return Err(
                "it has a user name, but this machine's key says who you are; try it without".to_owned()
            );
        }
        let server = Server { iwarp, ..Server::parse(authority, DEFAULT_PORT)? };
        Ok(Url { server, path: decode(path)? })
    }

    /// The path as it stands in an address: ASCII, other bytes as `%NN`.
    pub fn path_text(&self) -> String {
        encode(&self.path)
    }
}

impl core::str::FromStr for Url {
    type Err = String;
    fn from_str(text: &str) -> Result<Url, String> {
        Url::parse(text)
    }
}

impl core::fmt::Display for Url {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let scheme = if self.server.iwarp { IWARP } else { SCHEME };
        write!(f, "{scheme}{}/{}", self.server, encode(&self.path))
    }
}

/// Whether what is behind the scheme is reached by iWARP, and that.
fn split_scheme(text: &str) -> Option<(bool, &str)> {
    let behind = |scheme: &str| {
        let (head, rest) = text.split_at_checked(scheme.len())?;
        head.eq_ignore_ascii_case(scheme).then_some(rest)
    };
    behind(SCHEME).map(|r| (false, r)).or_else(|| behind(IWARP).map(|r| (true, r)))
}

/// The bytes that a path in an address stands for.
pub fn decode(path: &str) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(path.len());
    let mut bytes = path.bytes();
    while let Some(b) = bytes.next() {
        if b != b'%' {
            out.push(b);
            continue;
        }
        let mut digit = || bytes.next().and_then(|d| char::from(d).to_digit(16));
        match (digit(), digit()) {
            (Some(high), Some(low)) => out.push((high << 4 | low) as u8),
            _ => {
                return Err(
                    "a % is not followed by two hexadecimal digits; try %25 for the sign itself".to_owned()
                );
            }
        }
    }
    Ok(out)
}

/// Printable ASCII stays; the rest, spaces and signs with a meaning to shells or here become `%NN`.
pub fn encode(path: &[u8]) -> String {
    let mut out = String::with_capacity(path.len());
    for b in path {
        match b {
            b'a'..=b'z'
            | b'A'..=b'Z'
            | b'0'..=b'9'
            | b'/'
            | b'.'
            | b'-'
            | b'_'
            | b'+'
            | b','
            | b'='
            | b'@' => {
                out.push(char::from(*b));
            }
            _ => out.push_str(&format!("%{b:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parts(text: &str) -> (String, u16, Vec<u8>) {
        let u = Url::parse(text).unwrap();
        (u.server.name, u.server.port, u.path)
    }

    #[test]
    fn hosts_ports_and_paths() {
        assert_eq!(parts("longhaul://tower/a/b"), ("tower".into(), DEFAULT_PORT, b"a/b".to_vec()));
        assert_eq!(parts("longhaul://tower"), ("tower".into(), DEFAULT_PORT, vec![]));
        assert_eq!(parts("LONGHAUL://Tower:99/"), ("tower".into(), 99, vec![]));
        assert_eq!(parts("longhaul://[2001:db8::1]:4433/x/"), ("2001:db8::1".into(), 4433, b"x/".to_vec()));
        let u = Url::parse("iwarp://tower:5/a").unwrap();
        assert_eq!((u.server.iwarp, u.server.port, u.to_string().as_str()), (true, 5, "iwarp://tower:5/a"));
        assert_eq!(parts("longhaul://[::1]/x"), ("::1".into(), DEFAULT_PORT, b"x".to_vec()));
        assert_eq!(
            parts("longhaul://10.0.0.1/a%20b%FF%2f"),
            ("10.0.0.1".into(), DEFAULT_PORT, b"a b\xff/".to_vec())
        );
    }

    #[test]
    fn invalid_addresses_are_refused() {
        for bad in [
            "",
            "tower/x",
            "http://tower/x",
            "longhaul://",
            "longhaul:///x",
            "iwarp:///x",
            "iwarp//tower/x",
            "longhaul://anna@tower/x",
            "longhaul://tower:port/x",
            "longhaul://tower:99999/x",
            "longhaul://[::1/x",
            "longhaul://tower/%",
            "longhaul://tower/%2",
            "longhaul://tower/%zz",
        ] {
            assert!(Url::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn known_hosts_include_unusual_ports_only() {
        assert_eq!(Server::parse("tower", DEFAULT_PORT).unwrap().host().unwrap().to_string(), "tower");
        assert_eq!(Server::parse("tower:9", DEFAULT_PORT).unwrap().host().unwrap().to_string(), "[tower]:9");
        assert_eq!(Server::parse("[::1]:9", DEFAULT_PORT).unwrap().to_string(), "[::1]:9");
    }

    proptest! {
        #[test]
        fn any_path_survives_encoding(path in proptest::collection::vec(any::<u8>(), 0..60)) {
            let u = Url { server: Server { name: "h".into(), port: 1, iwarp: false }, path };
            prop_assert_eq!(Url::parse(&u.to_string()), Ok(u));
        }

        #[test]
        fn parser_accepts_any_input_without_panic(s in ".{0,80}") {
            let _ = Url::parse(&s);
            let _ = Url::parse(&format!("longhaul://{s}"));
        }
    }
}
