//! Merges acknowledged segments that are contiguous before they are reported to the queue pair.

use crate::streams::{SegmentRef, Streams};

/// The contiguous range that is growing.
#[derive(Debug, Default)]
pub struct AckBatch(Option<(u16, SegmentRef)>);

impl AckBatch {
    /// Adds an acknowledged segment; reports the range before it when it is not contiguous.
    pub fn add(&mut self, qpn: u16, s: SegmentRef, streams: &mut impl Streams) {
        if let Some((q, r)) = &mut self.0
            && (*q, r.msn, r.offset + u64::from(r.len)) == (qpn, s.msn, s.offset)
            && s.len > 0
            && let Some(len) = r.len.checked_add(s.len)
        {
            r.len = len;
            return;
        }
        self.flush(streams);
        self.0 = Some((qpn, s));
    }

    /// Reports the remaining range.
    pub fn flush(&mut self, streams: &mut impl Streams) {
        if let Some((qpn, s)) = self.0.take() {
            streams.acked(qpn, s);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::RecordingStreams;
    use super::*;

    #[test]
    fn contiguous_segments_are_merged_and_reported_once() {
        let piece = |msn, offset, len| SegmentRef { msn, offset, len };
        let pieces = [
            (0, piece(1, 0, 10)),
            (0, piece(1, 10, 10)),
            (0, piece(1, 20, 5)),
            // A hole, another message, another queue pair, a message without payload, and twice the same.
            (0, piece(1, 30, 5)),
            (0, piece(2, 35, 5)),
            (1, piece(2, 40, 5)),
            (1, piece(3, 0, 0)),
            (1, piece(3, 0, 0)),
            // More than a length can say.
            (1, piece(4, 0, u32::MAX)),
            (1, piece(4, u64::from(u32::MAX), 1)),
        ];
        let (mut streams, mut joined) = (RecordingStreams::default(), AckBatch::default());
        pieces.iter().for_each(|(qpn, s)| joined.add(*qpn, *s, &mut streams));
        joined.flush(&mut streams);
        joined.flush(&mut streams);
        let lens: Vec<_> = streams.pieces.iter().map(|s| s.len).collect();
        assert_eq!(lens, [25, 5, 5, 5, 0, 0, u32::MAX, 1]);
        assert_eq!(
            lens.iter().map(|l| u64::from(*l)).sum::<u64>(),
            pieces.iter().map(|p| u64::from(p.1.len)).sum()
        );
    }
}
