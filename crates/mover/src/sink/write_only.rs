//! What the sink of a write-only server hides from its client.
//!
//! Such a server answers nothing about what lies in its folder: nothing is listed, and what cannot be put in place fails
//! without the reason, which would say what stands there. Of an earlier attempt only parts count that the same peer
//! sent, so that nobody learns from the chunks that are not asked for what others have sent.

use crate::error::{Cause, FileError};
use crate::hash::Digest;
use transport::crypto::PeerIdentity;

/// What the peer of a write-only server is told instead of the reason.
const NOT_TOLD: &str = "cannot be put in place here; a server that only takes files does not say why. Try another name, or later";

/// Of a server that only takes files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WriteOnly {
    /// Who sends: parts that an earlier attempt left count only when this one sent them. Nobody's do without it.
    pub owner: Option<Digest>,
}

impl WriteOnly {
    /// For the one that the handshake showed; nobody is known over plain iWARP.
    pub fn new(peer: Option<&PeerIdentity>) -> WriteOnly {
        let owner =
            peer.map(|p| blake3::derive_key("longhaul 2026 sender of an unfinished file", &p.digest()));
        WriteOnly { owner }
    }
}

/// The cause and text that the peer hears of a failure: all of it, unless this is a write-only server and the reason is
/// not one of the peer's own data or of the storage as a whole.
pub(crate) fn told(e: &FileError, only: Option<&WriteOnly>) -> (Cause, String) {
    let harmless = matches!(
        e.cause,
        Cause::Full
            | Cause::ReadOnlyFileSystem
            | Cause::NameTooLong
            | Cause::TooLarge
            | Cause::Changed
            | Cause::Special
            | Cause::Corrupt
            | Cause::Storage
            | Cause::BadPath
            | Cause::TooManyOpen
            | Cause::NoMemory
    );
    // That somebody writes to the served folder itself, which is shown as `.`, tells of no name.
    let harmless = harmless || e.cause == Cause::Busy && e.path == ".";
    match only {
        Some(_) if !harmless => (Cause::Forbidden, NOT_TOLD.to_owned()),
        _ => (e.cause, e.text.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_only_sink_tells_no_cause_that_depends_on_what_lies_there() {
        let only = WriteOnly { owner: None };
        for n in 0..=u8::MAX {
            let e = FileError::new(b"x", Cause::from_wire(n), "a folder stands there");
            let (cause, text) = told(&e, Some(&only));
            let reveals = matches!(
                e.cause,
                Cause::Other
                    | Cause::Denied
                    | Cause::Vanished
                    | Cause::IsFolder
                    | Cause::NotFolder
                    | Cause::Exists
                    | Cause::Link
                    | Cause::Busy
                    | Cause::InUse
            );
            assert_eq!(told(&e, None), (e.cause, e.text.clone()));
            if reveals {
                assert_eq!((cause, text.as_str()), (Cause::Forbidden, NOT_TOLD), "{:?}", e.cause);
            } else if cause != Cause::Forbidden {
                assert_eq!((cause, text), (e.cause, e.text));
            }
        }
    }

    #[test]
    fn a_write_only_sink_tells_what_is_no_secret() {
        let only = WriteOnly { owner: None };
        let is_told = |path: &[u8], cause| {
            let e = FileError::new(path, cause, "as it is");
            told(&e, Some(&only)) == (cause, e.text.clone())
        };
        assert!(is_told(b"x", Cause::Full) && is_told(b"", Cause::Corrupt));
        // Another transfer into the served folder has no name; one into a file below it has.
        assert!(is_told(b"", Cause::Busy));
        assert!(!is_told(b"x", Cause::Busy) && !is_told(b"", Cause::Exists) && !is_told(b"x", Cause::Denied));
    }

    #[test]
    fn parts_are_bound_to_who_sent_them() {
        let key = |n| PeerIdentity::RawKey(transport::crypto::PublicKey::from_bytes([n; 32]));
        let (a, b) = (WriteOnly::new(Some(&key(1))), WriteOnly::new(Some(&key(2))));
        assert!(a.owner.is_some() && a != b && a == WriteOnly::new(Some(&key(1))));
        assert_eq!(WriteOnly::new(None).owner, None);
    }
}
