//! Reads, writes and watches a policy in etcd, by its JSON gateway:
//! <https://etcd.io/docs/v3.4/dev-guide/api_grpc_gateway/>.
//!
//! Keys and values are base64 and numbers of 64 bits are strings there, as in the JSON form of protocol buffers. A watch
//! answers with a line for each change, for as long as it lasts.

use crate::source::Store;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use lhio::identity::{FileRole, open_strictly, read_secret};
use serde::Deserialize;
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use ureq::http::Response;
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig};
use ureq::{Agent, Body, BodyReader, Timeout};
use zeroize::Zeroizing;

/// Longest policy that is read or written; etcd itself takes 1.5 MiB at most.
pub const MAX_POLICY: usize = 1 << 20;
/// Longest answer, or line of a watch: a policy in base64 and what stands around it.
const MAX_ANSWER: u64 = 4 << 20;
/// Longest file of certificates or keys.
const MAX_PEM: u64 = 4 << 20;
/// Where the system keeps the certificates it trusts.
const SYSTEM_ROOTS: &str = "/etc/ssl/certs/ca-certificates.crt";
/// For a name to be resolved, or a server to be connected to.
const CONNECT: Duration = Duration::from_secs(3);
/// For a server to say the next thing.
const ANSWER: Duration = Duration::from_secs(5);
/// A watch on which nothing came for this long is made anew: the server may be gone without a word.
const QUIET: Duration = Duration::from_secs(45);

/// How to get at a store.
#[derive(Clone, Default)]
pub struct Access {
    /// File of the certificates that its own must come from; those the system trusts when left out.
    pub ca: Option<PathBuf>,
    /// Files of this host's certificate and its key.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// User and password.
    pub user: Option<(String, Zeroizing<String>)>,
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Access")
            .field("ca", &self.ca)
            .field("certificate", &self.certificate)
            .finish_non_exhaustive()
    }
}

/// Why the store gave or took nothing.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No server of it can be reached.
    #[error("cannot reach the store at {host}: {source}; see whether etcd runs there and lets this host in")]
    Unreachable {
        /// The last that was tried.
        host: String,
        /// Why not.
        source: Box<ureq::Error>,
    },
    /// It said no.
    #[error("the store at {host} refuses: {text}{}", advice(.text))]
    Refused {
        /// Which server.
        host: String,
        /// Its status of HTTP.
        status: u16,
        /// Its words.
        text: String,
    },
    /// Its answer makes no sense.
    #[error(
        "the store at {host} answers what is not of etcd's version 3 ({text}): see whether the address is right"
    )]
    Form {
        /// Which server.
        host: String,
        /// What is wrong.
        text: String,
    },
    /// The watch came to its end.
    #[error("the store at {host} ended the watch: {text}")]
    Ended {
        /// Which server.
        host: String,
        /// Why.
        text: String,
    },
    /// A file for the access cannot be used.
    #[error("cannot use {}: {text}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        text: String,
    },
    /// The policy is too long to be stored.
    #[error("the policy has {0} bytes; a store takes at most {MAX_POLICY}")]
    TooLong(usize),
}

/// What to do about words in which etcd refuses.
fn advice(text: &str) -> &'static str {
    let of_users = ["permission", "user name", "auth token", "authentication", "Unauthorized"];
    if of_users.iter().any(|w| text.contains(w)) {
        "; give --store-user and the password in LONGHAUL_STORE_PASSWORD, and see that the user's role may read (and, to push, \
         write) the key"
    } else {
        ""
    }
}

/// The value at a key, and its revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyValue {
    /// The store's revision.
    pub revision: u64,
    /// The value and the revision that it is from; none when the key is not there.
    pub value: Option<(Vec<u8>, u64)>,
}

