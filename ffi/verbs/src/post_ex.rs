//! The extended way to post (`ibv_wr_start` to `ibv_wr_complete`): work requests are built by functions, and posted together.

use crate::abi::*;
use crate::guarded;
use crate::post::{Towards, check_state, compare_swap, destination, fetch_add, inline_of, post_one, sges_of};
use crate::queue_pair::{Pair, pair};
use core::ffi::{c_int, c_void};
use verbs::{Data, SendOp, SendWr, Sges};

type Qp = *mut ibv_qp_ex;

/// Work requests that are being built.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    list: Vec<(SendWr, Towards)>,
    /// What was wrong with one of them.
    error: c_int,
}

/// The table of functions around a queue pair.
pub(crate) fn table(qp_base: ibv_qp) -> ibv_qp_ex {
    ibv_qp_ex {
        qp_base,
        comp_mask: 0,
        wr_id: 0,
        wr_flags: 0,
        wr_atomic_cmp_swp: Some(wr_atomic_cmp_swp),
        wr_atomic_fetch_add: Some(wr_atomic_fetch_add),
        wr_bind_mw: Some(wr_bind_mw),
        wr_local_inv: Some(wr_local_inv),
        wr_rdma_read: Some(wr_rdma_read),
        wr_rdma_write: Some(wr_rdma_write),
        wr_rdma_write_imm: Some(wr_rdma_write_imm),
        wr_send: Some(wr_send),
        wr_send_imm: Some(wr_send_imm),
        wr_send_inv: Some(wr_send_inv),
        wr_send_tso: None,
        wr_set_ud_addr: Some(wr_set_ud_addr),
        wr_set_xrc_srqn: Some(wr_set_xrc_srqn),
        wr_set_inline_data: Some(wr_set_inline_data),
        wr_set_inline_data_list: Some(wr_set_inline_data_list),
        wr_set_sge: Some(wr_set_sge),
        wr_set_sge_list: Some(wr_set_sge_list),
        wr_start: Some(wr_start),
        wr_complete: Some(wr_complete),
        wr_abort: Some(wr_abort),
        wr_atomic_write: None,
    }
}

/// The queue pair that one thread builds work requests for.
unsafe fn building<'a>(qp: Qp) -> Option<&'a mut Pair> {
    // SAFETY: the caller's queue pair, which no other thread uses between `ibv_wr_start` and `ibv_wr_complete`.
    unsafe { qp.cast::<Pair>().as_mut() }
}

/// Begins a work request.
unsafe fn begin(qp: Qp, op: SendOp) {
    // SAFETY: the caller's queue pair.
    let Some(p) = (unsafe { building(qp) }) else { return };
    let flags = p.base.wr_flags;
    let wr = SendWr {
        wr_id: p.base.wr_id,
        op,
        data: Data::Sges(Sges::None),
        signaled: p.signals_all || flags & 1 << 1 != 0,
        solicited: flags & 1 << 2 != 0,
        fence: flags & 1 != 0,
    };
    p.batch.list.push((wr, Towards::Peer));
}

/// Gives the work request that was begun last its bytes.
unsafe fn set(qp: Qp, data: Result<Data, c_int>) {
    // SAFETY: the caller's queue pair.
    let Some(p) = (unsafe { building(qp) }) else { return };
    match (data, p.batch.list.last_mut()) {
        (Ok(data), Some((wr, _))) => wr.data = data,
        (Err(e), _) => p.batch.error = e,
        (Ok(_), None) => p.batch.error = libc::EINVAL,
    }
}

/// The batch that is being built cannot be posted.
unsafe fn fail(qp: Qp, code: c_int) {
    // SAFETY: the caller's queue pair.
    if let Some(p) = unsafe { building(qp) } {
        p.batch.error = code;
    }
}

unsafe extern "C" fn wr_set_ud_addr(qp: Qp, ah: *mut c_void, number: u32, q_key: u32) {
    // SAFETY: the caller's queue pair and address handle.
    let Some(p) = (unsafe { building(qp) }) else { return };
    // SAFETY: as above.
    let to = unsafe { destination(p, ah, number, q_key) };
    match (to, p.batch.list.last_mut()) {
        (Ok(to), Some((_, last))) => *last = Towards::Host(to),
        (Err(e), _) => p.batch.error = e,
        (Ok(_), None) => p.batch.error = libc::EINVAL,
    }
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: Qp, queue: u32) {
    // SAFETY: the caller's queue pair.
    let Some(p) = (unsafe { building(qp) }) else { return };
    match p.batch.list.last_mut() {
        Some((_, to)) => *to = Towards::Queue(queue),
        None => p.batch.error = libc::EINVAL,
    }
}

