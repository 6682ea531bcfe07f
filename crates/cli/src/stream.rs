//! Standard input as a source of `put`; standard output, pipes and devices as the destination of `get`.
//!
//! Both go through a file of their own in the folder for temporary files. So nothing reaches a pipe or a device that was not
//! verified as a whole, in order, and nothing at all when the transfer fails. That costs room for the file there.

use crate::exit::{Code, Failure, Outcome};
use crate::{out, stop};
use mover::path::{RelPath, show};
use mover::tree::Tree;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::{File, Metadata};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;

/// How standard input and output are named.
const STANDARD: &[u8] = b"-";
/// The name of the only file in a folder of its own.
const NAME: &str = "file";
/// Bytes copied at a time.
const BLOCK: usize = 256 * 1024;
/// How often a pipe is looked at that nobody reads yet, and the user's wish to stop.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// Links on the way to a descriptor that are followed, as by the kernel (`path_resolution(7)`).
const MAX_LINKS: usize = 40;

/// A folder for one temporary file; it goes when this is dropped.
pub struct Spool(TempDir);

impl Spool {
    /// An empty one, which only this user can enter.
    pub fn new() -> Outcome<Spool> {
        let made = tempfile::Builder::new().prefix("longhaul-").tempdir();
        made.map(Spool).map_err(|e| no_room(&std::env::temp_dir(), &e))
    }

    /// One with what comes from standard input until its end.
    pub fn of_input() -> Outcome<Spool> {
        let spool = Spool::new()?;
        let (dir, reading) = (spool.0.path().to_owned(), Arc::new(AtomicBool::new(true)));
        let still = reading.clone();
        stop::on_signal(move || {
            if still.load(Ordering::SeqCst) {
                // Nothing else is there to be ended in order.
                let _ = std::fs::remove_dir_all(&dir);
                std::process::exit(Code::Interrupted as i32);
            }
        })?;
        let copied =
            File::create(spool.file()).and_then(|mut file| io::copy(&mut io::stdin().lock(), &mut file));
        reading.store(false, Ordering::SeqCst);
        copied.map_err(|e| no_room(spool.0.path(), &e))?;
        Ok(spool)
    }

    /// Where its file is, or goes.
    pub fn file(&self) -> PathBuf {
        self.0.path().join(NAME)
    }

    /// Its file, when there is one; the folder goes.
    fn take(self) -> io::Result<File> {
        let name = RelPath::parse(NAME.as_bytes()).map_err(io::Error::other)?;
        // Whatever a server made of it, no link is followed.
        Tree::open(self.0.path())?.read_file(&name)
    }
}

fn no_room(at: &Path, e: &io::Error) -> Failure {
    let at = show(at.as_os_str().as_bytes());
    Failure::system(format!(
        "cannot buffer the file in {at}: {e}; try TMPDIR with a folder that has room for it"
    ))
}

/// Where standard input is read from.
pub enum Input {
    /// A file: what stands still in it is sent from where it is.
    File(PathBuf),
    /// What could only be read once is kept in a temporary file.
    Kept {
        /// The file.
        spool: Spool,
        /// It is the same whenever it is sent again: it came from a file, if not from its beginning.
        restartable: bool,
    },
}

impl Input {
    /// Standard input. A file that is read from its beginning is sent from its own place, so that an interrupted transfer goes on.
    pub fn open() -> Outcome<Input> {
        let fail = |e: io::Error| Failure::system(format!("cannot read standard input: {e}"));
        let input = File::from(io::stdin().as_fd().try_clone_to_owned().map_err(fail)?);
        let about = input.metadata().map_err(fail)?;
        if !about.is_file() {
            return Ok(Input::Kept { spool: Spool::of_input()?, restartable: false });
        }
        let at_start = (&input).stream_position().map_err(fail)? == 0;
        if let Some(path) = at_start.then(|| path_of_input(&about)).flatten() {
            return Ok(Input::File(path));
        }
        let spool = Spool::of_input()?;
        // It counts as the same file as long as the one that it came from is.
        let kept = File::options().write(true).open(spool.file());
        let kept = kept.and_then(|f| f.set_modified(about.modified()?));
        kept.map_err(|e| no_room(spool.0.path(), &e))?;
        Ok(Input::Kept { spool, restartable: true })
    }

    /// The file to send.
    pub fn file(&self) -> PathBuf {
        match self {
            Input::File(path) => path.clone(),
            Input::Kept { spool, .. } => spool.file(),
        }
    }

    /// What is said of going on after an interruption, where the command alone does not do that.
    pub fn how_to_resume(&self, command: &str) -> String {
        match self {
            Input::File(path) => {
                let path = crate::client::quoted(path.as_os_str().to_owned());
                format!("to resume: {command} < {path}")
            }
            Input::Kept { restartable: true, .. } => {
                format!("to resume: {command}, with the same input from the same place")
            }
            Input::Kept { .. } => {
                "it cannot be resumed: standard input is a pipe, which can be read once; try a file (put - < FILE)".into()
            }
        }
    }
}

