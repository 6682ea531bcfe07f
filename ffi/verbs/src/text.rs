//! Names of statuses, events and the like, as rdma-core has them.

use core::ffi::{CStr, c_char, c_int};

const STATUSES: [&CStr; 24] = [
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"Work Request Flushed Error",
    c"memory management operation error",
    c"bad response error",
    c"local access error",
    c"remote invalid request error",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation error",
    c"remote invalid RD request",
    c"aborted error",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout error",
    c"general error",
    c"TM error",
    c"TM software rendezvous",
];

const EVENTS: [&CStr; 20] = [
    c"CQ error",
    c"local work queue catastrophic error",
    c"invalid request local work queue error",
    c"local access violation work queue error",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration request error",
    c"local catastrophic error",
    c"port active",
    c"port error",
    c"LID change",
    c"P_Key change",
    c"SM change",
    c"SRQ catastrophic error",
    c"SRQ limit reached",
    c"last WQE reached",
    c"client reregistration",
    c"GID table change",
    c"WQ fatal",
];

const NODES: [&CStr; 8] = [
    c"unknown",
    c"InfiniBand channel adapter",
    c"InfiniBand switch",
    c"InfiniBand router",
    c"iWARP NIC",
    c"usNIC",
    c"usNIC UDP",
    c"unspecified",
];

const PORT_STATES: [&CStr; 6] = [
    c"no state change (NOP)",
    c"PORT_DOWN",
    c"PORT_INIT",
    c"PORT_ARMED",
    c"PORT_ACTIVE",
    c"PORT_ACTIVE_DEFER",
];

/// Rates of `enum ibv_rate` with the Mbit/s and the multiple of 2.5 Gbit/s of each (0: none).
const RATES: [(c_int, c_int, c_int); 24] = [
    (2, 2_500, 1),
    (5, 5_000, 2),
    (3, 10_000, 4),
    (6, 20_000, 8),
    (4, 30_000, 12),
    (7, 40_000, 16),
    (8, 60_000, 24),
    (9, 80_000, 32),
    (10, 120_000, 48),
    (11, 14_062, 0),
    (12, 56_250, 0),
    (13, 112_500, 0),
    (14, 168_750, 0),
    (15, 25_781, 0),
    (16, 103_125, 0),
    (17, 206_250, 0),
    (18, 309_375, 0),
    (19, 28_125, 12),
    (20, 53_125, 20),
    (21, 425_000, 160),
    (22, 637_500, 240),
    (23, 850_000, 320),
    (24, 1_275_000, 480),
    (0, 0, 0),
];

fn name(names: &'static [&'static CStr], at: c_int) -> *const c_char {
    usize::try_from(at).ok().and_then(|i| names.get(i)).unwrap_or(&c"unknown").as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn lh_ibv_wc_status_str(status: c_int) -> *const c_char {
    name(&STATUSES, status)
}

#[unsafe(no_mangle)]
extern "C" fn lh_ibv_event_type_str(event: c_int) -> *const c_char {
    name(&EVENTS, event)
}

#[unsafe(no_mangle)]
extern "C" fn lh_ibv_node_type_str(node: c_int) -> *const c_char {
    name(&NODES, node)
}

#[unsafe(no_mangle)]
extern "C" fn lh_ibv_port_state_str(state: c_int) -> *const c_char {
    name(&PORT_STATES, state)
}

#[unsafe(no_mangle)]
extern "C" fn lh_ibv_rate_to_mbps(rate: c_int) -> c_int {
    RATES.iter().find(|r| r.0 == rate && rate != 0).map_or(-1, |r| r.1)
}

#[unsafe(no_mangle)]
extern "C" fn lh_mbps_to_ibv_rate(mbps: c_int) -> c_int {
    RATES.iter().find(|r| r.1 == mbps).map_or(0, |r| r.0)
}

#[unsafe(no_mangle)]
extern "C" fn lh_ibv_rate_to_mult(rate: c_int) -> c_int {
    RATES.iter().find(|r| r.0 == rate && r.2 > 0).map_or(-1, |r| r.2)
}

#[unsafe(no_mangle)]
extern "C" fn lh_mult_to_ibv_rate(mult: c_int) -> c_int {
    RATES.iter().find(|r| r.2 == mult).map_or(0, |r| r.0)
}