unsafe extern "C" fn wr_atomic_cmp_swp(qp: Qp, rkey: u32, offset: u64, compare: u64, swap: u64) {
    // SAFETY: the caller's queue pair, as in all that follows.
    unsafe { begin(qp, SendOp::Atomic { rkey, offset, op: compare_swap(compare, swap) }) }
}
unsafe extern "C" fn wr_atomic_fetch_add(qp: Qp, rkey: u32, offset: u64, add: u64) {
    // SAFETY: as above.
    unsafe { begin(qp, SendOp::Atomic { rkey, offset, op: fetch_add(add) }) }
}
unsafe extern "C" fn wr_rdma_read(qp: Qp, rkey: u32, offset: u64) {
    // SAFETY: as above.
    unsafe { begin(qp, SendOp::Read { rkey, offset }) }
}
unsafe extern "C" fn wr_rdma_write(qp: Qp, rkey: u32, offset: u64) {
    // SAFETY: as above.
    unsafe { begin(qp, SendOp::Write { rkey, offset }) }
}
unsafe extern "C" fn wr_rdma_write_imm(qp: Qp, rkey: u32, offset: u64, imm: u32) {
    // SAFETY: as above.
    unsafe { begin(qp, SendOp::WriteImm { rkey, offset, imm: u32::from_be(imm) }) }
}
unsafe extern "C" fn wr_send(qp: Qp) {
    // SAFETY: as above.
    unsafe { begin(qp, SendOp::Send) }
}
unsafe extern "C" fn wr_send_imm(qp: Qp, imm: u32) {
    // SAFETY: as above.
    unsafe { begin(qp, SendOp::SendImm { imm: u32::from_be(imm) }) }
}

unsafe extern "C" fn wr_set_sge(qp: Qp, lkey: u32, addr: u64, length: u32) {
    // SAFETY: as above.
    unsafe { set(qp, Ok(Data::Sges(sges_of(&[ibv_sge { addr, length, lkey }])))) }
}
unsafe extern "C" fn wr_set_sge_list(qp: Qp, n: usize, list: *const ibv_sge) {
    // SAFETY: as above; the list has `n` elements.
    unsafe {
        let most = building(qp).map_or(0, |p| p.cap.max_send_sge as usize);
        let data = if n > most || list.is_null() && n > 0 {
            Err(libc::EINVAL)
        } else {
            Ok(Data::Sges(sges_of(if n == 0 { &[] } else { core::slice::from_raw_parts(list, n) })))
        };
        set(qp, data);
    }
}
unsafe extern "C" fn wr_set_inline_data(qp: Qp, addr: *mut c_void, length: usize) {
    // SAFETY: as above; the bytes may be read.
    unsafe { wr_set_inline_data_list(qp, 1, &ibv_data_buf { addr, length }) }
}
unsafe extern "C" fn wr_set_inline_data_list(qp: Qp, n: usize, list: *const ibv_data_buf) {
    // SAFETY: as above; the list has `n` elements, whose bytes may be read.
    unsafe {
        let most = building(qp).map_or(0, |p| p.cap.max_inline_data);
        let buffers = if n == 0 { &[] } else { core::slice::from_raw_parts(list, n) };
        let all: Result<Vec<ibv_sge>, c_int> = buffers
            .iter()
            .map(|b| {
                let length = u32::try_from(b.length).map_err(|_| libc::EINVAL)?;
                Ok(ibv_sge { addr: b.addr as u64, length, lkey: 0 })
            })
            .collect();
        set(qp, all.and_then(|list| inline_of(&list, most)));
    }
}

unsafe extern "C" fn wr_send_inv(qp: Qp, rkey: u32) {
    // SAFETY: as above.
    unsafe { begin(qp, SendOp::SendInvalidate { rkey }) }
}
unsafe extern "C" fn wr_local_inv(qp: Qp, rkey: u32) {
    // SAFETY: as above.
    unsafe { begin(qp, SendOp::LocalInvalidate { rkey }) }
}
unsafe extern "C" fn wr_bind_mw(qp: Qp, mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) {
    // SAFETY: as above; the window and the structure are the caller's.
    unsafe {
        match info.as_ref().ok_or(libc::EINVAL).and_then(|info| crate::window::binding(mw, rkey, info)) {
            Ok(op) => begin(qp, op),
            Err(code) => fail(qp, code),
        }
    }
}

unsafe extern "C" fn wr_start(qp: Qp) {
    // SAFETY: as above.
    if let Some(p) = unsafe { building(qp) } {
        p.batch = Batch::default();
    }
}

unsafe extern "C" fn wr_complete(qp: Qp) -> c_int {
    guarded(|| {
        crate::process::check_fork()?;
        // SAFETY: as above.
        unsafe {
            let batch = building(qp).map(|p| core::mem::take(&mut p.batch)).ok_or(libc::EINVAL)?;
            let p = pair(qp.cast())?;
            check_state(p)?;
            if batch.error != 0 {
                return Err(batch.error);
            }
            // All or none.
            if p.qp.send_room() < batch.list.len() as u64 {
                return Err(libc::ENOMEM);
            }
            batch.list.into_iter().try_for_each(|(wr, to)| post_one(p, wr, to))
        }
    })
}

unsafe extern "C" fn wr_abort(qp: Qp) {
    // SAFETY: as above.
    unsafe { wr_start(qp) }
}
