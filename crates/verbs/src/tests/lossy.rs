//! Two adapters over a network that loses, reorders and duplicates, checked against a model.

use super::*;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Write,
    WriteImm,
    Send,
    Read,
}

#[derive(Clone, Debug)]
struct Job {
    op: Op,
    len: u64,
    pieces: u64,
    from: u64,
    signaled: bool,
    solicited: bool,
    fence: bool,
    inline: bool,
}

const ROOM: u64 = 600;

fn job() -> impl Strategy<Value = Job> {
    let op =
        prop_oneof![3 => Just(Op::Write), 1 => Just(Op::WriteImm), 2 => Just(Op::Send), 2 => Just(Op::Read)];
    let len = prop_oneof![1 => Just(0), 8 => 0..ROOM];
    let marks = (any::<bool>(), any::<bool>(), proptest::bool::weighted(0.1), proptest::bool::weighted(0.2));
    (op, len, 1u64..4, 0..SIZE - ROOM, marks).prop_map(|(op, len, pieces, from, m)| {
        let (signaled, solicited, fence, inline) = m;
        Job { op, len, pieces, from, signaled, solicited, fence, inline }
    })
}

/// One direction: what was posted and what must come of it.
struct Flow {
    jobs: Vec<Job>,
    posted: usize,
    /// Job number of each message that consumes a receive, in posting order.
    consuming: Vec<usize>,
    receives_posted: u64,
    received: usize,
    completed: Vec<u64>,
    /// The limit that was told to the sender.
    told: u64,
    /// Sent, and neither acknowledged nor reported lost for good.
    outstanding: Vec<Segment>,
    network: Vec<(Segment, Vec<u8>)>,
    acks: Vec<Segment>,
}

/// Where job `i` puts its bytes: each has its own slot, so that the end result does not depend on order.
fn slot(i: usize) -> u64 {
    i as u64 * ROOM
}

impl Flow {
    fn new(jobs: Vec<Job>) -> Flow {
        let consumes = |j: &Job| matches!(j.op, Op::Send | Op::WriteImm);
        let consuming = (0..jobs.len()).filter(|i| consumes(&jobs[*i])).collect();
        Flow {
            jobs,
            posted: 0,
            consuming,
            receives_posted: 0,
            received: 0,
            completed: vec![],
            told: 0,
            outstanding: vec![],
            network: vec![],
            acks: vec![],
        }
    }

    fn post(&mut self, x: &mut End, y: &End) {
        let Some(j) = self.jobs.get(self.posted) else { return };
        let (i, at) = (self.posted, slot(self.posted));
        let op = match j.op {
            Op::Write => SendOp::Write { rkey: y.dst.rkey, offset: at },
            Op::WriteImm => SendOp::WriteImm { rkey: y.dst.rkey, offset: at, imm: i as u32 },
            Op::Send => SendOp::SendImm { imm: i as u32 },
            Op::Read => SendOp::Read { rkey: y.src.rkey, offset: j.from },
        };
        let (lkey, start) = match j.op {
            Op::Read => (x.own.lkey, at),
            _ => (x.src.lkey, j.from),
        };
        let data = if j.inline && !matches!(j.op, Op::Read) {
            Data::Inline(x.bytes(x.src, j.from, j.len).into())
        } else {
            let cut = |k: u64| j.len * k / j.pieces;
            let sge = |k| Sge { lkey, offset: start + cut(k), len: cut(k + 1) - cut(k) };
            Data::from((0..j.pieces).map(sge).collect::<Vec<_>>())
        };
        let marks = (j.signaled, j.solicited, j.fence);
        let wr = SendWr::new(i as u64, op, data);
        x.post(SendWr { signaled: marks.0, solicited: marks.1, fence: marks.2, ..wr });
        self.posted += 1;
    }

    /// Posts the receive for the next message that needs one: upper half of `own`, where no read answer goes.
    fn post_recv(&mut self, y: &mut End) {
        let n = self.receives_posted;
        if (n as usize) < self.consuming.len() {
            y.recv(n, SIZE / 2 + n * ROOM, ROOM);
            self.receives_posted += 1;
        }
    }

    fn transmit(&mut self, x: &mut End, max: usize) -> bool {
        let Some((seg, payload)) = x.segment(max) else { return false };
        assert!(seg.len as usize <= max && seg.rsn.is_none_or(|r| r < self.told), "beyond credit");
        self.outstanding.push(seg);
        self.network.push((seg, payload));
        true
    }

    fn deliver(&mut self, y: &mut End, which: usize, keep: bool) {
        if self.network.is_empty() {
            return;
        }
        let i = which % self.network.len();
        let (seg, payload) = if keep { self.network[i].clone() } else { self.network.swap_remove(i) };
        match y.place(&seg, &payload) {
            Ok(Placed::New | Placed::Duplicate) => self.acks.push(seg),
            other => panic!("{other:?} for {seg:?}"),
        }
    }

