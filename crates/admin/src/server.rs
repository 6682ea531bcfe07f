//! The control socket's server: a thread that accepts clients, and a thread for each client. They hand requests to the loop
//! that moves data through the [`request_queue`](crate::request_queue), so that no client can block it.

use crate::folder::{self, ControlListener, FolderError};
use crate::lines::{LineError, Lines};
use crate::proto::{FlowId, MAX_REQUEST, Request, Response, line, read_request};
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

/// Most clients at a time.
pub const MAX_CLIENTS: usize = 16;
/// Time without a request after which a client is disconnected.
const IDLE_TIMEOUT: Span = Span::from_secs(300);
/// Time from the first byte of a request to its last.
const REQUEST_TIMEOUT: Span = Span::from_secs(10);
/// Time in which a client must have read a response.
const RESPONSE_TIMEOUT: Span = Span::from_secs(10);
/// Interval at which decisions are sent to a client that follows a trace.
const TRACE_INTERVAL: Span = Span::from_millis(25);
/// Time until the next try after the system failed to accept a client, for example for lack of descriptors.
const ACCEPT_RETRY: Span = Span::from_millis(100);

/// A control socket that is being served; dropping this removes it and ends its thread.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    stop: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
    /// What the thread uses as borrowed descriptors, which must stay open until it has ended.
    _kept_open: (Arc<ControlListener>, RequestQueue),
}

impl Server {
    /// Creates a socket in `folder` and serves it to this user, root and the members of `group`.
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
        let acceptor = Acceptor { listening: listens, group, handler, stop: stops, clients, poller };
        let thread = isolated_thread::spawn("control", acceptor, &keeps, Acceptor::run).map_err(no_thread)?;
        Ok(Server { path, stop, waker, thread: Some(thread), _kept_open: (listening, queue) })
    }

    /// The path of the socket.
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

/// The thread that accepts clients.
struct Acceptor {
    listening: Arc<ControlListener>,
    group: Option<u32>,
    handler: RequestHandler,
    stop: Arc<AtomicBool>,
    clients: Arc<AtomicUsize>,
    poller: Poller,
}

/// One of [`MAX_CLIENTS`] slots; dropping this frees it.
struct ClientSlot(Arc<AtomicUsize>);

impl Drop for ClientSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Acceptor {
    fn run(mut self) {
        while !self.stop.load(Ordering::Acquire) {
            let pause = match self.listening.socket.accept() {
                Ok((stream, _)) => {
                    self.admit(stream);
                    continue;
                }
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => None,
                Err(error) => {
                    tracing::debug!(%error, "the control socket takes no client");
                    Some(ACCEPT_RETRY)
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

    fn admit(&self, stream: UnixStream) {
        let turn_away = |stream: UnixStream, why: &str| {
            let errors = vec![why.to_owned()];
            // A client that is not admitted must not hold up this thread: what its buffer does not take is dropped.
            let _ = stream.set_nonblocking(true);
            let _ = std::io::Write::write(&mut &stream, &line(&Response::Refused { errors }));
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
        let slot = ClientSlot(self.clients.clone());
        if stream.set_nonblocking(false).is_err() {
            return;
        }
        let (handler, stop) = (self.handler.clone(), self.stop.clone());
        let serve = move || {
            let _slot = slot;
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

/// The connection of one client.
struct Session {
    lines: Lines,
    handler: RequestHandler,
    stop: Arc<AtomicBool>,
}

impl Session {
    fn run(&mut self) -> Result<(), LineError> {
        while !self.stop.load(Ordering::Acquire) {
            let text = match self.lines.next(IDLE_TIMEOUT, REQUEST_TIMEOUT) {
                Ok(text) => text,
                Err(LineError::Ended) => return Ok(()),
                Err(e) => {
                    let errors = vec![e.to_string()];
                    self.lines.write(&line(&Response::Refused { errors }), RESPONSE_TIMEOUT)?;
                    return Err(e);
                }
            };
            let response = match read_request(&text) {
                Ok(Request::Trace { flow: Some(flow), .. }) if self.is_unknown(flow) => {
                    let text = format!(
                        "cannot trace flow {flow}: there is none of this number; try `longhaul cc show`"
                    );
                    Response::Refused { errors: vec![text] }
                }
                Ok(Request::Trace { flow, every }) => match self.handler.subscriptions.subscribe(flow, every)
                {
                    Some(subscriber) => {
                        self.handler.queue.wake();
                        return self.stream_trace(&subscriber);
                    }
                    None => Response::Refused { errors: vec!["too many watch already: try again".into()] },
                },
                Ok(request) => self.handler.handle(request),
                Err(e) => Response::Refused { errors: vec![e.to_string()] },
            };
            self.lines.write(&line(&response), RESPONSE_TIMEOUT)?;
        }
        Ok(())
    }

    /// Whether there certainly is no such flow. If the list of flows is not complete, that is not certain.
    fn is_unknown(&self, flow: FlowId) -> bool {
        let id = flow.to_string();
        match self.handler.handle(Request::Flows) {
            Response::Flows { flows, omitted: 0 } => !flows.iter().any(|f| f.id == id),
            _ => false,
        }
    }

    /// Sends decisions until the client hangs up or sends anything.
    fn stream_trace(&mut self, subscription: &crate::subscriptions::Subscription) -> Result<(), LineError> {
        let mut poller = Poller::new()?;
        while !self.stop.load(Ordering::Acquire) {
            let (decisions, missed) = subscription.take();
            let mut bytes = if missed > 0 { line(&Response::Missed { count: missed }) } else { Vec::new() };
            decisions.into_iter().for_each(|d| bytes.extend(line(&Response::Decision(d))));
            self.lines.write(&bytes, RESPONSE_TIMEOUT)?;
            let mut sources = [Source::readable(self.lines.stream())];
            poller.wait(&mut sources, Some(TRACE_INTERVAL))?;
            if sources[0].readable {
                return Ok(());
            }
        }
        Ok(())
    }
}