/// What a watch tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// There is another value, of this revision.
    Put(Vec<u8>, u64),
    /// The key is gone.
    Deleted,
    /// What was asked for is no longer kept, or the watch was ended: ask for the value again.
    Lost,
    /// Nothing yet.
    Nothing,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Header {
    revision: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Pair {
    value: String,
    mod_revision: String,
}

#[derive(Deserialize)]
struct Range {
    header: Header,
    #[serde(default)]
    kvs: Vec<Pair>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct WatchEvent {
    r#type: String,
    kv: Pair,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct WatchEvents {
    canceled: bool,
    events: Vec<WatchEvent>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct WatchLine {
    result: Option<WatchEvents>,
    error: Option<Value>,
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("\"{}\" is not a revision", text.chars().take(40).collect::<String>()))
}

fn value(pair: &Pair) -> Result<(Vec<u8>, u64), String> {
    let bytes = BASE64_STANDARD.decode(&pair.value).map_err(|e| format!("a value is not base64: {e}"))?;
    Ok((bytes, number(&pair.mod_revision)?))
}

/// Reads the answer to a request for one key's value.
///
/// # Errors
/// What is wrong with it, in words.
pub fn read_range(text: &[u8]) -> Result<KeyValue, String> {
    let r: Range = serde_json::from_slice(text).map_err(|e| e.to_string())?;
    Ok(KeyValue { revision: number(&r.header.revision)?, value: r.kvs.first().map(value).transpose()? })
}

/// Reads a line of a watch. Of several changes in one line, the last one counts.
///
/// # Errors
/// What is wrong with it, in words.
pub fn read_change(line: &[u8]) -> Result<Change, String> {
    let line: WatchLine = serde_json::from_slice(line).map_err(|e| e.to_string())?;
    if let Some(e) = line.error {
        return Err(e.to_string().chars().take(200).collect());
    }
    let turns = line.result.ok_or("neither a result nor an error")?;
    if turns.canceled {
        return Ok(Change::Lost);
    }
    Ok(match turns.events.last() {
        None => Change::Nothing,
        Some(t) if t.r#type == "DELETE" => Change::Deleted,
        Some(t) => {
            let (bytes, revision) = value(&t.kv)?;
            Change::Put(bytes, revision)
        }
    })
}

/// A store that is asked. Blocks: for threads of its own, and for commands.
pub struct Etcd {
    store: Store,
    agent: Agent,
    user: Option<(String, Zeroizing<String>)>,
    token: Option<Zeroizing<String>>,
    /// Index of the server that answered last.
    host: usize,
}

impl std::fmt::Debug for Etcd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Etcd").field("store", &self.store).field("host", &self.host).finish_non_exhaustive()
    }
}

impl Etcd {
    /// A store that has not been connected to yet.
    ///
    /// # Errors
    /// [`StoreError::File`].
    pub fn new(store: &Store, access: &Access) -> Result<Etcd, StoreError> {
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .timeout_resolve(Some(CONNECT))
            .timeout_connect(Some(CONNECT))
            .timeout_per_write(Some(ANSWER));
        if store.tls {
            config = config.tls_config(tls(access)?);
        }
        let agent = config.build().into();
        Ok(Etcd { store: store.clone(), agent, user: access.user.clone(), token: None, host: 0 })
    }

    fn name(&self) -> String {
        self.store.hosts[self.host].clone()
    }

    fn form(&self, text: String) -> StoreError {
        StoreError::Form { host: self.name(), text }
    }

    /// Asks the servers in turn, beginning with the one that answered last.
    fn post(&mut self, path: &str, body: &Value, quiet: Duration) -> Result<Response<Body>, StoreError> {
        let scheme = if self.store.tls { "https" } else { "http" };
        let (first, all) = (self.host, self.store.hosts.len());
        let mut last = None;
        for i in 0..all {
            self.host = (first + i) % all;
            let url = format!("{scheme}://{}{path}", self.store.hosts[self.host]);
            let mut request = self.agent.post(url).config().timeout_per_read(Some(quiet)).build();
            if let Some(token) = &self.token {
                request = request.header("Authorization", token.as_str());
            }
            match request.content_type("application/json").send(body.to_string()) {
                Ok(answer) => return Ok(answer),
                Err(e) => last = Some((self.name(), e)),
            }
        }
        self.host = (first + 1) % all;
        let (host, source) = last.unwrap_or_else(|| (self.name(), ureq::Error::HostNotFound));
        Err(StoreError::Unreachable { host, source: Box::new(source) })
    }

    /// The same, signed in where there is a user.
    fn call(&mut self, path: &str, body: &Value, quiet: Duration) -> Result<Response<Body>, StoreError> {
        if let (Some((name, password)), None) = (self.user.clone(), &self.token) {
            let ask = json!({ "name": name, "password": password.as_str() });
            let answer = self.post("/v3/auth/authenticate", &ask, ANSWER)?;
            let text = self.text(answer)?;
            let text: Value = serde_json::from_slice(&text).map_err(|e| self.form(e.to_string()))?;
            let token = text["token"].as_str().ok_or_else(|| self.form("no token".into()))?;
            self.token = Some(Zeroizing::new(token.to_owned()));
        }
        self.post(path, body, quiet)
    }

    /// All of an answer.
    fn text(&mut self, mut answer: Response<Body>) -> Result<Vec<u8>, StoreError> {
        let status = answer.status().as_u16();
        let text = answer.body_mut().with_config().limit(MAX_ANSWER).read_to_vec();
        let text = text.map_err(|e| StoreError::Unreachable { host: self.name(), source: Box::new(e) })?;
        if status == 200 {
            return Ok(text);
        }
        // Whatever the reason: what was signed in with may have run out.
        self.token = None;
        let said = serde_json::from_slice::<Value>(&text).ok();
        let said = said.as_ref().and_then(|v| v["error"].as_str().or(v["message"].as_str()));
        let text = said.map_or_else(|| format!("HTTP status {status}"), |s| s.chars().take(200).collect());
        Err(StoreError::Refused { host: self.name(), status, text })
    }

    /// Asks for an answer; once more when what was signed in with has run out.
    fn ask(&mut self, path: &str, body: &Value) -> Result<Vec<u8>, StoreError> {
        let signed_in = self.token.is_some();
        let answer = self.call(path, body, ANSWER)?;
        match self.text(answer) {
            Err(StoreError::Refused { .. }) if signed_in => {
                let answer = self.call(path, body, ANSWER)?;
                self.text(answer)
            }
            result => result,
        }
    }

    fn key(&self) -> String {
        BASE64_STANDARD.encode(&self.store.key)
    }

    /// What stands at the key, as a majority of the servers knows it.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn get(&mut self) -> Result<KeyValue, StoreError> {
        let text = self.ask("/v3/kv/range", &json!({ "key": self.key() }))?;
        read_range(&text).map_err(|e| self.form(e))
    }

    /// Writes `policy`, and tells the revision that it has from then on.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn put(&mut self, policy: &str) -> Result<u64, StoreError> {
        if policy.len() > MAX_POLICY {
            return Err(StoreError::TooLong(policy.len()));
        }
        let body = json!({ "key": self.key(), "value": BASE64_STANDARD.encode(policy) });
        let text = self.ask("/v3/kv/put", &body)?;
        read_range(&text).map(|f| f.revision).map_err(|e| self.form(e))
    }

    /// Tells of changes from revision `from` on.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn watch(&mut self, from: u64) -> Result<Watch, StoreError> {
        let create = json!({ "key": self.key(), "start_revision": from.to_string() });
        let answer = self.call("/v3/watch", &json!({ "create_request": create }), QUIET)?;
        if answer.status() != 200 {
            self.text(answer)?;
            return Err(self.form("a watch without a body".into()));
        }
        Ok(Watch { lines: BufReader::new(answer.into_body().into_reader()), host: self.name() })
    }
}

