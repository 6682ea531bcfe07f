//! The thread that lists what is there: for the source, so that it leaves out what is the same, and for `ls`.

use super::large::JOURNAL_FROM;
use crate::path::{journal_name, part_name};
use crate::pool::Wake;
use crate::proto::{Entry, Kind, Record, put};
use crate::source::hash_file;
use crate::tree::Tree;
use crate::walk::{Found, Start, Walk};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};

/// Length of a message of entries.
const MESSAGE_AIM: usize = 32 * 1024;

/// What is listed, and how.
pub(crate) struct Lister {
    pub tree: Arc<Tree>,
    /// Number of the root and where it is.
    pub roots: Vec<(u32, crate::path::RelPath)>,
    /// Levels below each root.
    pub depth: usize,
    /// Hash files too.
    pub hash: bool,
    /// Report what cannot be listed (`ls`) or leave it out (the source will send it).
    pub report: bool,
    pub credit: Receiver<u64>,
    pub out: SyncSender<Vec<u8>>,
    pub wake: Wake,
}

impl Lister {
    /// Starts the thread. It ends when all is listed or the other ends of its channels are dropped; the last message
    /// carries [`Record::ListEnd`].
    pub fn spawn(self) -> std::io::Result<()> {
        std::thread::Builder::new().name("mover-list".into()).spawn(move || self.run()).map(drop)
    }
    fn run(self) {
        let mut credit = 0u64;
        let mut m = Vec::new();
        let starts =
            self.roots.iter().map(|(_, p)| Start { tree: self.tree.clone(), path: p.clone() }).collect();
        for f in Walk::new(starts, self.depth) {
            match f {
                Ok(f) => {
                    if !self.report {
                        self.tidy(&f);
                    }
                    put(&mut m, &Record::Entry(self.entry(&f)));
                }
                Err(e) if self.report => {
                    put(&mut m, &Record::Failed { path: e.path, cause: e.cause as u8, text: e.text });
                }
                Err(_) => {}
            }
            if m.len() >= MESSAGE_AIM && !self.send(&mut m, &mut credit) {
                return;
            }
        }
        put(&mut m, &Record::ListEnd);
        self.send(&mut m, &mut credit);
    }
    /// False when nobody listens any more.
    fn send(&self, m: &mut Vec<u8>, credit: &mut u64) -> bool {
        while *credit == 0 {
            match self.credit.recv() {
                Ok(n) => *credit = n,
                Err(_) => return false,
            }
        }
        *credit -= 1;
        let sent = self.out.send(std::mem::take(m)).is_ok();
        (self.wake)();
        sent
    }
    /// An attempt that was killed between giving a file its name and removing its journal left the journal.
    fn tidy(&self, f: &Found) {
        if f.info.kind != Kind::File || f.info.size < JOURNAL_FROM {
            return;
        }
        let (_, base) = &self.roots[f.root as usize];
        let Ok(path) = base.append(&f.path) else { return };
        if let Some((dir, name)) = path.split()
            && let Ok(dir) = self.tree.dir(&dir)
            && dir.info(&part_name(name)).is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound)
        {
            // Mostly there is none.
            let _ = dir.remove(&journal_name(name));
        }
    }
    fn entry(&self, f: &Found) -> Entry {
        let (root, base) = &self.roots[f.root as usize];
        let hash = base.append(&f.path).ok().and_then(|p| match f.info.kind {
            Kind::Link => {
                let (dir, name) = p.split()?;
                let target = self.tree.dir(&dir).ok()?.read_link(name).ok()?;
                Some(*blake3::hash(&target).as_bytes())
            }
            Kind::File if self.hash => self.tree.read_file(&p).and_then(|f| hash_file(&f)).ok(),
            _ => None,
        });
        Entry {
            root: *root,
            path: f.path.clone(),
            kind: f.info.kind,
            size: f.info.size,
            meta: f.info.meta,
            hash,
        }
    }
}
