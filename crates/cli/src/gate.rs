//! Whom a server lets in. The handshake has shown who a client is; here it is decided whether that one may do anything,
//! before any server sees the connection.

use crate::args::Admission;
use crate::exit::{Failure, Outcome};
use crate::setup::LocalIdentity;
use crate::x509;
use base::Time;
use lhio::clock::WallTime;
use lhio::identity::{
    AuthorizedKeys, FileRole, IdentityError, PublicKey as HostKey, StateFolder, Tokens, open_strictly,
};
use mover::Invitations;
use rustls_pki_types::ServerName;
use std::collections::HashSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use transport::crypto::{Identity, OneTimeToken, PeerIdentity};
use zeroize::Zeroizing;

/// What a client with a key that is not known here is told; the transport carries 128 characters.
const KEY_NOT_AUTHORISED: &str =
    "this key is not authorised; try to have it added to authorized_keys, or a one-time token";
/// What a client with a certificate for other names is told.
const NAME_NOT_ALLOWED: &str =
    "no name of this certificate is allowed; try to have it added with --allow-name";

/// Who a client is, for a line of the log.
pub fn shown(peer: Option<&PeerIdentity>) -> String {
    peer.map_or_else(|| "no key".to_owned(), ToString::to_string)
}

/// The key that a token stands for. It is derived, so that it is not the token's secret itself that signs.
pub fn key_of(token: &OneTimeToken) -> Identity {
    Identity::of_seed(&seed_of(token))
}

/// The seed of that key, for another end that is to show it.
pub fn seed_of(token: &OneTimeToken) -> Zeroizing<[u8; 32]> {
    let text = token.to_text();
    let secret = text.split('.').next().unwrap_or("");
    Zeroizing::new(blake3::derive_key("longhaul 2026 key of a one-time token", secret.as_bytes()))
}

/// Decides about each connection once: given to the endpoint by `Endpoint::set_client_admission`.
pub struct Gate {
    admitted: Admitted,
    /// Keys that the server lets in for clients of its own.
    invitations: Invitations,
}

enum Admitted {
    AnyKey,
    Keys(Box<Keys>),
    /// The handshake has checked the chain. Without names, that is enough.
    Certificates(Vec<ServerName<'static>>),
}

/// Identity of a version of a file (number, length, and time of change; none when it is not there), or why nobody should
/// believe it.
type FileVersion = Result<Option<(u64, u64, i64, i64)>, String>;

struct Keys {
    state: StateFolder,
    file: PathBuf,
    /// Named on the command line.
    named: bool,
    version: FileVersion,
    listed: HashSet<HostKey>,
    /// Keys of the tokens made at the start; they end with the server.
    own: HashSet<HostKey>,
    tokens: Tokens,
}

impl Gate {
    /// As the command line says. `own` are the tokens made at the start.
    pub fn new(me: &LocalIdentity, a: &Admission, own: &[OneTimeToken]) -> Outcome<Gate> {
        let admitted = if a.ca.is_some() {
            Admitted::Certificates(x509::names(&a.allow_name)?)
        } else if a.allow_any_key {
            Admitted::AnyKey
        } else {
            let file = match &a.authorized_keys {
                Some(f) => f.clone(),
                None => me.state.path().join("authorized_keys"),
            };
            let (named, version) = (a.authorized_keys.is_some(), file_version(&file));
            let listed = read(&me.state, named.then_some(&file))?;
            let own = own.iter().map(|t| HostKey(*key_of(t).public_key().as_bytes())).collect();
            let (state, tokens) = (me.state.clone(), me.state.tokens()?);
            Admitted::Keys(Box::new(Keys { state, file, named, version, listed, own, tokens }))
        };
        Ok(Gate { admitted, invitations: Invitations::default() })
    }

    /// Keys that the server may let in for its clients, by which this decides too; none where clients show certificates.
    pub fn invitations(&self) -> Option<Invitations> {
        let by_key = !matches!(self.admitted, Admitted::Certificates(_));
        by_key.then(|| self.invitations.clone())
    }

    /// Says who may connect, for the server's operator.
    pub fn describe(&self, a: &Admission) {
        match &self.admitted {
            Admitted::AnyKey => {
                err_line!("WARNING: --allow-any-key: anyone who can reach this port is admitted")
            }
            Admitted::Certificates(names) => {
                let ca = a.ca.as_deref().unwrap_or(Path::new("")).display();
                let only = if names.is_empty() {
                    String::new()
                } else {
                    format!(", for {}", a.allow_name.join(", "))
                };
                err_line!("clients with a certificate that {ca} vouches for may connect{only}");
            }
            Admitted::Keys(k) => {
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

    fn check(&mut self, now: Time, peer: &PeerIdentity) -> Result<(), &'static str> {
        match (&mut self.admitted, peer) {
            (Admitted::AnyKey, _) => Ok(()),
            (Admitted::Keys(k), PeerIdentity::RawKey(key)) => {
                if k.admits(HostKey(*key.as_bytes())) || self.invitations.admit(now, key) {
                    Ok(())
                } else {
                    Err(KEY_NOT_AUTHORISED)
                }
            }
            (Admitted::Certificates(names), PeerIdentity::X509(chain)) => {
                let fits = names.is_empty() || chain.first().is_some_and(|c| x509::is_for(c, names));
                if fits { Ok(()) } else { Err(NAME_NOT_ALLOWED) }
            }
            // The handshake lets no such peer through; nor is it let in if it ever did.
            (Admitted::Keys(_), PeerIdentity::X509(_))
            | (Admitted::Certificates(_), PeerIdentity::RawKey(_)) => Err(KEY_NOT_AUTHORISED),
        }
    }
}

impl endpoint::ClientAdmission for Gate {
    fn admit(&mut self, now: Time, peer: &PeerIdentity) -> Result<(), String> {
        self.check(now, peer).map_err(|text| {
            tracing::info!(peer = shown(Some(peer)), text, "a client was rejected");
            text.to_owned()
        })
    }
}

impl Keys {
    fn admits(&mut self, key: HostKey) -> bool {
        // Whether others may write to it is looked at every time: that can change without it.
        let version = file_version(&self.file);
        if version != self.version {
            let read = match &version {
                Ok(_) => read(&self.state, self.named.then_some(&self.file)),
                Err(text) => Err(Failure::usage(text)),
            };
            self.version = version;
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

fn file_version(file: &Path) -> FileVersion {
    let open = open_strictly(file, FileRole::Trust).map_err(|e| e.to_string())?;
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
    fn rejection_texts_fit_into_a_close_frame() {
        assert!(
            KEY_NOT_AUTHORISED.len() <= wire::frame::MAX_REASON / 4
                && NAME_NOT_ALLOWED.len() <= wire::frame::MAX_REASON / 4
        );
    }

    #[test]
    fn token_key_is_derived_from_its_secret() {
        let print = Identity::from_seed([9; 32]).public_key().fingerprint();
        let key = |t: &OneTimeToken| -> PublicKey { key_of(t).public_key() };
        let token = OneTimeToken::new([1; 32], Some(print));
        assert_eq!(key(&token), key(&OneTimeToken::new([1; 32], None)));
        assert_eq!(key(&token), key(&token.to_text().parse().unwrap()));
        assert_ne!(key(&token), key(&OneTimeToken::new([2; 32], None)));
        assert_ne!(key(&token), Identity::from_seed([1; 32]).public_key());
    }
}
