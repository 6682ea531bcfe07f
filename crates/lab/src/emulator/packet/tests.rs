use super::*;
use base::Rng;
use etherparse::{IpHeaders, PacketBuilder, SlicedPacket, TransportSlice};
use proptest::prelude::*;

/// The parameters of a super-packet.
#[derive(Clone, Debug)]
struct Recipe {
    v6: bool,
    tcp: bool,
    segment: u16,
    payload: Vec<u8>,
    sequence: u32,
    id: u16,
    ecn: u8,
    cwr: bool,
    fin: bool,
}

fn recipes() -> impl Strategy<Value = Recipe> {
    let sizes = (48u16..1500, 1usize..9000);
    let numbers = (any::<u32>(), any::<u16>(), 0u8..4, any::<u64>());
    (any::<[bool; 4]>(), sizes, numbers).prop_map(|(flags, (segment, length), (sequence, id, ecn, seed))| {
        let [v6, tcp, cwr, fin] = flags;
        let mut payload = vec![0; length];
        Rng::from_u64(seed).fill(&mut payload);
        Recipe { v6, tcp, segment, payload, sequence, id, ecn, cwr, fin }
    })
}

/// The super-packet as a TUN device passes it, built by `etherparse`, with the checksum of the pseudo-header only.
fn make(recipe: &Recipe) -> (Offload, Vec<u8>) {
    let builder = if recipe.v6 {
        PacketBuilder::ipv6([0xfd; 16], [0xfe; 16], 64)
    } else {
        let mut ip =
            etherparse::Ipv4Header::new(0, 64, etherparse::IpNumber::TCP, [10, 77, 0, 1], [10, 77, 0, 2])
                .unwrap();
        ip.identification = recipe.id;
        PacketBuilder::ip(IpHeaders::Ipv4(ip, etherparse::Ipv4Extensions::default()))
    };
    let mut bytes = Vec::new();
    if recipe.tcp {
        let mut tcp = builder.tcp(5001, 80, recipe.sequence, 9000).ack(7).psh();
        if recipe.fin {
            tcp = tcp.fin();
        }
        if recipe.cwr {
            tcp = tcp.cwr();
        }
        // A time stamp, as Linux sends it: 12 bytes.
        let options = [etherparse::TcpOptionElement::Noop, etherparse::TcpOptionElement::Noop];
        let tcp = tcp
            .options(&[options.as_slice(), &[etherparse::TcpOptionElement::Timestamp(1, 2)]].concat())
            .unwrap();
        tcp.write(&mut bytes, &recipe.payload).unwrap();
    } else {
        builder.udp(5001, 80).write(&mut bytes, &recipe.payload).unwrap();
    }
    let start = if recipe.v6 { 40 } else { 20 };
    if recipe.v6 {
        bytes[1] |= recipe.ecn << 4;
    } else {
        bytes[1] |= recipe.ecn;
        let slice = etherparse::Ipv4HeaderSlice::from_slice(&bytes).unwrap();
        let sum = slice.to_header().calc_header_checksum();
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    let (place, protocol) = if recipe.tcp { (16, 6) } else { (6, 17) };
    let pseudo = reference_pseudo(&bytes, recipe.v6, protocol, bytes.len() - start);
    bytes[start + place..start + place + 2].copy_from_slice(&pseudo.to_be_bytes());
    let several = recipe.payload.len() > usize::from(recipe.segment);
    let kind = match (several, recipe.tcp, recipe.v6) {
        (false, ..) => 0,
        (_, false, _) => 5,
        (_, _, false) => 1,
        (_, _, true) => 4,
    };
    let ecn = if several && recipe.tcp && recipe.cwr { 0x80 } else { 0 };
    let header = Offload {
        flags: 1,
        kind: kind | ecn,
        headers: if several { (bytes.len() - recipe.payload.len()) as u16 } else { 0 },
        segment: if several { recipe.segment } else { 0 },
        checksum_start: start as u16,
        checksum_offset: place as u16,
    };
    (header, bytes)
}

/// The reference implementation, word by word as in RFC 1071.
fn reference_pseudo(bytes: &[u8], v6: bool, protocol: u32, length: usize) -> u16 {
    let addresses = if v6 { &bytes[8..40] } else { &bytes[12..20] };
    let mut sum = protocol + length as u32;
    for pair in addresses.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], pair[1]]));
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Payload, sequence number and flags of a packet, whose headers and checksums `etherparse` verifies.
fn verify(packet: &[u8], recipe: &Recipe, index: usize, segments: usize, ecn: Ecn) -> Vec<u8> {
    let sliced = SlicedPacket::from_ip(packet).expect("a whole packet");
    let last = index + 1 == segments;
    let (class, transport) = match sliced.net.as_ref().expect("an IP header") {
        etherparse::NetSlice::Ipv4(ip) => {
            let header = ip.header().to_header();
            assert_eq!(header.header_checksum, header.calc_header_checksum());
            assert_eq!(usize::from(header.total_len), packet.len());
            assert_eq!(header.identification, recipe.id.wrapping_add(index as u16));
            (packet[1] & 3, &packet[20..])
        }
        etherparse::NetSlice::Ipv6(ip) => {
            assert_eq!(usize::from(ip.header().payload_length()) + 40, packet.len());
            ((packet[1] >> 4) & 3, &packet[40..])
        }
        _ => panic!("neither IPv4 nor IPv6"),
    };
    assert_eq!(class, ecn.bits());
    match sliced.transport.expect("a transport") {
        TransportSlice::Tcp(tcp) => {
            let header = tcp.to_header();
            let sum = match sliced.net.as_ref().expect("an IP header") {
                etherparse::NetSlice::Ipv4(ip) => {
                    header.calc_checksum_ipv4(&ip.header().to_header(), tcp.payload())
                }
                etherparse::NetSlice::Ipv6(ip) => {
                    header.calc_checksum_ipv6(&ip.header().to_header(), tcp.payload())
                }
                _ => unreachable!(),
            };
            assert_eq!(sum.unwrap(), header.checksum);
            let offset = (index * usize::from(recipe.segment)) as u32;
            assert_eq!(header.sequence_number, recipe.sequence.wrapping_add(offset));
            assert_eq!((header.psh, header.fin), (last, last && recipe.fin));
            assert_eq!(header.cwr, index == 0 && recipe.cwr);
            tcp.payload().to_vec()
        }
        TransportSlice::Udp(udp) => {
            assert_eq!(usize::from(udp.length()), transport.len());
            let header = udp.to_header();
            let sum = match sliced.net.as_ref().expect("an IP header") {
                etherparse::NetSlice::Ipv4(ip) => {
                    header.calc_checksum_ipv4(&ip.header().to_header(), udp.payload())
                }
                etherparse::NetSlice::Ipv6(ip) => {
                    header.calc_checksum_ipv6(&ip.header().to_header(), udp.payload())
                }
                _ => unreachable!(),
            };
            assert_eq!(sum.unwrap(), header.checksum);
            udp.payload().to_vec()
        }
        other => panic!("another transport: {other:?}"),
    }
}

