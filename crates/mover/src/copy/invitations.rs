//! One-time permissions: keys that a server admits for one put at the request of a client.

use crate::proto::{Hello, Op};
use base::{Span, Time};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use transport::crypto::{PeerIdentity, PublicKey};

/// How long an invitation waits for its guest to come, or to come again after its connection broke.
pub const INVITATION_LIFETIME: Span = Span::from_secs(600);
/// Invitations of one client that are open; of more, the oldest that nobody has come for ends.
const PER_CLIENT: usize = 32;
/// Invitations of all clients.
const IN_ALL: usize = 1024;

/// One key, and what it may do.
struct Invitation {
    /// Whose client asked for it: the guest acts for it.
    host: PeerIdentity,
    /// The put, without the number of the transfer.
    put: Hello,
    /// When it ends; not while a session of it runs.
    until: Option<Time>,
    /// The guest was let in by this, and not by a right of its own.
    admitted: bool,
    sessions: usize,
}

/// The invitations of a server: in memory only, so that they end with it.
#[derive(Clone, Default)]
pub struct Invitations(Arc<Mutex<BTreeMap<[u8; 32], Invitation>>>);

impl Invitations {
    fn all(&self) -> MutexGuard<'_, BTreeMap<[u8; 32], Invitation>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a client with this key is let in though it has no right of its own: to be asked last, by who decides about clients.
    /// What it may do is seen to by the server.
    pub fn admit(&self, now: Time, key: &PublicKey) -> bool {
        let mut all = self.all();
        expire(&mut all, now);
        all.get_mut(key.as_bytes()).is_some_and(|i| {
            i.admitted = true;
            true
        })
    }

    /// Lets `guest` do `put` for `host`.
    ///
    /// # Errors
    /// There are too many, or another client has invited that key.
    pub(crate) fn issue(
        &self,
        now: Time,
        host: &PeerIdentity,
        guest: [u8; 32],
        put: &Hello,
    ) -> Result<(), &'static str> {
        let mut all = self.all();
        expire(&mut all, now);
        if all.contains_key(&guest) {
            return Err("that key is invited already; make another");
        }
        let own = || all.iter().filter(|(_, i)| i.host == *host);
        let count = own().count();
        let oldest = own().filter(|(_, i)| i.sessions == 0).min_by_key(|(_, i)| i.until).map(|(k, _)| *k);
        if count >= PER_CLIENT {
            let oldest =
                oldest.ok_or("too many transfers that this client asked for are under way; try later")?;
            all.remove(&oldest);
        } else if all.len() >= IN_ALL {
            return Err("the server has let in as many others as it can; try later");
        }
        let until = Some(now + INVITATION_LIFETIME);
        let put = bare(put);
        all.insert(guest, Invitation { host: host.clone(), put, until, admitted: false, sessions: 0 });
        Ok(())
    }

    /// Whom a client acts for that was let in by an invitation; `None` for all others.
    pub(crate) fn host_of(&self, peer: Option<&PeerIdentity>) -> Option<([u8; 32], PeerIdentity)> {
        let Some(PeerIdentity::RawKey(key)) = peer else { return None };
        let all = self.all();
        let i = all.get(key.as_bytes()).filter(|i| i.admitted)?;
        Some((*key.as_bytes(), i.host.clone()))
    }

    /// A session of this guest begins.
    pub(crate) fn enter(&self, guest: &[u8; 32]) {
        if let Some(i) = self.all().get_mut(guest) {
            i.sessions += 1;
            i.until = None;
        }
    }

    /// A session of this guest is over; with all it came for if `complete`, and then it may not come again.
    pub(crate) fn leave(&self, now: Time, guest: &[u8; 32], complete: bool) {
        let mut all = self.all();
        if complete {
            all.remove(guest);
        } else if let Some(i) = all.get_mut(guest) {
            i.sessions = i.sessions.saturating_sub(1);
            if i.sessions == 0 {
                i.until = Some(now + INVITATION_LIFETIME);
            }
        }
    }

    /// Whether this guest was invited for this request.
    pub(crate) fn allows(&self, guest: &[u8; 32], h: &Hello) -> bool {
        h.op == Op::Put && self.all().get(guest).is_some_and(|i| i.put == bare(h))
    }
}

fn expire(all: &mut BTreeMap<[u8; 32], Invitation>, now: Time) {
    all.retain(|_, i| i.until.is_none_or(|t| now < t));
}

