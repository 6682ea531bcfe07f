//! The structures of `abi.rs` are those of `<infiniband/verbs.h>`: a C program prints the offset of each field and the size of each
//! structure, as the header has them.

#![allow(clippy::disallowed_methods, reason = "it runs programs")]

use longhaul_ibverbs::abi::*;
use std::fmt::Write as _;
use std::process::Command;

/// What is compared: the name of a structure or of a field as C spells it, and its size or offset in Rust.
struct Compared {
    c: String,
    rust: usize,
}

/// Fields are named as in the header; where that has another name or a union, `field = "name in C"`.
macro_rules! layout {
    ($($name:ident { $($field:ident $(= $c:literal)?),* $(,)? })*) => {
        vec![$(
            Compared { c: concat!("sizeof(struct ", stringify!($name), ")").into(), rust: size_of::<$name>() },
            $(Compared {
                c: format!("offsetof(struct {}, {})", stringify!($name), [$($c,)? stringify!($field)][0]),
                rust: core::mem::offset_of!($name, $field),
            },)*
        )*]
    };
}

/// Of devices, memory and completions.
fn objects() -> Vec<Compared> {
    layout! {
        ibv_device { node_type, transport_type, name, dev_name, dev_path, ibdev_path }
        ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat }
        ibv_context_ops { alloc_mw, bind_mw, dealloc_mw, poll_cq, req_notify_cq, post_srq_recv, post_send, post_recv }
        verbs_context {
            query_port, modify_qp_rate_limit, alloc_parent_domain, query_rt_values, create_cq_ex, private = "priv",
            query_device_ex, open_qp, create_qp_ex, get_srq_num, create_srq_ex, open_xrcd, close_xrcd, sz, context,
        }
        ibv_device_attr {
            fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, vendor_part_id, hw_ver, max_qp,
            max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom,
            max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom, max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd,
            max_mw, max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach,
            max_ah, max_fmr, max_map_per_fmr, max_srq, max_srq_wr, max_srq_sge, max_pkeys, local_ca_ack_delay,
            phys_port_cnt,
        }
        ibv_device_attr_ex { orig_attr, comp_mask, phys_port_cnt_ex }
        ibv_port_attr {
            state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr,
            pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width,
            active_speed, phys_state, link_layer, flags, port_cap_flags2,
        }
        ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
        ibv_pd { context, handle }
        ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        ibv_xrcd { context }
        ibv_xrcd_init_attr { comp_mask, fd, oflags }
        ibv_mw { context, pd, rkey, handle, mw_type = "type" }
        ibv_mw_bind_info { mr, addr, length, mw_access_flags }
        ibv_mw_bind { wr_id, send_flags, bind_info }
        ibv_comp_channel { context, fd, refcnt }
        ibv_cq { context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed, async_events_completed }
        ibv_cq_ex {
            comp_mask, status, wr_id, start_poll, next_poll, end_poll, read_opcode, read_vendor_err, read_byte_len,
            read_imm_data, read_qp_num, read_src_qp, read_wc_flags, read_slid, read_sl, read_dlid_path_bits,
            read_completion_ts, read_cvlan, read_flow_tag, read_tm_info, read_completion_wallclock_ns,
        }
        ibv_cq_init_attr_ex { cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, flags, parent_domain }
        ibv_wc {
            wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags, pkey_index, slid, sl,
            dlid_path_bits,
        }
    }
}

/// Of queue pairs and work requests.
fn queues() -> Vec<Compared> {
    layout! {
        ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        ibv_qp_init_attr_ex {
            qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, comp_mask, pd, xrcd, create_flags,
            max_tso_header, rwq_ind_tbl, rx_hash_conf, source_qpn, send_ops_flags,
        }
        ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
        ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
        ibv_qp_attr {
            qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap,
            ah_attr, alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic,
            max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout,
            rate_limit,
        }
        ibv_qp {
            context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex, cond,
            events_completed,
        }
        ibv_qp_ex {
            qp_base, comp_mask, wr_id, wr_flags, wr_atomic_cmp_swp, wr_atomic_fetch_add, wr_bind_mw, wr_local_inv,
            wr_rdma_read, wr_rdma_write, wr_rdma_write_imm, wr_send, wr_send_imm, wr_send_inv, wr_send_tso,
            wr_set_ud_addr, wr_set_xrc_srqn, wr_set_inline_data, wr_set_inline_data_list, wr_set_sge, wr_set_sge_list,
            wr_start, wr_complete, wr_abort,
        }
        ibv_data_buf { addr, length }
        ibv_sge { addr, length, lkey }
        ibv_send_wr {
            wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, remote_addr = "wr.rdma.remote_addr",
            second = "wr.rdma.rkey", second = "wr.atomic.compare_add", second = "wr.ud.remote_qpn",
            swap = "wr.atomic.swap", atomic_rkey = "wr.atomic.rkey", remote_srqn = "qp_type.xrc.remote_srqn",
            mw = "bind_mw.mw", mw_rkey = "bind_mw.rkey", bind_info = "bind_mw.bind_info",
        }
        ibv_recv_wr { wr_id, next, sg_list, num_sge }
        ibv_srq_attr { max_wr, max_sge, srq_limit }
        ibv_srq_init_attr { srq_context, attr }
        ibv_srq_init_attr_ex { srq_context, attr, comp_mask, srq_type, pd, xrcd, cq }
        ibv_srq { context, srq_context, pd, handle, mutex, cond, events_completed }
        ibv_async_event { event_type }
    }
}

#[test]
fn structures_are_laid_out_as_the_header_has_them() {
    if !std::path::Path::new("/usr/include/infiniband/verbs.h").is_file() {
        println!("skipped: it needs cc and the header of libibverbs-dev");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (source, program) = (folder.path().join("layout.c"), folder.path().join("layout"));
    let gid = Compared { c: "sizeof(union ibv_gid)".into(), rust: size_of::<ibv_gid>() };
    let all: Vec<Compared> = objects().into_iter().chain(queues()).chain([gid]).collect();
    let mut text = String::from(
        "#include <infiniband/verbs.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n",
    );
    for compared in &all {
        let _ = writeln!(text, "printf(\"%zu\\n\", (size_t){});", compared.c);
    }
    text.push_str("return 0; }\n");
    std::fs::write(&source, text).expect("written");
    let cc =
        Command::new("cc").arg("-o").arg(&program).arg(&source).output().expect("cc: apt-get install gcc");
    let said = String::from_utf8_lossy(&cc.stderr);
    assert!(cc.status.success(), "the header is libibverbs-dev's (apt-get install libibverbs-dev):\n{said}");
    let out = Command::new(&program).output().expect("it runs");
    let printed = String::from_utf8_lossy(&out.stdout);
    let header: Vec<usize> = printed.lines().filter_map(|l| l.parse().ok()).collect();
    assert_eq!(header.len(), all.len());
    let differing: Vec<String> = all
        .iter()
        .zip(header)
        .filter(|(compared, header)| compared.rust != *header)
        .map(|(compared, header)| format!("{}: {header} in C, {} in Rust", compared.c, compared.rust))
        .collect();
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}
