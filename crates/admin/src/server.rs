//! The control socket's server: a thread that accepts, and one for each of a few clients. The loop that moves data
//! only serves its [`request_queue`](crate::request_queue).

use crate::folder::{self, ControlListener, FolderError};
use crate::lines::{LineError, Lines};
use crate::proto::{Answer, FlowId, MAX_REQUEST, Request, line, read_request};
use crate::request_handler::RequestHandler;
use crate::request_queue::RequestQueue;
use base::Span;
use lhio::isolated_thread;
use lhio::peer::Peer;
use lhio::poll::{Poller, Source, Waker};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

/// Clients at a time.
pub const MAX_CLIENTS: usize = 16;
/// A client that asks nothing for this long is left.
const IDLE: Span = Span::from_secs(300);
/// A request that has begun is there within this time.
const REQUEST: Span = Span::from_secs(10);
/// An answer is taken within this time.
const ANSWER: Span = Span::from_secs(10);
/// How often decisions are handed to a watcher.
const TRACE_EVERY: Span = Span::from_millis(25);
/// Pause after the system had no descriptors or threads left.
const SHORTAGE: Span = Span::from_millis(100);

/// A control socket that is being served. It goes with this value.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    stop: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
    /// What the thread uses is closed when it has ended.
    _owned: (Arc<ControlListener>, RequestQueue),
}

impl Server {
    /// Listens in `folder`, for this user, root and the members of `group`.
    ///
    /// # Errors
    /// [`FolderError`].
    pub fn start(folder: &Path, group: Option<u32>, handler: RequestHandler) -> Result<Server, FolderError> {
        let listening = Arc::new(folder::listen(folder, group)?);
        let path = listening.path.clone();
        let no_thread = |source| FolderError::System { what: "serve the socket", path: path.clone(), source };
        let poller = Poller::new().map_err(no_thread)?;
        let (waker, stop) = (poller.waker(), Arc::new(AtomicBool::new(false)));
        let queue = handler.queue.clone();
        let keeps = [listening.socket.as_fd(), waker.as_fd(), queue.as_fd()];
        let (listens, stops, clients) = (listening.clone(), stop.clone(), Arc::default());
        let door = Door { listening: listens, group, handler, stop: stops, clients, poller };
        let thread = isolated_thread::spawn("control", door, &keeps, Door::run).map_err(no_thread)?;
        Ok(Server { path, stop, waker, thread: Some(thread), _owned: (listening, queue) })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
        if let Some(t) = self.thread.take() {
            let _ = t.join();
        }
    }
}

/// Lets clients in.
struct Door {
    listening: Arc<ControlListener>,
    group: Option<u32>,
    handler: RequestHandler,
    stop: Arc<AtomicBool>,
    clients: Arc<AtomicUsize>,
    poller: Poller,
}

