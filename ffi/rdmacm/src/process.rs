//! The connection manager of this process: its descriptors, sockets and thread around a [`Manager`].

mod groups;
mod memory;
mod sockets;

use crate::Errno;
use crate::command::Request;
use crate::lookup::Key;
use crate::manager::{Action, ChannelId, Host as _, Manager, Origin};
use base::Span;
use engine::{Engine, Management};
use lhio::clock::Clock;
use sockets::{Asking, Outside};
use std::collections::{HashMap, VecDeque};
use std::io::Write as _;
use std::net::IpAddr;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Messages that wait for the thread, at most; further ones are lost, as if their program had not answered.
const MAX_WAITING: usize = 1 << 16;
/// Datagrams that are taken from a socket at a time.
const MOST_AT_ONCE: usize = 64;
/// How long a closed port is waited for, at most: in a forked child there is no thread that could let go of it.
const MOST_FOR_A_PORT: Duration = Duration::from_millis(200);

/// What the device knows that the manager needs.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    /// The own addresses in the order of the table of GIDs.
    pub gids: fn() -> Vec<IpAddr>,
    /// As `ibv_get_device_guid` gives it.
    pub guid: u64,
}

/// See the module. One for each process.
pub struct ConnectionManager {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    inbox: Mutex<VecDeque<Management>>,
    wake: OwnedFd,
    has_polled: Condvar,
    engine: Engine,
    clock: Clock,
}

