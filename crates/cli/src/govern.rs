//! The administrator's side of a process: from flags to policies and a control socket.

use crate::args::{AdminOptions, Control, StoreAccess};
use crate::cc::policies;
use crate::exit::{Code, Failure, Outcome};
use crate::setup::LocalIdentity;
use admin::etcd::Access;
use admin::folder::{self, FolderError};
use admin::request_handler::Hooks;
use admin::watch::WatchError;
use admin::{Admin, Options};
use lhio::poll::Waker;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zeroize::Zeroizing;

/// How to get at a store, as the command line and the environment say.
pub fn access(a: &StoreAccess) -> Outcome<Access> {
    let user = match &a.store_user {
        None => None,
        Some(name) => {
            let password = std::env::var("LONGHAUL_STORE_PASSWORD");
            let missing = |_| {
                Failure::usage(
                    "cannot use --store-user: LONGHAUL_STORE_PASSWORD is not set; try to \
                     set it to the password",
                )
            };
            Some((name.clone(), Zeroizing::new(password.map_err(missing)?)))
        }
    };
    let certificate = a.store_cert.clone().zip(a.store_key.clone());
    Ok(Access { ca: a.store_ca.clone(), certificate, user })
}

/// Where the control socket goes; none where there is no place for it and none was asked for.
pub fn control(g: &Control) -> Outcome<Option<(PathBuf, Option<u32>)>> {
    if g.no_control {
        return Ok(None);
    }
    let group = g.control_group.as_deref().map(folder::group).transpose().map_err(Failure::usage)?;
    match folder::default_folder() {
        Ok(folder) => Ok(Some((folder, group))),
        Err(FolderError::Nowhere) if group.is_none() => {
            tracing::info!("no control socket: neither LONGHAUL_RUN nor XDG_RUNTIME_DIR is set");
            Ok(None)
        }
        Err(e) => Err(Failure::usage(e)),
    }
}

/// Reads the policy, watches its source and listens, for the process that does `command` and whose loop `waker` wakes.
pub fn start(command: &str, g: &AdminOptions, me: &LocalIdentity, waker: Waker) -> Outcome<Admin> {
    start_in(command, g, me.state.path(), waker)
}

/// The same, with the folder in which a store's last good policy is kept.
pub fn start_in(command: &str, g: &AdminOptions, state: &Path, waker: Waker) -> Outcome<Admin> {
    let source = match &g.policy {
        Some(source) => Some((source.clone(), access(&g.access)?)),
        None => None,
    };
    let hooks = Hooks {
        read_policy: Arc::new(policies::read),
        load_program: Arc::new(policies::load_program),
        unload_program: Arc::new(programs::unload),
        programs: Arc::new(policies::loaded),
        is_known: Arc::new(policies::is_known),
        news: Arc::new(policies::news),
    };
    let options = Options { command, control: control(&g.control)?, source, state, hooks };
    Admin::start(options, waker).map_err(watch_failure)
}

/// A source that cannot be watched.
pub fn watch_failure(e: WatchError) -> Failure {
    let code = if matches!(e, WatchError::Thread(_)) { Code::System } else { Code::Usage };
    Failure::new(code, e.to_string())
}
