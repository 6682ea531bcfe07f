//! Runs of a plan in the simulator.
