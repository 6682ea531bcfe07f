//! Writes records to their file in a thread of its own, so that measuring never waits for the disk.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use super::record::Record;

/// Most records waiting for the disk: 40 s of intervals of 10 ms. Further ones are lost and counted.
const MAX_WAITING: usize = 4096;

/// Longest time until written records are visible to readers.
const FLUSH_INTERVAL: Duration = Duration::from_millis(500);

/// The writer and the thread behind it.
#[derive(Debug)]
pub(super) struct Recorder {
    sender: SyncSender<Record>,
    thread: JoinHandle<io::Result<()>>,
    lost: u64,
}

impl Recorder {
    /// Makes the file, anew when it exists.
    pub(super) fn create(path: &Path) -> io::Result<Recorder> {
        let file = BufWriter::new(File::create(path)?);
        let (sender, receiver) = sync_channel(MAX_WAITING);
        let thread =
            std::thread::Builder::new().name("records".to_owned()).spawn(move || write(&receiver, file))?;
        Ok(Recorder { sender, thread, lost: 0 })
    }

    /// Queues a record, or counts it as lost if too many are waiting.
    pub(super) fn push(&mut self, record: Record) {
        if self.sender.try_send(record).is_err() {
            self.lost += 1;
        }
    }

    /// Records lost so far.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// Writes the last record, waits until all are in the file, and returns any error.
    pub(super) fn finish(self, last: Record) -> io::Result<()> {
        // A thread that has ended returns its error below.
        let _ = self.sender.send(last);
        drop(self.sender);
        self.thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread that writes records panicked")))
    }
}

fn write(receiver: &Receiver<Record>, mut file: BufWriter<File>) -> io::Result<()> {
    loop {
        match receiver.recv_timeout(FLUSH_INTERVAL) {
            Ok(record) => {
                serde_json::to_writer(&mut file, &record)?;
                file.write_all(b"\n")?;
            }
            Err(RecvTimeoutError::Timeout) => file.flush()?,
            Err(RecvTimeoutError::Disconnected) => return file.flush(),
        }
    }
}
