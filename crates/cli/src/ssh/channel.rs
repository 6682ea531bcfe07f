//! A running ssh process with longhaul at its other end.

use super::answer::{Answer, NotAnAnswer};
use super::bridge;
use super::command::SshCommand;
use crate::exit::{Failure, Outcome};
use base::text;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use zeroize::Zeroizing;

/// Bytes that a shell may print before the far end says where it is.
const MAX_OTHER_OUTPUT: usize = 64 << 10;
/// Bytes of the answer.
const MAX_ANSWER: usize = 4 << 20;
/// Bytes of a line of standard error that are shown as one.
const MAX_LINE: u64 = 4 << 10;
/// Lines that are held back until it is known whether they only say that the program is missing.
const MAX_HELD: usize = 20;
/// How long it may take until all is known of an end.
const LINGER: Duration = Duration::from_secs(2);

fn locked<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

fn spawn<T: Send + 'static>(name: &str, f: impl FnOnce() -> T + Send + 'static) -> Outcome<()> {
    std::thread::Builder::new().name(name.into()).spawn(f).map(drop).map_err(Failure::no_thread)
}

/// What comes on ssh's standard error is shown, escaped, as it comes.
#[derive(Default)]
struct ErrorOutput {
    /// Lines as of a shell that does not find the program.
    held: Vec<String>,
    /// It has answered: nothing is held back any more.
    answered: bool,
}

/// Shared with the threads that read.
#[derive(Default)]
struct ChannelState {
    /// The far end says nothing any more.
    ended: bool,
    /// Where bytes go that come through ssh.
    to: Option<Arc<TcpStream>>,
    on_end: Option<Box<dyn Fn() + Send>>,
}

/// ssh, with the far end behind it. The far end ends with it.
pub struct Channel {
    stdin: Mutex<Option<ChildStdin>>,
    state: Arc<Mutex<ChannelState>>,
    process: Process,
}

/// A process whose end is waited for.
pub struct Process {
    pid: Option<rustix::process::Pid>,
    exited: Receiver<ExitStatus>,
    said: Arc<Mutex<ErrorOutput>>,
    /// Standard error has come to its end.
    stderr_closed: Receiver<()>,
    status: Mutex<Option<ExitStatus>>,
}

/// Why there was no answer.
pub struct StartFailure {
    /// How ssh ended, if it did.
    pub status: Option<ExitStatus>,
    /// The shell there does not find the program.
    pub missing: bool,
    /// What came instead, in lines fit to be shown.
    pub noise: Vec<String>,
    /// What is wrong with the answer, if it did not just stay away.
    pub unusable: Option<String>,
}

impl Process {
    /// Waits for its end, and shows what it says on standard error.
    pub fn watch(mut child: Child) -> Outcome<(Process, Option<ChildStdin>, Option<ChildStdout>)> {
        let pid = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let said = Arc::new(Mutex::new(ErrorOutput::default()));
        let (all, stderr_closed) = sync_channel(1);
        if let Some(err) = child.stderr.take() {
            let said = said.clone();
            spawn("ssh-errors", move || {
                forward_errors(err, &said);
                let _ = all.send(()); // nobody may wait for it
            })?;
        }
        let (tx, exited) = sync_channel(1);
        spawn("ssh-end", move || child.wait().map(|s| tx.send(s)))?;
        Ok((Process { pid, exited, said, stderr_closed, status: Mutex::default() }, stdin, stdout))
    }

    /// How it ended, if it does so soon.
    fn status(&self) -> Option<ExitStatus> {
        let mut status = locked(&self.status);
        if status.is_none() {
            *status = self.exited.recv_timeout(LINGER).ok();
        }
        *status
    }

    /// The far end has answered: all that is said is shown.
    pub fn answered(&self) {
        let mut said = locked(&self.said);
        said.answered = true;
        said.held.drain(..).for_each(|l| err_line!("{l}"));
    }