/// A watch that goes on.
#[allow(missing_debug_implementations, reason = "its reader does not show itself")]
pub struct Watch {
    lines: BufReader<BodyReader<'static>>,
    host: String,
}

impl Watch {
    /// Waits for the next change; [`Change::Lost`] when nothing came for a while.
    ///
    /// # Errors
    /// [`StoreError::Ended`], [`StoreError::Form`].
    pub fn wait(&mut self) -> Result<Change, StoreError> {
        let mut line = Vec::new();
        let host = self.host.clone();
        match self.lines.by_ref().take(MAX_ANSWER).read_until(b'\n', &mut line) {
            Err(e) if timed_out(&e) && line.is_empty() => return Ok(Change::Lost),
            Err(e) => return Err(StoreError::Ended { host, text: e.to_string() }),
            Ok(_) if !line.ends_with(b"\n") => {
                let text = if line.is_empty() { "it hung up" } else { "in the middle of a line" }.to_owned();
                return Err(StoreError::Ended { host, text });
            }
            Ok(_) => {}
        }
        read_change(&line).map_err(|text| StoreError::Form { host, text })
    }
}

fn timed_out(e: &std::io::Error) -> bool {
    let inner = e.get_ref().and_then(|e| e.downcast_ref::<ureq::Error>());
    matches!(inner, Some(ureq::Error::Timeout(Timeout::PerRead))) || e.kind() == std::io::ErrorKind::TimedOut
}

