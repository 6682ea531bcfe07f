//! Structures that programs hand to `libibverbs.so.1`: attributes, lists of work requests, address handles, windows and sizes of any
//! value, on a real engine, in any order and state. Pointers are those of live objects, null, or of structures that are as long as
//! the interface says; what they hold is the fuzzer's.
//!
//! No crash and no panic (libFuzzer ends at one, though the library would turn it into EIO), and all can be destroyed in the end.
//!
//! Input: operations, a byte each with its arguments.

#![no_main]
#![allow(unsafe_code, reason = "the interface is C's")]

mod bytes;

use bytes::Bytes;
use core::ffi::{c_char, c_int, c_void};
use libfuzzer_sys::fuzz_target;
use longhaul_ibverbs::abi::*;
use std::ptr::null_mut;
use std::sync::OnceLock;

/// Operations of one input at most, and objects of a kind at a time.
const MAX_OPS: usize = 200;
const MAX_OBJECTS: usize = 6;
/// Bytes that the program registers.
const LEN: usize = 1 << 16;
/// Entries of each list of places: as many as a work request may have.
const SGES: usize = 16;
/// Work requests in a list.
const LIST: usize = 4;

unsafe extern "C" {
    fn lh_ibv_get_device_list(n: *mut c_int) -> *mut *mut ibv_device;
    fn lh_ibv_free_device_list(list: *mut *mut ibv_device);
    fn lh_ibv_open_device(d: *mut ibv_device) -> *mut ibv_context;
    fn lh_ibv_alloc_pd(c: *mut ibv_context) -> *mut ibv_pd;
    fn lh_ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
    fn lh_ibv_create_cq(
        c: *mut ibv_context,
        n: c_int,
        x: *mut c_void,
        ch: *mut ibv_comp_channel,
        v: c_int,
    ) -> *mut ibv_cq;
    fn lh_ibv_resize_cq(cq: *mut ibv_cq, n: c_int) -> c_int;
    fn lh_ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
    fn lh_ibv_create_qp(pd: *mut ibv_pd, a: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    fn lh_ibv_modify_qp(qp: *mut ibv_qp, a: *mut ibv_qp_attr, mask: c_int) -> c_int;
    fn lh_ibv_query_qp(qp: *mut ibv_qp, a: *mut ibv_qp_attr, mask: c_int, i: *mut ibv_qp_init_attr) -> c_int;
    fn lh_ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex;
    fn lh_ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
    fn lh_ibv_create_srq(pd: *mut ibv_pd, a: *mut ibv_srq_init_attr) -> *mut ibv_srq;
    fn lh_ibv_modify_srq(srq: *mut ibv_srq, a: *mut ibv_srq_attr, mask: c_int) -> c_int;
    fn lh_ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
    fn lh_ibv_reg_mr_iova2(pd: *mut ibv_pd, at: *mut c_void, n: usize, iova: u64, flags: u32) -> *mut ibv_mr;
    fn lh_ibv_rereg_mr(
        mr: *mut ibv_mr,
        how: c_int,
        pd: *mut ibv_pd,
        at: *mut c_void,
        n: usize,
        f: c_int,
    ) -> c_int;
    fn lh_ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
    fn lh_ibv_create_ah(pd: *mut ibv_pd, a: *mut ibv_ah_attr) -> *mut c_void;
    fn lh_ibv_create_ah_from_wc(
        pd: *mut ibv_pd,
        wc: *const ibv_wc,
        grh: *const [u8; 40],
        p: u8,
    ) -> *mut c_void;
    fn lh_ibv_destroy_ah(ah: *mut c_void) -> c_int;
    fn lh_ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
    fn lh_ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
    fn lh_ibv_query_gid(c: *mut ibv_context, port: u8, index: c_int, gid: *mut ibv_gid) -> c_int;
    fn lh_ibv_query_pkey(c: *mut ibv_context, port: u8, index: c_int, p: *mut u16) -> c_int;
    fn lh__ibv_query_gid_ex(
        c: *mut ibv_context,
        port: u32,
        i: u32,
        e: *mut ibv_gid_entry,
        f: u32,
        n: usize,
    ) -> c_int;
    fn lh_ibv_event_type_str(event: c_int) -> *const c_char;
    fn lh_ibv_wc_status_str(status: c_int) -> *const c_char;
    fn lh_ibv_rate_to_mbps(rate: c_int) -> c_int;
    fn lh_mbps_to_ibv_rate(mbps: c_int) -> c_int;
    fn lh_ibv_read_sysfs_file(d: *const c_char, f: *const c_char, out: *mut c_char, n: usize) -> c_int;
    fn lh_ibv_copy_qp_attr_from_kern(to: *mut ibv_qp_attr, from: *const [u64; 64]);
    fn lh_ibv_copy_ah_attr_from_kern(to: *mut ibv_ah_attr, from: *const [u64; 64]);
}

/// A structure of integers and pointers with bytes of the fuzzer's; its pointers are replaced before it is used.
fn filled<T>(b: &mut Bytes<'_>) -> T {
    // SAFETY: all that this is used for are structures of C, of integers and pointers, for which any bytes are values.
    let mut t: T = unsafe { core::mem::zeroed() };
    let n = usize::from(b.u8().unwrap_or(0)).min(size_of::<T>());
    let from = b.take(n);
    // SAFETY: not more than the structure has.
    unsafe { core::ptr::copy_nonoverlapping(from.as_ptr(), (&raw mut t).cast::<u8>(), from.len()) };
    t
}

/// The device, which is opened once: its engine has a socket.
fn device() -> *mut ibv_context {
    static DEVICE: OnceLock<usize> = OnceLock::new();
    let made = DEVICE.get_or_init(|| {
        use std::os::unix::fs::PermissionsExt as _;
        let path = std::env::temp_dir().join(format!("longhaul-fuzz-{}.key", std::process::id()));
        std::fs::write(&path, "longhaul-cluster-1 AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE\n")
            .expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("its mode");
        // SAFETY: no other thread is there yet that reads the environment.
        unsafe { std::env::set_var("LONGHAUL_CLUSTER", &path) };
        // SAFETY: as a program calls them.
        let context = unsafe {
            let list = lh_ibv_get_device_list(null_mut());
            let context = lh_ibv_open_device(*list);
            lh_ibv_free_device_list(list);
            context
        };
        assert!(!context.is_null(), "cannot open the device: {}", std::io::Error::last_os_error());
        let _ = std::fs::remove_file(path);
        context as usize
    });
    *made as *mut ibv_context
}

struct Program {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    memory: Vec<u8>,
    cqs: Vec<*mut ibv_cq>,
    qps: Vec<*mut ibv_qp>,
    srqs: Vec<*mut ibv_srq>,
    mrs: Vec<*mut ibv_mr>,
    ahs: Vec<*mut c_void>,
    mws: Vec<*mut ibv_mw>,
    groups: Vec<(*mut ibv_qp, ibv_gid)>,
}

/// One of these, or null.
fn one<T>(all: &[*mut T], which: u8) -> *mut T {
    if which == 0xff {
        null_mut()
    } else {
        all.get(usize::from(which) % all.len().max(1)).copied().unwrap_or(null_mut())
    }
}

impl Program {
    fn new() -> Program {
        let context = device();
        // SAFETY: an open device.
        let pd = unsafe { lh_ibv_alloc_pd(context) };
        assert!(!pd.is_null());
        let (cqs, qps, srqs, mrs) = (vec![], vec![], vec![], vec![]);
        let (ahs, mws, groups) = (vec![], vec![], vec![]);
        Program { context, pd, memory: vec![0; LEN], cqs, qps, srqs, mrs, ahs, mws, groups }
    }

    fn keep<T>(all: &mut Vec<*mut T>, made: *mut T) {
        if made.is_null() {
            let e = std::io::Error::last_os_error();
            assert_ne!(e.raw_os_error(), Some(libc::EIO), "a panic");
        } else {
            all.push(made);
        }
    }

    /// A list of places: of registered memory, mostly.
    fn sges(&self, b: &mut Bytes<'_>) -> Option<Box<[ibv_sge; SGES]>> {
        let mut all = Box::new([const { ibv_sge { addr: 0, length: 0, lkey: 0 } }; SGES]);
        for _ in 0..b.u8()? & 3 {
            let (at, how, offset, length) = (b.u8()?, b.u8()?, b.u16()?, b.u32()?);
            let mr = one(&self.mrs, how & 0x3f);
            // SAFETY: null or a live region.
            let lkey = unsafe { mr.as_ref() }.map_or(length, |m| m.lkey);
            let (mut length, mut addr) =
                (length & 0x3fff, self.memory.as_ptr() as u64 + u64::from(offset & 0x3fff));
            if how & 0x40 != 0 {
                length = u32::MAX - length;
            }
            if how & 0x80 != 0 {
                addr = b.number()?;
            }
            all[usize::from(at) % SGES] = ibv_sge { addr, length, lkey };
        }
        Some(all)
    }

    fn create(&mut self, b: &mut Bytes<'_>) -> Option<()> {
        let (what, x, y, z) = (b.u8()?, b.u8()?, b.u8()?, b.u8()?);
        // SAFETY: live objects, null, and structures of this function.
        unsafe {
            let pd = if x == 0xfe { null_mut() } else { self.pd };
            match what % 8 {
                0 if self.cqs.len() < MAX_OBJECTS => {
                    let n = b.u16()? as i16;
                    Self::keep(
                        &mut self.cqs,
                        lh_ibv_create_cq(self.context, n.into(), null_mut(), null_mut(), (z & 1).into()),
                    );
                }
                1 | 2 if self.qps.len() < MAX_OBJECTS => self.create_queue_pair(what % 8, (x, y, z), pd, b),
                3 if self.srqs.len() < MAX_OBJECTS => {
                    let mut a: ibv_srq_init_attr = filled(b);
                    a.attr.max_wr &= 0xffff;
                    Self::keep(&mut self.srqs, lh_ibv_create_srq(pd, &raw mut a));
                }
                4 if self.mrs.len() < MAX_OBJECTS => {
                    let len = if x & 1 == 0 { LEN } else { b.number()? as usize };
                    let (iova, flags) =
                        if y & 1 == 0 { (self.memory.as_ptr() as u64, 0xf) } else { (b.number()?, b.u32()?) };
                    let made = lh_ibv_reg_mr_iova2(pd, self.memory.as_mut_ptr().cast(), len, iova, flags);
                    Self::keep(&mut self.mrs, made);
                }
                5 if self.ahs.len() < MAX_OBJECTS => {
                    let mut a: ibv_ah_attr = filled(b);
                    if z & 1 == 0 {
                        (a.is_global, a.port_num, a.grh.sgid_index) = (1, 1, 0);
                        lh_ibv_query_gid(self.context, 1, 0, &raw mut a.grh.dgid);
                    }
                    Self::keep(&mut self.ahs, lh_ibv_create_ah(pd, &raw mut a));
                }
                6 if self.ahs.len() < MAX_OBJECTS => {
                    let (wc, grh): (ibv_wc, [u8; 40]) = (filled(b), filled(b));
                    Self::keep(&mut self.ahs, lh_ibv_create_ah_from_wc(pd, &raw const wc, &raw const grh, x));
                }
                7 if self.mws.len() < MAX_OBJECTS => {
                    if let Some(f) = (*self.context).ops.alloc_mw {
                        Self::keep(&mut self.mws, f(pd, (z & 3).into()));
                    }
                }
                _ => {}
            }
        }
        Some(())
    }

    fn create_queue_pair(&mut self, what: u8, (x, y, z): (u8, u8, u8), pd: *mut ibv_pd, b: &mut Bytes<'_>) {
        // SAFETY: live objects, null, and structures of this function.
        unsafe {
            let mut a: ibv_qp_init_attr_ex = filled(b);
            (a.send_cq, a.recv_cq) = (one(&self.cqs, x), one(&self.cqs, y));
            a.srq = if z & 1 == 0 { null_mut() } else { one(&self.srqs, z) };
            if z & 2 == 0 {
                // Usual sizes.
                a.cap = ibv_qp_cap {
                    max_send_wr: 8,
                    max_recv_wr: 8,
                    max_send_sge: 2,
                    max_recv_sge: 2,
                    max_inline_data: 64,
                };
                a.qp_type = 2 + c_int::from(z >> 2 & 3);
            }
            (a.pd, a.xrcd, a.rwq_ind_tbl) = (pd, null_mut(), null_mut());
            let ex =
                self.context.byte_sub(core::mem::offset_of!(verbs_context, context)).cast::<verbs_context>();
            let made = match (what, (*ex).create_qp_ex) {
                (2, Some(f)) => {
                    a.comp_mask |= 1;
                    f(self.context, &raw mut a)
                }
                _ => lh_ibv_create_qp(pd, (&raw mut a).cast()),
            };
            Self::keep(&mut self.qps, made);
        }
    }

    fn modify(&mut self, b: &mut Bytes<'_>) -> Option<()> {
        let (which, how, to) = (b.u8()?, b.u8()?, b.u8()?);
        let qp = one(&self.qps, which);
        // SAFETY: a live queue pair or null, and structures of this function.
        unsafe {
            let mut a: ibv_qp_attr = filled(b);
            let mut mask = b.u32()? as c_int;
            if how & 1 == 0 && !qp.is_null() {
                // The next state, with all that it asks for; a peer of this process.
                let peer = one(&self.qps, to & 0x7f);
                a.qp_state = (*qp).state + 1;
                (a.port_num, a.pkey_index, a.ah_attr.is_global, a.ah_attr.grh.sgid_index) = (1, 0, 1, 0);
                lh_ibv_query_gid(self.context, 1, 0, &raw mut a.ah_attr.grh.dgid);
                a.dest_qp_num = peer.as_ref().map_or(7, |p| p.qp_num);
                a.qp_access_flags &= 0xf;
                mask = match a.qp_state {
                    1 if (*qp).qp_type == 4 => 0x71,
                    1 => 0x39,
                    2 if (*qp).qp_type == 4 => 1,
                    2 => 0x12_9181,
                    3 if (*qp).qp_type == 4 => 0x1_0001,
                    3 => 0x1_2e01,
                    _ => 1,
                };
            }
            let done = lh_ibv_modify_qp(qp, &raw mut a, mask);
            assert_ne!(done, libc::EIO, "a panic");
            if !qp.is_null() {
                let mut init: ibv_qp_init_attr = filled(&mut Bytes(&[]));
                assert_eq!(lh_ibv_query_qp(qp, &raw mut a, mask, &raw mut init), 0);
            }
        }
        Some(())
    }

    fn post(&mut self, b: &mut Bytes<'_>) -> Option<()> {
        let (which, how) = (b.u8()?, b.u8()?);
        let qp = one(&self.qps, which & 0x7f);
        if qp.is_null() {
            return Some(());
        }
        let n = 1 + usize::from(how & 3) % LIST;
        let mut places = Vec::new();
        for _ in 0..n {
            places.push(self.sges(b)?);
        }
        // SAFETY: live objects; lists of places are as long as any work request may have.
        unsafe {
            if how & 4 == 0 {
                let mut list: Vec<ibv_send_wr> = Vec::new();
                for _ in 0..n {
                    list.push(filled(b));
                }
                for i in (0..n).rev() {
                    let next = list.get_mut(i + 1).map_or(null_mut(), |w| &raw mut *w);
                    let w = &mut list[i];
                    (w.next, w.sg_list, w.mw) = (next, places[i].as_mut_ptr(), one(&self.mws, how));
                    w.bind_info.mr = one(&self.mrs, how);
                    w.opcode &= 0x1f;
                    if how & 8 == 0 {
                        (w.num_sge, w.opcode) = (w.num_sge & 3, w.opcode % 12);
                    }
                    if (*qp).qp_type == 4 {
                        w.remote_addr = one(&self.ahs, how) as u64;
                        w.second = u64::from((*qp).qp_num) | w.second << 32;
                    }
                    // Inline data is read at once, as by any library: it must be there.
                    w.send_flags &= 0x1f;
                    let base = self.memory.as_ptr() as u64;
                    let is_there =
                        |s: &ibv_sge| s.addr >= base && s.addr + u64::from(s.length) <= base + LEN as u64;
                    if !places[i].iter().all(|s| {
                        s.length == 0 || s.addr.checked_add(s.length.into()).is_some() && is_there(s)
                    }) {
                        w.send_flags &= !8;
                    }
                }
                let mut bad = null_mut();
                if let Some(f) = (*(*qp).context).ops.post_send {
                    assert_ne!(f(qp, list.as_mut_ptr(), &raw mut bad), libc::EIO, "a panic");
                }
            } else {
                let mut list: Vec<ibv_recv_wr> = Vec::new();
                for _ in 0..n {
                    list.push(filled(b));
                }
                for i in (0..n).rev() {
                    let next = list.get_mut(i + 1).map_or(null_mut(), |w| &raw mut *w);
                    (list[i].next, list[i].sg_list) = (next, places[i].as_mut_ptr());
                }
                let mut bad = null_mut();
                let srq = one(&self.srqs, which);
                let ops = &(*(*qp).context).ops;
                let done = match (ops.post_recv, ops.post_srq_recv) {
                    (_, Some(f)) if how & 8 != 0 && !srq.is_null() => f(srq, list.as_mut_ptr(), &raw mut bad),
                    (Some(f), _) => f(qp, list.as_mut_ptr(), &raw mut bad),
                    _ => 0,
                };
                assert_ne!(done, libc::EIO, "a panic");
            }
        }
        Some(())
    }

    /// The functions that post, in any order.
    fn build(&mut self, b: &mut Bytes<'_>) -> Option<()> {
        let which = b.u8()?;
        let qp = one(&self.qps, which & 0x7f);
        let mut places = self.sges(b)?;
        // SAFETY: live objects; the functions take what is there by the interface.
        unsafe {
            let x = if qp.is_null() { null_mut() } else { lh_ibv_qp_to_qp_ex(qp) };
            if x.is_null() {
                return Some(());
            }
            macro_rules! call {
                ($f:ident $(, $a:expr)*) => {
                    if let Some(f) = (*x).$f { f(x $(, $a)*); }
                };
            }
            call!(wr_start);
            for _ in 0..b.u8()? & 15 {
                let (what, n) = (b.u8()?, b.u8()?);
                (*x).wr_id = n.into();
                (*x).wr_flags = (n & 0x17).into();
                let peer = one(&self.qps, n & 0x7f).as_ref().map_or(7, |q| q.qp_num);
                match what % 14 {
                    0 => call!(wr_send),
                    1 => call!(wr_send_imm, n.into()),
                    2 => call!(wr_rdma_write, b.u32()?, b.number()?),
                    3 => call!(wr_rdma_read, b.u32()?, b.number()?),
                    4 => call!(wr_atomic_fetch_add, b.u32()?, b.number()?, 1),
                    5 => call!(wr_atomic_cmp_swp, b.u32()?, b.number()?, 1, 2),
                    6 => call!(wr_set_sge, places[0].lkey, places[0].addr, places[0].length),
                    7 => call!(wr_set_sge_list, usize::from(n) % (SGES + 1), places.as_mut_ptr()),
                    8 => call!(wr_set_inline_data, self.memory.as_mut_ptr().cast(), usize::from(n) << 5),
                    9 => call!(wr_set_ud_addr, one(&self.ahs, n), peer, n.into()),
                    10 => call!(wr_local_inv, b.u32()?),
                    11 => call!(wr_set_xrc_srqn, n.into()),
                    12 => call!(wr_rdma_write_imm, b.u32()?, b.number()?, n.into()),
                    _ => call!(wr_send_inv, b.u32()?),
                }
            }
            if which & 0x80 == 0 {
                if let Some(f) = (*x).wr_complete {
                    assert_ne!(f(x), libc::EIO, "a panic");
                }
            } else {
                call!(wr_abort);
            }
        }
        Some(())
    }

    fn other(&mut self, b: &mut Bytes<'_>) -> Option<()> {
        let (what, n) = (b.u8()?, b.u8()?);
        // SAFETY: live objects, and places that are as long as the interface says.
        unsafe {
            match what % 11 {
                0 => {
                    let cq = one(&self.cqs, n & 0x7f);
                    let mut out: [ibv_wc; 4] = core::array::from_fn(|_| filled(&mut Bytes(&[])));
                    if let (false, Some(f)) = (cq.is_null(), (*self.context).ops.poll_cq) {
                        assert!(f(cq, c_int::from(n >> 6), out.as_mut_ptr()) <= 4);
                    }
                }
                1 => drop(lh_ibv_resize_cq(one(&self.cqs, n), b.u16()?.into())),
                2 => {
                    let mut a: ibv_srq_attr = filled(b);
                    assert_ne!(lh_ibv_modify_srq(one(&self.srqs, n), &raw mut a, b.u8()?.into()), libc::EIO);
                }
                3 => {
                    let (mr, how, len) = (one(&self.mrs, n & 0x7f), b.u8()?, b.u16()?);
                    if !mr.is_null() {
                        let at = self.memory.as_mut_ptr().cast();
                        let done = lh_ibv_rereg_mr(mr, how.into(), self.pd, at, len.into(), b.u16()?.into());
                        assert!(done <= 5 && done != libc::EIO, "{done}");
                    }
                }
                4 | 5 => {
                    let gid: ibv_gid = filled(b);
                    let qp = one(&self.qps, n);
                    if what % 11 == 4
                        && self.groups.len() < MAX_OBJECTS
                        && lh_ibv_attach_mcast(qp, &raw const gid, 0) == 0
                    {
                        self.groups.push((qp, gid));
                    } else {
                        lh_ibv_detach_mcast(qp, &raw const gid, 0);
                    }
                }
                6..=9 => self.ask(what % 11, n, b)?,
                _ => {
                    let (qp, mw) = (one(&self.qps, n & 0x7f), one(&self.mws, n));
                    let mut bind: ibv_mw_bind = filled(b);
                    bind.bind_info.mr = one(&self.mrs, n);
                    if let (false, Some(f)) = (qp.is_null(), (*self.context).ops.bind_mw) {
                        assert_ne!(f(qp, mw, &raw mut bind), libc::EIO, "a panic");
                    }
                }
            }
        }
        Some(())
    }

    /// What only asks.
    fn ask(&mut self, what: u8, n: u8, b: &mut Bytes<'_>) -> Option<()> {
        // SAFETY: live objects, and places that are as long as the interface says.
        unsafe {
            match what {
                6 => {
                    let (mut gid, mut key): (ibv_gid, u16) = (filled(b), 0);
                    let index = b.u32()? as c_int;
                    lh_ibv_query_gid(self.context, n, index, &raw mut gid);
                    lh_ibv_query_pkey(self.context, n, index, &raw mut key);
                    let mut entry: ibv_gid_entry = filled(b);
                    lh__ibv_query_gid_ex(
                        self.context,
                        n.into(),
                        index as u32,
                        &raw mut entry,
                        n.into(),
                        size_of::<ibv_gid_entry>(),
                    );
                }
                7 => {
                    let number = b.u32()? as c_int;
                    assert!(
                        !lh_ibv_event_type_str(number).is_null() && !lh_ibv_wc_status_str(number).is_null()
                    );
                    lh_ibv_rate_to_mbps(number);
                    lh_mbps_to_ibv_rate(number);
                }
                8 => {
                    let mut text = [0 as c_char; 80];
                    let mut path = b.take(n.into()).to_vec();
                    path.retain(|c| *c != 0);
                    path.push(0);
                    lh_ibv_read_sysfs_file(
                        c"class/infiniband/longhaul0".as_ptr(),
                        path.as_ptr().cast(),
                        text.as_mut_ptr(),
                        usize::from(n) % 80,
                    );
                }
                _ => {
                    let from: [u64; 64] = filled(b);
                    let (mut a, mut way): (ibv_qp_attr, ibv_ah_attr) = (filled(b), filled(b));
                    lh_ibv_copy_qp_attr_from_kern(&raw mut a, &raw const from);
                    lh_ibv_copy_ah_attr_from_kern(&raw mut way, &raw const from);
                }
            }
        }
        Some(())
    }

    fn operation(&mut self, b: &mut Bytes<'_>) -> Option<()> {
        match b.u8()? % 16 {
            0..=3 => self.create(b),
            4..=6 => self.modify(b),
            7..=10 => self.post(b),
            11 => self.build(b),
            _ => self.other(b),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: live objects, which nobody uses afterwards.
        unsafe {
            for (qp, gid) in self.groups.drain(..) {
                // It may not be attached any more.
                let _ = lh_ibv_detach_mcast(qp, &raw const gid, 0);
            }
            self.ahs.drain(..).for_each(|ah| assert_eq!(lh_ibv_destroy_ah(ah), 0));
            self.qps.drain(..).for_each(|qp| assert_eq!(lh_ibv_destroy_qp(qp), 0, "a queue pair"));
            if let Some(f) = (*self.context).ops.dealloc_mw {
                self.mws.drain(..).for_each(|mw| assert_eq!(f(mw), 0, "a window"));
            }
            self.mrs.drain(..).for_each(|mr| assert_eq!(lh_ibv_dereg_mr(mr), 0, "a region"));
            self.srqs.drain(..).for_each(|srq| assert_eq!(lh_ibv_destroy_srq(srq), 0, "a shared queue"));
            self.cqs.drain(..).for_each(|cq| assert_eq!(lh_ibv_destroy_cq(cq), 0, "a completion queue"));
            assert_eq!(lh_ibv_dealloc_pd(self.pd), 0);
        }
    }
}

fuzz_target!(|input: &[u8]| {
    let mut b = Bytes(input);
    let mut p = Program::new();
    for _ in 0..MAX_OPS {
        if p.operation(&mut b).is_none() {
            break;
        }
    }
});