    /// Checks the receive completions of `y` at this moment: order, contents, and all earlier writes in place.
    fn check_received(&mut self, x: &End, y: &mut End) {
        for wc in y.received() {
            let job_number = self.consuming[self.received];
            let j = &self.jobs[job_number];
            assert_eq!((wc.wr_id, wc.status), (self.received as u64, Status::Success));
            assert_eq!((wc.imm, wc.byte_len), (Some(job_number as u32), j.len));
            assert_eq!(wc.solicited, j.solicited);
            let is_send = matches!(j.op, Op::Send);
            assert_eq!(wc.opcode, if is_send { Opcode::Recv } else { Opcode::RecvWriteImm });
            if is_send {
                let got = y.bytes(y.own, SIZE / 2 + wc.wr_id * ROOM, j.len);
                assert_eq!(got, x.bytes(x.src, j.from, j.len));
            }
            for (i, e) in self.jobs[..=job_number].iter().enumerate() {
                if matches!(e.op, Op::Write | Op::WriteImm) {
                    assert_eq!(y.bytes(y.dst, slot(i), e.len), x.bytes(x.src, e.from, e.len));
                }
            }
            self.received += 1;
        }
    }

    /// Checks the send completions of `x`: in order, reads with their bytes.
    fn check_sent(&mut self, x: &mut End, y: &End) {
        for wc in x.sent() {
            assert_eq!(wc.status, Status::Success);
            let j = &self.jobs[wc.wr_id as usize];
            assert!(j.signaled && wc.byte_len == j.len);
            if matches!(j.op, Op::Read) {
                assert_eq!(x.bytes(x.own, slot(wc.wr_id as usize), j.len), y.bytes(y.src, j.from, j.len));
            }
            self.completed.push(wc.wr_id);
        }
    }

    fn tell(&mut self, x: &mut End, y: &mut End) {
        self.told = y.a.recv_limit(y.qp).unwrap();
        assert_eq!(self.told, self.receives_posted);
        x.a.set_send_limit(x.qp, self.told).unwrap();
    }

    fn step(&mut self, x: &mut End, y: &mut End, (what, n): (u8, usize)) {
        match what {
            0 => self.post(x, y),
            1 => self.post_recv(y),
            2 => self.tell(x, y),
            3..=6 => {
                self.transmit(x, 1 + n % 300);
            }
            7..=9 => self.deliver(y, n, false),
            10 => self.deliver(y, n, true),
            11 if !self.network.is_empty() => {
                self.network.swap_remove(n % self.network.len());
            }
            // A loss is reported, rightly or not; the acknowledgement may still come.
            12 if !self.outstanding.is_empty() => {
                let seg = self.outstanding.swap_remove(n % self.outstanding.len());
                x.a.on_lost(x.qp, seg.reference());
            }
            13..=15 if !self.acks.is_empty() => {
                let seg = self.acks.swap_remove(n % self.acks.len());
                x.a.on_acked(x.qp, seg.reference());
            }
            _ => {}
        }
        self.check_received(x, y);
        self.check_sent(x, y);
    }

    /// One round without further mischief: everything on its way arrives, everything missing is found lost.
    fn settle(&mut self, x: &mut End, y: &mut End, max: usize) {
        while self.posted < self.jobs.len() {
            self.post(x, y);
        }
        while (self.receives_posted as usize) < self.consuming.len() {
            self.post_recv(y);
        }
        self.tell(x, y);
        while !self.network.is_empty() {
            self.deliver(y, 0, false);
        }
        for seg in self.acks.drain(..) {
            x.a.on_acked(x.qp, seg.reference());
        }
        for seg in self.outstanding.drain(..) {
            x.a.on_lost(x.qp, seg.reference());
        }
        while self.transmit(x, max) {}
        self.check_received(x, y);
        self.check_sent(x, y);
    }

