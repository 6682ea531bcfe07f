//! Reads several records by one system call, each payload directly into its destination.
//!
//! What comes next is often known before its header is here: the answer to a read of ours goes where that said, a send
//! that has begun goes on in its receive, one that answers another is as long as the last, and of a long write an end that is known to [announce](Connection::announce_writes) them has
//! told how far it reaches. Then the list of ranges for a `readv` goes on behind the record that is arriving: a few bytes of
//! scratch memory for trailer and header, the place of the payload, and so on. Headers are looked at afterwards, as all are.
//! One that is not as expected costs a copy: its bytes and what is behind them are gathered again and taken as they are.
//!
//! So bytes may come to lie in such a place that do not belong there, or are damaged. In the destination of a read and in the
//! receive of a message that has begun nobody can tell: their contents are open until they complete. The memory that a peer
//! writes to has no completion, and applications watch it: with CRCs in use it is read into only where that was asked for
//! ([`Placement::Early`](crate::Placement::Early)).

use super::Connection;
use super::receive::{DIRECT, PEEK};
use crate::ReadTarget;
use crate::ddp::{self, Target};
use crate::mpa::fpdu;
use crate::rdmap::Opcode;
use verbs::ordered::ExpectedData;
use verbs::{Adapter, MrRange, QpId};

/// Records that are read ahead at most: a mebibyte, and the end of a message of that length.
const RECORDS: usize = 17;
/// After a record that was not as expected, so many reads go by the headers that are there.
const DOUBT: u8 = 8;

/// A write that the peer has announced: everything up to `end`, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct AnnouncedWrite {
    stag: u32,
    /// Where its next record goes on, once the first was verified.
    next: Option<u64>,
    end: u64,
}

/// The prediction of records that are still to arrive.
#[derive(Default)]
pub(super) struct ReadAhead {
    announced: Option<AnnouncedWrite>,
    /// Length of the last send of several bytes: the next one is taken to be as long.
    last_send: u64,
    /// Payload of records in the midst of messages, as the last one had it: tagged ones, others.
    chunks: [Option<u64>; 2],
    mispredicted: u8,
    /// What is to be read behind the payload that is arriving. Ranges of scratch memory have only their lengths yet.
    pub(super) plan: Vec<ReadTarget>,
    places: Vec<MrRange>,
}

/// A message whose next record is predicted.
#[derive(Clone, Copy)]
struct PredictedMessage {
    what: ExpectedData,
    /// Its next byte, and where it ends.
    at: u64,
    end: u64,
}

impl PredictedMessage {
    fn header(&self) -> usize {
        if matches!(self.what, ExpectedData::Receive) { ddp::UNTAGGED } else { ddp::TAGGED }
    }
}

impl ReadAhead {
    /// Something else than expected has come.
    pub(super) fn mispredicted(&mut self) {
        self.mispredicted = DOUBT;
    }
    /// A send is complete.
    pub(super) fn on_send(&mut self, len: u64) {
        self.last_send = len;
    }
    /// An empty write of a peer that announces: its offset is where the next one ends.
    pub(super) fn on_announced(&mut self, stag: u32, end: u64) {
        self.announced = Some(AnnouncedWrite { stag, next: None, end });
    }
    /// A record of a message that goes on was verified.
    pub(super) fn on_chunk(&mut self, tagged: bool, len: usize) {
        self.chunks[usize::from(tagged)] = (len >= DIRECT).then_some(len as u64);
    }
    /// Whether a write goes on behind the record that begins at `to`, up to `end` at least.
    pub(super) fn expects_write(&self, stag: u32, to: u64, end: u64) -> bool {
        let foreseen =
            |w: AnnouncedWrite| w.stag == stag && w.next.is_none_or(|next| next == to) && end <= w.end;
        self.announced.is_some_and(foreseen)
    }
    /// Records of a write with `len` bytes were verified.
    pub(super) fn on_write(&mut self, stag: u32, to: u64, len: u64) {
        let continues_write = |w: &AnnouncedWrite| w.stag == stag && w.next.is_none_or(|next| next == to);
        let next = to.saturating_add(len);
        self.announced = self
            .announced
            .filter(|w| continues_write(w) && next < w.end)
            .map(|w| AnnouncedWrite { next: Some(next), ..w });
    }
}

impl Connection {
    /// Both ends say how far a long write reaches before they send it, by an empty write with that offset; empty writes of
    /// the application name nothing. No RFC has that, though it is nothing that they forbid: key and offset of an empty
    /// write are not looked at (RFC 5041, section 5.2). To be called at both ends or at none, before either posts any.
    pub fn announce_writes(&mut self) {
        self.announces = true;
    }