/// One of the places for clients, which is free again when this goes.
struct Seat(Arc<AtomicUsize>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Door {
    fn run(mut self) {
        while !self.stop.load(Ordering::Acquire) {
            let pause = match self.listening.socket.accept() {
                Ok((stream, _)) => {
                    self.welcome(stream);
                    continue;
                }
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => None,
                Err(error) => {
                    tracing::debug!(%error, "the control socket takes no client");
                    Some(SHORTAGE)
                }
            };
            let mut sources = [Source::choose(&self.listening.socket, pause.is_none(), false)];
            if let Err(error) = self.poller.wait(&mut sources, pause) {
                tracing::warn!(%error, "the control socket is given up");
                self.listening.withdraw();
                return;
            }
        }
    }

    fn welcome(&self, stream: UnixStream) {
        let turn_away = |stream: UnixStream, why: &str| {
            let errors = vec![why.to_owned()];
            // What does not fit the socket's buffer at once is not worth waiting for.
            let _ = stream.set_nonblocking(true);
            let _ = std::io::Write::write(&mut &stream, &line(&Answer::Refused { errors }));
        };
        match Peer::of(&stream) {
            Ok(peer) if folder::may_control(&peer, self.group) => {}
            Ok(peer) => {
                tracing::warn!(uid = peer.uid, pid = peer.pid, "refused at the control socket");
                self.handler
                    .process_state
                    .record_event("refused", format!("user {} at the control socket", peer.uid));
                return turn_away(
                    stream,
                    "only its own user, root and the control group may ask this process",
                );
            }
            Err(_) => return turn_away(stream, "the system does not tell who you are"),
        }
        if self.clients.fetch_add(1, Ordering::AcqRel) >= MAX_CLIENTS {
            self.clients.fetch_sub(1, Ordering::AcqRel);
            return turn_away(stream, "too many are asking at the same time: try again");
        }
        let seat = Seat(self.clients.clone());
        if stream.set_nonblocking(false).is_err() {
            return;
        }
        let (handler, stop) = (self.handler.clone(), self.stop.clone());
        let serve = move || {
            let _seat = seat;
            let mut session = Session { lines: Lines::new(stream, MAX_REQUEST), handler, stop };
            if let Err(e) = session.run() {
                tracing::debug!("a client of the control socket was left: {e}");
            }
        };
        if let Err(error) = std::thread::Builder::new().name("control client".into()).spawn(serve) {
            tracing::debug!(%error, "no thread for a client of the control socket");
        }
    }
}

/// One client.
struct Session {
    lines: Lines,
    handler: RequestHandler,
    stop: Arc<AtomicBool>,
}

impl Session {
    fn run(&mut self) -> Result<(), LineError> {
        while !self.stop.load(Ordering::Acquire) {
            let text = match self.lines.next(IDLE, REQUEST) {
                Ok(text) => text,
                Err(LineError::Ended) => return Ok(()),
                Err(e) => {
                    let errors = vec![e.to_string()];
                    self.lines.write(&line(&Answer::Refused { errors }), ANSWER)?;
                    return Err(e);
                }
            };
            let answer = match read_request(&text) {
                Ok(Request::Trace { flow: Some(flow), .. }) if self.is_none(flow) => {
                    let text = format!(
                        "cannot trace flow {flow}: there is none of this number; try `longhaul cc show`"
                    );
                    Answer::Refused { errors: vec![text] }
                }
                Ok(Request::Trace { flow, every }) => match self.handler.subscriptions.watch(flow, every) {
                    Some(tap) => {
                        self.handler.queue.wake();
                        return self.follow(&tap);
                    }
                    None => Answer::Refused { errors: vec!["too many watch already: try again".into()] },
                },
                Ok(request) => self.handler.answer(request),
                Err(e) => Answer::Refused { errors: vec![e.to_string()] },
            };
            self.lines.write(&line(&answer), ANSWER)?;
        }
        Ok(())
    }

    /// Whether the process says that it has no such flow; one that lists only some of its flows does not say so.
    fn is_none(&self, flow: FlowId) -> bool {
        let id = flow.to_string();
        match self.handler.answer(Request::Flows) {
            Answer::Flows { flows, left_out: 0 } => !flows.iter().any(|f| f.id == id),
            _ => false,
        }
    }

    /// Hands decisions over until the client hangs up or says anything.
    fn follow(&mut self, tap: &crate::subscriptions::Subscription) -> Result<(), LineError> {
        let mut poller = Poller::new()?;
        while !self.stop.load(Ordering::Acquire) {
            let (decisions, missed) = tap.take();
            let mut bytes = if missed > 0 { line(&Answer::Missed { count: missed }) } else { Vec::new() };
            decisions.into_iter().for_each(|d| bytes.extend(line(&Answer::Decision(d))));
            self.lines.write(&bytes, ANSWER)?;
            let mut sources = [Source::readable(self.lines.stream())];
            poller.wait(&mut sources, Some(TRACE_EVERY))?;
            if sources[0].readable {
                return Ok(());
            }
        }
        Ok(())
    }
}
