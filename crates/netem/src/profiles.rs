//! Named profiles of links. Each is a description for [`LinkConfig::parse`](crate::LinkConfig::parse), which also
//! accepts the name alone and fields that override it: `transatlantic loss=1%`.

/// London to New York by fibre: 5,600 km, a round trip of 70 ms, 10 Gbit/s, one round trip of buffer, and the loss
/// of a good wide-area network.
pub const TRANSATLANTIC: &str = "rate=10gbit delay=35ms loss=0.01% queue=1bdp mtu=1500B";

/// Tokyo to Los Angeles by fibre: 8,800 km and detours, a round trip of 110 ms, 10 Gbit/s, one round trip of buffer.
pub const TRANSPACIFIC: &str = "rate=10gbit delay=55ms jitter=100us loss=0.05% queue=1bdp mtu=1500B";

/// A geostationary satellite: 35,786 km up and down again is 240 ms one way, with equipment 300 ms (RFC 2488, section
/// 2); losses come in bursts as the signal fades.
pub const SATELLITE_GEO: &str = "rate=50mbit delay=300ms jitter=2ms \
     loss=burst(p=0.02%,r=10%,good=0.001%,bad=50%) queue=1bdp mtu=1500B";

/// Wi-Fi at the edge of its range: retransmissions of the link layer show as jitter, and the rest as bursts.
pub const LOSSY_WIFI: &str = "rate=50mbit delay=3ms jitter=normal(2ms) \
     loss=burst(p=0.5%,r=25%,good=0.1%,bad=60%) reorder=0.1%(4ms) queue=256KiB mtu=1500B";

/// A cellular network: deep buffers, large jitter, few losses. A schedule (`at=`) adds dips of the rate.
pub const CELLULAR: &str = "rate=30mbit delay=30ms jitter=normal(5ms) loss=0.01% queue=4bdp mtu=1500B";

/// Inside a data centre: 100 Gbit/s, 25 us one way, a shallow buffer that marks ECN, jumbo frames.
pub const DATACENTER: &str = "rate=100gbit delay=25us queue=2MiB ecn=400KiB mtu=9000B";

/// Names and descriptions of all profiles.
pub const ALL: &[(&str, &str)] = &[
    ("transatlantic", TRANSATLANTIC),
    ("transpacific", TRANSPACIFIC),
    ("satellite-geo", SATELLITE_GEO),
    ("lossy-wifi", LOSSY_WIFI),
    ("cellular", CELLULAR),
    ("datacenter", DATACENTER),
];
