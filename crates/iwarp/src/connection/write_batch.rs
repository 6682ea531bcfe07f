//! Processes complete consecutive records of one write together.

use super::Connection;
use super::receive::Receiver;
use crate::ddp::{self, Header, Target};
use crate::mpa::fpdu;
use crate::rdmap;
use verbs::{Adapter, MrRange, QpId};

/// A record of a write with payload. Its CRC was not looked at.
struct Record<'a> {
    last: bool,
    stag: u32,
    to: u64,
    payload: &'a [u8],
    /// All but the CRC.
    covered: &'a [u8],
    crc: &'a [u8],
}

impl<'a> Record<'a> {
    /// The one at the front of `waiting`, if it is whole.
    #[inline]
    fn at_front(waiting: &'a [u8]) -> Option<Record<'a>> {
        let (&length, contents) = waiting.split_first_chunk::<{ fpdu::LENGTH }>()?;
        let ulpdu = usize::from(u16::from_be_bytes(length));
        let (covered, crc) = waiting.get(..fpdu::len(ulpdu))?.split_last_chunk::<{ fpdu::CRC }>()?;
        let contents = &contents[..ulpdu];
        let Ok(Header { last, control: rdmap::WRITE, target: Target::Tagged { stag, to } }) =
            Header::parse(contents)
        else {
            return None;
        };
        let payload = contents.get(ddp::TAGGED..).filter(|p| !p.is_empty())?;
        Some(Record { last, stag, to, payload, covered, crc })
    }
    fn passes(&self) -> bool {
        *self.crc == fpdu::crc_field(fpdu::crc(0, self.covered))
    }
}

/// Consecutive write records that were taken together.
struct BatchedWrites {
    stag: u32,
    to: u64,
    records: u64,
    /// Payload.
    bytes: u64,
    /// Payload of the last record that was not its message's last.
    chunk: Option<usize>,
}

impl Connection {
    /// Takes the records of a write at the front of the scratch memory that are whole and go on where the one before ends. Key,
    /// rights and bounds are looked up for all of them at once, and all are counted at once: behind payload that was checked and
    /// copied, what that asks is no longer in the first cache.
    ///
    /// False: nothing was taken. Whatever is not as it has to be is left, to be looked at as every record is.
    #[inline(never)]
    pub(super) fn take_writes(&mut self, a: &mut Adapter, scratch: &[u8]) -> bool {
        // What comes first may be the peer-to-peer model's (`skip_first_message`), and ends the waiting for it (`took`).
        let Some(qp) = self.qp.filter(|_| self.rx.validated) else { return false };
        let Some(first) = Record::at_front(&scratch[self.rx.start..self.rx.end]) else { return false };
        let Some(place) = a.write_reach(qp, first.stag, first.to) else { return false };
        let direct = self.may_go_direct();
        let taken = self.rx.copy_writes(a, scratch, first, place, (self.terms.crc, direct));
        self.note_writes(a, qp, &taken);
        taken.records > 0
    }

    fn note_writes(&mut self, a: &mut Adapter, qp: QpId, t: &BatchedWrites) {
        if t.records == 0 {
            return;
        }
        a.count_in(qp, t.records, t.bytes);
        if let Some(len) = t.chunk {
            self.rx.read_ahead.on_chunk(true, len);
        }
        self.rx.read_ahead.on_write(t.stag, t.to, t.bytes);
    }
}

impl Receiver {
    /// Copies the payload of records from `first` on to `place`, as far as that reaches.
    fn copy_writes(
        &mut self,
        a: &mut Adapter,
        scratch: &[u8],
        first: Record<'_>,
        mut place: MrRange,
        (crc, direct): (bool, bool),
    ) -> BatchedWrites {
        let mut t = BatchedWrites { stag: first.stag, to: first.to, records: 0, bytes: 0, chunk: None };
        let mut next = Some(first);
        while let Some(r) = next.take() {
            let len = r.payload.len() as u64;
            let continues_write = r.stag == t.stag && r.to == t.to + t.bytes && len <= place.len;
            // RFC 5044, section 6: the CRC MUST be verified before anything is done with the record.
            if !continues_write
                || crc && !r.passes()
                || a.write_mr(place.mr, place.offset, r.payload).is_err()
            {
                break;
            }
            (place.offset, place.len) = (place.offset + len, place.len - len);
            (t.records, t.bytes) = (t.records + 1, t.bytes + len);
            let whole = r.covered.len() + fpdu::CRC;
            self.shorts =
                if direct { self.shorts_with(ddp::TAGGED + r.payload.len(), true) } else { u8::MAX };
            self.take(whole);
            if !r.last {
                t.chunk = Some(r.payload.len());
                next = Record::at_front(&scratch[self.start..self.end]);
            }
        }
        t
    }
}
