//! Queue pairs and their states (InfiniBand, 10.3.1).

use crate::abi::*;
use crate::completion::Queue;
use crate::device::{Context, MAX_INLINE, MAX_RD_ATOMIC, MAX_SGE, MAX_WR, from_gid, gid_at};
use crate::memory::domain;
use crate::shared_receive::Shared;
use crate::{errno_of, guarded, guarded_pointer};
use core::ffi::{c_int, c_void};
use engine::{Engine, QueuePair};
use std::net::IpAddr;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use verbs::QpState;

/// Bits of `enum ibv_qp_attr_mask`.
mod mask {
    pub const STATE: i32 = 1;
    pub const CUR_STATE: i32 = 1 << 1;
    pub const ACCESS_FLAGS: i32 = 1 << 3;
    pub const PKEY_INDEX: i32 = 1 << 4;
    pub const PORT: i32 = 1 << 5;
    pub const QKEY: i32 = 1 << 6;
    pub const AV: i32 = 1 << 7;
    pub const PATH_MTU: i32 = 1 << 8;
    pub const TIMEOUT: i32 = 1 << 9;
    pub const RETRY_CNT: i32 = 1 << 10;
    pub const RNR_RETRY: i32 = 1 << 11;
    pub const RQ_PSN: i32 = 1 << 12;
    pub const MAX_QP_RD_ATOMIC: i32 = 1 << 13;
    pub const ALT_PATH: i32 = 1 << 14;
    pub const MIN_RNR_TIMER: i32 = 1 << 15;
    pub const SQ_PSN: i32 = 1 << 16;
    pub const MAX_DEST_RD_ATOMIC: i32 = 1 << 17;
    pub const DEST_QPN: i32 = 1 << 20;

    pub const TO_INIT: i32 = STATE | PKEY_INDEX | PORT | ACCESS_FLAGS;
    pub const TO_INIT_UD: i32 = STATE | PKEY_INDEX | PORT | QKEY;
    pub const TO_RTR_UC: i32 = STATE | AV | PATH_MTU | DEST_QPN | RQ_PSN;
    pub const TO_RTR: i32 = TO_RTR_UC | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER;
    pub const TO_RTS_UC: i32 = STATE | SQ_PSN;
    pub const TO_RTS: i32 = TO_RTS_UC | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC;
}

/// A queue pair: what programs know as `ibv_qp` and `ibv_qp_ex` is its first field.
#[repr(C)]
pub(crate) struct Pair {
    pub(crate) base: ibv_qp_ex,
    pub(crate) engine: Engine,
    pub(crate) qp: Arc<QueuePair>,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) signals_all: bool,
    /// Made by `ibv_create_qp_ex` with the functions that post named: `ibv_wr_start` may be used.
    posts_by_functions: bool,
    /// The domain of a target of XRC.
    xrcd: *mut ibv_xrcd,
    /// What the program has set.
    pub(crate) attr: ibv_qp_attr,
    /// The state that work requests are checked by.
    pub(crate) state: AtomicI32,
    /// Work requests that are being built (`ibv_wr_start`).
    pub(crate) batch: crate::post_ex::Batch,
    /// Groups that it is a member of.
    groups: Mutex<Vec<IpAddr>>,
}

