//! Runs tshark on a capture and parses its output.

use std::path::Path;
use std::process::{Command, Stdio};

/// As `_ws.expert.severity` has it: warnings and errors.
pub const WARNING: u64 = 0x60_0000;

/// Whether tshark can be started.
pub fn is_there() -> bool {
    let mut version = Command::new("tshark");
    version.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    version.status().is_ok_and(|s| s.success())
}

/// A field of a record.
#[derive(Clone, Debug)]
pub struct Field {
    pub name: String,
    /// In tshark's words.
    pub text: String,
    /// In hexadecimal digits.
    value: String,
    /// Where it stands, from the first byte of the packet or of what was put together from several.
    pub at: usize,
    pub size: usize,
}

/// A start-up frame, or a record (FPDU) and what is in it, in order.
#[derive(Clone, Default, Debug)]
pub struct Record {
    pub fields: Vec<Field>,
    /// What it could not make more of: the payload, in hexadecimal digits. Means nothing in a record without payload.
    pub data: String,
}

impl Field {
    pub fn digits(&self) -> &str {
        &self.value
    }
}

impl Record {
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|f| f.name == name)
    }
    /// The number in a field.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.field(name).and_then(|f| u64::from_str_radix(&f.value, 16).ok())
    }
    pub fn all(&self, name: &str) -> impl Iterator<Item = &Field> {
        self.fields.iter().filter(move |f| f.name == name)
    }
}

/// A packet.
#[derive(Default, Debug)]
pub struct Packet {
    /// From 1 on.
    pub number: u32,
    pub ports: [u16; 2],
    /// Of IP and TCP.
    pub sums_are_right: bool,
    pub records: Vec<Record>,
    /// Remarks: which, and how severe.
    pub remarks: Vec<(String, u64)>,
    /// Protocols that tshark found malformed, in its words.
    pub malformed: Vec<String>,
}

/// Dissects a capture.
pub fn packets(file: &Path) -> Vec<Packet> {
    let settings = [
        "ip.check_checksum:TRUE",
        "tcp.check_checksum:TRUE",
        // It takes several sends in one packet for one.
        "iwarp_ddp_rdmap.reassemble_iwarp_rdma_send:FALSE",
    ];
    // Our payloads are random bytes: some look like these, and are then called malformed.
    let guesses = ["rpcordma", "smb_direct"];
    let mut tshark = Command::new("tshark");
    tshark.args(["-n", "-T", "pdml"]);
    for s in settings {
        tshark.args(["-o", s]);
    }
    for g in guesses {
        tshark.args(["--disable-protocol", g]);
    }
    let out = tshark.arg("-r").arg(file).output().expect("tshark starts");
    assert!(out.status.success(), "tshark: {}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8(out.stdout).expect("PDML is UTF-8");
    let document = roxmltree::Document::parse(&text).expect("PDML is XML");
    document.descendants().filter(|n| n.has_tag_name("packet")).map(packet).collect()
}

fn packet(node: roxmltree::Node<'_, '_>) -> Packet {
    let mut p = Packet { sums_are_right: true, ..Packet::default() };
    for n in node.descendants().filter(|n| n.is_element()) {
        let attribute = |name| n.attribute(name).unwrap_or_default();
        let number = || attribute("show").parse().unwrap_or(0);
        let name = attribute("name");
        match name {
            "num" => p.number = number() as u32,
            "tcp.srcport" => p.ports[0] = number() as u16,
            "tcp.dstport" => p.ports[1] = number() as u16,
            // 1: checked, and right.
            "ip.checksum.status" | "tcp.checksum.status" => p.sums_are_right &= number() == 1,
            "iwarp_mpa" => p.records.push(Record::default()),
            "_ws.malformed" if n.has_tag_name("proto") => p.malformed.push(attribute("showname").to_owned()),
            "_ws.expert" => {
                let child = |name| n.children().find(|c| c.attribute("name") == Some(name));
                let severity = child("_ws.expert.severity").and_then(|c| c.attribute("show"));
                let what = n.children().find_map(|c| c.attribute("name")).unwrap_or_default();
                p.remarks.push((what.to_owned(), severity.and_then(|s| s.parse().ok()).unwrap_or(u64::MAX)));
            }
            _ => {}
        }
        let Some(r) = p.records.last_mut() else { continue };
        // Behind the last record of a packet there may be the first bytes of another.
        if name == "data.data" && r.data.is_empty() {
            r.data = attribute("value").to_owned();
        } else if name.starts_with("iwarp_") && n.has_tag_name("field") {
            let place = |a| attribute(a).parse().unwrap_or(0);
            r.fields.push(Field {
                name: name.to_owned(),
                text: attribute("showname").to_owned(),
                value: attribute("value").to_owned(),
                at: place("pos"),
                size: place("size"),
            });
        }
    }
    p
}
