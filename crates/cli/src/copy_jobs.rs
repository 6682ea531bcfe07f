//! What a server sends to other servers for its clients: each copy has a thread, a socket and an endpoint of its own, so that a
//! slow destination slows down nothing else, and none of its packets has this server's key.

use crate::args::{AdminOptions, BandwidthOptions, Control, Wire};
use crate::exit::{Failure, Outcome};
use crate::{govern, setup};
use base::Span;
use endpoint::TransportOptions;
use lhio::clock;
use mover::{CopyJob, CopyRunner, Error, Wake};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;
use transport::crypto::{Credentials, Identity};
use zeroize::Zeroizing;

/// How long the other server may take to answer.
const CONNECT_TIMEOUT: Span = Span::from_secs(10);
/// How often it is looked between two attempts whether there is to be another.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Runs copies as the server's command line says.
#[derive(Clone)]
pub struct Runner {
    /// How packets look.
    pub wire: Wire,
    /// How this end sends.
    pub options: TransportOptions,
    /// The most that it sends, by the time of day.
    pub bandwidth: BandwidthOptions,
    /// The policy that all this sends is under, as what the server sends itself.
    pub admin: AdminOptions,
    /// Where a store's last good policy is kept.
    pub state: PathBuf,
}

impl CopyRunner for Runner {
    fn start(&self, job: CopyJob) -> Result<(), String> {
        let options = TransportOptions { connect_timeout: CONNECT_TIMEOUT, ..self.options.clone() };
        // The server's own control socket is the one of this process.
        let control = Control { no_control: true, control_group: None };
        let admin = AdminOptions { control, ..self.admin.clone() };
        let runner = Runner { options, admin, ..self.clone() };
        let run = move || {
            let ending = Ending(job);
            if let Err(text) = run(&ending.0, &runner) {
                ending.0.fail(Error::Local { text });
            }
        };
        let thread = std::thread::Builder::new().name("copy".into()).spawn(run);
        thread.map(drop).map_err(|e| Failure::no_thread(e).text)
    }
}

/// A copy whose thread has ended has a result, whatever happened to the thread.
struct Ending(CopyJob);

impl Drop for Ending {
    fn drop(&mut self) {
        // Of no effect where there is one.
        self.0.fail(Error::Local { text: "the transfer broke off within the server; see its log".into() });
    }
}

fn run(job: &CopyJob, runner: &Runner) -> Result<(), String> {
    loop {
        if let Err(e) = attempt(job, runner).map_err(|f| f.text)? {
            job.fail(e);
            return Ok(());
        }
        let Some(pause) = job.pause() else { return Ok(()) };
        let (_never, end) = sync_channel::<()>(0);
        for _ in 0..(pause.to_std().as_millis() / LOOK_EVERY.as_millis()) {
            if !job.cancelled() {
                let _ = end.recv_timeout(LOOK_EVERY); // it takes its time, as it is meant to
            }
        }
    }
}

fn attempt(job: &CopyJob, r: &Runner) -> Outcome<Result<(), Error>> {
    let credentials = Arc::new(Credentials::RawKey(Identity::of_seed(&Zeroizing::new(*job.seed()))));
    let mut secret = Zeroizing::new([0; 32]);
    clock::fill_random(&mut *secret).map_err(Failure::system)?;
    let options = TransportOptions { rate_cap: r.bandwidth.now(r.options.rate_cap), ..r.options.clone() };
    let bind = setup::client_address(job.connect().remote, &options, false);
    let mut driver = setup::driver(bind, &r.wire, (false, None))?;
    let mut endpoint = setup::endpoint(&secret, &credentials, options, None)?;
    let admin = govern::start_in("copy", &r.admin, &r.state, driver.waker())?;
    let waker = driver.waker();
    let wake: Wake = Arc::new(move || waker.wake());
    let mut app = match job.attempt(wake).and_then(|app| app.limited(r.bandwidth.limiter())) {
        Ok(app) => app,
        Err(e) => return Ok(Err(e)),
    };
    driver.run(&mut endpoint, &mut admin.govern(&mut app))?;
    Ok(Ok(()))
}
