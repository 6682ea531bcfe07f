//! Connection managers on real engines, sockets and descriptors: what librdmacm would write, byte for byte.

#![allow(clippy::disallowed_methods, reason = "real sockets and threads take real time")]

use engine::{ClusterKey, Engine, Options};
use longhaul_rdmacm::abi::{self, Writer, event, put_address, space};
use longhaul_rdmacm::process::{ConnectionManager, Device};
use longhaul_rdmacm::{Errno, lookup};
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

const GUID: u64 = 0x1234;

/// A program with its event channel.
struct Program {
    manager: ConnectionManager,
    fd: RawFd,
    /// A queue pair's number of its process.
    number: u32,
}

impl Program {
    fn new(cluster: &ClusterKey) -> Program {
        let engine = Engine::start(Options::new(cluster)).expect("an engine");
        let number = engine::address::management_number(engine.port()).expect("a number") + 6;
        let device = Device { gids: || vec![IpAddr::V4(Ipv4Addr::LOCALHOST)], guid: GUID };
        let manager = ConnectionManager::start(engine, &cluster.services(), device).expect("a manager");
        let fd = manager.open(libc::O_CLOEXEC | libc::O_NONBLOCK).expect("a descriptor");
        Program { manager, fd, number }
    }

    /// Writes a command whose answer, of `room` bytes, goes to where `at` says.
    fn write(
        &self,
        number: u32,
        mut command: Writer,
        (at, room): (Option<usize>, usize),
    ) -> Result<Vec<u8>, Errno> {
        let mut answer = vec![0u8; room];
        if let Some(at) = at {
            command.u64(at, answer.as_mut_ptr() as u64);
        }
        let mut all = number.to_ne_bytes().to_vec();
        all.extend((command.0.len() as u16).to_ne_bytes());
        all.extend((room as u16).to_ne_bytes());
        all.extend(&command.0);
        let written = self.manager.write(self.fd, &all)?;
        assert_eq!(written, all.len());
        Ok(answer)
    }

    fn create(&self, uid: u64, of: u16) -> u32 {
        let mut c = Writer::new(24);
        c.u64(0, uid).u16(16, of);
        word(&self.write(0, c, (Some(8), 4)).expect("an identifier"))
    }
    fn destroy(&self, id: u32) -> u32 {
        let mut c = Writer::new(16);
        c.u32(8, id);
        word(&self.write(1, c, (Some(0), 4)).expect("destroyed"))
    }
    fn on_id(&self, number: u32, id: u32) -> Result<(), Errno> {
        let mut c = Writer::new(8);
        c.u32(0, id);
        self.write(number, c, (None, 0)).map(drop)
    }
    /// Listens at any port of the loopback interface.
    fn listen(&self, uid: u64) -> (u32, u16) {
        let id = self.create(uid, space::TCP);
        let mut c = Writer::new(40);
        c.put(8, &put_address("127.0.0.1:0".parse().ok()).0).u32(36, id);
        self.write(2, c, (None, 0)).expect("bound");
        self.on_id(7, id).expect("listening");
        let mut c = Writer::new(16);
        c.u32(8, id);
        let route = self.write(5, c, (Some(0), abi::QUERY_ROUTE)).expect("a route");
        assert_eq!(route[..8], GUID.to_ne_bytes());
        (id, u16::from_be_bytes([route[138], route[139]]))
    }
    fn connect(&self, uid: u64, port: u16, private: &[u8]) -> u32 {
        let id = self.create(uid, space::TCP);
        let mut c = Writer::new(64);
        c.put(28, &put_address(format!("127.0.0.1:{port}").parse().ok()).0).u32(56, id);
        self.write(3, c, (None, 0)).expect("resolved");
        self.expect(event::ADDR_RESOLVED);
        self.on_id(4, id).expect("resolved");
        self.expect(event::ROUTE_RESOLVED);
        let mut c = Writer::new(288);
        c.u32(0, self.number)
            .put(8, private)
            .put(264, &[private.len() as u8, 0, 1, 1, 0, 7, 7, 1])
            .u32(272, id);
        self.write(6, c, (None, 0)).expect("asking");
        id
    }
    fn accept(&self, id: u32, uid: u64, is_valid: u8) -> Result<(), Errno> {
        let mut c = Writer::new(296);
        c.u64(0, uid).u32(8, self.number).put(8 + 271, &[is_valid]).u32(280, id);
        self.write(8, c, (None, 0)).map(drop)
    }

