//! Client authorisation on a server after the handshake: listed keys, certificates or a one-time token.

use super::{ConnEvent, Connection};
use crate::crypto::{OneTimeToken, PeerIdentity, PublicKey, Side};
use crate::error::{Violation, code};
use wire::Frame;

/// Which clients a server admits once the handshake has shown their keys.
#[derive(Clone, Debug, Default)]
pub struct Authority {
    /// Keys let in; `None` lets every key in that the handshake accepted.
    pub keys: Option<Vec<PublicKey>>,
    /// One-time tokens that let any key in.
    pub tokens: Vec<OneTimeToken>,
}

impl Authority {
    /// Whether this peer needs no token: its key is listed, or the handshake has checked its certificate.
    pub fn lists(&self, peer: Option<&PeerIdentity>) -> bool {
        match (&self.keys, peer) {
            (None, _) | (_, Some(PeerIdentity::X509(_))) => true,
            (Some(keys), Some(PeerIdentity::RawKey(k))) => keys.contains(k),
            (Some(_), None) => false,
        }
    }

    /// The token that is proven with `proof` on the connection that `binding` belongs to.
    pub(crate) fn token(&self, binding: &[u8; 32], proof: &[u8; 32]) -> Option<OneTimeToken> {
        self.tokens.iter().find(|t| t.verify(binding, proof).is_ok()).cloned()
    }
}

impl Connection {
    /// The one-time token that let the peer in: it must not be used again.
    pub fn token_used(&self) -> Option<&OneTimeToken> {
        self.handshake.token_used.as_ref()
    }

    /// The handshake has shown who the client is: lets it in, waits for its token, or refuses.
    pub(super) fn complete_server(&mut self) -> Result<(), Violation> {
        self.handshake.confirm(false);
        if self.handshake.authority.lists(self.peer.as_ref()) {
            self.authorise();
        } else if !self.peer_params.token || self.handshake.authority.tokens.is_empty() {
            return Err(unauthorised());
        }
        Ok(())
    }

    fn authorise(&mut self) {
        self.authorised = true;
        self.push_frame(Frame::HandshakeDone);
        self.events.push_back(ConnEvent::Established);
    }

    /// The client proves that it holds a one-time token.
    pub(super) fn on_token_proof(&mut self, proof: &[u8; 32]) -> Result<(), Violation> {
        if self.side == Side::Client {
            return Err(Violation::protocol("token proofs go from client to server"));
        }
        if self.authorised {
            return Ok(());
        }
        let binding = self.handshake.token_binding();
        let binding = binding.map_err(|e| Violation::new(code::INTERNAL, e.to_string()))?;
        let found = self.handshake.authority.token(&binding, proof);
        if found.is_none() {
            return Err(unauthorised());
        }
        self.handshake.token_used = found;
        self.authorise();
        Ok(())
    }
}

/// What a client is told that is not let in.
pub(crate) const UNAUTHORISED: &str = "this key is not authorised here: add the client's public key to the server's authorized_keys, or use a one-time token";

pub(super) fn unauthorised() -> Violation {
    Violation::new(code::UNAUTHORISED, UNAUTHORISED)
}