/// A put as it is compared: who sends chooses the number of the transfer.
fn bare(h: &Hello) -> Hello {
    Hello { op: Op::Put, transfer: [0; 16], ..h.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::RelPath;
    use crate::proto::{Flags, Sending, VERSION};

    fn key(n: u8) -> PublicKey {
        PublicKey::from_bytes([n; 32])
    }
    fn peer(n: u8) -> PeerIdentity {
        PeerIdentity::RawKey(key(n))
    }
    fn put(path: &str, overwrite: bool) -> Hello {
        let mut flags = Flags::from_bits(1).unwrap();
        flags.overwrite = overwrite;
        Hello {
            version: VERSION,
            op: Op::Put,
            flags,
            transfer: [7; 16],
            paths: vec![RelPath::parse(path.as_bytes()).unwrap()],
            into: false,
            contents: vec![false],
            sending: Sending::default(),
            link_targets: false,
            data_reduction: Default::default(),
            keep: Default::default(),
        }
    }

    #[test]
    fn a_guest_may_do_what_it_was_invited_for_and_nothing_else() {
        let (i, now) = (Invitations::default(), Time::ZERO);
        assert!(!i.admit(now, &key(9)));
        i.issue(now, &peer(1), [9; 32], &put("in", false)).unwrap();
        assert!(i.host_of(Some(&peer(9))).is_none(), "it has a right of its own");
        assert!(i.admit(now, &key(9)));
        assert_eq!(i.host_of(Some(&peer(9))).unwrap().1, peer(1));
        assert!(i.allows(&[9; 32], &put("in", false)));
        let other = Hello { transfer: [8; 16], ..put("in", false) };
        assert!(i.allows(&[9; 32], &other));
        let get = Hello { op: Op::Get, ..put("in", false) };
        let into = Hello { into: true, ..put("in", false) };
        for no in [put("other", false), put("in/below", false), put("in", true), get, into] {
            assert!(!i.allows(&[9; 32], &no), "{no:?}");
        }
        assert!(!i.allows(&[8; 32], &put("in", false)));
        assert!(i.issue(now, &peer(2), [9; 32], &put("x", true)).is_err(), "another took it over");
    }

    #[test]
    fn an_invitation_ends_with_its_time_and_with_its_transfer() {
        let i = Invitations::default();
        let at = |s: u64| Time::ZERO + Span::from_secs(s);
        let life = INVITATION_LIFETIME.as_nanos() / 1_000_000_000;
        i.issue(at(0), &peer(1), [9; 32], &put("in", true)).unwrap();
        assert!(i.admit(at(life - 1), &key(9)) && !i.admit(at(life), &key(9)));
        i.issue(at(0), &peer(1), [9; 32], &put("in", true)).unwrap();
        assert!(i.admit(at(1), &key(9)));
        // However long its session runs; from its end on it may come again for a while.
        i.enter(&[9; 32]);
        assert!(i.admit(at(9 * life), &key(9)));
        i.leave(at(10 * life), &[9; 32], false);
        assert!(i.admit(at(11 * life - 1), &key(9)));
        i.enter(&[9; 32]);
        i.leave(at(11 * life), &[9; 32], true);
        assert!(!i.admit(at(11 * life), &key(9)) && !i.allows(&[9; 32], &put("in", true)));
    }

    #[test]
    fn invitations_are_bounded_for_each_client_and_in_all() {
        let (i, now) = (Invitations::default(), Time::ZERO);
        let guest = |n: usize| {
            let mut k = [0; 32];
            k[..8].copy_from_slice(&(n as u64 + 1).to_le_bytes());
            k
        };
        for n in 0..PER_CLIENT {
            i.issue(now + Span::from_secs(n as u64), &peer(1), guest(n), &put("in", true)).unwrap();
        }
        // The oldest that nobody came for gives way.
        i.enter(&guest(0));
        let late = now + Span::from_secs(100);
        i.issue(late, &peer(1), guest(PER_CLIENT), &put("in", true)).unwrap();
        assert!(i.allows(&guest(0), &put("in", true)) && !i.allows(&guest(1), &put("in", true)));
        assert_eq!(i.all().len(), PER_CLIENT);
        (1..=PER_CLIENT).for_each(|n| i.enter(&guest(n)));
        assert!(i.issue(late, &peer(1), guest(999), &put("in", true)).is_err());
        for n in PER_CLIENT..IN_ALL {
            i.issue(late, &peer((n / 8) as u8), guest(10_000 + n), &put("in", true)).unwrap();
        }
        assert!(i.issue(late, &peer(200), guest(99_999), &put("in", true)).is_err());
    }
}