/// The name of the file that standard input is, if it still has the one by which it was opened.
fn path_of_input(about: &Metadata) -> Option<PathBuf> {
    let path = std::fs::read_link("/proc/self/fd/0").ok()?;
    let named = std::fs::symlink_metadata(&path).ok()?;
    (path.is_absolute() && (named.dev(), named.ino()) == (about.dev(), about.ino())).then_some(path)
}

/// Whether sources mean standard input.
pub fn is_input(sources: &[PathBuf], dest: &[u8]) -> Outcome<bool> {
    let standard = |p: &PathBuf| p.as_os_str().as_bytes() == STANDARD;
    match sources {
        _ if !sources.iter().any(standard) => Ok(false),
        [_] if dest.is_empty() || dest.ends_with(b"/") => Err(Failure::usage(
            "cannot send standard input to a folder: it has no name; try a file in the address, as in \
             longhaul://host/folder/name",
        )),
        [_] => Ok(true),
        _ => Err(Failure::usage(
            "cannot send standard input together with other sources: it has no name; try a command of its own (./- \
             is a file named -)",
        )),
    }
}

/// A destination that takes bytes and is no file.
pub struct Stream {
    /// For people.
    shown: String,
    target: Target,
}

enum Target {
    /// This program's standard output.
    Output,
    /// A device, or an open file by its descriptor.
    Open(OwnedFd),
    /// Opened when there is something to be written, since that waits for a reader.
    Pipe(PathBuf),
}

impl Stream {
    /// What `dest` stands for; `None` for a file or folder, there or not.
    pub fn of(dest: &Path) -> Outcome<Option<Stream>> {
        let name = dest.as_os_str().as_bytes();
        if name == STANDARD {
            return Ok(Some(Stream { shown: "standard output".into(), target: Target::Output }));
        }
        let shown = show(name);
        let fail = |e: io::Error| {
            Failure::usage(format!("cannot write to {shown}: {e}; try a file, or - for standard output"))
        };
        let descriptor = is_descriptor(dest);
        let about = match std::fs::metadata(dest) {
            Ok(m) => m,
            Err(e) if descriptor => return Err(fail(e)),
            Err(_) => return Ok(None),
        };
        let t = about.file_type();
        let special = t.is_fifo() || t.is_char_device() || t.is_block_device() || t.is_socket();
        if t.is_dir() || !(special || descriptor) {
            return Ok(None);
        }
        let target = if is_output(&about).map_err(fail)? {
            Target::Output
        } else if t.is_fifo() {
            Target::Pipe(dest.to_owned())
        } else {
            let mut flags = OFlags::WRONLY | OFlags::NOCTTY | OFlags::CLOEXEC;
            // What was written to an open file stays. A disk is written to from its beginning.
            flags.set(OFlags::APPEND, t.is_file());
            Target::Open(rustix::fs::open(dest, flags, Mode::empty()).map_err(|e| fail(e.into()))?)
        };
        Ok(Some(Stream { shown, target }))
    }

    /// Whether standard output is taken, so that nothing else may be said there.
    pub fn takes_output(&self) -> bool {
        matches!(self.target, Target::Output)
    }

    /// Writes the file that was fetched, all of it. `stopped` says that the user wants no more of it.
    pub fn deliver(self, spool: Spool, stopped: &dyn Fn() -> bool) -> Outcome<()> {
        let shown = self.shown;
        let mut from = spool.take().map_err(|e| {
            Failure::new(
                Code::Partial,
                format!("cannot write to {shown}: the server sent no file ({e}); try again"),
            )
        })?;
        let to = match self.target {
            Target::Output if out::is_terminal() => return show_text(from),
            Target::Output => out::descriptor().map_err(|e| errno(&e)),
            Target::Open(fd) => Ok(fd),
            Target::Pipe(path) => open_pipe(&path, stopped),
        };
        match to.and_then(|to| copy(&mut from, &to, stopped)) {
            Ok(()) => Ok(()),
            Err(Errno::CANCELED) => Err(Failure::new(
                Code::Interrupted,
                format!("interrupted before everything was written to {shown}"),
            )),
            // The reader had enough: to whoever looks at both, its own status says why.
            Err(Errno::PIPE) => Err(Failure::new(Code::Partial, "")),
            Err(e) => Err(Failure::system(format!(
                "cannot write everything to {shown}, which holds a part of the file only: {}; try again",
                io::Error::from(e)
            ))),
        }
    }
}

fn errno(e: &io::Error) -> Errno {
    Errno::from_io_error(e).unwrap_or(Errno::IO)
}

