//! All of it for one process.

use crate::board::Board;
use crate::desk::{Desk, Order};
use crate::etcd::Access;
use crate::folder::FolderError;
use crate::govern::Governed;
use crate::office::{Hooks, Office};
use crate::proto::Answer;
use crate::server::Server;
use crate::source::Source;
use crate::tap::Taps;
use crate::watch::{self, WatchError, Watching};
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

/// The administrator's side of a running process. It goes with this value.
#[derive(Debug)]
pub struct Admin {
    office: Office,
    server: Option<Server>,
    _watching: Option<Watching>,
}

impl Admin {
    /// Reads the policy, watches its source and listens. `waker` has the loop of the process turn. A control socket that
    /// cannot be had is said, and no error.
    ///
    /// # Errors
    /// [`WatchError`]: the policy that was asked for cannot be used.
    pub fn start(o: Options<'_>, waker: Waker) -> Result<Admin, WatchError> {
        let office = Office {
            board: Board::new(o.command),
            desk: Desk::new(waker),
            taps: Taps::default(),
            hooks: o.hooks,
            waiting: Arc::default(),
            standing: Arc::default(),
        };
        let watch = |(source, access): (Source, Access)| watch::watch(&source, &access, o.state, &office);
        let watching = o.source.map(watch).transpose()?;
        let server = o.control.and_then(|(folder, group)| listen(&folder, group, &office));
        Ok(Admin { office, server, _watching: watching })
    }

    /// Where the control socket is.
    pub fn socket(&self) -> Option<&Path> {
        self.server.as_ref().map(Server::path)
    }

    /// Answers what waits, in a process that moves nothing: its policy is in force once it was read.
    pub fn idle(&self) {
        while let Some(job) = self.office.desk.take() {
            let answer = match &job.order {
                Order::Flows => Answer::Flows { flows: Vec::new(), left_out: 0 },
                Order::Policy(_) => Answer::done("the policy is in force"),
                Order::Programs(programs) => Answer::Programs { programs: programs.clone() },
                Order::Renew(_) => Answer::done("no flow runs it"),
                Order::SetFlow { .. } => Answer::Refused { errors: vec!["this process has no flows".into()] },
            };
            job.done(answer);
        }
    }

    /// Lets administrators see and change what `app` does.
    pub fn govern<'a>(&self, app: &'a mut dyn App) -> Governed<'a> {
        Governed::new(app, self.office.clone())
    }
}

fn listen(folder: &Path, group: Option<u32>, office: &Office) -> Option<Server> {
    let failed = |e: FolderError| {
        tracing::warn!("no control socket, so `longhaul cc show` does not see this process: {e}")
    };
    Server::start(folder, group, office.clone()).map_err(failed).ok()
}
