//! Multipath TCP of the kernel (RFC 8684).

use socket2::{Domain, Protocol, Socket, Type};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::process::Command;

/// Not in the C library's headers of every distribution (`linux/in.h`).
const IPPROTO_MPTCP: i32 = 262;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// A socket for connections over several paths.
pub(super) fn socket(to: SocketAddr) -> Result<Socket, String> {
    Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::from(IPPROTO_MPTCP)))
        .map_err(|e| format!("the kernel has no Multipath TCP: {e}"))
}

/// Whether this machine supports MPTCP.
pub(super) fn available() -> Result<(), String> {
    socket(([127, 0, 0, 1], 0).into())?;
    ip(&["mptcp", "limits", "show"])
}

/// Configures the kernel's path manager with `ip mptcp` of iproute2.
fn ip(args: &[&str]) -> Result<(), String> {
    let out = Command::new("ip").args(args).output();
    let out = out.map_err(|e| format!("`ip` is needed for Multipath TCP; install iproute2: {e}"))?;
    let text = String::from_utf8_lossy(&out.stderr);
    if out.status.success() { Ok(()) } else { Err(format!("ip {}: {}", args.join(" "), text.trim())) }
}

/// Lets connections of this network namespace use addresses that the peer announces.
pub(super) fn allow() -> Result<(), String> {
    ip(&["mptcp", "limits", "set", "subflow", "2", "add_addr_accepted", "2"])
}

/// Listens, and announces another address of this node to clients.
pub(super) fn listen(at: SocketAddr, also: IpAddr) -> Result<TcpListener, String> {
    allow()?;
    ip(&["mptcp", "endpoint", "flush"])?;
    ip(&["mptcp", "endpoint", "add", &also.to_string(), "signal"])?;
    let words = |e: std::io::Error| format!("receiving on {at}: {e}");
    let socket = socket(at)?;
    socket.set_reuse_address(true).map_err(words)?;
    socket.bind(&at.into()).map_err(words)?;
    socket.listen(BACKLOG).map_err(words)?;
    Ok(socket.into())
}
