//! The running processes of this user, as their control sockets show them.

use crate::exit::{Code, Failure, Outcome};
use admin::client::{self, Client, ClientError};
use admin::folder;
use admin::proto::{Answer, Process, Request};
use std::path::PathBuf;

/// A process that answers, and what it says of itself.
pub struct Running {
    pub client: Client,
    pub process: Process,
}

impl Running {
    /// Asks it. A refusal is a failure with all of its errors.
    pub fn ask(&mut self, request: &Request) -> Outcome<Answer> {
        match self.client.ask(request).map_err(unreachable)? {
            Answer::Refused { errors } => {
                let text = format!("process {}: {}", self.process.pid, one_line_each(&errors).join("\n  "));
                Err(Failure::new(Code::Refused, text))
            }
            answer => Ok(answer),
        }
    }
}

/// Words of another process: each stays in its line.
pub fn one_line_each(texts: &[String]) -> Vec<String> {
    texts.iter().map(|t| base::text::line(t).into_owned()).collect()
}

fn unreachable(e: ClientError) -> Failure {
    let denied = matches!(&e, ClientError::Connect { source, .. }
        if source.kind() == std::io::ErrorKind::PermissionDenied);
    Failure::line(if denied { Code::Untrusted } else { Code::Connect }, e)
}

fn place() -> Outcome<PathBuf> {
    folder::default_folder().map_err(Failure::usage)
}

/// An answer of another kind than was asked for.
pub fn unexpected(r: &Running) -> Failure {
    Failure::system(format!(
        "cannot understand process {}: it gave an unexpected answer; try programs of the same \
         version",
        r.process.pid
    ))
}

fn hello(mut client: Client) -> Outcome<Running> {
    match client.ask(&Request::Hello).map_err(unreachable)? {
        Answer::Process(process) => Ok(Running { client, process }),
        Answer::Refused { errors } => Err(Failure::new(Code::Refused, one_line_each(&errors).join("; "))),
        _ => Err(Failure::system(format!(
            "cannot understand the process at {}: it gave an unexpected answer; try programs of the same version",
            client.path().display()
        ))),
    }
}

/// All processes that answer, by their numbers, or the one of number `pid`. Those that do not answer are said.
pub fn all(pid: Option<u32>) -> Outcome<Vec<Running>> {
    let mut found = Vec::new();
    for result in client::all(&place()?) {
        match result.map_err(unreachable).and_then(hello) {
            Ok(r) => found.push(r),
            // It may have ended just now; anything else is worth a word.
            Err(f) => err_line!("longhaul: {f}"),
        }
    }
    found.sort_by_key(|r| r.process.pid);
    let Some(pid) = pid else { return Ok(found) };
    found.retain(|r| r.process.pid == pid);
    if found.is_empty() {
        return Err(Failure::usage(format!(
            "cannot find process {pid}: it has no control socket in {}; try one that `longhaul cc show` prints",
            place()?.display()
        )));
    }
    Ok(found)
}

/// All of them, and at least one.
pub fn some(pid: Option<u32>) -> Outcome<Vec<Running>> {
    let found = all(pid)?;
    if found.is_empty() {
        let text = format!(
            "cannot find a process: there is no control socket in {}; try again while `longhaul serve`, `put`, `get` \
             or `perf` runs as this user, without --no-control",
            place()?.display()
        );
        return Err(Failure::new(Code::Connect, text));
    }
    Ok(found)
}

/// The process of number `pid`, or the only one.
pub fn one(pid: Option<u32>) -> Outcome<Running> {
    let mut found = some(pid)?;
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
