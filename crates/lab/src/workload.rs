//! The programs that a plan runs in the namespaces.
