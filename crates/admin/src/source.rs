//! Parses where a policy comes from: a file, or a key in a central store.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The store's port unless the address says otherwise: etcd's for clients.
pub const STORE_PORT: u16 = 2379;
/// Servers of one store at most.
pub const MAX_HOSTS: usize = 16;
/// Longest address of a source, in bytes.
const MAX_ADDRESS: usize = 4_096;

/// A source of policies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file.
    File(PathBuf),
    /// A key in etcd.
    Store(Store),
}

/// A key in etcd, version 3: `etcd://HOST[:PORT][,HOST[:PORT]...]/KEY`, or `etcds://` with TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    /// Whether TLS goes below.
    pub tls: bool,
    /// Servers of one store with their ports, tried in turn.
    pub hosts: Vec<String>,
    /// The key, without the slash before it.
    pub key: String,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::File(path) => write!(f, "{}", path.display()),
            Source::Store(store) => store.fmt(f),
        }
    }
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "etcd{}://{}/{}", if self.tls { "s" } else { "" }, self.hosts.join(","), self.key)
    }
}

/// A text names no source of policies.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{text}\" is not a source of policies ({why}): give a file, or a key in etcd as etcd://HOST[:PORT][,HOST...]/KEY, \
     or etcds:// with TLS, such as etcd://10.0.0.5/longhaul/policy"
)]
pub struct BadSource {
    text: String,
    why: &'static str,
}

impl FromStr for Source {
    type Err = BadSource;
    fn from_str(text: &str) -> Result<Source, BadSource> {
        match text.split_once("://") {
            None if text.is_empty() => Err(BadSource { text: String::new(), why: "it is empty" }),
            None => Ok(Source::File(text.into())),
            Some(_) => text.parse().map(Source::Store),
        }
    }
}

impl FromStr for Store {
    type Err = BadSource;
    fn from_str(text: &str) -> Result<Store, BadSource> {
        let bad = |why| BadSource { text: text.chars().take(80).collect(), why };
        if text.len() > MAX_ADDRESS {
            return Err(bad("it is too long"));
        }
        let (scheme, rest) = text.split_once("://").ok_or_else(|| bad("it has no scheme"))?;
        let tls = match scheme {
            "etcd" => false,
            "etcds" => true,
            _ => return Err(bad("its scheme is neither etcd nor etcds")),
        };
        let (hosts, key) = rest.split_once('/').ok_or_else(|| bad("it names no key"))?;
        let key = key.trim_start_matches('/').to_owned();
        if key.is_empty() || key.chars().any(char::is_control) {
            return Err(bad("it names no key"));
        }
        let hosts: Option<Vec<_>> = hosts.split(',').take(MAX_HOSTS + 1).map(host).collect();
        let hosts = hosts.ok_or_else(|| bad("a host in it is not HOST[:PORT] or [ADDRESS]:PORT"))?;
        if hosts.len() > MAX_HOSTS {
            return Err(bad("it has more than 16 hosts"));
        }
        Ok(Store { tls, hosts, key })
    }
}

/// A host with its port, in the form that an address of HTTP has.
fn host(text: &str) -> Option<String> {
    let (name, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (inside, behind) = rest.split_once(']')?;
            inside.parse::<std::net::Ipv6Addr>().ok()?;
            let port = if behind.is_empty() { None } else { Some(behind.strip_prefix(':')?) };
            (format!("[{inside}]"), port)
        }
        None => match text.split_once(':') {
            Some((name, port)) => (name.to_owned(), Some(port)),
            None => (text.to_owned(), None),
        },
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    if name.is_empty() || !(name.starts_with('[') || name.chars().all(plain)) {
        return None;
    }
    let port = port.map_or(Some(STORE_PORT), |p| p.parse().ok().filter(|p| *p > 0))?;
    Some(format!("{name}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_stores_are_distinguished() {
        assert_eq!("/etc/x.toml".parse(), Ok(Source::File("/etc/x.toml".into())));
        let shown = |t: &str| t.parse::<Source>().map(|s| s.to_string());
        for (text, same) in [
            ("etcd://h/k", "etcd://h:2379/k"),
            (
                "etcds://a.b:1,c_d,[fd00::1]:7,[::1]/longhaul/policy",
                "etcds://a.b:1,c_d:2379,[fd00::1]:7,[::1]:2379/longhaul/policy",
            ),
        ] {
            assert_eq!(shown(text).as_deref(), Ok(same));
            assert_eq!(shown(same).as_deref(), Ok(same));
        }
    }

    #[test]
    fn invalid_sources_are_rejected_with_a_reason() {
        let many = format!("etcd://{}/k", vec!["h"; 17].join(","));
        for bad in [
            "",
            "http://h/k",
            "etcd://h",
            "etcd://h/",
            "etcd:///k",
            "etcd://h:0/k",
            "etcd://h:x/k",
            "etcd://h:1:2/k",
            "etcd://h,,i/k",
            "etcd://u@h/k",
            "etcd://[h]/k",
            "etcd://[::1]x/k",
            "etcd://h/a\nb",
            &many,
        ] {
            let e = bad.parse::<Source>().unwrap_err();
            assert!(e.to_string().contains("such as etcd://"), "{bad}");
        }
    }
}
