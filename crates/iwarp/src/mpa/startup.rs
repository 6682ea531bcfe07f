//! Computes the terms of a connection from its MPA request and reply (RFC 5044, section 7.1; RFC 6581, section 9).

use super::frames::{Enhanced, Frame, Kind, NO_DEPTH, Rtr};
use crate::config::Config;
use crate::rdmap::terminate::{Cause, INSUFFICIENT_IRD, NO_MATCHING_RTR};

/// A first message in the peer-to-peer model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum First {
    /// A send without payload. It consumes no receive of the application.
    Send,
    /// A write without payload.
    Write,
    /// A read of no bytes.
    Read,
}

/// What both ends agreed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// We put markers into what we send.
    pub markers_out: bool,
    /// What we receive has markers.
    pub markers_in: bool,
    /// CRCs are made and checked.
    pub crc: bool,
    /// Reads of the peer at a time.
    pub ird: u16,
    /// Own reads at a time.
    pub ord: u16,
    /// The peer's own figures, as it sent them (they MUST be passed on; RFC 6581, section 9.1).
    pub peer: Option<Enhanced>,
    /// As initiator: the message to begin with.
    pub first: Option<First>,
    /// As responder: what the peer may begin with.
    pub expected: Option<Rtr>,
}

/// Why a reply is not acted on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unacceptable {
    /// Close: it does not fit the request.
    Mismatch,
    /// Tell the peer, then close.
    Terminate(Cause),
}

/// The request that asks for what `c` says.
pub fn request(c: &Config) -> Frame {
    let enhanced = c.enhanced.then(|| Enhanced {
        ird: c.ird.min(NO_DEPTH - 1),
        ord: c.ord.min(NO_DEPTH - 1),
        peer_to_peer: c.peer_to_peer.then_some(c.rtr),
    });
    // To use any enhanced feature the revision MUST be two, and the format MUST NOT be used when none is wanted
    // (RFC 6581, sections 6 and 10).
    let revision = if c.enhanced { 2 } else { 1 };
    Frame { kind: Kind::Request, markers: c.markers, crc: c.crc, reject: false, revision, enhanced }
}

/// The reply that accepts `request`, and the terms.
pub fn accept(c: &Config, request: &Frame) -> (Frame, Terms) {
    let mut terms = Terms {
        // The peer's bit M says what it wants to receive (RFC 5044, section 7.1.1).
        markers_out: request.markers,
        markers_in: c.markers,
        // One end is enough to turn CRCs on (the same section, C).
        crc: c.crc || request.crc,
        ird: c.ird,
        ord: c.ord,
        peer: request.enhanced,
        first: None,
        expected: None,
    };
    // An enhanced request MUST be answered with an enhanced reply and a plain one with a plain one (RFC 6581, section 10).
    let enhanced = request.enhanced.map(|e| {
        // The responder MUST set its ORD at most to the initiator's IRD; 0x3fff leaves ours as it is and is returned.
        let ord = if e.ird == NO_DEPTH { NO_DEPTH } else { c.ord.min(e.ird) };
        let peer_to_peer = e.peer_to_peer.map(|offered| {
            // A read as first message needs room for one (section 9.1).
            let ours = Rtr { read: c.rtr.read && c.ird > 0, ..c.rtr };
            let common = offered.and(ours);
            // If there is none in common, at least one that we support MUST be named (section 9.2).
            let named = match (common.any(), ours.any()) {
                (true, _) => common,
                (false, true) => ours,
                (false, false) => Rtr { write: true, ..Rtr::default() },
            };
            terms.expected = Some(named);
            named
        });
        terms.ord = if ord == NO_DEPTH { c.ord } else { ord };
        let ird = if e.ord == NO_DEPTH { NO_DEPTH } else { terms.ird };
        Enhanced { ird, ord, peer_to_peer }
    });
    let (markers, crc) = (c.markers, terms.crc);
    let reply =
        Frame { kind: Kind::Reply, markers, crc, reject: false, revision: request.revision, enhanced };
    (reply, terms)
}

/// The reply that refuses `request`.
pub fn reject(c: &Config, request: &Frame) -> Frame {
    Frame { reject: true, ..accept(c, request).0 }
}

