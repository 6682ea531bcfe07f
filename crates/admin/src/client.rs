//! A client of control sockets.

use crate::folder;
use crate::lines::{LineError, Lines};
use crate::proto::{MAX_RESPONSE, Request, Response, line};
use base::Span;
use std::io;
use std::path::{Path, PathBuf};

/// How long a process may take for a response: longer than its control thread waits for its loop.
const RESPONSE_TIMEOUT: Span = Span::from_secs(20);
/// How long [`Client::follow`] waits for the next part of a trace.
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
    Response {
        /// The socket.
        path: PathBuf,
        /// Why not.
        source: serde_json::Error,
    },
}

/// A connection to the control socket of a process.
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
            Ok(stream) => Ok(Client { lines: Lines::new(stream, MAX_RESPONSE), path }),
            Err(source) => Err(ClientError::Connect { path, source }),
        }
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sends a request and waits for the response.
    ///
    /// # Errors
    /// [`ClientError`]; a refusal is a response.
    pub fn request(&mut self, request: &Request) -> Result<Response, ClientError> {
        let path = self.path.clone();
        let failed = |source| ClientError::Line { path, source };
        self.lines.write(&line(request), RESPONSE_TIMEOUT).map_err(failed)?;
        self.next_response(RESPONSE_TIMEOUT)
    }

    fn next_response(&mut self, begin: Span) -> Result<Response, ClientError> {
        let path = self.path.clone();
        let text = match self.lines.next(begin, RESPONSE_TIMEOUT) {
            Ok(text) => text,
            Err(source) => return Err(ClientError::Line { path, source }),
        };
        serde_json::from_slice(&text).map_err(|source| ClientError::Response { path, source })
    }

    /// Starts a trace; its responses come from [`Client::follow`].
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn trace(&mut self, request: &Request) -> Result<(), ClientError> {
        let path = self.path.clone();
        let failed = |source| ClientError::Line { path, source };
        self.lines.write(&line(request), RESPONSE_TIMEOUT).map_err(failed)
    }

    /// The next part of a trace; `None` when there is none for a moment.
    ///
    /// # Errors
    /// [`ClientError`]: of a process that ends, [`LineError::Ended`].
    pub fn follow(&mut self) -> Result<Option<Response>, ClientError> {
        match self.next_response(SILENCE) {
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
