//! A copy whose source is reached by ssh: the client starts `longhaul serve --over-ssh copy -- PATH...` there, says through ssh's
//! channel where to send to and by which key, and hears in lines how far it is.
//!
//! ```text
//! client -> source   longhaul-copy 1 HEX HEX ...     a request for each address at which the destination may be
//! source -> client   longhaul-copy 1 HEX             status and failures; at last the end
//! ```
//!
//! HEX is a message of the file mover. The key never is on a command line, where others could see it.

use super::args::SshOptions;
use super::bootstrap;
use super::channel::{self, Process, StartFailure};
use super::command::{SshCommand, remote_command};
use super::location::Remote;
use super::resolve::resolve;
use super::session::{RemoteSession, explain, remote_program, shared_options};
use crate::args::{AdminOptions, BandwidthOptions, Wire};
use crate::copy_jobs::Runner;
use crate::exit::{Code, Failure, Outcome};
use crate::show::{Display, ShowAs};
use crate::{out, setup, stop};
use lhio::clock::Clock;
use mover::proto::{CopyMessage, CopyRequest, JobPhase, Op, Record, SecretSeed, decode, put};
use mover::{CopyJob, CopyPlan, CopyRunner as _, CopyWatch, Summary, TransferOptions, Wake};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{ChildStdout, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use transport::crypto::Fingerprint;
use zeroize::Zeroizing;

/// What each line begins with.
const MARK: &str = "longhaul-copy 1 ";
/// Bytes of a line at most: a message of the mover in hexadecimal, for each of a few addresses.
const MAX_LINE: u64 = 4 * (2 * mover::proto::MAX_MESSAGE as u64 + 16);
/// Bytes that a shell may print before the far end speaks.
const MAX_OTHER_OUTPUT: usize = 64 << 10;
/// How often the client is told.
const TELL_EVERY: Duration = Duration::from_millis(250);

/// What is wanted of the machine that sends.
pub struct RemoteCopyRequest<'a> {
    /// Which machine.
    pub remote: &'a Remote,
    /// Paths there.
    pub paths: &'a [Vec<u8>],
    /// How to get there.
    pub over: &'a SshOptions,
    /// What packets look like.
    pub wire: &'a Wire,
    /// Where the destination may be.
    pub addresses: &'a [SocketAddr],
    /// Of its key.
    pub fingerprint: Fingerprint,
    /// Of the key that it lets in.
    pub seed: &'a [u8; 32],
    /// The path there.
    pub dest: &'a [u8],
    /// How files are compared.
    pub transfer: TransferOptions,
    /// The far end of the destination, if ssh has started it: when it is gone, there is nothing to wait for.
    pub link: Option<&'a RemoteSession>,
}

/// What came of it.
pub struct RemoteCopyResult {
    /// What was done.
    pub summary: Summary,
    /// The user wanted it to stop.
    pub by_user: bool,
    /// The destination was found at none of its addresses.
    pub unreached: bool,
}

fn to_line(messages: &[Vec<u8>]) -> Zeroizing<String> {
    let hex = |m: &Vec<u8>| m.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let words: Vec<Zeroizing<String>> = messages.iter().map(|m| Zeroizing::new(hex(m))).collect();
    let room = MARK.len() + words.iter().map(|w| w.len() + 1).sum::<usize>() + 1;
    let mut line = Zeroizing::new(String::with_capacity(room));
    line.push_str(MARK.trim_end());
    for w in &words {
        line.push(' ');
        line.push_str(w);
    }
    line.push('\n');
    line
}

/// The messages of a line about copies; `None` of another line.
fn parse_line(line: &[u8]) -> Option<Vec<CopyMessage>> {
    let text = core::str::from_utf8(line).ok()?.trim_end_matches(['\r', '\n']);
    let mut all = Vec::new();
    for word in text.strip_prefix(MARK)?.split(' ') {
        let byte = |i: usize| word.get(i..i + 2).and_then(|h| u8::from_str_radix(h, 16).ok());
        let bytes: Option<Vec<u8>> = (0..word.len()).step_by(2).map(byte).collect();
        for r in decode(&bytes?).ok()? {
            let Record::Copy(m) = r else { return None };
            all.push(m);
        }
    }
    Some(all)
}

