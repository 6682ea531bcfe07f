//! Addresses of served files: `longhaul://HOST[:PORT]/PATH`.

use crate::exit::{Code, Failure, Outcome};
use lhio::identity::Host;
use std::net::{SocketAddr, ToSocketAddrs};

/// The port used when none is named.
pub const DEFAULT_PORT: u16 = 4460;
/// Addresses of one name that are tried.
const MAX_ADDRESSES: usize = 4;
const SCHEME: &str = "longhaul://";

/// A host and port as the user named them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Name or address, without brackets.
    pub name: String,
    /// UDP port.
    pub port: u16,
}

impl Server {
    /// Reads `host`, `host:port`, `[address]:port` or a bare IPv6 address.
    pub fn parse(text: &str) -> Result<Server, String> {
        let host = Host::parse(text).map_err(|e| e.to_string())?;
        Ok(Server { name: host.name().to_owned(), port: host.port().unwrap_or(DEFAULT_PORT) })
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
                let text = format!(
                    "cannot find the address of {}: {e}; check the spelling, or give the address itself",
                    self.name
                );
                return Err(Failure::new(Code::Connect, text));
            }
        };
        list.dedup();
        if list.is_empty() {
            return Err(Failure::new(Code::Connect, format!("{} has no address", self.name)));
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
    /// Whether a word on the command line is meant as an address.
    pub fn looks_like(text: &str) -> bool {
        text.get(..SCHEME.len()).is_some_and(|s| s.eq_ignore_ascii_case(SCHEME))
    }

    /// Reads `longhaul://HOST[:PORT]/PATH`. `%NN` stands for a byte; all other bytes for themselves.
    pub fn parse(text: &str) -> Result<Url, String> {
        if !Url::looks_like(text) {
            return Err(format!("it must begin with {SCHEME}, as in {SCHEME}host/path"));
        }
        let rest = &text[SCHEME.len()..];
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.contains('@') {
            return Err("there are no user names in it: the key of this machine says who you are".to_owned());
        }
        Ok(Url { server: Server::parse(authority)?, path: decode(path)? })
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
        write!(f, "{SCHEME}{}/{}", self.server, encode(&self.path))
    }
}

fn decode(path: &str) -> Result<Vec<u8>, String> {
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
                    "a % must be followed by two hexadecimal digits; write %25 for the sign".to_owned()
                );
            }
        }
    }
    Ok(out)
}

/// Printable ASCII stays; the rest, spaces and signs with a meaning to shells or here become `%NN`.
fn encode(path: &[u8]) -> String {
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
        assert_eq!(parts("longhaul://[::1]/x"), ("::1".into(), DEFAULT_PORT, b"x".to_vec()));
        assert_eq!(
            parts("longhaul://10.0.0.1/a%20b%FF%2f"),
            ("10.0.0.1".into(), DEFAULT_PORT, b"a b\xff/".to_vec())
        );
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for bad in [
            "",
            "tower/x",
            "http://tower/x",
            "longhaul://",
            "longhaul:///x",
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
    fn known_hosts_name_unusual_ports_only() {
        assert_eq!(Server::parse("tower").unwrap().host().unwrap().to_string(), "tower");
        assert_eq!(Server::parse("tower:9").unwrap().host().unwrap().to_string(), "[tower]:9");
        assert_eq!(Server::parse("[::1]:9").unwrap().to_string(), "[::1]:9");
    }

    proptest! {
        #[test]
        fn any_path_survives(path in proptest::collection::vec(any::<u8>(), 0..60)) {
            let u = Url { server: Server { name: "h".into(), port: 1 }, path };
            prop_assert_eq!(Url::parse(&u.to_string()), Ok(u));
        }

        #[test]
        fn the_parser_takes_anything(s in ".{0,80}") {
            let _ = Url::parse(&s);
            let _ = Url::parse(&format!("longhaul://{s}"));
        }
    }
}
