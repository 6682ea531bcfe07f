//! The programs that come with Longhaul, as sources.

/// Each one's name without the `-c` that tells it from its built-in twin, and its source.
pub const SHIPPED: &[(&str, &str)] = &[
    ("reno", include_str!("../programs/reno.c")),
    ("cubic", include_str!("../programs/cubic.c")),
    ("dctcp", include_str!("../programs/dctcp.c")),
    ("vegas", include_str!("../programs/vegas.c")),
];

/// The source of the shipped program of this name, with or without `-c`.
pub fn source(name: &str) -> Option<&'static str> {
    let name = name.strip_suffix("-c").unwrap_or(name);
    SHIPPED.iter().find(|(known, _)| *known == name).map(|(_, source)| *source)
}
