//! The loop in steps, for a process whose own threads run it whenever they wait for something: see the crate `engine`.

use super::{Driver, DriverError, Turn};
use base::Span;
use endpoint::{App, Endpoint};
use rustix::io::fcntl_dupfd_cloexec;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// What [`Driver::step`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There may be more to do: call it again soon.
    Busy,
    /// There is nothing to do until something of [`Wait`] happens.
    Idle,
}

/// What to wait for, by a thread that does not hold the driver meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// No longer than this; `None`: without limit.
    pub timeout: Option<Span>,
    /// The socket's descriptor is to be watched. Else packets are let gather until the time is over.
    pub watches_socket: bool,
}

/// Copies of the descriptors to wait for.
#[derive(Debug)]
pub struct Descriptors {
    /// Becomes readable when something arrives.
    pub socket: OwnedFd,
    /// Becomes readable when there is something to do for a stream, where there may be streams.
    pub streams: Option<OwnedFd>,
    /// Becomes readable when [`crate::poll::Waker::wake`] is called; [`Driver::after_wait`] makes it silent again.
    pub waker: OwnedFd,
}

impl Driver {
    /// Prepares for [`Driver::step`]; once, by whichever thread.
    pub fn begin_steps(&mut self, endpoint: &mut Endpoint) {
        self.start(endpoint);
    }

    /// One turn, by any thread; it waits for nothing.
    ///
    /// # Errors
    /// The socket is beyond use.
    pub fn step(&mut self, endpoint: &mut Endpoint, app: &mut dyn App) -> Result<Step, DriverError> {
        Ok(match self.turn(endpoint, app)? {
            Turn::Busy => Step::Busy,
            Turn::Idle(_) | Turn::Finished => Step::Idle,
        })
    }

    /// What to wait for after [`Step::Idle`].
    pub fn plan_wait(&mut self, endpoint: &mut Endpoint, app: &dyn App) -> Wait {
        let now = self.clock.now();
        let at = self.deadline(now, endpoint, app);
        let look = self.network_monitor.as_ref().and_then(|o| o.next_timeout());
        let gather =
            self.wake_coalescer.as_mut().and_then(|c| c.next_delay(now, endpoint.max_receive_delay()));
        let times = at.into_iter().chain(look).chain(gather.map(|g| now + g));
        Wait { timeout: times.min().map(|t| t.since(now)), watches_socket: gather.is_none() }
    }

    /// Takes note of a wait that has ended. `woken` says that the waker's descriptor became readable.
    ///
    /// # Errors
    /// The system's.
    pub fn after_wait(&mut self, wait: Wait, woken: bool) -> io::Result<()> {
        self.told = true;
        if !wait.watches_socket {
            self.received.expect_many();
        }
        if woken {
            self.poller.wait(&mut [], Some(Span::ZERO))?;
        }
        Ok(())
    }

    /// Copies of the descriptors to wait for, by which all streams are waited for from now on.
    ///
    /// # Errors
    /// The process has no descriptors left.
    pub fn descriptors(&mut self) -> io::Result<Descriptors> {
        let copy = |fd: std::os::fd::BorrowedFd<'_>| Ok::<_, io::Error>(fcntl_dupfd_cloexec(fd, 3)?);
        let streams = match self.options.streams {
            Some(_) => Some(copy(self.streams.watch_all()?.as_fd())?),
            None => None,
        };
        Ok(Descriptors { socket: copy(self.socket.as_fd())?, streams, waker: copy(self.waker().as_fd())? })
    }
}