    /// Plans what is to be read behind the payload that is arriving, or next.
    pub(super) fn plan_ahead(&mut self, a: &Adapter) {
        self.rx.read_ahead.plan.clear();
        let runs = self.state.runs() && !self.terms.markers_in;
        if !runs || !self.rx.is_at_payload() {
            return;
        }
        if self.rx.read_ahead.mispredicted > 0 {
            self.rx.read_ahead.mispredicted -= 1;
            return;
        }
        let Some(qp) = self.qp else { return };
        let Some(mut run) = self.next_run(a, qp).filter(|r| r.end - r.at >= DIRECT as u64) else { return };
        let mut ahead = core::mem::take(&mut self.rx.read_ahead);
        let mut scratch = self.rx.direct_tail();
        let header = run.header();
        let chunk = ahead.chunks[usize::from(header == ddp::TAGGED)];
        let chunk = chunk.unwrap_or((fpdu::MAX_ULPDU - header) as u64);
        // Asked for as one range: mostly it is one place, and is found once.
        let span = (run.end - run.at).min(RECORDS as u64 * chunk);
        let stop = run.at + span;
        ahead.places.clear();
        let found = a.expected_places(qp, run.what, (run.at, span), &mut ahead.places);
        let mut places = (&ahead.places[..], 0);
        while found && stop - run.at >= DIRECT as u64 {
            let len = chunk.min(stop - run.at);
            ahead.plan.push(ReadTarget::Scratch { start: 0, len: scratch + fpdu::LENGTH + header });
            places = cut(places, len, &mut ahead.plan);
            scratch = fpdu::pad(header + len as usize) + fpdu::CRC;
            run.at += len;
        }
        if !ahead.plan.is_empty() {
            // A short end of the message comes whole, and the next header.
            let rest = usize::try_from(run.end - run.at).unwrap_or(usize::MAX);
            let short = if rest < DIRECT { fpdu::len(header + rest) } else { 0 };
            ahead.plan.push(ReadTarget::Scratch { start: 0, len: scratch + short + PEEK });
        }
        self.rx.read_ahead = ahead;
    }

    /// The message that the next record is of.
    fn next_run(&self, a: &Adapter, qp: QpId) -> Option<PredictedMessage> {
        let ahead = &self.rx.read_ahead;
        if let Some((h, op, payload)) = self.rx.arriving() {
            let payload = payload as u64;
            return match (op, h.target) {
                (Opcode::Write, Target::Tagged { stag, to }) => {
                    self.write_run(stag, to.checked_add(payload)?)
                }
                (Opcode::ReadResponse, _) => self.read_run(a, qp, self.rx.read_at + payload),
                (Opcode::Send { .. }, Target::Untagged { mo, .. }) if !h.last => {
                    self.send_run(a, qp, u64::from(mo) + payload)
                }
                _ => None,
            };
        }
        match (ahead.announced, self.rx.sending) {
            (Some(AnnouncedWrite { stag, next: Some(next), .. }), _) => self.write_run(stag, next),
            // The first record of a write comes right behind its announcement.
            (Some(_), _) => None,
            (None, Some((_, at))) => self.send_run(a, qp, at),
            (None, None) => self.read_run(a, qp, self.rx.read_at).or_else(|| self.fresh_run(a, qp)),
        }
    }

    /// The rest of a write that was announced, where it may go straight to its place.
    fn write_run(&self, stag: u32, at: u64) -> Option<PredictedMessage> {
        let announced = self.rx.read_ahead.announced.filter(|_| self.may_go_direct());
        let w = announced.filter(|w| w.stag == stag && at < w.end)?;
        Some(PredictedMessage { what: ExpectedData::Write { rkey: stag }, at, end: w.end })
    }

    fn read_run(&self, a: &Adapter, qp: QpId, at: u64) -> Option<PredictedMessage> {
        let &sink = self.rx.reads.front()?;
        let end = a.read_len(qp, sink)?;
        if at < end {
            return Some(PredictedMessage { what: ExpectedData::Sink { key: sink }, at, end });
        }
        // Behind it comes the answer to the next one.
        let &sink = self.rx.reads.get(1)?;
        Some(PredictedMessage { what: ExpectedData::Sink { key: sink }, at: 0, end: a.read_len(qp, sink)? })
    }

    /// The rest of a message that has begun, into a receive that it fills if it is as long as the last one.
    fn send_run(&self, a: &Adapter, qp: QpId, at: u64) -> Option<PredictedMessage> {
        let end = self.rx.read_ahead.last_send;
        (at < end && a.receive_room(qp) == Some(end)).then_some(PredictedMessage {
            what: ExpectedData::Receive,
            at,
            end,
        })
    }

    /// The next message, if it is as long as the last one and fills a receive that was posted since that was complete. Of
    /// others that wait nothing is touched before their message has begun: applications post several for the same memory.
    fn fresh_run(&self, a: &Adapter, qp: QpId) -> Option<PredictedMessage> {
        let end = self.rx.read_ahead.last_send;
        (a.fresh_receive_room(qp) == Some(end)).then_some(PredictedMessage {
            what: ExpectedData::Receive,
            at: 0,
            end,
        })
    }

    /// Whether the payload belongs to a read of this end's own or to a receive: only their completion opens what they fill, so
    /// it may go there before its CRC is known. (They are the oldest read and the next receive, each from where it was left:
    /// `begin_segment` sees to that.) What a peer writes to may be looked at any time.
    pub(super) fn is_ours(&self, op: Opcode) -> bool {
        matches!(op, Opcode::ReadResponse | Opcode::Send { .. })
    }
}

/// Plans to read the next `len` bytes of `places` from byte `skip` of these on; gives where what follows begins.
fn cut<'a>(
    (mut places, mut skip): (&'a [MrRange], u64),
    mut len: u64,
    plan: &mut Vec<ReadTarget>,
) -> (&'a [MrRange], u64) {
    while len > 0
        && let Some((first, behind)) = places.split_first()
    {
        let here = len.min(first.len - skip);
        plan.push(ReadTarget::Region(MrRange { offset: first.offset + skip, len: here, ..*first }));
        (len, skip) = (len - here, skip + here);
        if skip == first.len {
            (places, skip) = (behind, 0);
        }
    }
    (places, skip)
}
