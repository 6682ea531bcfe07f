//! Connections by TCP.

use super::{Common, paced};
use anyhow::Result;
use base::{Rng, Span};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, ipproto, recv, send};
use rustix::net::{RecvFlags, SendFlags};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Connections of one kind that are held to one server: more than it has descriptors.
const HELD: usize = 1_500;
/// Made in a step, and looked at.
const STEP: usize = 8;

fn open(c: &Common, to: SocketAddr) -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    bind(&fd, &SocketAddr::new(c.target.from, 0))?;
    // Whether it gets through shows later.
    let _ = connect(&fd, &to);
    Ok(fd)
}

/// Whether the other end has ended it.
fn is_over(fd: &OwnedFd) -> bool {
    let mut b = [0; 64];
    match recv(fd, &mut b, RecvFlags::DONTWAIT) {
        Ok((n, _)) => n == 0,
        Err(e) => !matches!(e, rustix::io::Errno::AGAIN | rustix::io::Errno::NOTCONN),
    }
}

/// Holds as many as it can, makes new ones for those that were ended, 800 a second.
fn hold(c: &Arc<Common>, name: &'static str, mut first: impl FnMut(&OwnedFd)) -> Result<()> {
    let opened = c.count(name);
    let mut held = c.target.servers().map(|to| (to, VecDeque::<(OwnedFd, bool)>::new()));
    paced(c, Span::from_millis(10), 1, || {
        for (to, all) in &mut held {
            for _ in 0..STEP {
                if all.len() < HELD
                    && let Ok(fd) = open(c, *to)
                {
                    all.push_back((fd, false));
                    Common::add(&opened);
                }
            }
            for _ in 0..(4 * STEP).min(all.len()) {
                let Some((fd, mut said)) = all.pop_front() else { break };
                if !said {
                    first(&fd);
                    said = true;
                }
                if !is_over(&fd) {
                    all.push_back((fd, said));
                }
            }
        }
        Ok(())
    })
}

/// That say nothing.
pub fn silent(c: &Arc<Common>) -> Result<()> {
    hold(c, "silent connections by TCP", |_| {})
}

/// That say what is no TLS, or the beginning of a record of TLS and then nothing.
pub fn garbage(c: &Arc<Common>) -> Result<()> {
    let mut rng = Rng::from_u64(3);
    hold(c, "garbage connections by TCP", move |fd| {
        let mut b = vec![0; 1 + rng.below(600) as usize];
        rng.fill(&mut b);
        if rng.below(2) == 0 {
            // A handshake record of 2^14 bytes, of which some come.
            let head = [22, 3, 1, 0x40, 0, 1];
            let n = b.len().min(head.len());
            b[..n].copy_from_slice(&head[..n]);
        }
        let _ = send(fd, &b, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    })
}