/// Shows a file on a terminal: what would steer it is made visible, since a server may have put it there.
fn show_text(from: File) -> Outcome<()> {
    let (mut from, mut line) = (BufReader::new(from), Vec::new());
    loop {
        line.clear();
        let n = (&mut from).take(BLOCK as u64).read_until(b'\n', &mut line).map_err(Failure::system)?;
        if n == 0 {
            return Ok(());
        }
        out::data(&line);
    }
}

/// Opens a pipe as soon as somebody reads from it.
fn open_pipe(path: &Path, stopped: &dyn Fn() -> bool) -> rustix::io::Result<OwnedFd> {
    // Without waiting in the kernel, where no wish to stop is heard.
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    loop {
        match rustix::fs::open(path, flags, Mode::empty()) {
            Err(Errno::NXIO) if stopped() => return Err(Errno::CANCELED),
            Err(Errno::NXIO) => drop(poll(&mut [], Some(&LOOK_EVERY))?),
            r => return r,
        }
    }
}

/// Copies to the end, whether writing waits or not.
fn copy(from: &mut File, to: &OwnedFd, stopped: &dyn Fn() -> bool) -> rustix::io::Result<()> {
    let mut block = vec![0; BLOCK];
    loop {
        let n = from.read(&mut block).map_err(|e| errno(&e))?;
        if n == 0 {
            return Ok(());
        }
        let mut left = &block[..n];
        while !left.is_empty() {
            if stopped() {
                return Err(Errno::CANCELED);
            }
            match rustix::io::write(to, left) {
                Ok(n) => left = &left[n..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    poll(&mut [PollFd::new(to, PollFlags::OUT)], Some(&LOOK_EVERY))?;
                }
                Err(e) => return Err(e),
            }
        }
    }
}

/// Whether it is what standard output is.
fn is_output(about: &Metadata) -> io::Result<bool> {
    let out = rustix::fs::fstat(out::descriptor()?)?;
    Ok((out.st_dev, out.st_ino) == (about.dev(), about.ino()))
}

/// Whether a path ends in a link that stands for an open file (`/dev/stdout`, `/dev/fd/3`), perhaps by way of other links:
/// those of the kernel's `/proc`.
fn is_descriptor(path: &Path) -> bool {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        if !std::fs::symlink_metadata(&path).is_ok_and(|m| m.is_symlink()) {
            return false;
        }
        let above = match path.parent() {
            Some(p) if !p.as_os_str().is_empty() => p.to_owned(),
            _ => PathBuf::from("."),
        };
        if rustix::fs::statfs(&above).is_ok_and(|s| s.f_type == rustix::fs::PROC_SUPER_MAGIC) {
            return true;
        }
        let Ok(target) = std::fs::read_link(&path) else { return false };
        path = above.join(target);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::symlink;

    #[test]
    fn pipes_devices_and_descriptors_are_distinguished_from_files() {
        let d = tempfile::tempdir().unwrap();
        let at = |n: &str| d.path().join(n);
        rustix::fs::mknodat(
            rustix::fs::CWD,
            at("pipe"),
            rustix::fs::FileType::Fifo,
            Mode::RUSR | Mode::WUSR,
            0,
        )
        .unwrap();
        let file = File::create(at("file")).unwrap();
        for (name, target) in
            [("to-pipe", at("pipe")), ("to-null", "/dev/null".into()), ("to-file", at("file"))]
        {
            symlink(target, at(name)).unwrap();
        }
        symlink(format!("/proc/self/fd/{}", file.as_raw_fd()), at("to-open")).unwrap();
        symlink("nowhere", at("broken")).unwrap();
        let target = |p: &Path| {
            Stream::of(p).unwrap().map(|s| match s.target {
                Target::Output => "output",
                Target::Open(_) => "open",
                Target::Pipe(_) => "pipe",
            })
        };
        for (name, want) in [
            ("pipe", Some("pipe")),
            ("to-pipe", Some("pipe")),
            ("to-null", Some("open")),
            ("to-open", Some("open")),
            ("file", None),
            ("to-file", None),
            ("broken", None),
            ("new", None),
            (".", None),
        ] {
            assert_eq!(target(&at(name)), want, "{name}");
        }
        assert_eq!(target(Path::new("-")), Some("output"));
        assert_eq!(target(Path::new("/dev/null")), Some("open"));
        assert_eq!(target(&PathBuf::from(format!("/dev/fd/{}", file.as_raw_fd()))), Some("open"));
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        assert!(Stream::of(&at("socket")).is_err());
    }

    #[test]
    fn standard_input_is_sent_alone_and_needs_a_name() {
        let sources = |v: &[&str]| v.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(is_input(&sources(&["-"]), b"a/b"), Ok(true));
        assert_eq!(is_input(&sources(&["./-", "x"]), b"a/"), Ok(false));
        for (v, dest) in [(&["-"][..], &b""[..]), (&["-"], b"a/"), (&["-", "x"], b"a"), (&["-", "-"], b"a")] {
            assert_eq!(is_input(&sources(v), dest).unwrap_err().code, Code::Usage);
        }
    }
}
