//! Structures of the kernel's interface as those of the library, and back (`libibverbs`' marshalling), for librdmacm.

use crate::abi::*;

#[repr(C)]
struct KernelRoute {
    dgid: [u8; 16],
    flow_label: u32,
    sgid_index: u8,
    hop_limit: u8,
    traffic_class: u8,
    _reserved: u8,
}

/// `struct ib_uverbs_ah_attr`.
#[repr(C)]
struct KernelWay {
    grh: KernelRoute,
    dlid: u16,
    sl: u8,
    src_path_bits: u8,
    static_rate: u8,
    is_global: u8,
    port_num: u8,
    _reserved: u8,
}

/// `struct ib_uverbs_qp_attr`.
#[repr(C)]
struct KernelAttributes {
    _qp_attr_mask: u32,
    _qp_state: u32,
    cur_qp_state: u32,
    path_mtu: u32,
    path_mig_state: u32,
    qkey: u32,
    rq_psn: u32,
    sq_psn: u32,
    dest_qp_num: u32,
    qp_access_flags: u32,
    way: KernelWay,
    other_way: KernelWay,
    cap: [u32; 5],
    pkey_index: u16,
    alt_pkey_index: u16,
    en_sqd_async_notify: u8,
    sq_draining: u8,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    min_rnr_timer: u8,
    port_num: u8,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    alt_port_num: u8,
    alt_timeout: u8,
    _reserved: [u8; 5],
}

/// `struct ib_user_path_rec`.
#[repr(C)]
struct KernelPath {
    dgid: [u8; 16],
    sgid: [u8; 16],
    lids: [u16; 2],
    raw_traffic: u32,
    flow_label: u32,
    reversible: u32,
    mtu: u32,
    pkey: u16,
    hop_limit: u8,
    traffic_class: u8,
    numb_path: u8,
    sl: u8,
    mtu_selector: u8,
    rate_selector: u8,
    rate: u8,
    packet_life_time_selector: u8,
    packet_life_time: u8,
    preference: u8,
}

/// `struct ibv_sa_path_rec`.
#[repr(C)]
struct Path {
    dgid: [u8; 16],
    sgid: [u8; 16],
    lids: [u16; 2],
    raw_traffic: i32,
    flow_label: u32,
    hop_limit: u8,
    traffic_class: u8,
    reversible: i32,
    numb_path: u8,
    pkey: u16,
    sl: u8,
    mtu_selector: u8,
    mtu: u8,
    rate_selector: u8,
    rate: u8,
    packet_life_time_selector: u8,
    packet_life_time: u8,
    preference: u8,
}

const _: () = assert!(size_of::<KernelWay>() == 32 && size_of::<KernelAttributes>() == 144);
const _: () = assert!(size_of::<KernelPath>() == 64 && size_of::<Path>() == 64);

fn way(from: &KernelWay) -> ibv_ah_attr {
    let g = &from.grh;
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: g.dgid },
            flow_label: g.flow_label,
            sgid_index: g.sgid_index,
            hop_limit: g.hop_limit,
            traffic_class: g.traffic_class,
        },
        dlid: from.dlid,
        sl: from.sl,
        src_path_bits: from.src_path_bits,
        static_rate: from.static_rate,
        is_global: from.is_global,
        port_num: from.port_num,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lh_ibv_copy_ah_attr_from_kern(to: *mut ibv_ah_attr, from: *const KernelWay) {
    // SAFETY: the caller's structures.
    unsafe {
        if let (Some(to), Some(from)) = (to.as_mut(), from.as_ref()) {
            *to = way(from);
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lh_ibv_copy_qp_attr_from_kern(to: *mut ibv_qp_attr, from: *const KernelAttributes) {
    // SAFETY: the caller's structures; programs leave the first one as it was on their stacks, but all its bytes are integers.
    let (to, f) = unsafe {
        let (Some(to), Some(from)) = (to.as_mut(), from.as_ref()) else { return };
        (to, from)
    };
    let [max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data] = f.cap;
    *to = ibv_qp_attr {
        // The program's own: it is what it has asked for.
        qp_state: to.qp_state,
        cur_qp_state: f.cur_qp_state as i32,
        path_mtu: f.path_mtu as i32,
        path_mig_state: f.path_mig_state as i32,
        qkey: f.qkey,
        rq_psn: f.rq_psn,
        sq_psn: f.sq_psn,
        dest_qp_num: f.dest_qp_num,
        qp_access_flags: f.qp_access_flags,
        cap: ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data },
        ah_attr: way(&f.way),
        alt_ah_attr: way(&f.other_way),
        pkey_index: f.pkey_index,
        alt_pkey_index: f.alt_pkey_index,
        en_sqd_async_notify: f.en_sqd_async_notify,
        sq_draining: f.sq_draining,
        max_rd_atomic: f.max_rd_atomic,
        max_dest_rd_atomic: f.max_dest_rd_atomic,
        min_rnr_timer: f.min_rnr_timer,
        port_num: f.port_num,
        timeout: f.timeout,
        retry_cnt: f.retry_cnt,
        rnr_retry: f.rnr_retry,
        alt_port_num: f.alt_port_num,
        alt_timeout: f.alt_timeout,
        rate_limit: to.rate_limit,
    };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lh_ibv_copy_path_rec_from_kern(to: *mut Path, from: *const KernelPath) {
    // SAFETY: the caller's structures.
    let (to, f) = unsafe {
        let (Some(to), Some(from)) = (to.as_mut(), from.as_ref()) else { return };
        (to, from)
    };
    *to = Path {
        dgid: f.dgid,
        sgid: f.sgid,
        lids: f.lids,
        raw_traffic: f.raw_traffic as i32,
        flow_label: f.flow_label,
        hop_limit: f.hop_limit,
        traffic_class: f.traffic_class,
        reversible: f.reversible as i32,
        numb_path: f.numb_path,
        pkey: f.pkey,
        sl: f.sl,
        mtu_selector: f.mtu_selector,
        mtu: f.mtu as u8,
        rate_selector: f.rate_selector,
        rate: f.rate,
        packet_life_time_selector: f.packet_life_time_selector,
        packet_life_time: f.packet_life_time,
        preference: f.preference,
    };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lh_ibv_copy_path_rec_to_kern(to: *mut KernelPath, from: *const Path) {
    // SAFETY: the caller's structures.
    let (to, f) = unsafe {
        let (Some(to), Some(from)) = (to.as_mut(), from.as_ref()) else { return };
        (to, from)
    };
    *to = KernelPath {
        dgid: f.dgid,
        sgid: f.sgid,
        lids: f.lids,
        raw_traffic: f.raw_traffic as u32,
        flow_label: f.flow_label,
        reversible: f.reversible as u32,
        mtu: f.mtu.into(),
        pkey: f.pkey,
        hop_limit: f.hop_limit,
        traffic_class: f.traffic_class,
        numb_path: f.numb_path,
        sl: f.sl,
        mtu_selector: f.mtu_selector,
        rate_selector: f.rate_selector,
        rate: f.rate,
        packet_life_time_selector: f.packet_life_time_selector,
        packet_life_time: f.packet_life_time,
        preference: f.preference,
    };
}
