//! MPA, Marker PDU Aligned framing: records in a byte stream (RFC 5044), and how a connection starts (RFC 5044, section 7;
//! RFC 6581).

pub mod fpdu;
pub mod frames;
pub mod markers;
pub mod startup;
