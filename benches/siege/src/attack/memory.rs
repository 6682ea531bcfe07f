//! Measurements that are to take the server's memory.

use super::Common;
use super::admitted::{connect, ends};
use anyhow::Result;
use base::{Span, Time};
use endpoint::{App, ConnId, Endpoint, Event, TransportOptions};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use verbs::{Access, CqId, Data, Memory, Mr, RecvWr, SendOp, SendWr, Sge, Sges};

/// Measurements at a time.
const HELD: usize = 8;
/// Streams, bytes of a region, messages under way: from more than there is to what one may have.
const PLANS: [(u16, u64, u32); 6] = [
    (128, 1 << 40, 4_096),
    (1, 8 << 30, 64),
    (128, 64 << 20, 64),
    (4, 60 << 20, 16),
    (2, 30 << 20, 4_096),
    (1, 8 << 20, 1),
];
/// Bytes of an answer that are looked at.
const ANSWER: usize = 32 << 10;

/// Asks for measurements, has the server make the memory for them, and then does nothing with it.
pub fn measurements(c: &Arc<Common>) -> Result<()> {
    let (mut driver, mut endpoint) = ends(c)?;
    let [asked, given, refused] =
        ["measurements asked for", "measurements with memory", "measurements refused"].map(|n| c.count(n));
    let mut app =
        Measurements { common: c.clone(), open: Vec::new(), asked, given, refused, next: Time::ZERO };
    Ok(driver.run(&mut endpoint, &mut app)?)
}

/// Where the answers to a request come, once its connection is there.
type Answers = Option<(CqId, Mr)>;

struct Measurements {
    common: Arc<Common>,
    open: Vec<(ConnId, (u16, u64, u32), Answers)>,
    asked: Arc<AtomicU64>,
    given: Arc<AtomicU64>,
    refused: Arc<AtomicU64>,
    next: Time,
}

impl Measurements {
    fn event(&mut self, event: Event, e: &mut Endpoint) -> Result<()> {
        match event {
            Event::Connected { conn } => {
                let Some(info) = e.connection(conn).cloned() else { return Ok(()) };
                let Some((_, plan, answer)) = self.open.iter_mut().find(|(c, ..)| *c == conn) else {
                    return Ok(());
                };
                let a = e.adapter();
                let mr =
                    a.reg_mr(info.pd, Memory::zeroed(ANSWER), Access::LOCAL_WRITE).map_err(|(e, _)| e)?;
                let sge = Sge { lkey: mr.lkey, offset: 0, len: ANSWER as u64 };
                a.post_recv(info.qps[0], RecvWr { wr_id: 0, sges: Sges::One(sge) })?;
                let ask = Data::Inline(ask(*plan).into_bytes().into());
                a.post_send(info.qps[0], SendWr::new(1, SendOp::Send, ask))?;
                *answer = Some((info.cq, mr));
            }
            Event::Closed { conn, .. } => {
                if let Some(at) = self.open.iter().position(|(c, ..)| *c == conn)
                    && let (_, _, Some((_, mr))) = self.open.remove(at)
                {
                    e.adapter().dereg_mr(mr.id)?;
                }
                // It is closed, so that this cannot fail.
                let _ = e.release(conn);
            }
            _ => {}
        }
        Ok(())
    }

    /// What servers answered.
    fn answers(&mut self, now: Time, e: &mut Endpoint) {
        for (conn, _, answer) in &self.open {
            let Some((cq, mr)) = answer else { continue };
            while let Some(wc) = e.adapter().poll_cq(*cq) {
                let mut b = [0; 8];
                if wc.wr_id != 0 || e.adapter().read_mr(mr.id, 0, &mut b).is_err() {
                    continue;
                }
                if b.starts_with(b"{\"ready\"") {
                    Common::add(&self.given);
                } else {
                    Common::add(&self.refused);
                    e.close(now, *conn, 0, "again");
                }
            }
        }
    }
}

/// The request in the words of `longhaul perf`.
fn ask((streams, region, depth): (u16, u64, u32)) -> String {
    format!(
        r#"{{"ask":{{"version":4,"operation":"write","latency":false,"size":1048576,"streams":{streams},"depth":{depth},"nanos":60000000000,"messages":null,"stop":false,"reverse":false,"region":{region},"verify":true,"rkeys":[]}}}}"#
    )
}

impl App for Measurements {
    fn drive(&mut self, now: Time, e: &mut Endpoint) {
        while let Some(event) = e.poll_event() {
            if let Err(error) = self.event(event, e) {
                eprintln!("measurements: {error:#}");
            }
        }
        self.answers(now, e);
        if self.common.over() {
            for (c, ..) in &self.open {
                e.close(now, *c, 0, "over");
            }
        } else if now >= self.next {
            self.next = now + Span::from_millis(100);
            if self.open.len() < HELD {
                let plan =
                    PLANS[self.asked.load(std::sync::atomic::Ordering::Relaxed) as usize % PLANS.len()];
                let options = TransportOptions { initial_qps: plan.0 + 1, ..TransportOptions::default() };
                let mut to = connect(self.common.target.perf);
                to.options = Some(options);
                if let Ok(conn) = e.connect(now, to) {
                    self.open.push((conn, plan, None));
                    Common::add(&self.asked);
                }
            }
        }
    }
    fn next_timeout(&self) -> Option<Time> {
        Some(self.next)
    }
    fn finished(&self) -> bool {
        self.common.over()
    }
}
