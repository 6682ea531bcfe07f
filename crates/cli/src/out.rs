//! Standard output and standard error. Everything that the program says goes through here, and `cargo xtask layers` sees to
//! that: what others have written (names of files, words of peers) steers no terminal, and no write that fails is a panic.
//!
//! The first failed write to standard output ends all further ones. A closed pipe is no failure: its reader has had enough.
//! Any other is said on standard error at once, and makes a command that did all it should end with [`Code::System`].

use crate::exit::{Code, Failure, Outcome};
use base::text;
use std::fmt::Arguments;
use std::io::{self, IsTerminal as _};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// One line on standard output, whatever stands in it.
macro_rules! out_line {
    ($($arg:tt)*) => { $crate::out::line(format_args!($($arg)*)) };
}
/// Text of lines on standard output, as it is: the last one needs its end.
macro_rules! out_text {
    ($($arg:tt)*) => { $crate::out::text(format_args!($($arg)*)) };
}
/// One line on standard error, whatever stands in it.
macro_rules! err_line {
    ($($arg:tt)*) => { $crate::out::error_line(format_args!($($arg)*)) };
}
/// Lines on standard error; the end of the last one is added.
macro_rules! err_lines {
    ($($arg:tt)*) => { $crate::out::error_lines(format_args!($($arg)*)) };
}
/// Nothing more is written to standard output.
static GONE: AtomicBool = AtomicBool::new(false);
/// It was a failure, and not that the reader had enough.
static FAILED: AtomicBool = AtomicBool::new(false);
/// Lines of several threads do not mix.
static WRITING: Mutex<()> = Mutex::new(());

/// Only errors are wanted.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Whether only errors are to be said, from now on.
pub fn set_quiet(quiet: bool) {
    QUIET.store(quiet, Ordering::Relaxed);
}

/// Whether the user wants to hear of errors only.
pub fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// One line on standard output.
pub fn line(a: Arguments<'_>) {
    write_out(format!("{}\n", text::line(&a.to_string())).as_bytes());
}

/// Lines on standard output.
pub fn text(a: Arguments<'_>) {
    write_out(text::lines(&a.to_string()).as_bytes());
}

/// A value as JSON in a line on standard output. What is hidden in its strings is escaped, so that it means the same.
pub fn json(value: &impl serde::Serialize) {
    match serde_json::to_string(value) {
        Ok(s) => write_out(format!("{}\n", text::json(&s)).as_bytes()),
        // Only maps with keys that are no text have no such form; ours have none.
        Err(e) => error_line(format_args!("longhaul: cannot write the result as JSON: {e}")),
    }
}

/// Somebody's bytes on standard output: as they are, but on a terminal as text that steers nothing.
pub fn data(bytes: &[u8]) {
    if is_terminal() {
        text(format_args!("{}", String::from_utf8_lossy(bytes)));
    } else {
        write_out(bytes);
    }
}

/// Standard output itself, for contents of files.
///
/// # Errors
/// The system's.
pub fn descriptor() -> io::Result<OwnedFd> {
    io::stdout().as_fd().try_clone_to_owned()
}

/// Lines that take the place of those shown before, where standard output is a terminal.
pub fn redraw(lines: &str) {
    /// Clears a terminal, and goes to its first place (ECMA-48, ED and CUP).
    const CLEAR: &str = "\x1b[2J\x1b[H";
    let clear = if is_terminal() { CLEAR } else { "" };
    write_out(format!("{clear}{}", text::lines(lines)).as_bytes());
}

/// One line on standard error.
pub fn error_line(a: Arguments<'_>) {
    write_err(format!("{}\n", text::line(&a.to_string())).as_bytes());
}

/// Lines on standard error.
pub fn error_lines(a: Arguments<'_>) {
    write_err(format!("{}\n", text::lines(&a.to_string())).as_bytes());
}

/// A question on standard error, whose line the answer ends.
pub fn ask(question: &str) {
    write_err(text::lines(question).as_bytes());
}

/// Help and version, with what styles them, or what is wrong with the command line.
pub fn command_line(e: &clap::Error) {
    let said = e.render();
    if e.use_stderr() {
        // Words of the command line stand in it, and a shell may have put in names of files.
        write_err(text::lines(&said.to_string()).as_bytes());
    } else if is_terminal() {
        write_out(said.ansi().to_string().as_bytes());
    } else {
        write_out(said.to_string().as_bytes());
    }
}

/// Whether standard output is a terminal.
pub fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Whether standard error is.
pub fn error_is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Whether writing to standard output leads nowhere any more: what does nothing else can end.
pub fn is_gone() -> bool {
    GONE.load(Ordering::Relaxed)
}

/// What comes of a command: success is none, when its output was lost.
pub fn checked(done: Outcome<()>) -> Outcome<()> {
    if done.is_ok() && FAILED.load(Ordering::Relaxed) {
        return Err(Failure::new(Code::System, "")); // said when it happened
    }
    done
}

/// For the log, whose lines are made fit to be shown by [`crate::log`].
pub struct Log;

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        write_err(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_out(bytes: &[u8]) {
    if is_gone() {
        return;
    }
    let written = write_all(&io::stdout(), bytes);
    let Err(e) = written else { return };
    if GONE.swap(true, Ordering::Relaxed) || e == rustix::io::Errno::PIPE {
        return;
    }
    FAILED.store(true, Ordering::Relaxed);
    let way_out = match e {
        rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT => "try again when there is space",
        _ => "try to redirect it elsewhere",
    };
    let e = io::Error::from(e);
    error_line(format_args!("longhaul: cannot write to standard output: {e}; {way_out}"));
}

/// Nobody can be told of a failure.
fn write_err(bytes: &[u8]) {
    let _ = write_all(&io::stderr(), bytes);
}

/// Past the buffers of the standard library, which panic and keep what was not written.
fn write_all(to: &impl AsFd, mut bytes: &[u8]) -> rustix::io::Result<()> {
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::io::Errno;
    let _one = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    while !bytes.is_empty() {
        match rustix::io::write(to, bytes) {
            Ok(0) => return Err(Errno::IO),
            Ok(n) => bytes = &bytes[n.min(bytes.len())..],
            Err(Errno::INTR) => {}
            // Whoever shares the terminal or the pipe may have made it so.
            Err(Errno::AGAIN) => match poll(&mut [PollFd::new(to, PollFlags::OUT)], None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(e),
            },
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