    /// How it ended; what it said is shown, but not that the program is missing, which is returned.
    pub fn end(&self) -> (Option<ExitStatus>, bool) {
        let status = self.status();
        // Another process that has inherited it may keep it open, as a master of shared connections does.
        let _ = self.stderr_closed.recv_timeout(LINGER / 4);
        let held = std::mem::take(&mut locked(&self.said).held);
        let of_shell = |l: &String| l.contains("ommand not found") || l.contains("Unknown command");
        let code = status.and_then(|s| s.code());
        let missing = code == Some(127) || code != Some(255) && held.iter().any(of_shell);
        if !missing {
            held.iter().for_each(|l| err_line!("{l}"));
        }
        (status, missing)
    }

    /// Ends it.
    pub fn kill(&self) {
        if let (Some(pid), true) = (self.pid, self.exited.try_recv().is_err()) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM); // it may be gone
        }
    }
}

/// Runs a short command at the other end, with `input`; how it ended and what it printed.
pub fn run(c: &SshCommand, command: &str, input: Option<std::fs::File>) -> Outcome<(StartFailure, Vec<u8>)> {
    let child = start(c, command, input.map_or_else(Stdio::null, Stdio::from))?;
    let (process, _, stdout) = Process::watch(child)?;
    let mut out = Vec::new();
    if let Some(s) = stdout {
        s.take(MAX_OTHER_OUTPUT as u64).read_to_end(&mut out).map_err(Failure::system)?;
    }
    let (status, missing) = process.end();
    Ok((StartFailure { status, missing, noise: last_lines(&out), unusable: None }, out))
}

/// Starts a command at the other end.
pub fn start(c: &SshCommand, command: &str, input: Stdio) -> Outcome<Child> {
    let mut command = c.command(command);
    command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().map_err(|e| {
        let p = text::name(c.program().as_bytes());
        Failure::usage(format!("cannot start {p}: {e}; try to install it, or another command with --rsh"))
    })
}

impl Channel {
    /// Starts the far end, and waits until it has answered or failed, however long the user takes to let ssh in.
    pub fn open(c: &SshCommand, command: &str) -> Outcome<Result<(Channel, Answer), StartFailure>> {
        let child = start(c, command, Stdio::piped())?;
        let (process, stdin, stdout) = Process::watch(child)?;
        let Some(mut out) = stdout else {
            return Err(Failure::system("cannot use ssh: it has no standard output; try again"));
        };
        match read_answer(&mut out) {
            Ok(answer) => {
                process.answered();
                let state = Arc::new(Mutex::new(ChannelState::default()));
                let shared = state.clone();
                spawn("ssh", move || forward_output(out, &shared))?;
                Ok(Ok((Channel { stdin: Mutex::new(stdin), state, process }, answer)))
            }
            Err((noise, unusable)) => {
                // So that what waits there does not wait for more.
                drop((stdin, out));
                let (status, missing) = process.end();
                process.kill();
                Ok(Err(StartFailure { status, missing, noise, unusable }))
            }
        }
    }

    /// Calls `f` when the far end is gone, perhaps at once; instead of what was to be called before.
    pub fn on_end(&self, f: impl Fn() + Send + 'static) {
        let mut s = locked(&self.state);
        if s.ended {
            f();
        }
        s.on_end = Some(Box::new(f));
    }

    /// Whether the far end is gone.
    pub fn has_ended(&self) -> bool {
        locked(&self.state).ended
    }

    /// How ssh ended, if it does so soon.
    pub fn status(&self) -> Option<ExitStatus> {
        self.process.status()
    }

    /// Has the far end take iWARP through this channel, once. Where to connect to for that.
    pub fn bridge(&self) -> io::Result<SocketAddr> {
        if self.has_ended() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut stdin = locked(&self.stdin).take().ok_or(io::ErrorKind::BrokenPipe)?;
        stdin.write_all(bridge::BRIDGE)?;
        let (listener, at) = bridge::listen()?;
        let state = self.state.clone();
        let pass = move || -> io::Result<()> {
            let stream = Arc::new(bridge::accept(&listener)?);
            let mut s = locked(&state);
            if s.ended {
                return Ok(()); // whoever has connected is told by the reset
            }
            s.to = Some(stream.clone());
            drop(s);
            // The pipe is closed when the connection is over, which ends the far end.
            bridge::copy(&*stream, stdin)
        };
        std::thread::Builder::new().name("to-ssh".into()).spawn(pass)?;
        Ok(at)
    }
}