fn message(m: CopyMessage) -> Vec<u8> {
    let mut bytes = Vec::new();
    put(&mut bytes, &Record::Copy(m));
    bytes
}

/// Has the machine send, and watches it.
///
/// # Errors
/// ssh's failures, or that the program cannot be started there.
pub fn copy_from(asked: &RemoteCopyRequest<'_>, quiet: bool) -> Outcome<RemoteCopyResult> {
    let connecting = SshCommand::new(asked.over, asked.remote)?;
    let host = asked.remote.host();
    let program = remote_program(asked.over);
    let line = remote_command(&program, "copy", None, &shared_options(asked.wire), asked.paths)?;
    let mut requests = Vec::new();
    for to in asked.addresses {
        let put = CopyPlan::put(asked.dest, asked.paths.len(), &asked.transfer).map_err(Failure::usage)?;
        let (fingerprint, seed) = (*asked.fingerprint.as_bytes(), SecretSeed(*asked.seed));
        let r = CopyRequest { put, sources: Vec::new(), to: *to, fingerprint, seed };
        requests.push(message(CopyMessage::Start(Box::new(r))));
    }
    let request = to_line(&requests);
    let mut heard = run_copy(&connecting, &line, &request, (asked.link, quiet))?;
    if asked.over.bootstrap && heard.as_ref().is_err_and(|n| n.missing) {
        bootstrap::copy(&connecting, host)?;
        heard = run_copy(&connecting, &line, &request, (asked.link, quiet))?;
    }
    heard.map_err(|n| explain(&n, host, &program, asked.over.bootstrap))
}

/// Starts the far end and listens until it has said all.
fn run_copy(
    c: &SshCommand,
    command: &str,
    request: &str,
    (link, quiet): (Option<&RemoteSession>, bool),
) -> Outcome<Result<RemoteCopyResult, StartFailure>> {
    let (process, stdin, stdout) = Process::watch(channel::start(c, command, Stdio::piped())?)?;
    let (Some(mut stdin), Some(stdout)) = (stdin, stdout) else {
        return Err(Failure::system("cannot use ssh: it has no pipes; try again"));
    };
    // One that is gone already is found so by what it says.
    let _ = stdin.write_all(request.as_bytes());
    let watch = CopyWatch::default();
    let stdin = Arc::new(Mutex::new(Some(stdin)));
    let closing = stdin.clone();
    // The far end stops when its channel ends.
    let close = move || drop(closing.lock().unwrap_or_else(PoisonError::into_inner).take());
    if let Some(link) = link {
        link.on_end(close.clone());
    }
    let by_user = stop::on_signal(close)?;
    let display = Display::start(&watch.progress(), ShowAs::text_unless(quiet))?;
    let listened = read_status(stdout, &watch, &process);
    display.end();
    drop(stdin.lock().unwrap_or_else(PoisonError::into_inner).take());
    let by_user = by_user.load(Ordering::SeqCst);
    let (ended, noise) = listened;
    if !ended && watch.jobs().is_empty() && !by_user {
        let (status, missing) = process.end();
        process.kill();
        return Ok(Err(StartFailure { status, missing, noise, unusable: None }));
    }
    let error = match ended {
        true => watch.result(),
        false if by_user => Some(mover::Error::Interrupted),
        false => {
            Some(mover::Error::Connection { text: "ssh's connection to it has ended".into(), code: None })
        }
    };
    let nothing = watch.jobs().first().is_none_or(|j| j.bytes_sent == 0 && j.files_confirmed == 0);
    let unreached = ended && nothing && matches!(error, Some(mover::Error::Connection { code: None, .. }));
    watch.finish(error, 0, false);
    let summary = watch
        .progress()
        .outcome()
        .ok_or_else(|| Failure::system("cannot tell how the copy went: it has no result; try again"))?;
    Ok(Ok(RemoteCopyResult { summary, by_user, unreached }))
}

