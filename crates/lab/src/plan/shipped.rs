//! Plans that come with the program.

/// Names and texts, in the order in which they are listed.
pub const SHIPPED: &[(&str, &str)] = &[
    ("fig2", include_str!("../../plans/fig2.toml")),
    ("fig3", include_str!("../../plans/fig3.toml")),
    ("loss", include_str!("../../plans/loss.toml")),
    ("ramp", include_str!("../../plans/ramp.toml")),
    ("loss-recovery", include_str!("../../plans/loss-recovery.toml")),
    ("fair", include_str!("../../plans/fair.toml")),
    ("shallow", include_str!("../../plans/shallow.toml")),
    ("burst", include_str!("../../plans/burst.toml")),
    ("jitter", include_str!("../../plans/jitter.toml")),
    ("reorder", include_str!("../../plans/reorder.toml")),
    ("cellular", include_str!("../../plans/cellular.toml")),
    ("scavenger", include_str!("../../plans/scavenger.toml")),
    ("multipath", include_str!("../../plans/multipath.toml")),
    ("storage", include_str!("../../plans/storage.toml")),
    ("breadth", include_str!("../../plans/breadth.toml")),
    ("truth", include_str!("../../plans/truth.toml")),
    ("noise", include_str!("../../plans/noise.toml")),
    ("found", include_str!("../../plans/found.toml")),
    ("iwarp-paper", include_str!("../../plans/iwarp-paper.toml")),
    ("fat", include_str!("../../plans/fat.toml")),
    ("datacentre", include_str!("../../plans/datacentre.toml")),
    ("l4s", include_str!("../../plans/l4s.toml")),
    ("windows", include_str!("../../plans/windows.toml")),
    ("bbr-loss", include_str!("../../plans/bbr-loss.toml")),
    ("guarantees", include_str!("../../plans/guarantees.toml")),
    ("deadlines", include_str!("../../plans/deadlines.toml")),
    ("hpcc", include_str!("../../plans/hpcc.toml")),
];

/// The text of the plan with this name.
pub fn shipped(name: &str) -> Option<&'static str> {
    SHIPPED.iter().find(|(n, _)| *n == name).map(|(_, text)| *text)
}
