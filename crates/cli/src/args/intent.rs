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
    /// Code point that packets carry: 0 to 63, or a name (EF, AF41, CS1). What asks for no QoS is taken for what this
    /// stands for; a policy may have packets carry another one.
    #[arg(long, value_name = "DSCP", value_parser = code_point)]
    pub dscp: Option<u8>,
}

impl Intent {
    /// Whether anything is asked.
    pub fn asks(&self) -> bool {
        self.qos.is_some() || self.app.is_some() || self.dscp.is_some()
    }
}

impl super::Asking {
    /// Whether anything is asked but a limit.
    pub fn asks(&self) -> bool {
        self.cc.is_some() || self.known_rate.is_some() || self.intent.asks()
    }
}

/// One code point.
fn code_point(text: &str) -> Result<u8, String> {
    match policy::read_dscp(text).as_deref() {
        Some([point]) => Ok(*point),
        _ => Err("give 0 to 63, or the name of one code point such as EF, CS1 or AF41".into()),
    }
}

/// A name that policies can match.
fn application(text: &str) -> Result<String, String> {
    let fits = (1..=policy::MAX_NAME).contains(&text.chars().count()) && !text.chars().any(char::is_control);
    let no = || format!("give 1 to {} printable characters", policy::MAX_NAME);
    if fits { Ok(text.to_owned()) } else { Err(no()) }
}
