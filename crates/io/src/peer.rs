//! Credentials of the process at the other end of a Unix socket (`SO_PEERCRED`).

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

/// Further groups of a peer that are looked at.
const MAX_GROUPS: usize = 1_024;

/// The process at the other end of a Unix socket, as it was when it connected (`SO_PEERCRED`): what it says of itself
/// plays no part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
    /// Its process; 0 when it is in another PID namespace.
    pub pid: i32,
    /// Its further groups (`SO_PEERGROUPS`, Linux 4.13); none where the kernel does not tell, or of more than 1,024.
    pub groups: Vec<u32>,
}

impl Peer {
    /// The credentials of the peer of `socket`, which must be a connected Unix socket.
    ///
    /// # Errors
    /// The kernel's: it is no such socket.
    pub fn of(socket: &impl AsFd) -> io::Result<Peer> {
        let fd = socket.as_fd();
        let who = rustix::net::sockopt::socket_peercred(fd)?;
        let mut groups = vec![0_u32; MAX_GROUPS];
        let mut len = (MAX_GROUPS * size_of::<u32>()) as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes to `groups`, which is ours and that long, and the length to `len`.
        let got = unsafe {
            libc::getsockopt(
                fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        groups.truncate(if got == 0 { len as usize / size_of::<u32>() } else { 0 });
        let pid = who.pid.as_raw_nonzero().get();
        Ok(Peer { uid: who.uid.as_raw(), gid: who.gid.as_raw(), pid, groups })
    }

    /// Whether it is in a group.
    pub fn is_in(&self, group: u32) -> bool {
        self.gid == group || self.groups.contains(&group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn peer_credentials_come_from_the_kernel() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let peer = Peer::of(&ours).unwrap();
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
        assert_eq!(peer.pid, std::process::id() as i32);
        assert!(peer.is_in(rustix::process::getegid().as_raw()));
        for g in rustix::process::getgroups().unwrap() {
            assert!(peer.is_in(g.as_raw()), "{g:?}");
        }
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(!Peer::of(&udp).is_ok_and(|p| p.uid == peer.uid && p.pid > 0));
    }
}
