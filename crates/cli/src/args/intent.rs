//! What applications ask of the network, on the command line.

use cc::platform::Qos;
use clap::Args;

/// What is asked of the network, for policies to decide by.
#[derive(Args, Clone, Debug, Default)]
pub struct Intent {
    /// What is asked of the network: latency, bulk, scavenger, ordinary, deadline(BYTES, TIME) such as deadline(10GB, 30s),
    /// guaranteed(RATE) such as guaranteed(300M), or target(RATE). The sender's policy says what that means.
    #[arg(long, value_name = "QOS")]
    pub qos: Option<Qos>,
    /// The application's name for rules of policies; longhaul when left out.
    #[arg(long, value_name = "NAME", value_parser = application)]
    pub app: Option<String>,
}

/// A name that policies can match.
fn application(text: &str) -> Result<String, String> {
    let fits = (1..=policy::MAX_NAME).contains(&text.chars().count()) && !text.chars().any(char::is_control);
    let no = || format!("give 1 to {} printable characters", policy::MAX_NAME);
    if fits { Ok(text.to_owned()) } else { Err(no()) }
}
