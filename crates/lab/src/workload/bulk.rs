//! Bulk transfers over Longhaul without I/O, for the simulator: repeated Writes for a time or a number of bytes.

use base::Time;
use endpoint::{App, ConnId, Connect, Endpoint, Event};
use std::cell::RefCell;
use std::rc::Rc;
use transport::error::code;
use verbs::{Access, Error, Memory, Mr, SendOp, SendWr, Sge, Status};

/// The state shared by both ends and the measurement.
#[derive(Debug, Default)]
pub struct BulkState {
    /// The receiver's region.
    pub target: Option<Mr>,
    /// The sender's end of the connection, once it is up.
    pub sender: Option<ConnId>,
    /// The receiver's end.
    pub receiver: Option<ConnId>,
    /// When the first Write was posted.
    pub started: Option<Time>,
    /// When the last Write was completed.
    pub ended: Option<Time>,
    /// Writes completed.
    pub completed: u64,
    /// The error, if it failed.
    pub failure: Option<String>,
}

/// Amount and times of a transfer.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// When it connects.
    pub start: Time,
    /// When it posts the last Write.
    pub end: Time,
    /// Number of Writes, instead of an end.
    pub messages: Option<u64>,
    /// Writes in progress on all queue pairs together.
    pub in_progress: u64,
    /// Queue pairs.
    pub streams: u16,
    /// Bytes of one Write, and of the memory at each end.
    pub message: usize,
}

/// Writes the same memory repeatedly.
#[derive(Debug)]
pub struct Sender {
    connect: Option<Connect>,
    load: Load,
    conn: Option<ConnId>,
    region: Option<Mr>,
    posted: u64,
    over: bool,
    board: Rc<RefCell<BulkState>>,
}

impl Sender {
    /// A sender that connects at the load's start.
    pub fn new(connect: Connect, load: Load, board: Rc<RefCell<BulkState>>) -> Sender {
        Sender { connect: Some(connect), load, conn: None, region: None, posted: 0, over: false, board }
    }

    fn work(&mut self, now: Time, e: &mut Endpoint) -> Result<(), String> {
        if now >= self.load.start
            && let Some(c) = self.connect.take()
        {
            self.conn = Some(e.connect(now, c).map_err(|e| e.to_string())?);
        }
        while let Some(ev) = e.poll_event() {
            match ev {
                Event::Connected { conn } => self.board.borrow_mut().sender = Some(conn),
                Event::Closed { reason, .. } if !self.over => {
                    return Err(format!("the connection: {reason}"));
                }
                _ => {}
            }
        }
        let (Some(conn), Some(target)) = (self.board.borrow().sender, self.board.borrow().target) else {
            return Ok(());
        };
        let Some(info) = e.connection(conn).cloned() else { return Ok(()) };
        let region = match self.region {
            Some(r) => r,
            None => e
                .adapter()
                .reg_mr(info.pd, Memory::zeroed(self.load.message), Access::LOCAL_READ)
                .map_err(|(e, _)| e.to_string())?,
        };
        self.region = Some(region);
        let mut board = self.board.borrow_mut();
        while let Some(wc) = e.adapter().poll_cq(info.cq) {
            if wc.status != Status::Success {
                return Err(format!("a Write ended with {:?}", wc.status));
            }
            board.completed += 1;
        }
        board.started.get_or_insert(now);
        let streams = usize::from(self.load.streams.max(1)).min(info.qps.len()) as u64;
        while self.more(now) && self.posted - board.completed < self.load.in_progress {
            let op = SendOp::Write { rkey: target.rkey, offset: 0 };
            let sge = Sge { lkey: region.lkey, offset: 0, len: self.load.message as u64 };
            let qp = info.qps[(self.posted % streams.max(1)) as usize];
            match e.adapter().post_send(qp, SendWr::new(self.posted, op, sge)) {
                Ok(()) => self.posted += 1,
                Err(Error::QueueFull | Error::CqFull) => break,
                Err(e) => return Err(e.to_string()),
            }
        }
        if !self.more(now) && !self.over {
            let done = self.posted == board.completed || self.load.messages.is_none();
            if done {
                (self.over, board.ended) = (true, Some(now));
                // Writes in progress at the end do not count and need not arrive.
                if self.load.messages.is_some() {
                    e.close(now, conn, code::NO_ERROR, "done");
                }
            }
        }
        Ok(())
    }

    fn more(&self, now: Time) -> bool {
        match self.load.messages {
            Some(n) => self.posted < n,
            None => now < self.load.end,
        }
    }
}

impl App for Sender {
    fn drive(&mut self, now: Time, e: &mut Endpoint) {
        if let Err(text) = self.work(now, e) {
            self.board.borrow_mut().failure.get_or_insert(text);
        }
    }
    fn next_timeout(&self) -> Option<Time> {
        if self.connect.is_some() { Some(self.load.start) } else { None }
    }
}

/// Registers memory for the Writes.
#[derive(Debug)]
pub struct Receiver {
    message: usize,
    board: Rc<RefCell<BulkState>>,
}

impl Receiver {
    /// The receiver of a [`Sender`] with the same state.
    pub fn new(message: usize, board: Rc<RefCell<BulkState>>) -> Receiver {
        Receiver { message, board }
    }
}

impl App for Receiver {
    fn drive(&mut self, _: Time, e: &mut Endpoint) {
        while let Some(ev) = e.poll_event() {
            if let Event::Incoming { conn } = ev {
                let Some(pd) = e.connection(conn).map(|i| i.pd) else { continue };
                let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
                let mut board = self.board.borrow_mut();
                match e.adapter().reg_mr(pd, Memory::zeroed(self.message), access) {
                    Ok(mr) => (board.receiver, board.target) = (Some(conn), Some(mr)),
                    Err((e, _)) => {
                        board.failure.get_or_insert(e.to_string());
                    }
                }
            }
        }
    }
}