impl Drop for Channel {
    /// Ends the far end.
    fn drop(&mut self) {
        drop(locked(&self.stdin).take());
        let (tx, ended) = sync_channel(1);
        self.on_end(move || {
            let _ = tx.try_send(()); // once is enough
        });
        // A master of connections that others share stays when its own has ended.
        if ended.recv_timeout(LINGER).is_err() {
            self.process.kill();
        }
    }
}

/// Reads until the answer. Without one: the lines that came instead, and what is wrong with what began as the answer does.
fn read_answer(out: &mut ChildStdout) -> Result<Answer, (Vec<String>, Option<String>)> {
    let (mut all, mut begin) = (Zeroizing::new(Vec::with_capacity(4 << 10)), 0);
    let mut block = Zeroizing::new([0; 4 << 10]);
    loop {
        let n = match out.read(&mut *block) {
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => 0,
        };
        if n == 0 {
            return Err((last_lines(&all), None));
        }
        all.extend_from_slice(block.get(..n).unwrap_or_default());
        while let Some(len) = all.get(begin..).and_then(|rest| rest.iter().position(|b| *b == b'\n')) {
            let line = all.get(begin..begin + len).unwrap_or_default();
            match Answer::parse(line) {
                Ok(a) => return Ok(a),
                Err(NotAnAnswer::OtherOutput) => {}
                Err(NotAnAnswer::Unusable(why)) => {
                    return Err((last_lines(all.get(..begin).unwrap_or_default()), Some(why)));
                }
            }
            begin += len + 1;
        }
        if begin > MAX_OTHER_OUTPUT || all.len() - begin > MAX_ANSWER {
            let why = format!("more than {} KiB came before one", MAX_OTHER_OUTPUT >> 10);
            return Err((last_lines(&all), Some(why)));
        }
    }
}

/// The last lines of what somebody printed, fit to be shown.
pub fn last_lines(all: &[u8]) -> Vec<String> {
    const LAST: usize = 5;
    const LONGEST: usize = 200;
    let lines: Vec<&[u8]> = all.split(|b| *b == b'\n').filter(|l| !l.trim_ascii().is_empty()).collect();
    let last = lines.iter().skip(lines.len().saturating_sub(LAST));
    last.map(|l| text::line_of(l.get(..LONGEST).unwrap_or(l))).collect()
}

/// Passes on what comes through ssh, until its end.
fn forward_output(out: ChildStdout, state: &Mutex<ChannelState>) {
    struct To<'a>(&'a Mutex<ChannelState>);
    impl io::Write for To<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let to = locked(self.0).to.clone();
            // A connection that is over takes nothing more; the end of the channel is waited for all the same.
            if let Some(to) = to {
                let _ = (&*to).write_all(bytes);
            }
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let _ = bridge::copy(out, To(state)); // an error is an end
    let mut s = locked(state);
    s.ended = true;
    if let Some(to) = s.to.take() {
        // Nothing that is still to be sent can arrive: when the thread that reads from it lets go as well, the connection is reset.
        let _ = to.shutdown(std::net::Shutdown::Both); // it may have ended already
    }
    if let Some(f) = &s.on_end {
        f();
    }
}

fn forward_errors(err: ChildStderr, said: &Mutex<ErrorOutput>) {
    let mut err = BufReader::new(err);
    let mut line = Vec::new();
    while let Ok(1..) = (&mut err).take(MAX_LINE).read_until(b'\n', &mut line) {
        let text = text::line_of(line.trim_ascii_end());
        line.clear();
        let mut s = locked(said);
        let absent = ["not found", "Unknown command", "No such file"].iter().any(|w| text.contains(w));
        if absent && !s.answered && s.held.len() < MAX_HELD {
            s.held.push(text);
        } else {
            drop(s);
            err_line!("{text}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_lines_of_shell_output_are_shown() {
        assert_eq!(last_lines(b"\n  \nHello\x1b[2J\r\nlast"), ["Hello\\x1b[2J\\r", "last"]);
        let many: String = (0..50).map(|n| format!("{n}\n")).collect();
        assert_eq!(last_lines(many.as_bytes()), ["45", "46", "47", "48", "49"]);
        assert_eq!(last_lines(&[b'x'; 999])[0].len(), 200);
    }
}
