//! The extended completion queue (`ibv_cq_ex`): one completion at a time, looked at by functions.

use crate::abi::*;
use crate::completion::{Queue, create, wc_of};
use crate::guarded_pointer;
use core::ffi::{c_int, c_uint, c_void};

/// IBV_WC_STANDARD_FLAGS and both kinds of time stamps.
const KNOWN_FLAGS: u64 = 0x7f | 1 << 7 | 1 << 11;

pub(crate) unsafe extern "C" fn create_cq_ex(
    c: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    guarded_pointer(|| {
        // SAFETY: the caller's structure.
        let a = unsafe { attr.as_ref() }.ok_or(libc::EINVAL)?;
        if a.wc_flags & !KNOWN_FLAGS != 0 || a.comp_mask & !3 != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        let cqe = c_int::try_from(a.cqe).map_err(|_| libc::EINVAL)?;
        let queue = create(c, cqe, a.cq_context, a.channel, a.comp_vector as c_int)?;
        // SAFETY: it was made just now.
        let ex = unsafe { &mut (*queue).base };
        ex.start_poll = Some(start_poll);
        ex.next_poll = Some(next_poll);
        ex.end_poll = Some(end_poll);
        ex.read_opcode = Some(read_opcode);
        ex.read_vendor_err = Some(read_vendor_err);
        ex.read_byte_len = Some(read_byte_len);
        ex.read_imm_data = Some(read_imm_data);
        ex.read_qp_num = Some(read_qp_num);
        ex.read_src_qp = Some(read_src_qp);
        ex.read_wc_flags = Some(read_wc_flags);
        ex.read_slid = Some(read_slid);
        ex.read_sl = Some(read_nothing);
        ex.read_dlid_path_bits = Some(read_nothing);
        ex.read_completion_ts = Some(read_time);
        ex.read_completion_wallclock_ns = Some(read_wall_time);
        Ok(queue.cast())
    })
}

/// Takes the next completion to look at.
unsafe fn advance(cq: *mut ibv_cq_ex, may_run: bool) -> c_int {
    // SAFETY: the caller's queue, which one thread at a time polls in this way.
    let Some(queue) = (unsafe { cq.cast::<Queue>().as_mut() }) else { return libc::EINVAL };
    let next = if may_run { queue.engine.poll(&queue.cq) } else { queue.cq.take() };
    let Some(c) = next else { return libc::ENOENT };
    let wc = wc_of(&c);
    (queue.base.wr_id, queue.base.status) = (wc.wr_id, wc.status);
    queue.current = Some(wc);
    0
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, _: *mut c_void) -> c_int {
    // SAFETY: the caller's queue.
    unsafe { advance(cq, true) }
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the caller's queue.
    unsafe { advance(cq, false) }
}

unsafe extern "C" fn end_poll(_: *mut ibv_cq_ex) {}

/// The completion that is looked at.
unsafe fn current(cq: *mut ibv_cq_ex) -> Option<ibv_wc> {
    // SAFETY: the caller's queue.
    unsafe { cq.cast::<Queue>().as_ref() }?.current
}

unsafe extern "C" fn read_opcode(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the caller's queue, as in what follows.
    unsafe { current(cq) }.map_or(0, |w| w.opcode)
}
unsafe extern "C" fn read_vendor_err(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as above.
    unsafe { current(cq) }.map_or(0, |w| w.vendor_err)
}
unsafe extern "C" fn read_byte_len(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as above.
    unsafe { current(cq) }.map_or(0, |w| w.byte_len)
}
unsafe extern "C" fn read_imm_data(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as above.
    unsafe { current(cq) }.map_or(0, |w| w.imm_data)
}
unsafe extern "C" fn read_qp_num(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as above.
    unsafe { current(cq) }.map_or(0, |w| w.qp_num)
}
unsafe extern "C" fn read_src_qp(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as above.
    unsafe { current(cq) }.map_or(0, |w| w.src_qp)
}
unsafe extern "C" fn read_wc_flags(cq: *mut ibv_cq_ex) -> c_uint {
    // SAFETY: as above.
    unsafe { current(cq) }.map_or(0, |w| w.wc_flags)
}
unsafe extern "C" fn read_slid(_: *mut ibv_cq_ex) -> u32 {
    0
}
unsafe extern "C" fn read_nothing(_: *mut ibv_cq_ex) -> u8 {
    0
}
unsafe extern "C" fn read_time(_: *mut ibv_cq_ex) -> u64 {
    lhio::clock::Clock::new().now().as_nanos()
}
/// Nanoseconds since 1970.
unsafe extern "C" fn read_wall_time(_: *mut ibv_cq_ex) -> u64 {
    let now = lhio::clock::WallTime::now();
    now.unix_secs().saturating_mul(1_000_000_000).saturating_add(now.nanos.into())
}
