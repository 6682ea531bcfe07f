//! Runs of a plan in the laboratory.
