//! The device, its port and its GIDs.

use crate::abi::*;
use crate::process;
use crate::{guarded, guarded_errno, guarded_pointer};
use core::ffi::{c_char, c_int, c_void};
use engine::{Channel, Engine};
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

pub(crate) const NAME: &str = "longhaul0";
/// Node GUID and OUI are made up: locally administered.
pub(crate) const GUID: u64 = u64::from_be_bytes(*b"\x02lngh\x00\x00\x01");
const ACTIVE: c_int = 4;
const LINK_UP: u8 = 5;
const MTU_4096: c_int = 5;
const ETHERNET: u8 = 2;
const NODE_CA: c_int = 1;
const ROCE_V2: u32 = 2;
/// IBV_PORT_CM_SUP and IBV_PORT_IP_BASED_GIDS.
const PORT_FLAGS: u32 = 1 << 16 | 1 << 26;
/// IBV_DEVICE_SYS_IMAGE_GUID, RC_RNR_NAK_GEN, MEM_WINDOW, XRC, MEM_MGT_EXTENSIONS and MEM_WINDOW_TYPE_2B.
const DEVICE_FLAGS: u32 = 1 << 11 | 1 << 12 | 1 << 17 | 1 << 20 | 1 << 21 | 1 << 24;
/// Those of them that iWARP does not have: MEM_WINDOW, XRC and MEM_WINDOW_TYPE_2B.
const NOT_BY_IWARP: u32 = 1 << 17 | 1 << 20 | 1 << 24;
/// A vendor that registered none: no OUI.
const VENDOR: u32 = 0xff_ffff;
/// IBV_ATOMIC_HCA: atomic with respect to the other atomic operations of this device.
const ATOMIC_HCA: c_int = 1;
/// What work requests may have.
pub(crate) const MAX_SGE: u32 = 16;
pub(crate) const MAX_WR: u32 = 1 << 14;
pub(crate) const MAX_INLINE: u32 = 4096;
pub(crate) const MAX_CQE: u32 = 1 << 20;
pub(crate) const MAX_RD_ATOMIC: u8 = 64;
const MAX_MESSAGE: u32 = 1 << 31;
/// 100 Gbit/s, as width and speed of the port say.
const SPEED: u64 = 1_000;
/// Groups of datagram queue pairs, and members of one.
const MAX_GROUPS: c_int = 1_024;
const MAX_MEMBERS: c_int = 1_024;

/// A device is looked at behind its end by vendors' libraries, which expect their own structure (`verbs_device`).
#[repr(C)]
struct Device {
    base: ibv_device,
    behind: [u64; 64],
}

// SAFETY: it is never written to after it was made.
unsafe impl Sync for Device {}
// SAFETY: as above; it has no pointers but those in `_ops`, which are null.
unsafe impl Send for Device {}

/// An open device.
#[repr(C)]
pub(crate) struct Context {
    verbs: verbs_context,
    pub(crate) engine: Engine,
    pub(crate) events: Arc<Channel>,
}

/// Our part of what programs know as `ibv_context`.
///
/// # Safety
/// `context` is null or one that [`lh_ibv_open_device`] gave and that is open.
pub(crate) unsafe fn context<'a>(context: *mut ibv_context) -> Result<&'a Context, c_int> {
    if context.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: `verbs` is the first field, and `context` lies in it at this offset.
    Ok(unsafe { &*context.byte_sub(core::mem::offset_of!(verbs_context, context)).cast::<Context>() })
}

fn the_device() -> &'static Device {
    static DEVICE: OnceLock<Box<Device>> = OnceLock::new();
    DEVICE.get_or_init(|| {
        let mut d = Device {
            base: ibv_device {
                _ops: [None; 2],
                node_type: NODE_CA,
                transport_type: 0,
                name: [0; 64],
                dev_name: [0; 64],
                dev_path: [0; 256],
                ibdev_path: [0; 256],
            },
            behind: [0; 64],
        };
        put(&mut d.base.name, NAME);
        put(&mut d.base.dev_name, "uverbs0");
        put(&mut d.base.dev_path, "/sys/class/infiniband_verbs/uverbs0");
        put(&mut d.base.ibdev_path, "/sys/class/infiniband/longhaul0");
        Box::new(d)
    })
}

