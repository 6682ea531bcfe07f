//! Verifies chunks of large files against the source's hashes, and requests retransmission of bad ones.

use super::*;

impl Sink {
    /// Hashes of chunks; `packed`: one, whose data came as a frame of this length.
    pub(super) fn hashes(
        &mut self,
        id: u64,
        first: u64,
        hashes: Vec<Digest>,
        packed: Option<u64>,
    ) -> Result<(), Fatal> {
        let (mut arrived, mut left) = (Vec::new(), Vec::new());
        let Some(f) = self.file(id)? else { return Ok(()) };
        if f.failed {
            return Ok(());
        }
        if first + hashes.len() as u64 > f.hashes.len() {
            return Err(Fatal::protocol("hashes beyond the end of a file"));
        }
        if packed.is_some_and(|len| len == 0 || len > f.chunk_len(first)) {
            return Err(Fatal::protocol("a frame that is longer than its chunk"));
        }
        let before = packed.and(f.part.as_ref()).map_or(0, |p| p.arrives(first));
        let mut copies = false;
        for (c, d) in (first..).zip(hashes) {
            match f.hashed(c, d) {
                Hashed::Compare | Hashed::Copy if packed.is_some() => {
                    return Err(Fatal::protocol("a frame for a chunk that no memory was granted for"));
                }
                Hashed::Copy => {
                    f.to_copy.push_back((c, d));
                    copies = true;
                }
                Hashed::Compare => left.push((c, d)),
                Hashed::Verify => arrived.extend(f.staged(c).map(|(memory, offset)| Arrived {
                    chunk: c,
                    want: d,
                    memory,
                    offset,
                    packed,
                    whole: f.whole.contains_all(c..c + 1),
                })),
                Hashed::Forged => {
                    return Err(Fatal::protocol("the hash of a chunk that no memory was granted for"));
                }
            }
        }
        if let Some(len) = packed {
            data_reduction::packed(&self.progress, before, len);
        }
        if copies {
            self.to_copy.push_back(id);
        }
        self.compare(id, left);
        self.place(id, arrived);
        Ok(())
    }
    /// Has what an earlier attempt left compared, while more arrives.
    pub(super) fn compare(&mut self, id: u64, chunks: Vec<(u64, Digest)>) {
        let Some(f) = self.files.get_mut(&id).filter(|_| !chunks.is_empty()) else { return };
        let Some(part) = f.part.clone() else { return };
        self.jobs.submit(Report::Died, move || {
            let result = part.compare(chunks.iter().copied());
            Report::Compared { file: id, chunks: chunks.into_iter().map(|c| c.0).collect(), result }
        });
    }
    pub(super) fn compared(
        &mut self,
        id: u64,
        chunks: &[u64],
        r: Result<Vec<u64>, FileError>,
        link: &mut Link,
    ) {
        let bad = match r {
            Ok(b) => b,
            Err(e) => return self.abandon(id, e, link),
        };
        let Some(f) = self.files.get_mut(&id).filter(|f| !f.failed) else { return };
        let mut resumed = 0;
        for &c in chunks {
            if bad.contains(&c) {
                self.progress.update(|s| f.uncopied(c, s));
                f.missing(c); // the first time
            } else {
                f.confirmed(c);
                resumed += f.chunk_len(c);
            }
        }
        self.verified += resumed;
        self.totals.resumed_bytes += resumed;
        self.advance(id);
    }
    /// Somebody has changed what was verified: it comes again.
    pub(super) fn spoilt(&mut self, id: u64, hashes: Hashes, bad: &[u64], link: &mut Link) {
        let Some(f) = self.files.get_mut(&id) else { return };
        (f.hashes, f.finishing) = (hashes, false);
        for c in bad {
            f.whole.insert(*c..*c + 1);
        }
        let again = bad.iter().all(|c| f.missing(*c));
        let (n, bytes) = (bad.len() as u64, bad.iter().map(|c| f.chunk_len(*c)).sum::<u64>());
        self.verified = self.verified.saturating_sub(bytes);
        if !again {
            let text = "another program keeps changing its unfinished file";
            let e = FileError::new(f.path.as_bytes(), Cause::Changed, text);
            return self.abandon(id, e, link);
        }
        let path = f.path.clone();
        self.totals.repaired_chunks += n;
        self.progress.note(format!(
            "{path}: another program changed its unfinished file; {bytes} bytes are sent again"
        ));
        self.advance(id);
    }
    pub(super) fn place(&mut self, id: u64, chunks: Vec<Arrived>) {
        let Some(f) = self.files.get_mut(&id).filter(|_| !chunks.is_empty()) else { return };
        let Some(part) = f.part.clone() else { return };
        // Also when the connection ends now: the next attempt finds it.
        self.jobs.submit_to_last(Report::Died, move || {
            let result = part.place(&chunks);
            Report::Verified { file: id, chunks: chunks.into_iter().map(|c| c.chunk).collect(), result }
        });
    }
    pub(super) fn checked(
        &mut self,
        id: u64,
        chunks: &[u64],
        r: Result<Vec<u64>, FileError>,
        link: &mut Link,
        a: &mut Adapter,
    ) {
        let bad = match r {
            Ok(b) => b,
            Err(e) => return self.abandon(id, e, link),
        };
        let Some(f) = self.files.get_mut(&id) else { return };
        if f.failed {
            return;
        }
        let mut closed = Vec::new();
        for &c in chunks {
            if !bad.contains(&c) {
                self.verified += f.chunk_len(c);
                closed.extend(f.verified(c));
            } else if f.mismatch(c) {
                self.totals.repaired_chunks += 1;
                self.progress.update(|s| f.uncopied(c, s));
                send(link, &[Record::Again { file: id, chunk: c }]);
            } else {
                let text = "what arrives does not match its checksum, again and again";
                let e = FileError::new(f.path.as_bytes(), Cause::Corrupt, text);
                return self.abandon(id, e, link);
            }
        }
        f.unsynced += closed.iter().map(|w| w.len).sum::<u64>();
        for w in closed {
            self.close_window(w, a);
        }
        self.sync(id);
        self.advance(id);
    }
}
