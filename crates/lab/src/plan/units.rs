//! Values of plans, in the language of link descriptions (`1gbit`, `70ms`, `2MiB`): read by the model's own parser.

use base::{Rate, Span};
use netem::LinkConfig;

fn read(text: &str, key: &str) -> Result<LinkConfig, String> {
    // White space or a second field would change what is read.
    if text.chars().any(char::is_whitespace) {
        return Err(format!("cannot read `{text}`; write it without spaces"));
    }
    LinkConfig::parse(&format!("{key}={text}")).map_err(|e| strip(&e.to_string(), key))
}

/// Without the field's name in front, which the plan's message has already.
pub(super) fn strip(message: &str, key: &str) -> String {
    message.strip_prefix(&format!("{key}: ")).unwrap_or(message).to_owned()
}

/// A rate; `None` is unlimited.
pub(crate) fn rate(text: &str) -> Result<Option<Rate>, String> {
    read(text, "rate").map(|c| c.rate)
}

/// A time.
pub(crate) fn span(text: &str) -> Result<Span, String> {
    read(text, "delay").map(|c| c.delay)
}

/// A size in bytes.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    if text.contains("bdp") {
        return Err(format!("cannot read `{text}`; write a size with its unit, such as 64KiB or 1GiB"));
    }
    read(text, "queue").map(|c| c.queue)
}