/// Whether the far end has said all; and what somebody else has printed.
fn read_status(out: ChildStdout, watch: &CopyWatch, process: &Process) -> (bool, Vec<String>) {
    let mut out = BufReader::new(out);
    let (mut line, mut noise) = (Vec::new(), Vec::new());
    while let Ok(1..) = (&mut out).take(MAX_LINE).read_until(b'\n', &mut line) {
        match parse_line(&line) {
            Some(messages) => {
                process.answered();
                if messages.iter().any(|m| watch.hear(m) == Some(true)) {
                    return (true, Vec::new());
                }
            }
            None if noise.len() < MAX_OTHER_OUTPUT => noise.extend_from_slice(&line),
            None => {}
        }
        line.clear();
    }
    (false, channel::last_lines(&noise))
}

/// The far end: sends `paths` as the client says on standard input.
///
/// # Errors
/// What is wrong with the request. How the copy itself went is told through the channel.
pub fn send(paths: &[Vec<u8>], here: &std::path::Path, wire: &Wire) -> Outcome<()> {
    let home = std::env::var_os("HOME").filter(|h| !h.is_empty()).map(PathBuf::from);
    let found = resolve(Op::Get, paths, here, home.as_deref())?;
    let contents = |p: &Vec<u8>| matches!(p.rsplit(|b| *b == b'/').next(), Some(b"" | b"." | b".."));
    let sources: Vec<_> = found.names()?.into_iter().zip(found.paths.iter().map(contents)).collect();
    let requests = read_requests()?;
    let options = setup::options(wire, None, None);
    let runner = Runner {
        wire: wire.clone(),
        options,
        bandwidth: BandwidthOptions::default(),
        admin: AdminOptions::default(),
        state: PathBuf::from("/nonexistent"),
    };
    let channel = Arc::new(StdinWatch::default());
    channel.clone().listen()?;
    let stopping = channel.clone();
    stop::on_signal(move || stopping.end())?;
    let last = requests.len();
    for (n, r) in requests.into_iter().enumerate() {
        let r = CopyRequest { sources: sources.clone(), ..r };
        if send_to(r, &found.root, &runner, &channel, n + 1 == last)? {
            break;
        }
    }
    Ok(())
}

/// The requests that the client sends first of all.
fn read_requests() -> Outcome<Vec<CopyRequest>> {
    let mut line = Zeroizing::new(Vec::new());
    let mut byte = [0];
    // Byte by byte: what is behind it is not ours.
    let mut input = std::fs::File::from(
        std::os::fd::AsFd::as_fd(&std::io::stdin()).try_clone_to_owned().map_err(Failure::system)?,
    );
    while (line.len() as u64) < MAX_LINE && input.read(&mut byte).map_err(Failure::system)? == 1 {
        line.push(byte[0]);
        if byte[0] == b'\n' {
            break;
        }
    }
    let all = parse_line(&line).unwrap_or_default();
    let requests: Vec<CopyRequest> =
        all.into_iter().filter_map(|m| if let CopyMessage::Start(r) = m { Some(*r) } else { None }).collect();
    if requests.is_empty() {
        return Err(Failure::usage(
            "cannot copy: no request came through ssh; try the same version of longhaul at both ends",
        ));
    }
    Ok(requests)
}

