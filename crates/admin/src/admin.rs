//! Starts all parts of the administrative interface of one process.

use crate::administered_app::{AdministeredApp, Administration};
use crate::etcd::Access;
use crate::folder::FolderError;
use crate::process_state::ProcessState;
use crate::proto::Response;
use crate::request_handler::{Hooks, RequestHandler};
use crate::request_queue::{LoopRequest, RequestQueue};
use crate::server::Server;
use crate::source::Source;
use crate::subscriptions::Subscriptions;
use crate::watch::{self, PolicyWatcher, WatchError};
use endpoint::App;
use lhio::poll::Waker;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What a process lets administrators do.
#[derive(Debug)]
pub struct Options<'a> {
    /// What it does: `serve`, `put`.
    pub command: &'a str,
    /// The folder for its control socket, and the group that may use it beside its user; none: no socket.
    pub control: Option<(PathBuf, Option<u32>)>,
    /// Where its policy is from.
    pub source: Option<(Source, Access)>,
    /// The folder in which a store's last good policy is kept.
    pub state: &'a Path,
    /// What others provide.
    pub hooks: Hooks,
}

/// The administrative interface of a running process, until dropped.
#[derive(Debug)]
pub struct Admin {
    handler: RequestHandler,
    server: Option<Server>,
    _watching: Option<PolicyWatcher>,
}

impl Admin {
    /// Reads the policy, watches its source and listens. `waker` has the loop of the process turn. A control socket that
    /// cannot be had is said, and no error.
    ///
    /// # Errors
    /// [`WatchError`]: the policy that was asked for cannot be used.
    pub fn start(o: Options<'_>, waker: Waker) -> Result<Admin, WatchError> {
        let handler = RequestHandler {
            process_state: ProcessState::new(o.command),
            queue: RequestQueue::new(waker),
            subscriptions: Subscriptions::default(),
            hooks: o.hooks,
            pending_offer: Arc::default(),
            active_policy: Arc::default(),
        };
        let watch = |(source, access): (Source, Access)| watch::watch(&source, &access, o.state, &handler);
        let watching = o.source.map(watch).transpose()?;
        let server = o.control.and_then(|(folder, group)| listen(&folder, group, &handler));
        Ok(Admin { handler, server, _watching: watching })
    }

    /// Where the control socket is.
    pub fn socket(&self) -> Option<&Path> {
        self.server.as_ref().map(Server::path)
    }

    /// Answers what waits, in a process that moves nothing: its policy is in force once it was read.
    pub fn idle(&self) {
        while let Some(job) = self.handler.queue.take() {
            let answer = match &job.request {
                LoopRequest::Flows => Response::Flows { flows: Vec::new(), omitted: 0 },
                LoopRequest::Policy(_) => Response::done("the policy is in force"),
                LoopRequest::Programs(programs) => Response::Programs { programs: programs.clone() },
                LoopRequest::Renew(_) => Response::done("no flow runs it"),
                LoopRequest::SetFlow { .. } => {
                    Response::Refused { errors: vec!["this process has no flows".into()] }
                }
            };
            job.respond(answer);
        }
    }

    /// Lets administrators see and change what `app` does.
    pub fn govern<'a>(&self, app: &'a mut dyn App) -> AdministeredApp<'a> {
        AdministeredApp::new(app, self.handler.clone())
    }

    /// The same, for a loop that gives its application with each turn.
    pub fn administration(&self) -> Administration {
        Administration::new(self.handler.clone())
    }
}

fn listen(folder: &Path, group: Option<u32>, handler: &RequestHandler) -> Option<Server> {
    let failed = |e: FolderError| {
        tracing::warn!("no control socket, so `longhaul cc show` does not see this process: {e}")
    };
    Server::start(folder, group, handler.clone()).map_err(failed).ok()
}