fn written(packet: &SuperPacket, first: usize, count: usize, ecn: Ecn) -> (Offload, Vec<u8>) {
    let (headers, payload) = packet.run(first, count, ecn).expect("such a run");
    let (offload, headers) = headers.as_bytes().split_first_chunk().expect("a header");
    (Offload::parse(offload), [headers, payload].concat())
}

proptest! {
    #[test]
    fn joining_all_segments_restores_the_super_packet(recipe in recipes()) {
        let (offload, bytes) = make(&recipe);
        let packet = SuperPacket::parse(offload, &bytes).unwrap();
        let segments = recipe.payload.len().div_ceil(usize::from(recipe.segment));
        prop_assert_eq!(packet.segments(), segments);
        prop_assert_eq!(written(&packet, 0, segments, packet.ecn()), (offload, bytes));
        prop_assert_eq!((0..segments).map(|n| packet.payload_length(n)).sum::<usize>(), recipe.payload.len());
    }

    /// However segments are joined, the resulting packets are valid and the same as without joining.
    #[test]
    fn runs_have_correct_headers_and_payload(recipe in recipes(), cuts in prop::collection::vec((1usize..20, 0u8..4), 1..200)) {
        let (offload, bytes) = make(&recipe);
        let packet = SuperPacket::parse(offload, &bytes).unwrap();
        let (mut first, mut payload) = (0, Vec::new());
        for (length, ecn) in cuts.into_iter().cycle() {
            let count = length.min(packet.segments() - first);
            let ecn = Ecn::from_bits(ecn);
            let (header, bytes) = written(&packet, first, count, ecn);
            let run = SuperPacket::parse(header, &bytes).unwrap();
            prop_assert_eq!((run.segments(), run.key(), run.ecn()), (count, packet.key(), ecn));
            for index in 0..count {
                let alone = run.complete(index, ecn).unwrap();
                prop_assert_eq!(&packet.complete(first + index, ecn).unwrap(), &alone);
                prop_assert_eq!(packet.packet_length(first + index), alone.len());
                payload.extend(verify(&alone, &recipe, first + index, packet.segments(), ecn));
            }
            first += count;
            if first == packet.segments() {
                break;
            }
        }
        prop_assert_eq!(payload, recipe.payload);
    }

    #[test]
    fn parser_accepts_arbitrary_bytes_without_panic(offload in any::<[u8; HEADER_LEN]>(), bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        exercise(offload, &bytes);
    }

    /// Nearly valid packets reach further into the parser.
    #[test]
    fn parser_accepts_mutated_packets_without_panic(
        recipe in recipes(),
        changes in prop::collection::vec((0usize..80, any::<u8>()), 0..4),
        cut in 0usize..200,
        kind in prop::sample::select(vec![0u8, 1, 3, 4, 5, 0x81]),
    ) {
        let (offload, mut bytes) = make(&recipe);
        let mut header = Offload { kind, ..offload }.emit();
        for (at, value) in changes {
            match at.checked_sub(HEADER_LEN) {
                None => header[at] = value,
                Some(at) => if let Some(byte) = bytes.get_mut(at) { *byte = value },
            }
        }
        bytes.truncate(bytes.len().saturating_sub(cut));
        // A corrected length passes the check in front of most of the parser.
        let (place, length) = if recipe.v6 { (4, bytes.len().saturating_sub(40)) } else { (2, bytes.len()) };
        if let Some(field) = bytes.get_mut(place..place + 2) {
            field.copy_from_slice(&(length as u16).to_be_bytes());
        }
        exercise(header, &bytes);
    }
}