struct State {
    manager: Manager,
    outside: Outside,
    /// Our copies of the programs' descriptors.
    bells: HashMap<ChannelId, Arc<OwnedFd>>,
    /// Whether the thread waits for the sockets, and how often it has.
    is_polling: bool,
    polls: u64,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The system's error.
fn last_error() -> Errno {
    Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

fn event_descriptor(flags: i32) -> Result<OwnedFd, Errno> {
    // SAFETY: it makes a new descriptor, which nobody else has.
    unsafe {
        let fd = libc::eventfd(0, flags);
        if fd < 0 { Err(last_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

/// Adds to the counter behind an event descriptor.
fn ring(fd: RawFd, by: u64) {
    // SAFETY: eight bytes that live as long as the call.
    unsafe { libc::write(fd, by.to_ne_bytes().as_ptr().cast(), 8) };
}

/// Takes one from the counter, if it is not zero. Never waits.
fn unring(fd: RawFd) {
    if wait(fd, 0) == Ok(true) {
        let mut count = [0u8; 8];
        // SAFETY: eight bytes that live as long as the call.
        unsafe { libc::read(fd, count.as_mut_ptr().cast(), 8) };
    }
}

/// Waits until a descriptor is readable, for so many milliseconds, -1 for ever.
fn wait(fd: RawFd, timeout: i32) -> Result<bool, Errno> {
    let mut p = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure.
    match unsafe { libc::poll(&raw mut p, 1, timeout) } {
        -1 => Err(last_error()),
        n => Ok(n == 1),
    }
}

impl ConnectionManager {
    /// Starts it, with a thread of its own that sleeps while nothing happens.
    ///
    /// # Errors
    /// The system's.
    pub fn start(engine: Engine, secret: &[u8; 32], device: Device) -> Result<ConnectionManager, Errno> {
        let wake = event_descriptor(libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)?;
        let outside = Outside::new(Key::new(secret), device, engine.port());
        let state = State {
            manager: Manager::default(),
            outside,
            bells: HashMap::new(),
            is_polling: false,
            polls: 0,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            inbox: Mutex::new(VecDeque::new()),
            wake,
            has_polled: Condvar::new(),
            engine: engine.clone(),
            clock: Clock::new(),
        });
        let s = Arc::downgrade(&shared);
        engine.listen_management(move |m| {
            let Some(s) = s.upgrade() else { return };
            let mut inbox = lock(&s.inbox);
            if inbox.len() < MAX_WAITING || matches!(m, Management::Gone { .. }) {
                inbox.push_back(m);
            }
            drop(inbox);
            s.wake();
        });
        let s = shared.clone();
        let made = std::thread::Builder::new().name("longhaul-cm".into()).spawn(move || s.run());
        made.map_err(|e| Errno(e.raw_os_error().unwrap_or(libc::EAGAIN)))?;
        Ok(ConnectionManager { shared })
    }

    /// A descriptor as of `/dev/infiniband/rdma_cm`: readable while there are events. `flags` are those of `open`.
    ///
    /// # Errors
    /// The system's.
    pub fn open(&self, flags: i32) -> Result<RawFd, Errno> {
        let mut kind = libc::EFD_SEMAPHORE;
        for (of_open, of_event) in
            [(libc::O_CLOEXEC, libc::EFD_CLOEXEC), (libc::O_NONBLOCK, libc::EFD_NONBLOCK)]
        {
            kind |= if flags & of_open != 0 { of_event } else { 0 };
        }
        let theirs = event_descriptor(kind)?;
        let ours = theirs.try_clone().map_err(|e| Errno(e.raw_os_error().unwrap_or(libc::EMFILE)))?;
        let mut state = lock(&self.shared.state);
        let channel = state.manager.open();
        state.bells.insert(channel, Arc::new(ours));
        let fd = std::os::fd::IntoRawFd::into_raw_fd(theirs);
        // A descriptor of this number that was closed behind our back has no program any more.
        if let Some(old) = state.outside.descriptors.insert(fd, channel) {
            self.shared.end_channel(state, old);
        }
        Ok(fd)
    }

    /// A queue pair becomes a member of a group: who asks for its members is told of this process.
    ///
    /// # Errors
    /// The system's; ENOMEM for too many groups.
    pub fn join_group(&self, group: IpAddr) -> Result<(), Errno> {
        lock(&self.shared.state).outside.join_group(group)?;
        self.shared.wake();
        Ok(())
    }

    /// It is none any more.
    pub fn leave_group(&self, group: IpAddr) {
        lock(&self.shared.state).outside.leave_group(group);
        self.shared.wake();
    }

    /// A program closes such a descriptor. False when it is none.
    pub fn close(&self, fd: RawFd) -> bool {
        let mut state = lock(&self.shared.state);
        let Some(channel) = state.outside.descriptors.remove(&fd) else { return false };
        self.shared.end_channel(state, channel);
        true
    }

    /// A program writes a command. Where it asks for an event and there is none, waits for one unless its descriptor does not wait.
    /// A descriptor that is closed meanwhile has no more events, but does not end the wait, as with the kernel: programs close it
    /// while a thread of theirs waits, which would take an error for a failure.
    ///
    /// # Errors
    /// As [`Manager::run`]; EBADF for another descriptor, EINTR.
    pub fn write(&self, fd: RawFd, bytes: &[u8]) -> Result<usize, Errno> {
        let (channel, bell) = self.shared.channel_of(fd).ok_or(Errno(libc::EBADF))?;
        let mut has_waited = false;
        loop {
            match self.shared.command(channel, bytes) {
                Ok(()) => return Ok(bytes.len()),
                Err(Errno(libc::EAGAIN)) if !is_nonblocking(bell.as_raw_fd()) => {}
                Err(Errno(libc::EBADF)) if has_waited => wait_for_ever()?,
                Err(e) => return Err(e),
            }
            wait(bell.as_raw_fd(), -1)?;
            has_waited = true;
        }
    }
}

/// Waits until a signal comes.
fn wait_for_ever() -> Result<(), Errno> {
    // SAFETY: no structure at all.
    match unsafe { libc::poll(core::ptr::null_mut(), 0, -1) } {
        -1 => Err(last_error()),
        _ => Ok(()),
    }
}

fn is_nonblocking(fd: RawFd) -> bool {
    // SAFETY: it asks for flags only.
    unsafe { libc::fcntl(fd, libc::F_GETFL) & libc::O_NONBLOCK != 0 }
}

impl Shared {
    fn wake(&self) {
        ring(self.wake.as_raw_fd(), 1);
    }

    fn channel_of(&self, fd: RawFd) -> Option<(ChannelId, Arc<OwnedFd>)> {
        let state = lock(&self.state);
        let channel = *state.outside.descriptors.get(&fd)?;
        Some((channel, state.bells.get(&channel)?.clone()))
    }

    fn command(&self, channel: ChannelId, bytes: &[u8]) -> Result<(), Errno> {
        let mut held = lock(&self.state);
        let state = &mut *held;
        let done = Request::new(bytes)
            .and_then(|r| state.manager.run(self.clock.now(), &mut state.outside, channel, &r));
        self.act(held);
        let reply = done?;
        if reply.bytes.is_empty() {
            return Ok(());
        }
        memory::write(reply.at, &reply.bytes).inspect_err(|_| {
            let state = &mut *lock(&self.state);
            state.manager.take_back(&mut state.outside, &reply);
        })
    }

    fn end_channel(&self, mut held: MutexGuard<'_, State>, channel: ChannelId) {
        let state = &mut *held;
        state.manager.close(&mut state.outside, channel);
        state.bells.remove(&channel);
        self.act(held);
    }

    /// Does what the manager wants, and lets the thread know what it has to wait for from now on.
    fn act(&self, mut held: MutexGuard<'_, State>) {
        let state = &mut *held;
        self.do_actions(state);
        let (has_changed, has_closed) = state.outside.take_changes();
        if has_changed || state.manager.next_timeout().is_some() {
            self.wake();
        }
        // The kernel keeps a closed port while somebody polls its socket, and the program may bind the port at once.
        if has_closed {
            let this = state.polls;
            let is_held = |s: &mut State| s.is_polling && s.polls == this;
            drop(self.has_polled.wait_timeout_while(held, MOST_FOR_A_PORT, is_held));
        }
    }

    fn do_actions(&self, state: &mut State) {
        while let Some(action) = state.manager.poll_action() {
            match action {
                Action::Ring { channel, by } => {
                    let Some(bell) = state.bells.get(&channel).map(|b| b.as_raw_fd()) else { continue };
                    if by > 0 {
                        ring(bell, by.unsigned_abs());
                    } else {
                        (0..by.unsigned_abs()).for_each(|_| unring(bell));
                    }
                }
                Action::Ask { id, to, query } => {
                    if let Err(Errno(code)) = state.outside.ask(id, to, &query) {
                        state.manager.on_ask_failed(id, code);
                    }
                }
                Action::StopAsking { id } => state.outside.stop_asking(id),
                Action::Send { to, own, bytes } => self.engine.send_management(own, to, &bytes),
                // Where nobody reads it, it is left out.
                Action::Say(text) => drop(writeln!(std::io::stderr(), "longhaul: {text}")),
            }
        }
    }

    /// The thread.
    fn run(&self) {
        loop {
            let mut held = lock(&self.state);
            let state = &mut *held;
            self.take_messages(state);
            let now = self.clock.now();
            state.manager.on_timeout(now);
            self.do_actions(state);
            let mut polled = state.outside.poll_list(self.wake.as_raw_fd());
            let timeout = state.manager.next_timeout().map(|t| t.since(now) + Span::from_millis(1));
            state.is_polling = true;
            drop(held);
            let timeout = timeout.map_or(-1, |t| i32::try_from(t.as_millis()).unwrap_or(i32::MAX));
            // SAFETY: the list, with its length.
            unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, timeout) };
            let mut held = lock(&self.state);
            (held.is_polling, held.polls) = (false, held.polls + 1);
            drop(held);
            self.has_polled.notify_all();
            self.take_datagrams(&polled);
        }
    }

    fn take_messages(&self, state: &mut State) {
        unring(self.wake.as_raw_fd());
        let messages = core::mem::take(&mut *lock(&self.inbox));
        for m in messages {
            let now = self.clock.now();
            match m {
                Management::Message { process, own, bytes } => {
                    let origin = Origin { process, own };
                    state.manager.on_message(now, &mut state.outside, origin, &bytes);
                }
                Management::Gone { process } => state.manager.on_process_gone(now, process),
                Management::GroupWanted { group, own } => {
                    let nonce = state.outside.random();
                    if let Err(Errno(code)) = state.outside.groups.ask(group, own, nonce) {
                        state.manager.on_search_failed(group, own, code);
                    }
                }
            }
        }
    }

    /// Queries to services of this process, and answers to its own.
    fn take_datagrams(&self, polled: &[libc::pollfd]) {
        let ready = |fd: RawFd| polled.iter().any(|p| p.fd == fd && p.revents != 0);
        if !polled.iter().skip(1).any(|p| p.revents != 0) {
            return;
        }
        let mut held = lock(&self.state);
        let State { manager, outside, .. } = &mut *held;
        for (at, query, from) in outside.queries(ready, MOST_AT_ONCE) {
            let answer = manager.answer(outside, at, &query);
            outside.answer(at, &answer, from);
        }
        for (id, what) in outside.answers(ready, MOST_AT_ONCE) {
            let now = self.clock.now();
            match what {
                Asking::Answered(answer) => manager.on_answer(now, id, &answer),
                Asking::Refused => manager.on_refusal(now, id),
            }
        }
        let members = outside.take_groups(self.clock.now(), ready);
        self.do_actions(&mut held);
        drop(held);
        members.into_iter().for_each(|(group, process)| self.engine.note_member(group, process));
    }
}
