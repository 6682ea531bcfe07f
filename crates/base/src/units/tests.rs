//! Tests of parsing and formatting quantities.

use super::*;
use proptest::prelude::*;

fn bits(text: &str) -> Result<u64, String> {
    rate(text).map(Rate::bits_per_sec).map_err(|e| e.to_string())
}

#[test]
fn rates_parse_in_every_supported_form() {
    for (text, expected) in [
        ("500mbit", 500_000_000),
        ("1.5gbit", 1_500_000_000),
        ("20M", 20_000_000),
        ("20m", 20_000_000),
        ("20Mbit/s", 20_000_000),
        ("2.5 Gbit/s", 2_500_000_000),
        ("20 MBIT/S", 20_000_000),
        ("64000", 64_000),
        ("8bit", 8),
        ("8k", 8_000),
        ("8K", 8_000),
        ("100Tbps", 100_000_000_000_000),
        ("5mbps", 5_000_000),
        ("5MBps", 40_000_000),
        ("60MB/s", 480_000_000),
        ("1GB/s", 8_000_000_000),
        ("1kB/s", 8_000),
        ("1MiB/s", 8 << 20),
        ("1mib/s", 8 << 20),
        ("100B/s", 800),
        ("20M/s", 20_000_000),
    ] {
        assert_eq!(bits(text), Ok(expected), "{text}");
    }
    for bad in [
        "",
        "fast",
        "-5mbit",
        "1e30gbit",
        "5 furlongs",
        "1..5g",
        ".5g",
        "nan",
        "5MB",
        "5ms",
        "5 m bit",
        "5Mps",
    ] {
        let text = bits(bad).unwrap_err();
        assert!(
            text.contains(&format!("cannot read `{bad}` as a rate; write bits per second such as 20mbit")),
            "{text}"
        );
    }
    // A factor of eight is not guessed.
    for both in ["20mb/s", "20Mb/s", "20MBPS"] {
        let text = bits(both).unwrap_err();
        assert!(text.contains("could mean bits or bytes; write Mbit/s"), "{both}: {text}");
    }
}

#[test]
fn times_and_sizes_parse_in_every_form() {
    for (text, nanos) in [
        ("10ms", 10_000_000),
        ("3s", 3_000_000_000),
        ("3", 3_000_000_000),
        ("1.5s", 1_500_000_000),
        ("2min", 120_000_000_000),
        ("2m", 120_000_000_000),
        ("1H", 3_600_000_000_000),
        ("100d", 8_640_000_000_000_000),
        ("250us", 250_000),
        ("250 \u{b5}s", 250_000),
        ("7NS", 7),
        ("0", 0),
    ] {
        assert_eq!(time(text), Ok(Span::from_nanos(nanos)), "{text}");
    }
    for (text, bytes) in [
        ("17", 17),
        ("17B", 17),
        ("64K", 65_536),
        ("64KiB", 65_536),
        ("64kib", 65_536),
        ("64kB", 64_000),
        ("1MB", 1_000_000),
        ("2G", 2 << 30),
        ("1.5 GiB", 3 << 29),
        ("1.5TiB", 3 << 39),
        ("2EiB", 2 << 60),
    ] {
        assert_eq!(size(text), Ok(bytes), "{text}");
    }
    for bad in ["soon", "", "3 fortnights", "-1s", "1s2"] {
        assert!(time(bad).unwrap_err().to_string().contains("write a time such as 10ms"), "{bad}");
    }
    for bad in ["x", "", "5bit", "64 K i B"] {
        assert!(size(bad).unwrap_err().to_string().contains("write a size such as 64KiB"), "{bad}");
    }
}

#[test]
fn out_of_range_errors_name_the_range() {
    assert!(size("99999999999tib").unwrap_err().to_string().contains("out of range"));
    assert!(time("999999999999d").unwrap_err().to_string().contains("out of range"));
    let (least, most) = (Rate::from_bits_per_sec(8_000), Rate::from_mbit(100_000));
    let text = rate_within("1bit", least, most).unwrap_err().to_string();
    assert!(
        text.contains("the rate `1bit` is out of range; give one from 8kbit to 100gbit: bits per"),
        "{text}"
    );
    let text = time_within("1h", Span::ZERO, Span::from_secs(60)).unwrap_err().to_string();
    assert!(text.contains("the time `1h` is out of range; give one from 0ns to 60s"), "{text}");
    assert_eq!(time_within("60s", Span::ZERO, Span::from_secs(60)), Ok(Span::from_secs(60)));
}

#[test]
fn errors_quote_the_value_escaped_and_truncated() {
    let text = rate(&format!("\u{1b}[31m{}", "x".repeat(5_000))).unwrap_err().to_string();
    assert!(text.contains("`\\x1b[31mxxx") && text.len() < 300, "{text}");
}

proptest! {
    #[test]
    fn formatted_values_parse_back(n in prop_oneof![any::<u64>(), 0u64..100_000, (0u64..100_000).prop_map(|n| n * 1_000_000)]) {
        let (r, t) = (Rate::from_bytes_per_sec(n), Span::from_nanos(n));
        prop_assert_eq!(rate(&show_rate(r)), Ok(r));
        prop_assert_eq!(time(&show_time(t)), Ok(t));
        prop_assert_eq!(size(&show_size(n)), Ok(n));
    }

    /// What summaries say, rounded for people, can be given to an option.
    #[test]
    fn displayed_values_parse_to_their_precision(n in 0u64..u64::MAX / 16) {
        let close = |read: u64| read.abs_diff(n) as f64 <= n as f64 * 0.06 + 1.0;
        let r = rate(&Rate::from_bytes_per_sec(n).to_string()).unwrap();
        prop_assert!(close(r.bytes_per_sec()), "{}", r);
        let t = time(&Span::from_nanos(n).to_string()).unwrap();
        prop_assert!(close(t.as_nanos()), "{}", t);
    }

    #[test]
    fn arbitrary_text_does_not_panic(text in "\\PC{0,40}", likely in "[0-9]{0,25}[.]?[0-9]{0,25} ?[a-zA-Z/µ]{0,6}") {
        for t in [&text, &likely] {
            let _ = (rate(t).map_err(|e| e.to_string()), time(t).is_ok(), size(t).is_ok(), has_unit(t));
        }
    }
}

/// Each form that the guide shows is read as what it stands for.
#[test]
fn documented_forms_parse() {
    let guide = include_str!("../../../../docs/guides/move-files.md");
    let row = |name: &str| {
        let line =
            guide.lines().find(|l| l.starts_with(&format!("| {name} | `"))).expect("a row of the table");
        line.split('`').skip(1).step_by(2).collect::<Vec<_>>()
    };
    let rates: Vec<_> =
        row("rates").iter().map(|t| rate(t).expect("a rate").bits_per_sec() / 1_000_000).collect();
    assert_eq!(rates, [500, 500, 500, 2_500, 480, 536]);
    let times: Vec<_> = row("times").iter().map(|t| time(t).expect("a time").as_millis()).collect();
    assert_eq!(times, [10, 1_500, 120_000, 3_600_000, 8_640_000_000, 20_000]);
    let sizes: Vec<_> = row("sizes").iter().filter_map(|t| size(t).ok()).collect();
    assert_eq!(sizes, [65_536, 65_536, 65_536, 64_000, 2 << 30, 1 << 30]);
}
