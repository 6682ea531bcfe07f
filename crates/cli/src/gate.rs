//! Whom a server lets in. The handshake has shown who a client is; here it is decided whether that one may do anything,
//! before any server sees the connection.

use crate::args::Admission;
use crate::exit::{Failure, Outcome};
use crate::setup::Me;
use crate::x509;
use base::Time;
use lhio::clock::WallTime;
use lhio::identity::{
    AuthorizedKeys, Holds, IdentityError, PublicKey as HostKey, StateFolder, Tokens, open_strictly,
};
use rustls_pki_types::ServerName;
use std::collections::HashSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use transport::crypto::{Identity, OneTimeToken, PeerIdentity};
use zeroize::Zeroizing;

/// What a client with a key that is not known here is told; the transport carries 128 characters.
const STRANGER: &str =
    "this key is not authorised; try to have it added to authorized_keys, or a one-time token";
/// What a client with a certificate for other names is told.
const OTHER_NAME: &str = "no name of this certificate is allowed; try to have it added with --allow-name";

/// Who a client is, for a line of the log.
pub fn shown(peer: Option<&PeerIdentity>) -> String {
    peer.map_or_else(|| "no key".to_owned(), ToString::to_string)
}

/// The key that a token stands for. It is derived, so that it is not the token's secret itself that signs.
pub fn key_of(token: &OneTimeToken) -> Identity {
    let text = token.to_text();
    let secret = text.split('.').next().unwrap_or("");
    let seed = blake3::derive_key("longhaul 2026 key of a one-time token", secret.as_bytes());
    Identity::of_seed(&Zeroizing::new(seed))
}

/// Decides about each connection once: given to the endpoint by `Endpoint::set_gate`.
pub struct Gate {
    who: Who,
}

enum Who {
    Everybody,
    Keys(Box<Keys>),
    /// The handshake has checked the chain. Without names, that is enough.
    Certificates(Vec<ServerName<'static>>),
}

/// Identity of a version of a file (number, length, and time of change; none when it is not there), or why nobody should
/// believe it.
type Stamp = Result<Option<(u64, u64, i64, i64)>, String>;

struct Keys {
    state: StateFolder,
    file: PathBuf,
    /// Named on the command line.
    named: bool,
    stamp: Stamp,
    listed: HashSet<HostKey>,
    /// Keys of the tokens made at the start; they end with the server.
    own: HashSet<HostKey>,
    tokens: Tokens,
}

impl Gate {
    /// As the command line says. `own` are the tokens made at the start.
    pub fn new(me: &Me, a: &Admission, own: &[OneTimeToken]) -> Outcome<Gate> {
        let who = if a.ca.is_some() {
            Who::Certificates(x509::names(&a.allow_name)?)
        } else if a.allow_any_key {
            Who::Everybody
        } else {
            let file = match &a.authorized_keys {
                Some(f) => f.clone(),
                None => me.state.path().join("authorized_keys"),
            };
            let (named, stamp) = (a.authorized_keys.is_some(), stamp_of(&file));
            let listed = read(&me.state, named.then_some(&file))?;
            let own = own.iter().map(|t| HostKey(*key_of(t).public_key().as_bytes())).collect();
            let (state, tokens) = (me.state.clone(), me.state.tokens()?);
            Who::Keys(Box::new(Keys { state, file, named, stamp, listed, own, tokens }))
        };
        Ok(Gate { who })
    }

    /// Says who may come, for the server's operator.
    pub fn describe(&self, a: &Admission) {
        match &self.who {
            Who::Everybody => {
                err_line!("WARNING: --allow-any-key: anyone who can reach this port is admitted")
            }
            Who::Certificates(names) => {
                let ca = a.ca.as_deref().unwrap_or(Path::new("")).display();
                let only = if names.is_empty() {
                    String::new()
                } else {
                    format!(", for {}", a.allow_name.join(", "))
                };
                err_line!("clients with a certificate that {ca} vouches for may connect{only}");
            }
            Who::Keys(k) => {
                let waiting = k.tokens.list(WallTime::now().unix_secs()).map_or(0, |t| t.len()) + k.own.len();
                let file = k.file.display();
                match (k.listed.len(), waiting) {
                    (0, 0) => err_line!(
                        "nobody can connect yet: {file} lists no key; try `longhaul keys show` on the client and \
                         `longhaul keys authorize FILE` here, or a one-time token from `longhaul keys token` (no \
                         restart needed)"
                    ),
                    (n, 0) => err_line!("{n} authorized keys may connect"),
                    (n, t) => {
                        err_line!("{n} authorized keys and {t} unused one-time tokens may connect")
                    }
                }
            }
        }
    }