    /// The next event, waited for as programs do: by polling the descriptor.
    fn expect(&self, wanted: u32) -> (u64, u32, i32, Vec<u8>) {
        let start = Instant::now();
        loop {
            match self.write(12, Writer::new(8), (Some(0), abi::EVENT)) {
                Ok(b) => {
                    assert_eq!(word(&b[12..]), wanted, "status {}", word(&b[16..]) as i32);
                    let uid = u64::from_ne_bytes(b[..8].try_into().expect("eight"));
                    return (uid, word(&b[8..]), word(&b[16..]) as i32, b);
                }
                Err(Errno(libc::EAGAIN)) => {
                    assert!(start.elapsed() < Duration::from_secs(20), "no event {wanted}")
                }
                Err(e) => panic!("{e:?}"),
            }
            let mut p = libc::pollfd { fd: self.fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: one structure.
            unsafe { libc::poll(&raw mut p, 1, 20_000) };
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.manager.close(self.fd);
        // SAFETY: opened in `new`, and used by nobody else.
        unsafe { libc::close(self.fd) };
    }
}

fn word(b: &[u8]) -> u32 {
    u32::from_ne_bytes(b[..4].try_into().expect("four bytes"))
}

/// From request to rest.
fn connect_and_part(client: &Program, server: &Program) {
    let (listener, port) = server.listen(50);
    let id = client.connect(10, port, b"hello");
    let (uid, made, _, bytes) = server.expect(event::CONNECT_REQUEST);
    assert_eq!((uid, word(&bytes[20..]), &bytes[28..33]), (50, client.number, &b"hello"[..]));
    server.accept(made, 60, 1).expect("accepted");
    let (uid, _, _, bytes) = client.expect(event::CONNECT_RESPONSE);
    assert_eq!((uid, word(&bytes[20..])), (10, server.number));
    client.accept(id, 0, 0).expect("ready");
    assert_eq!(server.expect(event::ESTABLISHED).0, 60);
    client.on_id(10, id).expect("disconnecting");
    assert_eq!(server.expect(event::DISCONNECTED).0, 60);
    assert_eq!(client.expect(event::DISCONNECTED).0, 10);
    client.expect(event::TIMEWAIT_EXIT);
    server.expect(event::TIMEWAIT_EXIT);
    assert_eq!((client.destroy(id), server.destroy(made), server.destroy(listener)), (5, 3, 1));
}

#[test]
fn two_programs_connect_and_part() {
    let cluster = ClusterKey::generate().expect("a key");
    let (client, server) = (Program::new(&cluster), Program::new(&cluster));
    connect_and_part(&client, &server);
    // Back over the connection that there is by now.
    connect_and_part(&server, &client);
}

#[test]
fn answers_to_wrong_addresses_leave_nothing_behind() {
    let program = Program::new(&ClusterKey::generate().expect("a key"));
    // More than there may be identifiers.
    for _ in 0..70_000 {
        let mut all = 0u32.to_ne_bytes().to_vec();
        all.extend([24u16, 4].map(u16::to_ne_bytes).concat());
        let mut c = Writer::new(24);
        c.u64(0, 1).u64(8, 1).u16(16, space::TCP);
        all.extend(&c.0);
        assert_eq!(program.manager.write(program.fd, &all), Err(Errno(libc::EFAULT)));
    }
    program.create(1, space::TCP);
}

/// As rping ends: its main thread closes the channel at which another one waits.
#[test]
fn channel_that_is_closed_does_not_end_the_wait_of_another_thread() {
    let program = std::sync::Arc::new(Program::new(&ClusterKey::generate().expect("a key")));
    let fd = program.manager.open(libc::O_CLOEXEC).expect("a descriptor that waits");
    let (p, (ended, end)) = (program.clone(), std::sync::mpsc::channel());
    std::thread::spawn(move || {
        let mut answer = vec![0u8; abi::EVENT];
        let mut all = 12u32.to_ne_bytes().to_vec();
        all.extend([8u16, abi::EVENT as u16].map(u16::to_ne_bytes).concat());
        all.extend((answer.as_mut_ptr() as u64).to_ne_bytes());
        let _ = ended.send(p.manager.write(fd, &all));
    });
    assert!(end.recv_timeout(Duration::from_millis(300)).is_err(), "it waits");
    assert!(program.manager.close(fd));
    // SAFETY: opened above, and used by nobody else.
    unsafe { libc::close(fd) };
    assert!(end.recv_timeout(Duration::from_millis(300)).is_err(), "as with the kernel");
    assert_eq!(program.manager.write(fd, &[0; 16]), Err(Errno(libc::EBADF)), "who comes later is told");
}

#[test]
fn a_program_connects_to_itself() {
    let program = Program::new(&ClusterKey::generate().expect("a key"));
    let (_, port) = program.listen(50);
    let id = program.connect(10, port, &[]);
    let (_, made, ..) = program.expect(event::CONNECT_REQUEST);
    program.accept(made, 60, 1).expect("accepted");
    program.expect(event::CONNECT_RESPONSE);
    program.accept(id, 0, 0).expect("ready");
    assert_eq!(program.expect(event::ESTABLISHED).0, 60);
    program.destroy(id);
    assert_eq!(program.expect(event::DISCONNECTED).0, 60);
}

#[test]
fn nobody_and_strangers_do_not_answer() {
    let cluster = ClusterKey::generate().expect("a key");
    let (client, stranger) = (Program::new(&cluster), Program::new(&ClusterKey::generate().expect("a key")));
    // A port at which nothing is.
    let free = UdpSocket::bind("127.0.0.1:0").and_then(|s| s.local_addr()).expect("a port").port();
    let start = Instant::now();
    client.connect(10, free, &[]);
    assert_eq!(client.expect(event::REJECTED).2, 8);
    assert!(start.elapsed() < Duration::from_secs(5));
    // A program of another cluster: it does not even answer.
    let (_, port) = stranger.listen(50);
    client.connect(11, port, &[]);
    assert_eq!(client.expect(event::UNREACHABLE).2, -libc::ETIMEDOUT);
    // Nor does it answer what is no query.
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.set_read_timeout(Some(Duration::from_millis(200))).expect("set");
    for bytes in [&[0; lookup::LEN][..], b"", &[b'L'; 1_400]] {
        socket.send_to(bytes, ("127.0.0.1", port)).expect("sent");
        assert!(socket.recv(&mut [0; 100]).is_err());
    }
}

#[test]
fn events_wake_who_waits_and_descriptors_end_what_they_had() {
    let cluster = ClusterKey::generate().expect("a key");
    let (client, server) = (Program::new(&cluster), Program::new(&cluster));
    let (_, port) = server.listen(50);
    // A descriptor that waits.
    let fd = server.manager.open(libc::O_CLOEXEC).expect("a descriptor");
    assert_eq!(server.manager.write(fd, &[0; 7]), Err(Errno(libc::EINVAL)));
    assert_eq!(server.manager.write(fd + 100, &[0; 8]), Err(Errno(libc::EBADF)));
    client.connect(10, port, &[]);
    server.expect(event::CONNECT_REQUEST);
    // All that was there ends with the channel: the request is refused, and the port is free again.
    assert!(server.manager.close(server.fd) && !server.manager.close(server.fd));
    assert_eq!(client.expect(event::REJECTED).2, 28);
    UdpSocket::bind(("127.0.0.1", port)).expect("free again");
    server.manager.close(fd);
    // SAFETY: opened above.
    unsafe { libc::close(fd) };
}

#[test]
fn a_port_is_free_as_soon_as_its_listener_is_destroyed() {
    let program = Program::new(&ClusterKey::generate().expect("a key"));
    for turn in 0..200 {
        let (id, port) = program.listen(turn);
        // The thread polls the new socket by now, in some of the turns.
        std::thread::sleep(Duration::from_micros(turn * 5));
        program.destroy(id);
        UdpSocket::bind(("127.0.0.1", port)).unwrap_or_else(|e| panic!("turn {turn}: {e}"));
    }
}
