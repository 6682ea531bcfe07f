//! What every algorithm is tested with.