    fn check(&mut self, peer: &PeerIdentity) -> Result<(), &'static str> {
        match (&mut self.who, peer) {
            (Who::Everybody, _) => Ok(()),
            (Who::Keys(k), PeerIdentity::RawKey(key)) => {
                if k.admits(HostKey(*key.as_bytes())) {
                    Ok(())
                } else {
                    Err(STRANGER)
                }
            }
            (Who::Certificates(names), PeerIdentity::X509(chain)) => {
                let fits = names.is_empty() || chain.first().is_some_and(|c| x509::is_for(c, names));
                if fits { Ok(()) } else { Err(OTHER_NAME) }
            }
            // The handshake lets no such peer through; nor is it let in if it ever did.
            (Who::Keys(_), PeerIdentity::X509(_)) | (Who::Certificates(_), PeerIdentity::RawKey(_)) => {
                Err(STRANGER)
            }
        }
    }
}

impl endpoint::Gate for Gate {
    fn admit(&mut self, _: Time, peer: &PeerIdentity) -> Result<(), String> {
        self.check(peer).map_err(|text| {
            tracing::info!(peer = shown(Some(peer)), text, "a client was rejected");
            text.to_owned()
        })
    }
}

impl Keys {
    fn admits(&mut self, key: HostKey) -> bool {
        // Whether others may write to it is looked at every time: that can change without it.
        let stamp = stamp_of(&self.file);
        if stamp != self.stamp {
            let read = match &stamp {
                Ok(_) => read(&self.state, self.named.then_some(&self.file)),
                Err(text) => Err(Failure::usage(text)),
            };
            self.stamp = stamp;
            self.listed = read.unwrap_or_else(|f| {
                tracing::error!("{f}; no authorized key is admitted until that is fixed");
                HashSet::new()
            });
        }
        if self.listed.contains(&key) || self.own.remove(&key) {
            return true;
        }
        match self.tokens.redeem(&key, WallTime::now().unix_secs()) {
            Ok(()) => true,
            Err(IdentityError::BadToken) => false,
            Err(e) => {
                tracing::error!("cannot use a one-time token: {e}");
                false
            }
        }
    }
}

fn stamp_of(file: &Path) -> Stamp {
    let open = open_strictly(file, Holds::Trust).map_err(|e| e.to_string())?;
    let meta = open.and_then(|f| f.metadata().ok());
    // The time of the last change of any kind: what was replaced may have an old time of its own.
    Ok(meta.map(|m| (m.ino(), m.len(), m.ctime(), m.ctime_nsec())))
}

/// The keys of the file named on the command line, or of the one in the state folder.
fn read(state: &StateFolder, file: Option<&PathBuf>) -> Outcome<HashSet<HostKey>> {
    let listed = match file {
        Some(file) => {
            std::fs::metadata(file).map_err(|e| {
                Failure::usage(format!(
                    "cannot read the authorized keys in {}: {e}; try another file with \
                     --authorized-keys",
                    file.display()
                ))
            })?;
            AuthorizedKeys::read(file)?
        }
        None => state.authorized_keys()?,
    };
    for (line, why) in listed.ignored() {
        tracing::warn!(line, why, "a line of the authorized keys is ignored");
    }
    Ok(listed.iter().map(|(k, _)| *k).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use transport::crypto::PublicKey;

    #[test]
    fn what_clients_are_told_fits() {
        assert!(
            STRANGER.len() <= wire::frame::MAX_REASON / 4 && OTHER_NAME.len() <= wire::frame::MAX_REASON / 4
        );
    }

    #[test]
    fn the_key_of_a_token_is_that_of_its_secret() {
        let print = Identity::from_seed([9; 32]).public_key().fingerprint();
        let key = |t: &OneTimeToken| -> PublicKey { key_of(t).public_key() };
        let token = OneTimeToken::new([1; 32], Some(print));
        assert_eq!(key(&token), key(&OneTimeToken::new([1; 32], None)));
        assert_eq!(key(&token), key(&token.to_text().parse().unwrap()));
        assert_ne!(key(&token), key(&OneTimeToken::new([2; 32], None)));
        assert_ne!(key(&token), Identity::from_seed([1; 32]).public_key());
    }
}