/// The terms that `reply`, which is no rejection, settles for an initiator.
///
/// # Errors
/// See [`Unacceptable`].
pub fn conclude(c: &Config, reply: &Frame) -> Result<Terms, Unacceptable> {
    let asked = request(c);
    if reply.revision != asked.revision || reply.enhanced.is_some() != c.enhanced {
        return Err(Unacceptable::Mismatch);
    }
    let mut terms = Terms {
        markers_out: reply.markers,
        markers_in: c.markers,
        crc: c.crc || reply.crc,
        ird: c.ird,
        ord: c.ord,
        peer: reply.enhanced,
        first: None,
        expected: None,
    };
    let Some(e) = reply.enhanced else { return Ok(terms) };
    // The initiator MUST set its IRD at least to the responder's ORD, or tell that it cannot (RFC 6581, section 9.1).
    if e.ord != NO_DEPTH && e.ord > c.ird {
        return Err(Unacceptable::Terminate(INSUFFICIENT_IRD));
    }
    // And its ORD at most to the responder's IRD.
    if e.ird != NO_DEPTH {
        terms.ord = c.ord.min(e.ird);
    }
    match (c.peer_to_peer, e.peer_to_peer) {
        (false, None) => {}
        (true, Some(taken)) => {
            let common = taken.and(c.rtr);
            terms.first = Some(if common.write {
                First::Write
            } else if common.read && e.ird > 0 {
                First::Read
            } else if common.send {
                First::Send
            } else {
                return Err(Unacceptable::Terminate(NO_MATCHING_RTR));
            });
        }
        // The responder MUST set A as the request has it (section 9.2).
        _ => return Err(Unacceptable::Mismatch),
    }
    Ok(terms)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(i: Config, r: Config) -> (Result<Terms, Unacceptable>, Terms) {
        let (reply, terms) = accept(&r, &request(&i));
        (conclude(&i, &reply), terms)
    }

    #[test]
    fn markers_apply_per_direction_and_crcs_to_both() {
        let base = Config::default();
        for bits in 0..16u8 {
            let on = |n: u8| bits >> n & 1 == 1;
            let (i, r) = both(
                Config { markers: on(0), crc: on(1), ..base },
                Config { markers: on(2), crc: on(3), ..base },
            );
            let i = i.unwrap();
            assert_eq!((i.markers_in, i.markers_out, i.crc), (on(0), on(2), on(1) || on(3)));
            assert_eq!((r.markers_in, r.markers_out, r.crc), (on(2), on(0), on(1) || on(3)));
        }
    }

    #[test]
    fn read_depth_is_limited_by_the_responder() {
        let base = Config::default();
        let (i, r) = both(Config { ird: 3, ord: 9, ..base }, Config { ird: 4, ord: 7, ..base });
        let i = i.unwrap();
        assert_eq!((i.ird, i.ord, r.ird, r.ord), (3, 4, 4, 3));
        // Revision 1 has no figures: both keep their own.
        let (i, r) =
            both(Config { ird: 3, ord: 9, enhanced: false, ..base }, Config { ird: 4, ord: 7, ..base });
        let i = i.unwrap();
        assert_eq!((i.ird, i.ord, r.ird, r.ord), (3, 9, 4, 7));
    }

    #[test]
    fn unnegotiated_depths_are_unchanged() {
        let mut ask = request(&Config::default());
        ask.enhanced = Some(Enhanced { ird: NO_DEPTH, ord: NO_DEPTH, peer_to_peer: None });
        let (reply, terms) = accept(&Config { ird: 5, ord: 6, ..Config::default() }, &ask);
        assert_eq!((terms.ird, terms.ord), (5, 6));
        assert_eq!(reply.enhanced, ask.enhanced);
        let i = conclude(&Config { ird: 1, ord: 2, ..Config::default() }, &reply).unwrap();
        assert_eq!((i.ird, i.ord), (1, 2));
    }

    #[test]
    fn initiator_rejects_invalid_replies() {
        let c = Config {
            ird: 2,
            peer_to_peer: true,
            rtr: Rtr { send: true, ..Rtr::default() },
            ..Config::default()
        };
        let (reply, _) = accept(&Config::default(), &request(&c));
        let e = reply.enhanced.unwrap();
        let with = |e| conclude(&c, &Frame { enhanced: e, ..reply });
        assert_eq!(with(Some(Enhanced { ord: 3, ..e })), Err(Unacceptable::Terminate(INSUFFICIENT_IRD)));
        let other = Some(Rtr { read: true, write: true, send: false });
        assert_eq!(
            with(Some(Enhanced { peer_to_peer: other, ..e })),
            Err(Unacceptable::Terminate(NO_MATCHING_RTR))
        );
        assert_eq!(with(Some(Enhanced { peer_to_peer: None, ..e })), Err(Unacceptable::Mismatch));
        assert_eq!(with(None), Err(Unacceptable::Mismatch));
        assert_eq!(conclude(&c, &Frame { revision: 1, ..reply }), Err(Unacceptable::Mismatch));
    }

    #[test]
    fn first_message_is_supported_by_both() {
        let only = |write, read, send| Rtr { send, write, read };
        for (rtr, want) in [
            (only(true, true, true), First::Write),
            (only(false, true, true), First::Read),
            (only(false, false, true), First::Send),
        ] {
            let i = Config { peer_to_peer: true, ..Config::default() };
            let (i, r) = both(i, Config { rtr, ..Config::default() });
            assert_eq!((i.unwrap().first, r.expected), (Some(want), Some(rtr)));
        }
        // A read to begin with needs room.
        let i = Config { peer_to_peer: true, ..Config::default() };
        let (i, _) = both(i, Config { rtr: only(false, true, true), ird: 0, ..Config::default() });
        assert_eq!(i.unwrap().first, Some(First::Send));
    }
}
