//! What loopback carries: bytes to each port, and the code points that they come with, seen by a packet socket. Root.

use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, recv, socket_with, sockopt};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// `ETH_P_IP`, in the network's order: incoming packets only, so that loopback shows each once.
const IP: u16 = 0x0800_u16.to_be();
/// Bytes of headers that are looked at.
const HEAD: usize = 128;
/// The socket's buffer: a long pause of this thread loses nothing.
const BUFFER: usize = 64 << 20;

/// Bytes so far, and the code point of the last packet with data.
type Seen = HashMap<u16, (u64, u8)>;

pub struct Packets {
    seen: Arc<Mutex<Seen>>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Packets {
    /// `None` without the right to look.
    pub fn new() -> Option<Packets> {
        let protocol = Protocol::from_raw(std::num::NonZeroU32::new(IP.into())?);
        let fd = socket_with(AddressFamily::PACKET, SocketType::DGRAM, SocketFlags::CLOEXEC, Some(protocol))
            .ok()?;
        sockopt::set_socket_recv_buffer_size_force(&fd, BUFFER).ok()?;
        sockopt::set_socket_timeout(&fd, sockopt::Timeout::Recv, Some(Duration::from_millis(100))).ok()?;
        let (seen, over) = (Arc::<Mutex<Seen>>::default(), Arc::<AtomicBool>::default());
        let (shared, ends) = (seen.clone(), over.clone());
        let thread = thread::spawn(move || {
            let mut head = [0; HEAD];
            while !ends.load(Ordering::Relaxed) {
                let Ok((n, len)) = recv(&fd, &mut head[..], RecvFlags::TRUNC) else { continue };
                note(&head[..n], len as u64, &shared);
            }
        });
        Some(Packets { seen, over, thread: Some(thread) })
    }

    fn of(&self, port: u16) -> (u64, u8) {
        self.seen.lock().unwrap().get(&port).copied().unwrap_or_default()
    }

    /// Mbit/s to a port in the next so long, headers of IP included.
    #[allow(clippy::disallowed_methods, reason = "a test measures time")]
    pub fn rate(&self, port: u16, time: Duration) -> f64 {
        let (before, began) = (self.of(port).0, Instant::now());
        thread::sleep(time);
        (self.of(port).0 - before) as f64 * 8e-6 / began.elapsed().as_secs_f64()
    }

    /// The code point that packets with data come to a port with.
    pub fn dscp(&self, port: u16) -> u8 {
        self.of(port).1
    }
}

fn note(ip: &[u8], len: u64, seen: &Mutex<Seen>) {
    let Some([first, tos, ..]) = ip.first_chunk::<20>() else { return };
    let at = usize::from(first & 0xf) * 4;
    let Some(port) = ip.get(at + 2..at + 4) else { return };
    let port = u16::from_be_bytes([port[0], port[1]]);
    let mut seen = seen.lock().unwrap();
    let (bytes, dscp) = seen.entry(port).or_default();
    *bytes += len;
    if len > 200 {
        *dscp = tos >> 2;
    }
}

impl Drop for Packets {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
