//! Finds the running processes of this user by their control sockets, and sends them requests.

use crate::exit::{Code, Failure, Outcome};
use admin::client::{self, Client, ClientError};
use admin::folder;
use admin::proto::{Process, Request, Response};
use std::path::PathBuf;

/// A process that is connected to, and its description of itself.
pub struct Running {
    pub client: Client,
    pub process: Process,
}

impl Running {
    /// Sends a request and waits for the response. A refusal becomes a failure with all errors that it names.
    pub fn request(&mut self, request: &Request) -> Outcome<Response> {
        match self.client.request(request).map_err(connect_failure)? {
            Response::Refused { errors } => {
                let text = format!("process {}: {}", self.process.pid, escape_each(&errors).join("\n  "));
                Err(Failure::new(Code::Refused, text))
            }
            response => Ok(response),
        }
    }
}

/// Escapes texts of another process, so that each stays on one line and none controls the terminal.
pub fn escape_each(texts: &[String]) -> Vec<String> {
    texts.iter().map(|t| base::text::line(t).into_owned()).collect()
}

fn connect_failure(e: ClientError) -> Failure {
    let denied = matches!(&e, ClientError::Connect { source, .. }
        if source.kind() == std::io::ErrorKind::PermissionDenied);
    Failure::line(if denied { Code::Untrusted } else { Code::Connect }, e)
}

/// The folder in which processes of this user put their control sockets.
fn socket_folder() -> Outcome<PathBuf> {
    folder::default_folder().map_err(Failure::usage)
}

/// The failure for a response of another kind than the request calls for.
pub fn unexpected_response(r: &Running) -> Failure {
    Failure::system(format!(
        "cannot understand process {}: it gave an unexpected answer; try programs of the same \
         version",
        r.process.pid
    ))
}

fn hello(mut client: Client) -> Outcome<Running> {
    match client.request(&Request::Hello).map_err(connect_failure)? {
        Response::Process(process) => Ok(Running { client, process }),
        Response::Refused { errors } => Err(Failure::new(Code::Refused, escape_each(&errors).join("; "))),
        _ => Err(Failure::system(format!(
            "cannot understand the process at {}: it gave an unexpected answer; try programs of the same version",
            client.path().display()
        ))),
    }
}

/// All processes that respond, in the order of their process IDs, or only the one with ID `pid`, which must exist. Processes
/// that do not respond are reported on standard error and left out.
pub fn all(pid: Option<u32>) -> Outcome<Vec<Running>> {
    let mut found = Vec::new();
    for result in client::all(&socket_folder()?) {
        match result.map_err(connect_failure).and_then(hello) {
            Ok(r) => found.push(r),
            // It is not an error of the command: the process may just have ended.
            Err(f) => err_line!("longhaul: {f}"),
        }
    }
    found.sort_by_key(|r| r.process.pid);
    let Some(pid) = pid else { return Ok(found) };
    found.retain(|r| r.process.pid == pid);
    if found.is_empty() {
        return Err(Failure::usage(format!(
            "cannot find process {pid}: it has no control socket in {}; try one that `longhaul cc show` prints",
            socket_folder()?.display()
        )));
    }
    Ok(found)
}

/// Like [`all`], but fails if there is no process.
pub fn at_least_one(pid: Option<u32>) -> Outcome<Vec<Running>> {
    let found = all(pid)?;
    if found.is_empty() {
        let text = format!(
            "cannot find a process: there is no control socket in {}; try again while `longhaul serve`, `put`, `get` \
             or `perf` runs as this user, without --no-control",
            socket_folder()?.display()
        );
        return Err(Failure::new(Code::Connect, text));
    }
    Ok(found)
}

/// The process with ID `pid`, or the only one there is; fails if several could be meant.
pub fn exactly_one(pid: Option<u32>) -> Outcome<Running> {
    let mut found = at_least_one(pid)?;
    match (found.pop(), found.len()) {
        (Some(r), 0) => Ok(r),
        _ => {
            let text = format!(
                "cannot choose among {} processes: none is named; try one that `longhaul cc show` prints",
                found.len() + 1
            );
            Err(Failure::usage(text))
        }
    }
}
