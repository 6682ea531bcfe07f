//! TUN devices that carry super-packets.
