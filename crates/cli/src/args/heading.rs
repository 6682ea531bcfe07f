//! The headings under which help and man pages list options.

/// What is sent, fetched, measured or compared, and how.
pub const TRANSFER: &str = "Transfer";
/// Addresses, sockets, paths and rates.
pub const NETWORK: &str = "Network";
/// Keys, certificates, tokens, encryption, and what clients may do.
pub const SECURITY: &str = "Security";
/// Algorithms and policies.
pub const CONGESTION_CONTROL: &str = "Congestion control";
/// What is printed and logged.
pub const OUTPUT: &str = "Output";

/// Stands below the options of commands that take such values.
pub const UNITS: &str = "\
Units:
  RATE  500mbit, 2.5gbit (bits per second); 60MB/s, 64MiB/s (bytes per second)
  TIME  10ms, 1.5s, 2min, 1h; seconds without a unit
  SIZE  65536, 64K, 64KiB (1,024 bytes), 64KB (1,000 bytes), 1GiB";
