//! Prepares the first read after a wait before the wait begins.
//!
//! Where the next bytes of a stream go is found out before the loop sleeps, while the peer is busy with what it got, so that who is
//! woken reads at once. Behind a wait each instruction takes several times as long as between ends that spin, and finding that out takes
//! as many as a seventh of all between a wait and the answer to what ended it.

use super::bytes::list_places;
use super::{Ranges, Streams, socket};
use base::Time;
use core::marker::PhantomData;
use endpoint::{Endpoint, StreamId};
use rustix::io::Errno;

/// A prepared read. The endpoint is not used otherwise while it exists.
#[derive(Debug)]
pub struct PreparedRead<'e> {
    /// The stream, and for how many bytes there is room.
    of: Option<(StreamId, usize)>,
    ranges: Ranges,
    endpoint: PhantomData<&'e mut Endpoint>,
}

/// The result of a prepared read.
#[derive(Debug)]
pub(super) struct PreparedResult {
    pub(super) id: StreamId,
    pub(super) got: Result<usize, Errno>,
    /// Bytes that there was room for.
    pub(super) offered: usize,
}

impl Streams {
    /// Room for what is to be made ready.
    pub fn take_ranges(&mut self) -> Ranges {
        core::mem::take(&mut self.ranges)
    }

    /// Before a wait: finds out where the next bytes go of the stream that was read last. What is wrong with that place, a key that became
    /// void, is told of when the peer goes on, as without this.
    pub fn prepare_read<'e>(
        &self,
        mut ranges: Ranges,
        now: Time,
        endpoint: &'e mut Endpoint,
    ) -> PreparedRead<'e> {
        let of = self.likely().and_then(|id| {
            let mut io = endpoint.stream_io(id).filter(|io| !io.engine.is_held())?;
            let offered = list_places(&mut ranges.0, &mut io, now)?;
            Some((id, offered))
        });
        PreparedRead { of, ranges, endpoint: PhantomData }
    }

    /// The stream of which something is likely to come first.
    fn likely(&self) -> Option<StreamId> {
        let id = self.last.filter(|_| self.slots.len() <= self.few)?;
        let s = self.slots.get(&id)?;
        (!s.connecting && !s.ended && s.rest.is_empty()).then_some(id)
    }

    /// After the wait, and after it was [told](Streams::on_wait) of: reads what was made ready, if that is to be read.
    pub fn read_prepared(&mut self, ready: PreparedRead<'_>) {
        let PreparedRead { of, mut ranges, .. } = ready;
        self.prepared = None;
        if let Some((id, offered)) = of
            && let Some(s) = self.slots.get_mut(&id)
        {
            s.borrows = true;
            if s.due {
                // SAFETY: they are scratch memory and registered regions of the endpoint, which was borrowed by `prepared_read` until now, so
                // that neither was touched since they were named; nobody else has references into them.
                let got = unsafe { socket::receive(&s.fd, &ranges.0) };
                self.prepared = Some(PreparedResult { id, got, offered });
            }
        }
        ranges.0.clear();
        self.ranges = ranges;
    }
}
