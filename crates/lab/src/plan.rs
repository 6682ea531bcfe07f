//! Plans: which topology, which workloads, how often, and what is measured.
