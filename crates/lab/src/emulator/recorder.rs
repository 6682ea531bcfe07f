//! Writes records to their file without holding up whoever measures.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use super::record::Record;

/// Records that wait for the disk: 40 s of intervals of 10 ms. Further ones are lost, and counted.
const WAITING: usize = 4096;

/// What was written is visible to readers after this time at the latest.
const FLUSH: Duration = Duration::from_millis(500);

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
        let (sender, receiver) = sync_channel(WAITING);
        let thread =
            std::thread::Builder::new().name("records".to_owned()).spawn(move || write(&receiver, file))?;
        Ok(Recorder { sender, thread, lost: 0 })
    }

    /// Hands a record over, or counts it as lost when too many wait.
    pub(super) fn push(&mut self, record: Record) {
        if self.sender.try_send(record).is_err() {
            self.lost += 1;
        }
    }

    /// Records lost so far.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// Writes the last record, waits until all are in the file, and says what went wrong.
    pub(super) fn finish(self, last: Record) -> io::Result<()> {
        // A thread that has ended says why below.
        let _ = self.sender.send(last);
        drop(self.sender);
        self.thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread that writes records panicked")))
    }
}

fn write(receiver: &Receiver<Record>, mut file: BufWriter<File>) -> io::Result<()> {
    loop {
        match receiver.recv_timeout(FLUSH) {
            Ok(record) => {
                serde_json::to_writer(&mut file, &record)?;
                file.write_all(b"\n")?;
            }
            Err(RecvTimeoutError::Timeout) => file.flush()?,
            Err(RecvTimeoutError::Disconnected) => return file.flush(),
        }
    }
}