fn exercise(offload: [u8; HEADER_LEN], bytes: &[u8]) {
    let Ok(packet) = SuperPacket::parse(Offload::parse(&offload), bytes) else { return };
    assert!((1..=MAX_SEGMENTS).contains(&packet.segments()));
    let mut total = 0;
    for index in 0..packet.segments() {
        assert!(packet.payload_length(index) <= packet.packet_length(index));
        total += packet.packet_length(index);
        let whole = packet.complete(index, Ecn::Ce).expect("a segment");
        assert_eq!(whole.len(), packet.packet_length(index));
    }
    assert!(total >= bytes.len());
    assert!(
        packet.run(0, packet.segments() + 1, Ecn::NotEct).is_none()
            && packet.run(0, 0, Ecn::NotEct).is_none()
    );
    assert!(packet.run(usize::MAX, 2, Ecn::NotEct).is_none());
    assert!(packet.run(0, packet.segments(), Ecn::NotEct).is_some());
}

#[test]
fn device_header_has_the_virtio_layout() {
    let header =
        Offload { flags: 1, kind: 0x81, headers: 52, segment: 1448, checksum_start: 20, checksum_offset: 16 };
    let bytes = header.emit();
    assert_eq!(bytes[..2], [1, 0x81]);
    for (at, value) in [(2, 52u16), (4, 1448), (6, 20), (8, 16)] {
        assert_eq!(bytes[at..at + 2], value.to_ne_bytes());
    }
    assert_eq!(Offload::parse(&bytes), header);
}

#[test]
fn single_packet_with_complete_checksum_changes_only_its_ecn_field() {
    let recipe = Recipe {
        v6: false,
        tcp: false,
        segment: 1500,
        payload: vec![7; 100],
        sequence: 0,
        id: 9,
        ecn: 2,
        cwr: false,
        fin: false,
    };
    let (offload, bytes) = make(&recipe);
    let whole = SuperPacket::parse(offload, &bytes).unwrap().complete(0, Ecn::Ect0).unwrap();
    let packet = SuperPacket::parse(Offload::default(), &whole).unwrap();
    assert_eq!(written(&packet, 0, 1, Ecn::Ect0), (Offload::default(), whole.clone()));
    let (_, marked) = written(&packet, 0, 1, Ecn::Ce);
    assert_eq!(verify(&marked, &recipe, 0, 1, Ecn::Ce), recipe.payload);
    assert_eq!(marked[20..], whole[20..]);
    assert_eq!((packet.payload_length(0), packet.packet_length(0)), (100, 128));
}

