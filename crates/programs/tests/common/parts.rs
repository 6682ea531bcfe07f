//! WebAssembly modules assembled by hand, which need no compiler.
#![allow(dead_code, reason = "each test file uses a part of it")]

/// The parts of a module.
pub struct ModuleParts {
    pub manifest: String,
    /// 64 KiB pages.
    pub memory: u64,
    pub imports: bool,
    pub exports: Vec<&'static str>,
    /// The return value of `oc_io`.
    pub io: i64,
    /// Code of the callbacks.
    pub code: Vec<u8>,
}

impl Default for ModuleParts {
    fn default() -> ModuleParts {
        ModuleParts {
            manifest: "abi\t1\t\nname\tby-hand\t\n".to_owned(),
            memory: 1,
            imports: false,
            exports: vec!["oc_io", "oc_init", "oc_feedback", "oc_event"],
            io: 1_024,
            // i32.const 1024, i64.const 1000000, i64.store; then the same for the bound.
            code: vec![
                0x41, 0x80, 0x08, 0x42, 0xc0, 0x84, 0x3d, 0x37, 3, 0, 0x41, 0x80, 0x08, 0x42, 0xc0, 0x84,
                0x3d, 0x37, 3, 8,
            ],
        }
    }
}

impl ModuleParts {
    /// A program that always decides this rate, in bytes per second, and one second's worth of it as bound.
    pub fn steady(name: &str, rate: i64) -> ModuleParts {
        ModuleParts {
            manifest: format!("abi\t1\t\nname\t{name}\t\nsummary\tone rate\t\n"),
            code: decide(rate),
            ..ModuleParts::default()
        }
    }

    /// The same program, executing `unreachable` from call `calls` + 1 on.
    pub fn trapping(name: &str, rate: i64, calls: i64) -> ModuleParts {
        // i32.const 0, i32.const 0, i32.load, i32.const 1, i32.add, i32.store: counts at address 0. i32.const 0, i32.load,
        // i32.const CALLS, i32.gt_u, if, unreachable, end.
        let mut code =
            vec![0x41, 0, 0x41, 0, 0x28, 2, 0, 0x41, 1, 0x6a, 0x36, 2, 0, 0x41, 0, 0x28, 2, 0, 0x41];
        signed_leb128(&mut code, calls);
        code.extend([0x4b, 0x04, 0x40, 0x00, 0x0b]);
        code.extend(decide(rate));
        ModuleParts { code, ..ModuleParts::steady(name, rate) }
    }

    /// The module's bytes (WebAssembly core specification, 5.5).
    pub fn module(&self) -> Vec<u8> {
        let mut out = b"\0asm\x01\0\0\0".to_vec();
        // Types () -> () and () -> i32.
        section(&mut out, 1, &[2, 0x60, 0, 0, 0x60, 0, 1, 0x7f]);
        let first = u8::from(self.imports);
        if self.imports {
            section(&mut out, 2, b"\x01\x03env\x04exit\x00\x00");
        }
        section(&mut out, 3, &[2, 1, 0]);
        let mut memory = vec![1, 0];
        leb128(&mut memory, self.memory);
        section(&mut out, 5, &memory);
        let mut exports = vec![self.exports.len() as u8 + 1, 6];
        exports.extend(b"memory\x02\x00");
        for name in &self.exports {
            exports.push(name.len() as u8);
            exports.extend(name.as_bytes());
            exports.extend([0, first + u8::from(*name != "oc_io")]);
        }
        section(&mut out, 7, &exports);
        let mut place = vec![0, 0x41];
        signed_leb128(&mut place, self.io);
        place.push(0x0b);
        let mut code = vec![2];
        for body in [place, [&[0], &self.code[..], &[0x0b]].concat()] {
            leb128(&mut code, body.len() as u64);
            code.extend(body);
        }
        section(&mut out, 10, &code);
        section(&mut out, 0, &[&[6], &b"opencc"[..], self.manifest.as_bytes()].concat());
        out
    }
}

/// i32.const 1024, i64.const RATE, i64.store; then the same for the bound.
fn decide(rate: i64) -> Vec<u8> {
    let mut code = Vec::new();
    for offset in [0, 8] {
        code.extend([0x41, 0x80, 0x08, 0x42]);
        signed_leb128(&mut code, rate);
        code.extend([0x37, 3, offset]);
    }
    code
}

fn section(out: &mut Vec<u8>, id: u8, body: &[u8]) {
    out.push(id);
    leb128(out, body.len() as u64);
    out.extend(body);
}

fn leb128(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

fn signed_leb128(out: &mut Vec<u8>, mut n: i64) {
    loop {
        let byte = (n & 0x7f) as u8;
        n >>= 7;
        if (n == 0 && byte & 0x40 == 0) || (n == -1 && byte & 0x40 != 0) {
            return out.push(byte);
        }
        out.push(byte | 0x80);
    }
}
