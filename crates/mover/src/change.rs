//! Makes, removes and renames what a client names (`mkdir`, `rm`, `mv`), beneath the served folder.

use crate::error::{Cause, FileError};
use crate::path::{RelPath, is_reserved};
use crate::pool::Wake;
use crate::proto::{Change, Entry, Kind, Record, put};
use crate::roots::shown;
use crate::sink::list::DemandReceiver;
use crate::thread_state::{Activity, ThreadState};
use crate::tree::{Dir, Info, Tree};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

/// Length of a message.
const MESSAGE_AIM: usize = 32 * 1024;

/// One request. It tells each path that was changed as an entry, and each failure.
pub(crate) struct Changer {
    pub tree: Arc<Tree>,
    pub paths: Vec<RelPath>,
    pub change: Change,
    pub asked: DemandReceiver,
    pub out: SyncSender<Vec<u8>>,
    pub wake: Wake,
    pub thread_state: ThreadState,
}

/// The client has gone.
struct ClientGone;

impl Changer {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system starts no more.
    pub fn spawn(self) -> io::Result<()> {
        std::thread::Builder::new().name("mover-change".into()).spawn(move || self.run()).map(drop)
    }
    fn run(self) {
        let mut m = Vec::new();
        // Err: nobody listens any more; what was done stays done.
        let _ = self.all(&mut m).and_then(|()| {
            put(&mut m, &Record::ListEnd);
            self.send(&mut m)
        });
        self.thread_state.set(Activity::Ended);
        (self.wake)();
    }
    fn all(&self, m: &mut Vec<u8>) -> Result<(), ClientGone> {
        if let (Change::Rename, [from, to]) = (self.change, &self.paths[..]) {
            return self.tell(m, from, self.rename(from, to));
        }
        for p in &self.paths {
            match self.change {
                Change::MakeFolder { parents } => self.tell(m, p, self.make(p, parents))?,
                Change::Remove { recursive } => self.remove(m, p, recursive)?,
                Change::Rename => {}
            }
        }
        Ok(())
    }
    fn send(&self, m: &mut Vec<u8>) -> Result<(), ClientGone> {
        self.thread_state.set(Activity::AwaitsCredit);
        if !self.asked.take() {
            return Err(ClientGone);
        }
        self.thread_state.set(Activity::AwaitsSession);
        let sent = self.out.send(std::mem::take(m)).map_err(|_| ClientGone);
        self.thread_state.set(Activity::Works);
        (self.wake)();
        sent
    }
    fn tell(&self, m: &mut Vec<u8>, p: &RelPath, r: Result<Info, FileError>) -> Result<(), ClientGone> {
        match r {
            Ok(i) => {
                let (kind, size, meta) = (i.kind, i.size, i.meta);
                put(m, &Record::Entry(Entry { root: 0, path: p.clone(), kind, size, meta, hash: None }));
            }
            Err(e) => put(m, &Record::Failed { path: e.path, cause: e.cause as u8, text: e.text }),
        }
        if m.len() >= MESSAGE_AIM { self.send(m) } else { Ok(()) }
    }
    /// The folder that a path lies in, and its last component.
    fn place<'p>(&self, p: &'p RelPath, what: &str) -> Result<(Dir, &'p [u8]), FileError> {
        let Some((dir, name)) = p.split() else {
            let text = format!("cannot {what} the served folder itself");
            return Err(FileError::new(shown(p), Cause::BadPath, text));
        };
        let dir = self.tree.dir(&dir).map_err(|e| failure(p, what, &e))?;
        Ok((dir, name))
    }
    fn make(&self, p: &RelPath, parents: bool) -> Result<Info, FileError> {
        let fail = |e: io::Error| failure(p, "make", &e);
        if parents {
            let mut at = RelPath::root();
            for name in p.components() {
                let dir = self.tree.dir(&at).map_err(fail)?;
                match dir.create_dir(name) {
                    Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(fail(e)),
                    _ => {}
                }
                at = at.join(name).map_err(|e| FileError::of_path(p.as_bytes(), e))?;
            }
            // A file or link in the place of the last is none.
            self.tree.dir(p).map_err(fail)?;
        } else {
            let (dir, name) = self.place(p, "make")?;
            dir.create_dir(name).map_err(fail)?;
        }
        self.tree.info(p).map_err(fail)
    }
    fn rename(&self, from: &RelPath, to: &RelPath) -> Result<Info, FileError> {
        let fail = |e: io::Error| failure(from, "rename", &e);
        let (old, name) = self.place(from, "rename")?;
        let info = old.info(name).map_err(fail)?;
        let into = self.tree.info(to).is_ok_and(|i| i.kind == Kind::Dir);
        let to =
            if into { to.join(name).map_err(|e| FileError::of_path(to.as_bytes(), e))? } else { to.clone() };
        if to == *from || to.is_below(from) {
            return Err(FileError::new(
                from.as_bytes(),
                Cause::BadPath,
                "cannot be renamed to itself or into itself",
            ));
        }
        let (new, new_name) = self.place(&to, "rename to")?;
        old.move_to(name, &new, new_name).map_err(|e| match e.kind() {
            io::ErrorKind::AlreadyExists => {
                FileError::new(to.as_bytes(), Cause::Exists, "exists, and nothing is replaced by a rename")
            }
            _ => fail(e),
        })?;
        Ok(info)
    }
    /// Removes a path; what is in a folder first. Only the names of the folders on the way are held.
    fn remove(&self, m: &mut Vec<u8>, p: &RelPath, recursive: bool) -> Result<(), ClientGone> {
        let first = self.place(p, "remove").and_then(|(dir, name)| {
            let i = dir.info(name).map_err(|e| failure(p, "remove", &e))?;
            if i.kind == Kind::Dir && !recursive {
                return Err(FileError::new(
                    p.as_bytes(),
                    Cause::IsFolder,
                    "is a folder; give -r to remove all in it",
                ));
            }
            Ok((dir, name, i))
        });
        match first {
            Err(e) => self.tell(m, p, Err(e)),
            Ok((dir, name, i)) if i.kind != Kind::Dir => {
                let r = dir.remove(name).map(|()| i).map_err(|e| failure(p, "remove", &e));
                self.tell(m, p, r)
            }
            Ok(_) => self.remove_folder(m, p),
        }
    }
    fn remove_folder(&self, m: &mut Vec<u8>, top: &RelPath) -> Result<(), ClientGone> {
        let mut stack = Vec::new();
        match self.tree.names(top) {
            Ok(n) => stack.push((top.clone(), n.sorted)),
            Err(e) => return self.tell(m, top, Err(failure(top, "read", &e))),
        }
        while let Some((folder, names)) = stack.last_mut() {
            let Some(name) = names.pop() else {
                let folder = folder.clone();
                stack.pop();
                let r = self.place(&folder, "remove").and_then(|(dir, name)| {
                    let fail = |e: io::Error| failure(&folder, "remove", &e);
                    let i = dir.info(name).map_err(fail)?;
                    dir.remove_dir(name).map(|()| i).map_err(fail)
                });
                self.tell(m, &folder, r)?;
                continue;
            };
            // Of an unfinished transfer, perhaps: its folder stays, and says so.
            if is_reserved(&name) {
                continue;
            }
            let Ok(path) = folder.join(&name) else { continue };
            let fail = |e: io::Error| failure(&path, "remove", &e);
            let found = self.tree.dir(folder).and_then(|d| Ok((d.info(&name)?, d)));
            match found {
                Err(e) => self.tell(m, &path, Err(fail(e)))?,
                Ok((i, _)) if i.kind == Kind::Dir => match self.tree.names(&path) {
                    Ok(n) => stack.push((path, n.sorted)),
                    Err(e) => self.tell(m, &path, Err(fail(e)))?,
                },
                Ok((i, dir)) => {
                    let r = dir.remove(&name).map(|()| i).map_err(fail);
                    self.tell(m, &path, r)?;
                }
            }
        }
        Ok(())
    }
}

/// A failure of the system while something was done with a path.
fn failure(p: &RelPath, what: &str, e: &io::Error) -> FileError {
    match e.kind() {
        io::ErrorKind::NotFound => FileError::new(shown(p), Cause::Missing, format!("cannot {what} it: {e}")),
        _ => FileError::io(shown(p), what, e),
    }
}
