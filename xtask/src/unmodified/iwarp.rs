//! Programs over `longhaul run --transport iwarp`: a connection by TCP for each queue pair.

use super::{Row, both, pair, served};

const fn by_iwarp(row: Row) -> Row {
    Row { options: &["--transport", "iwarp"], ..row }
}

pub const ROWS: &[Row] = &[
    by_iwarp(pair("ibv_rc_pingpong -g 0", true)),
    by_iwarp(pair("ibv_rc_pingpong -g 0 -e", false)),
    by_iwarp(pair("ibv_rc_pingpong -g 0 -c -s 70000 -n 100", true)),
    by_iwarp(pair("ibv_srq_pingpong -g 0", true)),
    by_iwarp(pair("ib_write_bw -n 1000", true)),
    by_iwarp(pair("ib_write_bw -a -n 100", false)),
    by_iwarp(pair("ib_write_bw -n 500 -q 4 -b", false)),
    by_iwarp(pair("ib_write_lat -n 300", false)),
    by_iwarp(pair("ib_read_bw -n 1000", true)),
    by_iwarp(pair("ib_read_lat -n 300", false)),
    by_iwarp(pair("ib_send_bw -n 1000", true)),
    by_iwarp(pair("ib_send_bw -n 500 -b -q 3", false)),
    by_iwarp(pair("ib_send_bw -n 500 -e", false)),
    by_iwarp(pair("ib_send_lat -n 300", false)),
    by_iwarp(pair("ib_atomic_bw -n 1000 -A FETCH_AND_ADD", false)),
    // The connection manager.
    by_iwarp(both("rping -s -a HOST -V -C 20 -S 60000", "rping -c -a HOST -V -C 20 -S 60000", "", true)),
    by_iwarp(served("rping -s -a HOST -P", "rping -c -a HOST -v -C 3", "rdma-ping-2", false)),
    by_iwarp(both("ucmatose -c 100", "ucmatose -s HOST -c 100", "return status 0", false)),
    by_iwarp(both("rdma_server", "rdma_client -s HOST", "end 0", false)),
    by_iwarp(both("rstream -C 10 -I 100 -S 64", "rstream -s HOST -C 10 -I 100 -S 64", "custom", false)),
    by_iwarp(pair("ib_write_bw -R -n 500", true)),
    by_iwarp(pair("ib_read_lat -R -n 100", false)),
    by_iwarp(pair("ib_send_bw -R -n 500", false)),
];
