//! Reports of what a plan gave.
