//! The programs that come with Longhaul: sources, and what `cargo xtask programs` builds of them, for those who have no
//! compiler.

/// Each one's name without the `-c` that tells it from its built-in twin, and its source.
pub const SHIPPED: &[(&str, &str)] = &[
    ("reno", include_str!("../programs/reno.c")),
    ("cubic", include_str!("../programs/cubic.c")),
    ("dctcp", include_str!("../programs/dctcp.c")),
    ("vegas", include_str!("../programs/vegas.c")),
];

/// A program's name without what tells it from its twin: `-c`, or `_c` as the kernel has it.
fn plain(name: &str) -> &str {
    name.strip_suffix("-c").or_else(|| name.strip_suffix("_c")).unwrap_or(name)
}

/// The source of the shipped program of this name, with or without `-c`.
pub fn source(name: &str) -> Option<&'static str> {
    let name = plain(name);
    SHIPPED.iter().find(|(known, _)| *known == name).map(|(_, source)| *source)
}

/// The same, built, and the example of the guide: WebAssembly modules, each with the fingerprint of what it was built from.
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
    let name = plain(name);
    BUILT.iter().find(|(known, ..)| *known == name).map(|(_, module, _)| *module)
}

/// What tells a source, with the headers that it is built against, from any other: FNV-1a, 64 bits (draft-eastlake-fnv,
/// section 2), as text. Line ends count, comments too.
pub fn fingerprint(source: &str) -> String {
    let texts = [source, crate::HEADER, crate::WINDOW_HEADER];
    // 0xff, which no text contains, keeps them apart.
    let bytes = texts.iter().flat_map(|t| t.bytes().chain([0xff]));
    let hash =
        bytes.fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    format!("{hash:016x}")
}