fn put(to: &mut [c_char], text: &str) {
    to.iter_mut().zip(text.bytes()).for_each(|(to, byte)| *to = byte as c_char);
}

/// The host's addresses in the order of the GID table: IPv4, IPv6, then link-local ones; those of the loopback interface only
/// where there are no others. As they were when first asked for: indices stay what they are.
pub(crate) fn gids() -> &'static [(IpAddr, u32)] {
    static GIDS: OnceLock<Vec<(IpAddr, u32)>> = OnceLock::new();
    GIDS.get_or_init(addresses)
}

fn addresses() -> Vec<(IpAddr, u32)> {
    let mut all = lhio::host_addresses();
    if all.iter().any(|(a, _)| !a.is_loopback()) {
        all.retain(|(a, _)| !a.is_loopback());
    }
    let link_local = |a: &IpAddr| matches!(a, IpAddr::V6(v6) if v6.is_unicast_link_local());
    all.sort_by_key(|(a, _)| (link_local(a), a.is_ipv6()));
    all
}

pub(crate) fn to_gid(a: IpAddr) -> ibv_gid {
    let raw = match a {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    ibv_gid { raw }
}

pub(crate) fn from_gid(g: &ibv_gid) -> IpAddr {
    IpAddr::from(g.raw).to_canonical()
}

/// The address behind an index of the GID table.
pub(crate) fn gid_at(index: usize) -> Option<IpAddr> {
    gids().get(index).map(|(a, _)| *a)
}

#[unsafe(no_mangle)]
extern "C" fn lh_ibv_get_device_list(number: *mut c_int) -> *mut *mut ibv_device {
    guarded_pointer(|| {
        let list = Box::new([&raw const the_device().base as *mut ibv_device, core::ptr::null_mut()]);
        if !number.is_null() {
            // SAFETY: the caller's, who wants the number of devices there.
            unsafe { *number = 1 };
        }
        Ok(Box::into_raw(list).cast())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lh_ibv_free_device_list(list: *mut *mut ibv_device) {
    if !list.is_null() {
        // SAFETY: it came from `lh_ibv_get_device_list`.
        drop(unsafe { Box::from_raw(list.cast::<[*mut ibv_device; 2]>()) });
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lh_ibv_get_device_name(d: *mut ibv_device) -> *const c_char {
    if d.is_null() {
        return core::ptr::null();
    }
    // SAFETY: a device of ours lives as long as the process.
    unsafe { (&raw const (*d).name).cast() }
}

#[unsafe(no_mangle)]
extern "C" fn lh_ibv_get_device_guid(_: *mut ibv_device) -> u64 {
    GUID.to_be()
}

#[unsafe(no_mangle)]
extern "C" fn lh_ibv_get_device_index(_: *mut ibv_device) -> c_int {
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lh_ibv_open_device(d: *mut ibv_device) -> *mut ibv_context {
    guarded_pointer(|| {
        if d.is_null() {
            return Err(libc::EINVAL);
        }
        let engine = process::engine()?;
        let events = Channel::new().map_err(|e| e.raw_os_error().unwrap_or(libc::EIO))?;
        crate::async_event::listen(&engine);
        crate::async_event::know_context(&events);
        let context = ibv_context {
            device: d,
            ops: ibv_context_ops {
                alloc_mw: Some(crate::window::alloc_mw),
                bind_mw: Some(crate::window::bind_mw),
                dealloc_mw: Some(crate::window::dealloc_mw),
                poll_cq: Some(crate::completion::poll_cq),
                req_notify_cq: Some(crate::completion::req_notify_cq),
                post_srq_recv: Some(crate::shared_receive::post_srq_recv),
                post_send: Some(crate::post::post_send),
                post_recv: Some(crate::post::post_recv),
                ..ibv_context_ops::default()
            },
            // Of no use but to be duplicated: what is imported by it is not served.
            cmd_fd: events.raw_fd(),
            async_fd: events.raw_fd(),
            num_comp_vectors: 1,
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            abi_compat: ABI_IS_EXTENDED,
        };
        let verbs = verbs_context {
            query_port: Some(query_port),
            _memory_and_flows: [None; 12],
            modify_qp_rate_limit: None,
            alloc_parent_domain: None,
            _domains_and_wqs: [None; 9],
            query_rt_values: None,
            create_cq_ex: Some(crate::completion_ex::create_cq_ex),
            private: core::ptr::null_mut(),
            query_device_ex: Some(query_device_ex),
            _flows: [None; 4],
            open_qp: None,
            create_qp_ex: Some(crate::queue_pair::create_qp_ex),
            get_srq_num: Some(crate::shared_receive::get_srq_num),
            create_srq_ex: Some(crate::shared_receive::create_srq_ex),
            open_xrcd: Some(crate::xrc::open_xrcd),
            close_xrcd: Some(crate::xrc::close_xrcd),
            _abi_placeholder3: 0,
            sz: size_of::<verbs_context>(),
            context,
        };
        let made = Box::into_raw(Box::new(Context { verbs, engine, events }));
        // SAFETY: it was made just now.
        Ok(unsafe { &raw mut (*made).verbs.context })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lh_ibv_close_device(c: *mut ibv_context) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise; nobody uses it afterwards.
        unsafe {
            let ours: *const Context = context(c)?;
            crate::async_event::forget_context(&(*ours).events);
            drop(Box::from_raw(ours.cast_mut()));
        }
        Ok(())
    })
}

fn device_attr(is_iwarp: bool) -> ibv_device_attr {
    // SAFETY: integers and characters, for which all zeroes is a value.
    let mut a: ibv_device_attr = unsafe { core::mem::zeroed() };
    put(&mut a.fw_ver, env!("CARGO_PKG_VERSION"));
    (a.node_guid, a.sys_image_guid) = (GUID.to_be(), GUID.to_be());
    (a.max_mr_size, a.page_size_cap) = (u64::MAX >> 1, 0xffff_f000);
    (a.max_qp, a.max_qp_wr, a.device_cap_flags) =
        (engine::address::MAX_QUEUE_PAIRS as c_int, MAX_WR as c_int, DEVICE_FLAGS);
    (a.max_sge, a.max_sge_rd) = (MAX_SGE as c_int, MAX_SGE as c_int);
    (a.max_cq, a.max_cqe) = (1 << 16, MAX_CQE as c_int);
    (a.max_mr, a.max_pd, a.max_mw) = (1 << 20, 1 << 16, 1 << 16);
    (a.vendor_id, a.vendor_part_id, a.hw_ver) = (VENDOR, 1, 1);
    let depth = c_int::from(MAX_RD_ATOMIC);
    (a.max_qp_rd_atom, a.max_qp_init_rd_atom, a.max_res_rd_atom) = (depth, depth, 1 << 20);
    a.atomic_cap = ATOMIC_HCA;
    (a.max_srq, a.max_srq_wr, a.max_srq_sge) = (1 << 12, 1 << 20, MAX_SGE as c_int);
    (a.max_mcast_grp, a.max_mcast_qp_attach) = (MAX_GROUPS, MAX_MEMBERS);
    a.max_total_mcast_qp_attach = MAX_GROUPS * MAX_MEMBERS;
    (a.max_ah, a.max_pkeys, a.local_ca_ack_delay, a.phys_port_cnt) = (1 << 16, 1, 0, 1);
    if is_iwarp {
        a.device_cap_flags &= !NOT_BY_IWARP;
        (a.max_mw, a.max_ah) = (0, 0);
        (a.max_mcast_grp, a.max_mcast_qp_attach, a.max_total_mcast_qp_attach) = (0, 0, 0);
    }
    a
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lh_ibv_query_device(c: *mut ibv_context, out: *mut ibv_device_attr) -> c_int {
    guarded(|| {
        // SAFETY: the caller's context and structure.
        unsafe {
            let ours = context(c)?;
            out.write(device_attr(ours.engine.is_iwarp()));
        }
        Ok(())
    })
}

unsafe extern "C" fn query_device_ex(
    c: *mut ibv_context,
    _: *const c_void,
    out: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    guarded(|| {
        if size < size_of::<ibv_device_attr>() {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller's context.
        let ours = unsafe { context(c)? };
        let all = ibv_device_attr_ex {
            orig_attr: device_attr(ours.engine.is_iwarp()),
            comp_mask: 0,
            _rest: [0; 40],
            phys_port_cnt_ex: 1,
        };
        // SAFETY: `size` bytes that are the caller's own.
        unsafe {
            let n = size.min(size_of::<ibv_device_attr_ex>());
            core::ptr::copy_nonoverlapping((&raw const all).cast::<u8>(), out.cast::<u8>(), n);
        }
        Ok(())
    })
}

fn port_attr() -> ibv_port_attr {
    ibv_port_attr {
        state: ACTIVE,
        max_mtu: MTU_4096,
        active_mtu: MTU_4096,
        gid_tbl_len: gids().len() as c_int,
        port_cap_flags: PORT_FLAGS,
        max_msg_sz: MAX_MESSAGE,
        bad_pkey_cntr: 0,
        qkey_viol_cntr: 0,
        pkey_tbl_len: 1,
        lid: 0,
        sm_lid: 0,
        lmc: 0,
        max_vl_num: 1,
        sm_sl: 0,
        subnet_timeout: 0,
        init_type_reply: 0,
        // 4 lanes of 25 Gbit/s each.
        active_width: 2,
        active_speed: 32,
        phys_state: LINK_UP,
        link_layer: ETHERNET,
        flags: 0,
        port_cap_flags2: 0,
    }
}

unsafe extern "C" fn query_port(
    c: *mut ibv_context,
    port: u8,
    out: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's context.
        unsafe { context(c)? };
        if port != 1 {
            return Err(libc::EINVAL);
        }
        let all = port_attr();
        let n = size.min(size_of::<ibv_port_attr>());
        // SAFETY: `size` bytes that are the caller's.
        unsafe { core::ptr::copy_nonoverlapping((&raw const all).cast::<u8>(), out.cast::<u8>(), n) };
        Ok(())
    })
}

/// What programs call that were compiled before `ibv_port_attr` grew: its first 48 bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn lh_ibv_query_port(c: *mut ibv_context, port: u8, out: *mut ibv_port_attr) -> c_int {
    const BEFORE: usize = 48;
    // SAFETY: the caller's.
    unsafe { query_port(c, port, out, BEFORE) }
}

/// The port's speed in units of 100 Mbit/s: what `ibv_query_port` says in codes.
#[unsafe(no_mangle)]
unsafe extern "C" fn lh_ibv_query_port_speed(c: *mut ibv_context, port: u32, speed: *mut u64) -> c_int {
    guarded(|| {
        // SAFETY: the caller's context and variable.
        let speed = unsafe {
            context(c)?;
            speed.as_mut().ok_or(libc::EINVAL)?
        };
        if port != 1 {
            return Err(libc::EINVAL);
        }
        *speed = SPEED;
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lh_ibv_query_gid(
    c: *mut ibv_context,
    port: u8,
    index: c_int,
    out: *mut ibv_gid,
) -> c_int {
    guarded_errno(|| {
        // SAFETY: the caller's context.
        unsafe { context(c)? };
        let found = usize::try_from(index).ok().and_then(gid_at).filter(|_| port == 1);
        // SAFETY: the caller's structure.
        unsafe { out.write(to_gid(found.ok_or(libc::EINVAL)?)) };
        Ok(())
    })
}

fn entry(index: usize, (a, interface): (IpAddr, u32)) -> ibv_gid_entry {
    let (gid, gid_index) = (to_gid(a), index as u32);
    ibv_gid_entry { gid, gid_index, port_num: 1, gid_type: ROCE_V2, ndev_ifindex: interface }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lh__ibv_query_gid_ex(
    c: *mut ibv_context,
    port: u32,
    index: u32,
    out: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's context.
        unsafe { context(c)? };
        if port != 1 || flags != 0 || size < size_of::<ibv_gid_entry>() {
            return Err(libc::EINVAL);
        }
        let found = *gids().get(index as usize).ok_or(libc::ENODATA)?;
        // SAFETY: `size` bytes that are the caller's.
        unsafe { out.write(entry(index as usize, found)) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lh__ibv_query_gid_table(
    c: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    most: usize,
    flags: u32,
    size: usize,
) -> isize {
    let mut number = 0;
    let failed = guarded(|| {
        // SAFETY: the caller's context.
        unsafe { context(c)? };
        if flags != 0 || size < size_of::<ibv_gid_entry>() {
            return Err(libc::EINVAL);
        }
        if most < gids().len() {
            return Err(libc::EINVAL);
        }
        for (i, found) in gids().iter().enumerate() {
            // SAFETY: the caller has room for `most` entries of `size` bytes each.
            unsafe { entries.byte_add(i * size).write(entry(i, *found)) };
            number = i + 1;
        }
        Ok(())
    });
    if failed == 0 { number as isize } else { -(failed as isize) }
}

/// The type of a GID, for programs that rdma-core ships: 1 is RoCE v2.
#[unsafe(no_mangle)]
unsafe extern "C" fn lh_ibv_query_gid_type(
    c: *mut ibv_context,
    port: u8,
    index: u32,
    out: *mut u32,
) -> c_int {
    guarded_errno(|| {
        // SAFETY: the caller's context and variable.
        unsafe {
            context(c)?;
            if port != 1 || index as usize >= gids().len() {
                return Err(libc::EINVAL);
            }
            *out = 1;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lh_ibv_query_pkey(c: *mut ibv_context, port: u8, index: c_int, out: *mut u16) -> c_int {
    guarded_errno(|| {
        // SAFETY: the caller's context.
        unsafe { context(c)? };
        if port != 1 || index != 0 {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller's variable.
        unsafe { *out = 0xffff };
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn lh_ibv_get_pkey_index(_: *mut ibv_context, _: u8, pkey: u16) -> c_int {
    if pkey == 0xffff { 0 } else { -1 }
}

/// What another process has cannot be shared: there is no kernel behind it that both know.
#[unsafe(no_mangle)]
extern "C" fn lh_ibv_import_device(_: c_int) -> *mut ibv_context {
    guarded_pointer(|| Err(libc::EOPNOTSUPP))
}
#[unsafe(no_mangle)]
extern "C" fn lh_ibv_import_pd(_: *mut ibv_context, _: u32) -> *mut ibv_pd {
    guarded_pointer(|| Err(libc::EOPNOTSUPP))
}
#[unsafe(no_mangle)]
extern "C" fn lh_ibv_import_mr(_: *mut ibv_pd, _: u32) -> *mut ibv_mr {
    guarded_pointer(|| Err(libc::EOPNOTSUPP))
}
#[unsafe(no_mangle)]
extern "C" fn lh_ibv_import_dm(_: *mut ibv_context, _: u32) -> *mut c_void {
    guarded_pointer(|| Err(libc::EOPNOTSUPP))
}

#[unsafe(no_mangle)]
extern "C" fn lh_ibv_fork_init() -> c_int {
    0
}

/// IBV_FORK_UNNEEDED: memory of ours is not pinned, so that a child may have its copy.
#[unsafe(no_mangle)]
extern "C" fn lh_ibv_is_fork_initialized() -> c_int {
    2
}
