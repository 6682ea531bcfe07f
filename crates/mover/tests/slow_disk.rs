//! A server whose disk is slow, over real sockets.

mod common;

use common::{noise, put, serve_slowly};
use longhaul_mover::ServeOptions;
use std::time::Duration;

/// How long each piece of work takes at the server: about 1 MiB, by two threads or more.
const PAUSE: Duration = Duration::from_millis(10);
/// More than both ends hold in memory together.
const LARGE: usize = 200 << 20;

#[test]
fn it_slows_the_client_and_little_is_sent_twice() {
    let (from, served) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = from.path().join("f");
    std::fs::write(&file, noise(1, LARGE)).unwrap();
    let s = serve_slowly(ServeOptions::new(served.path()), PAUSE);
    let r = put(s.addr, &file, "").unwrap();
    assert!(r.error.is_none() && r.totals.repaired_chunks == 0, "{r:?}");
    // The network's loop is not slow, so that nothing is dropped for want of room; a machine that is busy may drop some.
    assert!(r.progress.bytes_retransmitted < LARGE as u64 / 20, "{}", r.progress.bytes_retransmitted);
    assert!(std::fs::read(served.path().join("f")).unwrap() == noise(1, LARGE));
}
