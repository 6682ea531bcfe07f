//! Markers: every 512 bytes of the stream, four bytes that point back to where the record around them begins (RFC 5044,
//! sections 4.2 and 4.3). Positions count from the first byte after the start-up frames, where the first marker stands.

/// Bytes from one marker to the next.
pub const INTERVAL: u64 = 512;
/// Bytes of a marker.
pub const LEN: usize = 4;

/// Bytes of records between two markers.
const BETWEEN: u64 = INTERVAL - LEN as u64;

/// Number of markers in a record of `len` bytes (without them) whose first byte, or the marker before it, stands at
/// position `at`. One that falls right behind the record belongs to the next (RFC 5044, section 4.3).
pub const fn count(at: u64, len: usize) -> usize {
    let before = (INTERVAL - at % INTERVAL) % INTERVAL;
    let len = len as u64;
    if len <= before { 0 } else { ((len - before - 1) / BETWEEN) as usize + 1 }
}

/// Whether a marker stands at position `at`.
pub const fn is_here(at: u64) -> bool {
    at.is_multiple_of(INTERVAL)
}

/// A record that gets its markers as its bytes are appended, part by part.
#[derive(Clone, Copy, Debug)]
pub struct Inserter {
    /// Where the length field stands: behind the marker, when there is one in front.
    start: u64,
    position: u64,
}

impl Inserter {
    /// A record that begins at position `at`.
    pub const fn new(at: u64) -> Inserter {
        Inserter { start: if is_here(at) { at + LEN as u64 } else { at }, position: at }
    }
    /// Appends the next bytes of the record to `out`.
    pub fn put(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let mut rest = bytes;
        while !rest.is_empty() {
            if is_here(self.position) {
                // A marker between records says 0 (RFC 5044, section 4.3).
                let back = self.position.saturating_sub(self.start) as u16;
                let [high, low] = back.to_be_bytes();
                out.extend([0, 0, high, low]);
                self.position += LEN as u64;
            }
            let room = (INTERVAL - self.position % INTERVAL) as usize;
            let (now, later) = rest.split_at(room.min(rest.len()));
            out.extend_from_slice(now);
            (self.position, rest) = (self.position + now.len() as u64, later);
        }
    }
}

/// Appends `record` to `out`, with markers, beginning at position `at`. Its CRC field is the caller's to fill in
/// afterwards.
pub fn insert(at: u64, record: &[u8], out: &mut Vec<u8>) {
    Inserter::new(at).put(record, out);
}

/// A marker that points elsewhere than to the start of its record (RFC 5044, section 8, code 3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WrongMarker;

/// Removes the markers of the record that fills `bytes` from position `at` on, in place. Gives the record's length
/// without them.
///
/// # Errors
/// [`WrongMarker`]; the lowest two bits of the pointer are ignored (section 4.2). The record is complete all the same.
pub fn remove(at: u64, bytes: &mut [u8]) -> (usize, Result<(), WrongMarker>) {
    let start = if is_here(at) { at + LEN as u64 } else { at };
    let (mut from, mut to, mut right) = (0, 0, Ok(()));
    while from < bytes.len() {
        let position = at + from as u64;
        if is_here(position) {
            if let Some(&[_, _, high, low]) = bytes.get(from..from + LEN) {
                let back = u64::from(u16::from_be_bytes([high, low & !3]));
                if back != position.saturating_sub(start) {
                    right = Err(WrongMarker);
                }
            }
            from += LEN;
            continue;
        }
        let n = ((INTERVAL - position % INTERVAL) as usize).min(bytes.len() - from);
        bytes.copy_within(from..from + n, to);
        (from, to) = (from + n, to + n);
    }
    (to, right)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn marker_positions_match_rfc_5044() {
        // In front of the first record, and not behind a record that ends at one.
        assert_eq!((count(0, 4), count(0, 508), count(0, 512)), (1, 1, 2));
        assert_eq!((count(4, 508), count(4, 512), count(508, 4), count(508, 8)), (0, 1, 0, 1));
        // Figure 6 of RFC 5044: a record at 0x1ec, its marker at 0x200 points 0x14 back.
        let mut out = Vec::new();
        insert(0x1ec, &[7; 48], &mut out);
        assert_eq!(out.len(), 52);
        assert_eq!(out[0x14..0x18], [0, 0, 0, 0x14]);
    }

    #[test]
    fn wrong_marker_pointer_is_detected_except_its_low_bits() {
        let mut out = Vec::new();
        insert(0x1ec, &[7; 48], &mut out);
        let mut low = out.clone();
        low[0x17] |= 3;
        assert_eq!(remove(0x1ec, &mut low), (48, Ok(())));
        out[0x17] = 0x18;
        assert_eq!(remove(0x1ec, &mut out), (48, Err(WrongMarker)));
    }

    proptest! {
        #[test]
        fn inserted_markers_are_removed(at in 0u64..5000, len in 1usize..3000, fill: u8) {
            let (at, len) = (at * 4, len * 4);
            // Records never begin inside of a marker.
            let record: Vec<u8> = (0..len).map(|i| fill.wrapping_add(i as u8)).collect();
            let mut out = Vec::new();
            insert(at, &record, &mut out);
            prop_assert_eq!(out.len(), len + LEN * count(at, len));
            let (n, right) = remove(at, &mut out);
            prop_assert_eq!((&out[..n], right), (&record[..], Ok(())));
        }
    }
}