    fn check_end(&self, x: &End, y: &End) {
        let signaled = (0..self.jobs.len() as u64).filter(|i| self.jobs[*i as usize].signaled);
        assert!(self.completed.iter().copied().eq(signaled), "all completions, in order");
        assert_eq!(self.received, self.consuming.len());
        let info = x.a.query_qp(x.qp).unwrap();
        assert_eq!((info.sends, info.unfinished_messages), (0, 0));
        let mut dst = vec![0; SIZE as usize];
        let mut own = vec![0; SIZE as usize];
        for (i, j) in self.jobs.iter().enumerate() {
            let (at, n) = (slot(i) as usize, j.len as usize);
            match j.op {
                Op::Write | Op::WriteImm => dst[at..at + n].copy_from_slice(&x.bytes(x.src, j.from, j.len)),
                Op::Read => own[at..at + n].copy_from_slice(&y.bytes(y.src, j.from, j.len)),
                Op::Send => {}
            }
        }
        assert_eq!(y.bytes(y.dst, 0, SIZE), dst, "every byte in its place and nowhere else");
        assert_eq!(x.bytes(x.own, 0, SIZE / 2), own[..SIZE as usize / 2]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn all_messages_arrive_once_in_order_in_place(
        xy in proptest::collection::vec(job(), 0..40),
        yx in proptest::collection::vec(job(), 0..40),
        rd in 1usize..4,
        steps in proptest::collection::vec((any::<bool>(), (0u8..16, any::<usize>())), 0..1500),
        max in 1usize..700,
    ) {
        let (mut x, mut y) = (End::new(1, |i| i.max_rd_atomic = rd), End::new(2, |i| i.max_rd_atomic = rd));
        let (mut f, mut g) = (Flow::new(xy), Flow::new(yx));
        for (forth, step) in steps {
            if forth {
                f.step(&mut x, &mut y, step);
            } else {
                g.step(&mut y, &mut x, step);
            }
            // An answer to a read completes work in the other direction.
            f.check_sent(&mut x, &y);
            g.check_sent(&mut y, &x);
        }
        for _ in 0..400 {
            f.settle(&mut x, &mut y, max);
            g.settle(&mut y, &mut x, max);
            f.check_sent(&mut x, &y);
            g.check_sent(&mut y, &x);
        }
        f.check_end(&x, &y);
        g.check_end(&y, &x);
        for mut e in [x, y] {
            let regions = [e.src, e.dst, e.own];
            for mr in regions {
                prop_assert!(e.a.dereg_mr(mr.id).is_ok(), "nothing holds memory any more");
            }
        }
    }
}

/// Two unreliable ends and a flow between them, with everything posted.
fn posted_unreliably(mut jobs: Vec<Job>) -> (End, End, Flow) {
    let kind = |i: &mut QpInit| (i.kind, i.max_datagram) = (Kind::Unreliable, ROOM as u32);
    let (mut x, mut y) = (End::new(1, kind), End::new(2, kind));
    for j in &mut jobs {
        j.signaled = true;
        if matches!(j.op, Op::Read) {
            j.op = Op::Write;
        }
    }
    let mut f = Flow::new(jobs);
    while f.posted < f.jobs.len() {
        f.post(&mut x, &y);
    }
    while (f.receives_posted as usize) < f.consuming.len() {
        f.post_recv(&mut y);
    }
    (x, y, f)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// An unreliable queue pair reports exactly what did not arrive, completes in order, and delivers at most once.
    #[test]
    fn unreliable_queue_pair_reports_losses(
        jobs in proptest::collection::vec(job(), 0..40),
        fates in proptest::collection::vec((0u8..4, any::<usize>()), 1..100),
        max in 1usize..700,
    ) {
        let (mut x, mut y, f) = posted_unreliably(jobs);
        let mut lost = vec![0u64; f.jobs.len()];
        let mut fits = vec![true; f.jobs.len()];
        for (i, j) in f.jobs.iter().enumerate() {
            if matches!(j.op, Op::Send) && j.len > max as u64 {
                (lost[i], fits[i]) = (j.len, false);
            }
        }
        // Messages that are sent, by their number.
        let sent: Vec<usize> = (0..f.jobs.len()).filter(|i| fits[*i]).collect();
        let mut any_lost: Vec<bool> = fits.iter().map(|f| !f).collect();
        let (mut want_dst, mut delivered, mut segs) = (vec![0; SIZE as usize], vec![], vec![]);
        // `segment` would insist that a datagram that is too long comes out.
        while let Some(seg) = x.a.next_segment(x.qp, max) {
            let mut p = vec![0; seg.len as usize];
            x.a.gather(x.qp, &seg, &mut p).unwrap();
            segs.push((seg, p));
        }
        for (i, (fate, n)) in fates.iter().cycle().take(segs.len()).enumerate() {
            let j = i + n % 5 % (segs.len() - i);
            segs.swap(i, j);
            let (seg, payload) = &segs[i];
            let job = sent[seg.msn as usize];
            if *fate == 0 {
                lost[job] += u64::from(seg.len);
                any_lost[job] = true;
                x.a.on_lost(x.qp, seg.reference());
                continue;
            }
            prop_assert_eq!(y.place(seg, payload), Ok(Placed::New));
            if *fate == 1 {
                let notifies = seg.rsn.is_some() && seg.last.is_some();
                let again = if notifies { Placed::Duplicate } else { Placed::New };
                prop_assert_eq!(y.place(seg, payload), Ok(again));
            }
            if seg.op == SegmentOp::Write {
                let at = seg.position as usize;
                want_dst[at..at + payload.len()].copy_from_slice(payload);
            }
            if seg.rsn.is_some() && seg.last.is_some() {
                delivered.push(job as u32);
            }
            x.a.on_acked(x.qp, seg.reference());
        }
        let got: Vec<_> = y.received().iter().map(|w| w.imm.unwrap()).collect();
        prop_assert_eq!(got, delivered, "in order of arrival, once each");
        prop_assert!(y.bytes(y.dst, 0, SIZE) == want_dst);
        let status = |i: usize| {
            if any_lost[i] { Status::LossReported { lost: lost[i] } } else { Status::Success }
        };
        let want: Vec<_> = (0..f.jobs.len()).map(|i| (i as u64, status(i))).collect();
        prop_assert_eq!(ids(&x.sent()), want);
    }
}
