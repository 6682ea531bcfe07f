//! A client of control sockets.

use crate::folder;
use crate::lines::{LineError, Lines};
use crate::proto::{Answer, MAX_ANSWER, Request, line};
use base::Span;
use std::io;
use std::path::{Path, PathBuf};

/// How long a process may take for an answer: longer than its loop is waited for.
const ANSWER_TIMEOUT: Span = Span::from_secs(20);
/// How long a trace may be silent before it is looked at again.
const SILENCE: Span = Span::from_millis(200);

/// Why a process did not answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Its socket cannot be reached.
    #[error("cannot reach the process at {}: {source}", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It did not answer.
    #[error("the process at {}: {source}", path.display())]
    Line {
        /// The socket.
        path: PathBuf,
        /// Why not.
        source: LineError,
    },
    /// Its answer cannot be read.
    #[error("the process at {} answers what this program does not know ({source}): use programs of one version", path.display())]
    Answer {
        /// The socket.
        path: PathBuf,
        /// Why not.
        source: serde_json::Error,
    },
}

/// A process that is asked.
#[derive(Debug)]
pub struct Client {
    lines: Lines,
    path: PathBuf,
}

impl Client {
    /// Connects to the process that listens at `path`.
    ///
    /// # Errors
    /// [`ClientError::Connect`].
    pub fn connect(path: &Path) -> Result<Client, ClientError> {
        let path = path.to_owned();
        match folder::connect(&path) {
            Ok(stream) => Ok(Client { lines: Lines::new(stream, MAX_ANSWER), path }),
            Err(source) => Err(ClientError::Connect { path, source }),
        }
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// [`ClientError`]; a refusal is an answer.
    pub fn ask(&mut self, request: &Request) -> Result<Answer, ClientError> {
        let path = self.path.clone();
        let failed = |source| ClientError::Line { path, source };
        self.lines.write(&line(request), ANSWER_TIMEOUT).map_err(failed)?;
        self.answer(ANSWER_TIMEOUT)
    }

    fn answer(&mut self, begin: Span) -> Result<Answer, ClientError> {
        let path = self.path.clone();
        let text = match self.lines.next(begin, ANSWER_TIMEOUT) {
            Ok(text) => text,
            Err(source) => return Err(ClientError::Line { path, source }),
        };
        serde_json::from_slice(&text).map_err(|source| ClientError::Answer { path, source })
    }

    /// Starts a trace; its answers come from [`Client::follow`].
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn trace(&mut self, request: &Request) -> Result<(), ClientError> {
        let path = self.path.clone();
        let failed = |source| ClientError::Line { path, source };
        self.lines.write(&line(request), ANSWER_TIMEOUT).map_err(failed)
    }

    /// The next part of a trace; `None` when there is none for a moment.
    ///
    /// # Errors
    /// [`ClientError`]: of a process that ends, [`LineError::Ended`].
    pub fn follow(&mut self) -> Result<Option<Answer>, ClientError> {
        match self.answer(SILENCE) {
            Ok(answer) => Ok(Some(answer)),
            Err(ClientError::Line { source: LineError::TooSlow, .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

/// Connects to all processes that listen in `folder`; those that are no more are left out.
pub fn all(folder: &Path) -> Vec<Result<Client, ClientError>> {
    let dead = |e: &ClientError| match e {
        ClientError::Connect { source, .. } => {
            matches!(source.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)
        }
        _ => false,
    };
    let clients = folder::sockets(folder).into_iter().map(|p| Client::connect(&p));
    clients.filter(|c| !c.as_ref().is_err_and(dead)).collect()
}
