//! A process without data: its request handler, and a thread that serves the loop's requests.
#![allow(dead_code)] // each test file uses its part of this

use cc::platform::{Choice, Class, Order as ClassOrder, Policy, Traffic};
use longhaul_admin::process_state::ProcessState;
use longhaul_admin::proto::{Flow, Program, Response};
use longhaul_admin::request_handler::{Hooks, RequestHandler, WithWarnings};
use longhaul_admin::request_queue::{LoopRequest, RequestQueue};
use longhaul_admin::subscriptions::Subscriptions;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

/// A policy that says nothing but the names of algorithms.
#[derive(Debug)]
struct Nothing(Vec<Class>, Vec<(String, String)>);

impl Policy for Nothing {
    fn choose(&self, _: &Traffic) -> Choice {
        unreachable!("no flow asks")
    }
    fn classes(&self) -> &[Class] {
        &self.0
    }
    fn process_cap(&self) -> Option<base::Rate> {
        None
    }
    fn version(&self) -> u64 {
        0
    }
    fn algorithms(&self) -> Vec<(String, String)> {
        self.1.clone()
    }
}

/// Whether the program `novel` is there.
type Novel = Arc<AtomicBool>;

fn read_policy(text: &str, novel: &Novel) -> Result<WithWarnings, Vec<String>> {
    if text.contains("novel") && !novel.load(Ordering::Relaxed) {
        return Err(vec!["line 1: novel is not loaded here".into()]);
    }
    if text.starts_with("good") {
        let class = Class {
            name: "all".into(),
            parent: None,
            weight: 1,
            level: 0,
            guarantee: None,
            cap: None,
            order: ClassOrder::Fair,
        };
        let warnings = text.contains("doubt").then(|| "line 1: warning: doubtful".into());
        let named = text.contains("novel").then(|| ("novel".into(), "rule \"r\", line 1".into()));
        return Ok((
            Arc::new(Nothing(vec![class], named.into_iter().collect())),
            warnings.into_iter().collect(),
        ));
    }
    Err(vec!["line 1: it is not good".into(), "line 2: neither".into()])
}

/// A request handler whose policies are good when their texts begin so, and a loop behind it.
pub struct Process {
    pub handler: RequestHandler,
    /// Policies that the loop was given.
    pub policies: Arc<AtomicUsize>,
    /// Turns in which the loop looked at its queue.
    pub turns: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Process {
    pub fn start() -> Process {
        let novel = Novel::default();
        let [loaded, unloaded, listed, known] = std::array::from_fn(|_| novel.clone());
        let hooks = Hooks {
            read_policy: Arc::new(move |text| read_policy(text, &novel)),
            load_program: Arc::new(move |bytes, _| match bytes {
                b"program" => {
                    loaded.store(true, Ordering::Relaxed);
                    Ok("novel".into())
                }
                _ => Err(vec!["not a program".into()]),
            }),
            unload_program: Arc::new(move |name| name == "novel" && unloaded.swap(false, Ordering::Relaxed)),
            programs: Arc::new(move || {
                let novel = || Program { name: "novel".into(), hash: "c0de".into(), ..Program::default() };
                listed.load(Ordering::Relaxed).then(novel).into_iter().collect()
            }),
            is_known: Arc::new(move |name| name != "novel" || known.load(Ordering::Relaxed)),
            news: Arc::new(Vec::new),
        };
        let handler = RequestHandler {
            process_state: ProcessState::new("test"),
            queue: RequestQueue::new(lhio::poll::Poller::new().unwrap().waker()),
            subscriptions: Subscriptions::default(),
            hooks,
            pending_offer: Arc::default(),
            active_policy: Arc::default(),
        };
        let (policies, turns, stop) =
            (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default(), Arc::default());
        let (queue, counts, ended) =
            (handler.queue.clone(), (policies.clone(), turns.clone()), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            while !AtomicBool::load(&ended, Ordering::Relaxed) {
                counts.1.fetch_add(1, Ordering::Relaxed);
                let Some(job) = queue.take() else {
                    std::thread::yield_now();
                    continue;
                };
                let answer = match &job.request {
                    LoopRequest::Flows => Response::Flows {
                        flows: vec![Flow { id: "1.0".into(), ..Flow::default() }],
                        omitted: 0,
                    },
                    LoopRequest::Policy(_) => {
                        counts.0.fetch_add(1, Ordering::Relaxed);
                        Response::done("done")
                    }
                    LoopRequest::Programs(programs) => Response::Programs { programs: programs.clone() },
                    LoopRequest::Renew(_) => Response::done("2 flows run it"),
                    // Which names there are is known where programs are loaded.
                    LoopRequest::SetFlow { algorithm: Some(name), .. }
                        if cc::registry::parse(name).is_err() =>
                    {
                        Response::Refused { errors: vec![format!("there is no `{name}`")] }
                    }
                    LoopRequest::SetFlow { flow, .. } => Response::done(flow.to_string()),
                };
                job.respond(answer);
            }
        });
        Process { handler, policies, turns, stop, thread: Some(thread) }
    }

    /// Waits until `what` holds, which it does sooner or later: the test's own time is the limit.
    pub fn until(&self, what: impl Fn(&RequestHandler) -> bool) {
        while !what(&self.handler) {
            std::thread::yield_now();
            pause();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || ended.is_none_or(|e| e.is_ok()));
    }
}

/// A moment in which other threads and processes get on.
#[allow(clippy::disallowed_methods, reason = "a test waits for other processes")]
pub fn pause() {
    std::thread::sleep(std::time::Duration::from_millis(5));
}