#[test]
fn telemetry_is_written_where_there_is_room_and_keeps_the_checksum_valid() {
    use base::telemetry::{Hop, hops, lead_len, put_lead, split};
    let hop = Hop { id: 3, queue: 77, ..Hop::default() };
    for v6 in [false, true] {
        let mut payload = vec![0; lead_len(2)];
        put_lead(&mut payload);
        payload.extend(b"packet");
        let recipe = Recipe {
            v6,
            tcp: false,
            segment: 1500,
            payload,
            sequence: 0,
            id: 9,
            ecn: 2,
            cwr: false,
            fin: false,
        };
        let (offload, bytes) = make(&recipe);
        let packet = SuperPacket::parse(offload, &bytes).unwrap();
        assert!(packet.carries_telemetry(0) && !packet.carries_telemetry(1));
        assert_eq!(packet.stamped(0, Ecn::Ect0, &[]), packet.complete(0, Ecn::Ect0));
        let stamped = packet.stamped(0, Ecn::Ect0, &[hop, hop]).unwrap();
        let mut payload = verify(&stamped, &recipe, 0, 1, Ecn::Ect0);
        let (lead, rest) = split(&mut payload).unwrap();
        assert_eq!(hops(lead).unwrap().collect::<Vec<_>>(), [hop, hop]);
        assert_eq!(rest, b"packet");
        // A datagram without a checksum gets none, and other packets are not changed.
        let plain = Recipe { payload: b"other".to_vec(), ..recipe };
        let (offload, bytes) = make(&plain);
        assert!(!SuperPacket::parse(offload, &bytes).unwrap().carries_telemetry(0));
    }
}

#[test]
fn fragments_and_other_protocols_pass_as_single_packets() {
    // ICMP, and the second fragment of a UDP packet, whose payload must not be parsed as ports.
    for (protocol, fragment) in [(1, [0, 0]), (17, [0x00, 0xb9])] {
        let mut bytes = vec![0; 48];
        bytes[..10].copy_from_slice(&[0x45, 0, 0, 48, 0, 1, fragment[0], fragment[1], 64, protocol]);
        bytes[12..20].copy_from_slice(&[10, 77, 0, 1, 10, 77, 0, 2]);
        bytes[20..].fill(0xab);
        let packet = SuperPacket::parse(Offload::default(), &bytes).unwrap();
        let key = packet.key();
        assert_eq!((packet.segments(), key.protocol, key.source.port()), (1, protocol, 0));
        assert_eq!(
            (key.source.ip().to_string(), key.destination.to_string()),
            ("10.77.0.1".into(), "10.77.0.2:0".into())
        );
        assert_eq!(packet.complete(0, Ecn::NotEct).unwrap(), bytes);
    }
}

#[test]
fn invalid_packets_are_refused() {
    let refuse = |offload, bytes: &[u8]| SuperPacket::parse(offload, bytes).unwrap_err();
    let plain = Offload::default();
    assert_eq!(refuse(plain, &[]), PacketError::NotIp);
    assert_eq!(refuse(plain, &[0x15; 40]), PacketError::NotIp);
    assert_eq!(refuse(plain, &[0x45; 10]), PacketError::Malformed);
    assert_eq!(refuse(plain, &[0x60; 39]), PacketError::Malformed);
    let recipe = Recipe {
        v6: true,
        tcp: true,
        segment: 100,
        payload: vec![0; 8000],
        sequence: 0,
        id: 0,
        ecn: 0,
        cwr: false,
        fin: false,
    };
    let (offload, bytes) = make(&recipe);
    assert_eq!(refuse(Offload { kind: 3, ..offload }, &bytes), PacketError::Kind(3));
    assert_eq!(refuse(Offload { kind: 1, ..offload }, &bytes), PacketError::Malformed);
    assert_eq!(refuse(Offload { segment: 0, ..offload }, &bytes), PacketError::Malformed);
    assert_eq!(refuse(Offload { segment: 1, ..offload }, &bytes), PacketError::Segments(8000));
    assert_eq!(refuse(Offload { flags: 0, ..offload }, &bytes), PacketError::Malformed);
    let outside = Offload { kind: 0, checksum_start: u16::MAX, ..offload };
    assert_eq!(refuse(outside, &bytes), PacketError::Malformed);
}
