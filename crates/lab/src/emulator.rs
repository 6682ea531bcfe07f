//! The process that emulates the network between the namespaces.

pub mod record;
