//! iWARP through ssh's pipes: bytes between a connection by TCP on this machine and a pipe, as they are. What is in them is
//! protected by TLS from end to end, so that nobody on either machine can do more than break the connection.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};

/// What the client says on ssh's pipe when it wants that; it says nothing else, but for the end.
pub const BRIDGE: &[u8] = b"bridge\n";
/// Bytes moved at a time: what a pipe holds.
pub const BLOCK: usize = 64 << 10;
/// Connections of others that are turned away before it is given up.
const MAX_FOREIGN_CONNECTIONS: usize = 100;

/// Copies until either side has no more, each block at once.
pub fn copy(mut from: impl Read, mut to: impl Write) -> io::Result<()> {
    let mut block = vec![0; BLOCK];
    loop {
        match from.read(&mut block) {
            Ok(0) => return Ok(()),
            Ok(n) => {
                to.write_all(block.get(..n).unwrap_or_default())?;
                to.flush()?;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// A listener that only this machine reaches, and where.
pub fn listen() -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let at = listener.local_addr()?;
    Ok((listener, at))
}

/// The first connection that a process of this user makes; those of others are reset.
pub fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
    for _ in 0..MAX_FOREIGN_CONNECTIONS {
        let (stream, peer) = listener.accept()?;
        if is_ours(peer, &std::fs::read_to_string("/proc/net/tcp").unwrap_or_default()) {
            stream.set_nodelay(true)?;
            return Ok(stream);
        }
        tracing::warn!(%peer, "a process of another user connected, and was turned away");
    }
    Err(io::Error::other("others connect again and again"))
}

/// Connects to a listener of this process.
pub fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(to)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Ends a connection in the direction away from here.
pub fn end(stream: &TcpStream) {
    let _ = stream.shutdown(Shutdown::Write); // it may have ended already
}

/// Whether the kernel's table of connections by IPv4 (`proc_tcp_file(5)`) has `peer` as this user's. Where there is no table nobody
/// is turned away: TLS sees to the rest.
fn is_ours(peer: SocketAddr, table: &str) -> bool {
    let SocketAddr::V4(peer) = peer else { return false };
    let written = format!("{:08X}:{:04X}", u32::from_ne_bytes(peer.ip().octets()), peer.port());
    let us = rustix::process::geteuid().as_raw();
    let mut lines = table.lines().skip(1).map(|l| l.split_ascii_whitespace());
    let owner = lines.find_map(|mut fields| {
        (fields.nth(1)? == written).then_some(())?;
        fields.nth(5)?.parse::<u32>().ok()
    });
    owner.is_none_or(|o| o == us)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_of_other_users_are_recognised() {
        let (listener, at) = listen().unwrap();
        let client = connect(at).unwrap();
        let peer = client.local_addr().unwrap();
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        assert!(is_ours(peer, &table));
        let us = rustix::process::geteuid().as_raw();
        let of = |uid: u32| {
            format!(
                "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n   0: {:08X}:{:04X} \
                 0100007F:0016 01 00000000:00000000 00:00000000 00000000  {uid}        0 1\n",
                u32::from_ne_bytes([127, 0, 0, 1]),
                peer.port()
            )
        };
        assert!(is_ours(peer, &of(us)) && !is_ours(peer, &of(us + 1)));
        assert!(is_ours(peer, "") && !is_ours("[::1]:1".parse().unwrap(), ""));
        accept(&listener).unwrap();
    }

    #[test]
    fn bridge_copies_until_the_end() {
        let all: Vec<u8> = (0..300_000u32).map(|n| n as u8).collect();
        let mut out = Vec::new();
        copy(&all[..], &mut out).unwrap();
        assert!(out == all);
    }
}
