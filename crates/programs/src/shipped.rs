//! The programs that come with Longhaul: their sources, and the modules that `cargo xtask programs` builds of
//! them for users without a compiler.

/// Each program's name without its suffix `-c`, and its source.
pub const SHIPPED: &[(&str, &str)] = &[
    ("reno", include_str!("../programs/reno.c")),
    ("cubic", include_str!("../programs/cubic.c")),
    ("dctcp", include_str!("../programs/dctcp.c")),
    ("vegas", include_str!("../programs/vegas.c")),
];

/// A program's name without its suffix: `-c`, or `_c` in the kernel.
fn without_suffix(name: &str) -> &str {
    name.strip_suffix("-c").or_else(|| name.strip_suffix("_c")).unwrap_or(name)
}

/// The source of the shipped program of this name, with or without `-c`.
pub fn source(name: &str) -> Option<&'static str> {
    let name = without_suffix(name);
    SHIPPED.iter().find(|(known, _)| *known == name).map(|(_, source)| *source)
}

/// The built programs and the example of the guide: name, WebAssembly module, and fingerprint of the source.
pub const BUILT: &[(&str, &[u8], &str)] = &[
    ("reno", include_bytes!("../programs/built/reno.wasm"), include_str!("../programs/built/reno.from")),
    ("cubic", include_bytes!("../programs/built/cubic.wasm"), include_str!("../programs/built/cubic.from")),
    ("dctcp", include_bytes!("../programs/built/dctcp.wasm"), include_str!("../programs/built/dctcp.from")),
    ("vegas", include_bytes!("../programs/built/vegas.wasm"), include_str!("../programs/built/vegas.from")),
    (
        "gradient",
        include_bytes!("../programs/built/gradient.wasm"),
        include_str!("../programs/built/gradient.from"),
    ),
];

/// The built module of this name, with or without `-c`.
pub fn module(name: &str) -> Option<&'static [u8]> {
    let name = without_suffix(name);
    BUILT.iter().find(|(known, ..)| *known == name).map(|(_, module, _)| *module)
}

/// A fingerprint of a source and the headers that it is built against: FNV-1a, 64 bits (draft-eastlake-fnv,
/// section 2), as text. Line ends and comments count.
pub fn fingerprint(source: &str) -> String {
    let texts = [source, crate::HEADER, crate::WINDOW_HEADER];
    // 0xff, which no text contains, separates the parts.
    let bytes = texts.iter().flat_map(|t| t.bytes().chain([0xff]));
    let hash =
        bytes.fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    format!("{hash:016x}")
}