/// Whether that was all; else the next address may be tried.
fn send_to(
    r: CopyRequest,
    root: &std::path::Path,
    runner: &Runner,
    channel: &StdinWatch,
    last: bool,
) -> Outcome<bool> {
    let (news, has_news) = sync_channel(1);
    let wake: Wake = Arc::new(move || {
        let _ = news.try_send(()); // one is enough
    });
    let what = format!("to {}", r.to);
    let clock = Clock::new();
    let begun = clock.now();
    let job = CopyJob::alone(root, r, wake).map_err(Failure::usage)?;
    channel.set(&job);
    runner.start(job.clone()).map_err(Failure::system)?;
    // At once, for who waits; then now and then.
    let (mut attempt, mut told, mut wait) = (1, 0, Duration::ZERO);
    loop {
        let _ = has_news.recv_timeout(std::mem::replace(&mut wait, TELL_EVERY)); // with news or without
        let s = job.status(1, what.clone(), clock.now().since(begun).as_nanos());
        let ended = s.phase == JobPhase::Ended;
        let unreached =
            s.bytes_sent == 0 && matches!(s.error, Some(mover::Error::Connection { code: None, .. }));
        if ended && unreached && !last && !job.cancelled() {
            return Ok(false);
        }
        if s.attempt != attempt {
            (attempt, told) = (s.attempt, 0);
        }
        let failures = job.failures(told);
        told += failures.len();
        let mut all = vec![message(CopyMessage::Status(Box::new(s)))];
        all.extend(
            failures
                .into_iter()
                .map(|e| message(CopyMessage::Failed { path: e.path, cause: e.cause as u8, text: e.text })),
        );
        if ended {
            all.push(message(CopyMessage::End));
        }
        for m in all {
            write_message(&m)?;
        }
        if ended {
            return Ok(true);
        }
    }
}

fn write_message(m: &Vec<u8>) -> Outcome<()> {
    // At the start of a line, whatever a shell has printed.
    let line = [b"\n", to_line(std::slice::from_ref(m)).as_bytes()].concat();
    let mut out = std::fs::File::from(out::descriptor().map_err(Failure::system)?);
    out.write_all(&line)
        .map_err(|e| Failure::new(Code::Interrupted, format!("cannot answer through ssh: {e}")))
}

/// ssh's channel at the far end: what runs stops with it.
#[derive(Default)]
struct StdinWatch {
    job: Mutex<Option<CopyJob>>,
    over: AtomicBool,
}

impl StdinWatch {
    fn job(&self) -> std::sync::MutexGuard<'_, Option<CopyJob>> {
        self.job.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is stopped at the end, perhaps at once.
    fn set(&self, job: &CopyJob) {
        *self.job() = Some(job.clone());
        if self.over.load(Ordering::SeqCst) {
            job.cancel();
        }
    }

    fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
        if let Some(job) = &*self.job() {
            job.cancel();
        }
    }

    fn listen(self: Arc<StdinWatch>) -> Outcome<()> {
        let hear = move || {
            let mut rest = std::io::stdin().lock();
            let _ = std::io::copy(&mut rest, &mut std::io::sink()); // an error is an end
            self.end();
        };
        std::thread::Builder::new().name("from-ssh".into()).spawn(hear).map(drop).map_err(Failure::no_thread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn requests_and_status_round_trip() {
        let plan = CopyPlan::new(&[b"a b/".to_vec()], b"\xff\n", &TransferOptions::default()).unwrap();
        let to = "[2001:db8::1]:7".parse().unwrap();
        let r = CopyRequest {
            put: plan.put,
            sources: Vec::new(),
            to,
            fingerprint: [1; 32],
            seed: SecretSeed([2; 32]),
        };
        let all = vec![CopyMessage::Start(Box::new(r)), CopyMessage::End];
        let line = to_line(&all.iter().cloned().map(message).collect::<Vec<_>>());
        assert_eq!(line.lines().count(), 1);
        assert_eq!(parse_line(line.as_bytes()).unwrap(), all);
        assert!(!format!("{all:?}").contains("2, 2, 2"), "the secret is shown");
        for other in ["", "Welcome!\n", "longhaul-copy 2 00\n", "longhaul-copy 1 0\n", "longhaul-copy 1 zz\n"]
        {
            assert_eq!(parse_line(other.as_bytes()), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn any_line_is_read_without_panic(s in "\\PC{0,80}", bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
            for text in [s.as_bytes(), &bytes, format!("{MARK}{hex}").as_bytes(), format!("{MARK}{s}").as_bytes()] {
                let _ = parse_line(text);
            }
        }
    }
}