fn pem(path: &Path, holds: FileRole) -> Result<Zeroizing<Vec<u8>>, StoreError> {
    let failed = |text: String| StoreError::File { path: path.to_owned(), text };
    std::fs::metadata(path).map_err(|e| failed(e.to_string()))?;
    let file = open_strictly(path, holds).map_err(|e| failed(e.to_string()))?;
    let file = file.ok_or_else(|| failed("it is not there".into()))?;
    read_secret(&file, MAX_PEM).map_err(|e| failed(e.to_string()))
}

fn certificates(path: &Path) -> Result<Vec<Certificate<'static>>, StoreError> {
    let bytes = pem(path, FileRole::Trust)?;
    let items = ureq::tls::parse_pem(&bytes).filter_map(|item| match item {
        Ok(PemItem::Certificate(c)) => Some(c),
        _ => None,
    });
    let all: Vec<_> = items.collect();
    if all.is_empty() {
        let text = "it holds no certificate in PEM form".to_owned();
        return Err(StoreError::File { path: path.to_owned(), text });
    }
    Ok(all)
}

fn tls(access: &Access) -> Result<TlsConfig, StoreError> {
    let roots = certificates(access.ca.as_deref().unwrap_or(Path::new(SYSTEM_ROOTS)))?;
    let ours = access.certificate.as_ref().map(|(certificate, key)| {
        let failed = |e: ureq::Error| StoreError::File { path: key.clone(), text: e.to_string() };
        let private = PrivateKey::from_pem(&pem(key, FileRole::SharedSecret)?).map_err(failed)?;
        Ok(ClientCert::new_with_certs(&certificates(certificate)?, private))
    });
    Ok(TlsConfig::builder()
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .root_certs(RootCerts::new_with_certs(&roots))
        .client_cert(ours.transpose()?)
        .build())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn etcd_responses_are_parsed() {
        let found = read_range(
            br#"{"header":{"cluster_id":"1","member_id":"2","revision":"7","raft_term":"2"},"kvs":[{"key":"aw==",
                "create_revision":"2","mod_revision":"5","version":"3","value":"YQ=="}],"count":"1"}"#,
        );
        assert_eq!(found, Ok(KeyValue { revision: 7, value: Some((b"a".to_vec(), 5)) }));
        let none = read_range(br#"{"header":{"revision":"2"}}"#);
        assert_eq!(none, Ok(KeyValue { revision: 2, value: None }));
        for (line, change) in [
            (r#"{"result":{"header":{"revision":"2"},"created":true}}"#, Change::Nothing),
            (
                r#"{"result":{"header":{"revision":"3"},"events":[{"type":"DELETE","kv":{"key":"aw==","mod_revision":"3"}},
                   {"kv":{"key":"aw==","mod_revision":"4","value":"Yg=="}}]}}"#,
                Change::Put(b"b".to_vec(), 4),
            ),
            (r#"{"result":{"events":[{"type":"DELETE","kv":{"mod_revision":"3"}}]}}"#, Change::Deleted),
            (r#"{"result":{"canceled":true,"compact_revision":"2"}}"#, Change::Lost),
        ] {
            assert_eq!(read_change(line.as_bytes()), Ok(change), "{line}");
        }
    }

    #[test]
    fn unexpected_etcd_responses_are_reported() {
        for bad in [
            "",
            "{}",
            "[]",
            "<html>",
            r#"{"header":{}}"#,
            r#"{"header":{"revision":"-1"}}"#,
            r#"{"header":{"revision":"1"},"kvs":[{"value":"?","mod_revision":"1"}]}"#,
            r#"{"header":{"revision":"1"},"kvs":[{"value":"YQ=="}]}"#,
        ] {
            assert!(read_range(bad.as_bytes()).is_err(), "{bad}");
        }
        for bad in ["", "{}", r#"{"error":{"grpc_code":14}}"#, r#"{"result":{"events":[{"kv":{}}]}}"#] {
            assert!(read_change(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_responses_do_not_panic(bytes: Vec<u8>) {
            let _ = (read_range(&bytes), read_change(&bytes));
        }
    }
}