impl Pair {
    /// The groups that it is a member of. Not held while the engine is called.
    pub(crate) fn groups(&self) -> MutexGuard<'_, Vec<IpAddr>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// # Safety
/// `qp` is null or one of ours that is not destroyed.
pub(crate) unsafe fn pair<'a>(qp: *mut ibv_qp) -> Result<&'a Pair, c_int> {
    // SAFETY: the caller's promise.
    unsafe { qp.cast::<Pair>().as_ref() }.ok_or(libc::EINVAL)
}

pub(crate) fn check_cap(cap: &ibv_qp_cap) -> Result<(), c_int> {
    let within = cap.max_send_wr <= MAX_WR
        && cap.max_recv_wr <= MAX_WR
        && cap.max_send_sge <= MAX_SGE
        && cap.max_recv_sge <= MAX_SGE
        && cap.max_inline_data <= MAX_INLINE;
    if within { Ok(()) } else { Err(libc::EINVAL) }
}

fn create(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> Result<*mut Pair, c_int> {
    crate::process::check_fork()?;
    // SAFETY: the caller's domain and structure.
    let ((ours, pd_id), a) = unsafe { (domain(pd)?, attr.as_mut().ok_or(libc::EINVAL)?) };
    if a.qp_type == QPT_XRC_SEND {
        return crate::xrc::create_initiator(pd, a);
    }
    let is_ud = a.qp_type == QPT_UD;
    match a.qp_type {
        QPT_UD => crate::process::needs_packets(&ours.engine, "datagram queue pairs (UD)")?,
        QPT_UC => crate::process::needs_packets(&ours.engine, "unreliable queue pairs (UC)")?,
        _ => {}
    }
    if !matches!(a.qp_type, QPT_RC | QPT_UC | QPT_UD) {
        return Err(libc::EOPNOTSUPP);
    }
    check_cap(&a.cap)?;
    // SAFETY: the caller's queues.
    let (send, receive, srq) = unsafe {
        let queue = |cq: *mut ibv_cq| cq.cast::<Queue>().as_ref().ok_or(libc::EINVAL);
        (queue(a.send_cq)?, queue(a.recv_cq)?, a.srq.cast::<Shared>().as_ref())
    };
    let srq_id = srq.map(|s| s.id);
    let cap = a.cap;
    let depth = ((cap.max_send_wr as usize).max(1), (cap.max_recv_wr as usize).max(1));
    let connected = || {
        ours.engine.create_qp(pd_id, &send.cq, &receive.cq, |init| {
            init.srq = srq_id;
            init.max_send_wr = (cap.max_send_wr as usize).max(1);
            // Of a shared queue: as many as it may take at a time.
            init.max_recv_wr = if srq_id.is_some() { MAX_WR as usize } else { cap.max_recv_wr as usize };
            init.max_sge = MAX_SGE as usize;
            init.max_rd_atomic = MAX_RD_ATOMIC.into();
        })
    };
    let qp = if is_ud {
        ours.engine.create_datagram_qp(pd_id, &send.cq, &receive.cq, depth, srq_id)
    } else {
        connected()
    };
    let qp = qp.map_err(|e| errno_of(&e))?;
    // SAFETY: `domain` has found it sound.
    let context = unsafe { (*pd).context };
    Ok(wrap(ours, Made { context, pd, xrcd: core::ptr::null_mut(), qp }, a))
}

/// A queue pair of the engine's, and where it belongs.
pub(crate) struct Made {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
    /// The domain of a target of XRC.
    pub(crate) xrcd: *mut ibv_xrcd,
    pub(crate) qp: Arc<QueuePair>,
}

/// What programs know as a queue pair.
pub(crate) fn wrap(ours: &Context, made: Made, a: &mut ibv_qp_init_attr) -> *mut Pair {
    let Made { context, pd, xrcd, qp } = made;
    if a.qp_type != QPT_XRC_RECV {
        a.cap.max_inline_data = MAX_INLINE;
        a.cap.max_send_sge = a.cap.max_send_sge.max(1);
    }
    let base = ibv_qp {
        context,
        qp_context: a.qp_context,
        pd,
        send_cq: a.send_cq,
        recv_cq: a.recv_cq,
        srq: a.srq,
        handle: qp.number(),
        qp_num: qp.number(),
        state: RESET,
        qp_type: a.qp_type,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    };
    let made = Pair {
        base: crate::post_ex::table(base),
        engine: ours.engine.clone(),
        qp,
        cap: a.cap,
        signals_all: a.sq_sig_all != 0,
        posts_by_functions: false,
        xrcd,
        attr: ibv_qp_attr { cap: a.cap, ..ibv_qp_attr::default() },
        state: AtomicI32::new(RESET),
        batch: crate::post_ex::Batch::default(),
        groups: Mutex::default(),
    };
    let number = made.qp.number();
    let made = Box::into_raw(Box::new(made));
    crate::async_event::know_queue_pair(number, made.cast(), &ours.events, !a.srq.is_null());
    made
}

#[unsafe(no_mangle)]
extern "C" fn lh_ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    guarded_pointer(|| Ok(create(pd, attr)?.cast()))
}

pub(crate) unsafe extern "C" fn create_qp_ex(
    _: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    /// IBV_QP_INIT_ATTR_PD, _XRCD and _SEND_OPS_FLAGS.
    const PD: u32 = 1;
    const XRCD: u32 = 1 << 1;
    const SEND_OPS: u32 = 1 << 6;
    /// Writes, sends, reads and their variants, atomic operations, and those of memory windows.
    const OPS: u64 = 0x3ff;
    guarded_pointer(|| {
        // SAFETY: the caller's structure.
        let a = unsafe { attr.as_mut() }.ok_or(libc::EINVAL)?;
        let ops = if a.comp_mask & SEND_OPS != 0 { a.send_ops_flags } else { 0 };
        // librdmacm gives a target a protection domain, too.
        let (needs, may) = if a.qp_type == QPT_XRC_RECV { (XRCD, XRCD | PD) } else { (PD, PD) };
        if a.comp_mask & needs == 0 || a.comp_mask & !(may | SEND_OPS) != 0 || ops & !OPS != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        let made = match a.qp_type {
            QPT_XRC_RECV => {
                let pd = if a.comp_mask & PD != 0 { a.pd } else { core::ptr::null_mut() };
                crate::xrc::create_target(a, pd)?
            }
            // Both begin with the same fields.
            _ => create(a.pd, (&raw mut *a).cast())?,
        };
        // SAFETY: it was made just now.
        unsafe { (*made).posts_by_functions = a.comp_mask & SEND_OPS != 0 };
        Ok(made.cast())
    })
}

/// Null for a queue pair that was not made for the functions that post, as with rdma-core.
#[unsafe(no_mangle)]
unsafe extern "C" fn lh_ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut c_void {
    // SAFETY: the caller's queue pair.
    match unsafe { pair(qp) } {
        Ok(p) if p.posts_by_functions => qp.cast(),
        _ => core::ptr::null_mut(),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lh_ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    guarded(|| {
        // SAFETY: the caller's queue pair, which nobody uses afterwards.
        unsafe {
            let p = pair(qp)?;
            crate::process::check_fork()?;
            if !p.groups().is_empty() {
                return Err(libc::EBUSY);
            }
            crate::async_event::forget_queue_pair(p.qp.number());
            p.engine.destroy_qp(&p.qp);
            if !p.xrcd.is_null() {
                crate::xrc::xrc_domain(p.xrcd)?.leave();
            }
            drop(Box::from_raw(qp.cast::<Pair>()));
        }
        Ok(())
    })
}

/// The state that it is in by now: the engine puts it into error by itself.
fn state_of(p: &Pair) -> c_int {
    let known = p.state.load(Ordering::Acquire);
    if known >= RTR && p.engine.qp_state(&p.qp) == Some(QpState::Error) { ERR } else { known }
}

/// Takes over what a transition sets.
fn keep(to: &mut ibv_qp_attr, a: &ibv_qp_attr, set: c_int) {
    let mut take = |bit: c_int, f: &dyn Fn(&mut ibv_qp_attr)| {
        if set & bit != 0 {
            f(to);
        }
    };
    take(mask::ACCESS_FLAGS, &|t| t.qp_access_flags = a.qp_access_flags);
    take(mask::PKEY_INDEX, &|t| t.pkey_index = a.pkey_index);
    take(mask::PORT, &|t| t.port_num = a.port_num);
    take(mask::QKEY, &|t| t.qkey = a.qkey);
    take(mask::AV, &|t| t.ah_attr = a.ah_attr);
    take(mask::PATH_MTU, &|t| t.path_mtu = a.path_mtu);
    take(mask::TIMEOUT, &|t| t.timeout = a.timeout);
    take(mask::RETRY_CNT, &|t| t.retry_cnt = a.retry_cnt);
    take(mask::RNR_RETRY, &|t| t.rnr_retry = a.rnr_retry);
    take(mask::RQ_PSN, &|t| t.rq_psn = a.rq_psn);
    take(mask::SQ_PSN, &|t| t.sq_psn = a.sq_psn);
    take(mask::MAX_QP_RD_ATOMIC, &|t| t.max_rd_atomic = a.max_rd_atomic);
    take(mask::MAX_DEST_RD_ATOMIC, &|t| t.max_dest_rd_atomic = a.max_dest_rd_atomic);
    take(mask::MIN_RNR_TIMER, &|t| t.min_rnr_timer = a.min_rnr_timer);
    take(mask::DEST_QPN, &|t| t.dest_qp_num = a.dest_qp_num);
}

/// Names the peer.
fn to_rtr(p: &Pair, a: &ibv_qp_attr) -> Result<(), c_int> {
    if a.ah_attr.is_global == 0 {
        eprintln!(
            "longhaul: cannot connect a queue pair: its address has no GID; try the program's option for a GID index"
        );
        return Err(libc::EINVAL);
    }
    let own = gid_at(a.ah_attr.grh.sgid_index.into()).ok_or(libc::EINVAL)?;
    let peer = from_gid(&a.ah_attr.grh.dgid);
    // The traffic class is the code point and two bits for ECN, which are the transport's.
    let dscp = Some(a.ah_attr.grh.traffic_class >> 2).filter(|d| *d != 0);
    p.engine.connect_marked(&p.qp, own, (peer, a.dest_qp_num), dscp).map_err(|e| errno_of(&e))
}

/// The transitions of a datagram queue pair, which has no peer.
fn change_datagram(p: &Pair, from: c_int, to: c_int, a: &ibv_qp_attr, set: c_int) -> Result<(), c_int> {
    let needed = match (from, to) {
        (RESET, INIT) => mask::TO_INIT_UD,
        (INIT, RTR) | (RTS, SQD) | (SQD, RTS) => mask::STATE,
        (RTR, RTS) => mask::TO_RTS_UC,
        (_, RESET | ERR) => mask::STATE,
        (INIT, INIT) | (RTS, RTS) | (SQD, SQD) => 0,
        _ => return Err(libc::EINVAL),
    };
    if set & needed != needed || to == INIT && (a.port_num != 1 || a.pkey_index != 0) && from == RESET {
        return Err(libc::EINVAL);
    }
    let q_key = (set & mask::QKEY != 0).then_some(a.qkey);
    p.engine.set_datagram_qp(&p.qp, q_key, matches!(to, RTR | RTS | SQD), to == ERR);
    Ok(())
}

fn change(p: &Pair, from: c_int, to: c_int, a: &ibv_qp_attr, set: c_int) -> Result<(), c_int> {
    if p.base.qp_base.qp_type == QPT_UD {
        return change_datagram(p, from, to, a, set);
    }
    let (rtr, rts) = match p.base.qp_base.qp_type {
        QPT_UC => (mask::TO_RTR_UC, mask::TO_RTS_UC),
        QPT_XRC_SEND => (mask::TO_RTR_UC, mask::TO_RTS),
        QPT_XRC_RECV => (mask::TO_RTR, mask::TO_RTS_UC | mask::TIMEOUT),
        _ => (mask::TO_RTR, mask::TO_RTS),
    };
    let is_uc = p.base.qp_base.qp_type == QPT_UC;
    let has = |needed: c_int| if set & needed == needed { Ok(()) } else { Err(libc::EINVAL) };
    let state = |s| p.engine.modify_qp(&p.qp, s).map_err(|e| errno_of(&e));
    match (from, to) {
        (_, RESET) => p.engine.reset_qp(&p.qp).map_err(|e| errno_of(&e)),
        (_, ERR) => state(QpState::Error),
        (RESET, INIT) => {
            has(mask::TO_INIT)?;
            if a.port_num != 1 || a.pkey_index != 0 { Err(libc::EINVAL) } else { Ok(()) }
        }
        (INIT, INIT) => Ok(()),
        (INIT, RTR) => {
            has(rtr)?;
            to_rtr(p, a)
        }
        (RTR, RTS) => {
            has(rts)?;
            if !is_uc {
                p.engine.set_retries(&p.qp, crate::retries::of(&p.attr, a, set));
            }
            state(QpState::Rts)
        }
        (RTS, RTS) => Ok(()),
        (RTS, SQD) => state(QpState::Sqd),
        (SQD, RTS) => state(QpState::Rts),
        (SQD, SQD) => Ok(()),
        _ => Err(libc::EINVAL),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lh_ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, set: c_int) -> c_int {
    guarded(|| {
        crate::process::check_fork()?;
        // SAFETY: the caller's queue pair, of which one thread at a time changes the state, and its structure.
        let (p, a) =
            unsafe { (qp.cast::<Pair>().as_mut().ok_or(libc::EINVAL)?, attr.as_ref().ok_or(libc::EINVAL)?) };
        let from = state_of(p);
        if set & mask::CUR_STATE != 0 && a.cur_qp_state != from {
            return Err(libc::EINVAL);
        }
        if set & mask::ALT_PATH != 0 {
            // Paths are the transport's: there is no automatic migration to one that the program names.
            return Err(libc::EOPNOTSUPP);
        }
        let to = if set & mask::STATE != 0 { a.qp_state } else { from };
        if set & mask::ACCESS_FLAGS != 0 {
            let access = crate::memory::access_of(a.qp_access_flags)?;
            change(p, from, to, a, set)?;
            p.engine.set_access(&p.qp, access);
        } else {
            change(p, from, to, a, set)?;
        }
        keep(&mut p.attr, a, set);
        if to == RESET {
            p.attr = ibv_qp_attr { cap: p.cap, ..ibv_qp_attr::default() };
        }
        p.base.qp_base.state = to;
        p.state.store(to, Ordering::Release);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lh_ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's queue pair and structures.
        unsafe {
            let p = pair(qp)?;
            let state = state_of(p);
            attr.write(ibv_qp_attr { qp_state: state, cur_qp_state: state, ..p.attr });
            let b = &p.base.qp_base;
            init.write(ibv_qp_init_attr {
                qp_context: b.qp_context,
                send_cq: b.send_cq,
                recv_cq: b.recv_cq,
                srq: b.srq,
                cap: p.cap,
                qp_type: b.qp_type,
                sq_sig_all: p.signals_all.into(),
            });
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn lh_ibv_query_qp_data_in_order(_: *mut ibv_qp, _: c_int, _: u32) -> c_int {
    0
}

/// Nothing is negotiated beside what peers of ours agree on by themselves.
#[unsafe(no_mangle)]
unsafe extern "C" fn lh_ibv_query_ece(_: *mut ibv_qp, ece: *mut [u32; 3]) -> c_int {
    guarded(|| {
        // SAFETY: the caller's structure of three integers.
        unsafe { ece.write([0; 3]) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn lh_ibv_set_ece(_: *mut ibv_qp, _: *const [u32; 3]) -> c_int {
    libc::EOPNOTSUPP
}
