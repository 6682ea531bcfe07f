//! The sandbox for programs: WebAssembly without imports, with little memory and a budget of operations per call.
//!
//! Run time is bounded by counting operations instead of by a clock: the limit does not depend on the load of the
//! host, failing simulations repeat exactly, and no timer is needed. The compiled code checks memory bounds itself,
//! so the process needs no signal handler.

use crate::words::{self, DECISION, EVENT, IO, NONE, PARAMS, SIGNALS};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use wasmtime::{
    Config, Engine, ExternType, Instance, InstancePre, Linker, Memory, Module, Store, StoreLimits,
    StoreLimitsBuilder, Trap, TypedFunc, ValType,
};

/// Most WebAssembly operations per call, some ten microseconds. Each shipped program takes below 1,500. (An
/// operation on a range of memory counts as one and takes microseconds at most, since [`MAX_MEMORY`] is small.)
pub const CALL_BUDGET: u64 = 20_000;
/// Most memory of an instance, in bytes.
pub const MAX_MEMORY: usize = 128 * 1024;
/// Most instances in a process; further flows run the fallback.
pub const MAX_INSTANCES: usize = 4_096;
/// Most stack of the host that a call may use, in bytes.
const MAX_STACK: usize = 64 * 1024;
/// Most entries of tables, which programs rarely have.
const MAX_TABLE: usize = 256;
const WORD: usize = 8;

/// Why a call was stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// It used up its budget.
    Overran,
    /// It trapped; WebAssembly's message.
    Trapped(String),
    /// All instances are in use.
    NoRoom,
}

impl From<wasmtime::Error> for Stopped {
    fn from(error: wasmtime::Error) -> Stopped {
        match error.downcast_ref::<Trap>() {
            Some(Trap::OutOfFuel) => Stopped::Overran,
            Some(trap) => Stopped::Trapped(trap.to_string()),
            None => Stopped::Trapped(error.to_string().chars().take(200).collect()),
        }
    }
}

/// The WebAssembly engine of the process.
fn engine() -> Result<&'static Engine, String> {
    static ENGINE: OnceLock<Result<Engine, String>> = OnceLock::new();
    ENGINE
        .get_or_init(|| {
            let mut config = Config::new();
            config
                .consume_fuel(true)
                .signals_based_traps(false)
                .memory_reservation(MAX_MEMORY as u64)
                .memory_reservation_for_growth(0)
                .memory_guard_size(0)
                // Memory images would be files, and the thread that loads a program need not share descriptors
                // with the one that runs it.
                .memory_init_cow(false)
                .max_wasm_stack(MAX_STACK)
                .wasm_backtrace(false)
                .wasm_simd(false)
                .wasm_relaxed_simd(false)
                .wasm_memory64(false)
                .wasm_multi_memory(false)
                .wasm_tail_call(false)
                // Floating-point results must not depend on the processor.
                .cranelift_nan_canonicalization(true);
            Engine::new(&config).map_err(|e| e.to_string())
        })
        .as_ref()
        .map_err(Clone::clone)
}

/// A validated and compiled module.
#[derive(Clone)]
pub struct Compiled {
    pre: InstancePre<StoreLimits>,
    wants_sent: bool,
}

impl core::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Compiled").field("wants_sent", &self.wants_sent).finish_non_exhaustive()
    }
}

impl Compiled {
    /// Compiles a module. The error says why it is invalid.
    pub fn new(module: &[u8]) -> Result<Compiled, String> {
        let engine = engine().map_err(|e| format!("this host cannot run WebAssembly: {e}"))?;
        let module = Module::from_binary(engine, module)
            .map_err(|e| format!("{e:#}").chars().take(300).collect::<String>())?;
        if let Some(import) = module.imports().next() {
            let (from, name) = (import.module(), import.name());
            return Err(format!("it imports {from}.{name}: a program is given nothing but opencc.h"));
        }
        for name in ["oc_io", "oc_init", "oc_feedback", "oc_event", "oc_sent"] {
            let want = usize::from(name == "oc_io");
            match module.get_export(name) {
                None if name == "oc_sent" => {}
                Some(ExternType::Func(f))
                    if f.params().len() == 0
                        && f.results().len() == want
                        && f.results().all(|r| matches!(r, ValType::I32)) => {}
                Some(_) => {
                    return Err(format!(
                        "its export {name} is of another type: end the source with OC_ALGORITHM"
                    ));
                }
                None => return Err(format!("it does not export {name}: end the source with OC_ALGORITHM")),
            }
        }
        if !matches!(module.get_export("memory"), Some(ExternType::Memory(_))) {
            return Err("it does not export its memory: link it with --export-memory".to_owned());
        }
        let wants_sent = module.get_export("oc_sent").is_some();
        let pre = Linker::new(engine).instantiate_pre(&module).map_err(|e| e.to_string())?;
        Ok(Compiled { pre, wants_sent })
    }

    /// Whether it has a callback for sent trains.
    pub fn wants_sent(&self) -> bool {
        self.wants_sent
    }
}

/// One of the [`MAX_INSTANCES`] slots.
#[derive(Debug)]
struct Slot;

static INSTANCES: AtomicUsize = AtomicUsize::new(0);

impl Slot {
    fn take() -> Option<Slot> {
        let more = |n| (n < MAX_INSTANCES).then_some(n + 1);
        INSTANCES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| Slot)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        INSTANCES.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A callback of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// `start`.
    Init,
    /// `feedback`.
    Feedback,
    /// `event`, with its number.
    Event(u64),
    /// `sent`.
    Sent,
}

/// The words of `struct oc_decision` after a call; the rate is [`NONE`] if the call decided nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub rate: u64,
    /// `bound` in `struct oc_decision`.
    pub cwnd: u64,
    pub quantum: u64,
    pub state: u64,
}

/// An instance of a program in a flow.
pub struct Running {
    store: Store<StoreLimits>,
    memory: Memory,
    /// Address of `struct oc_io`, which lies within the memory; memory never shrinks.
    io: usize,
    init: TypedFunc<(), ()>,
    feedback: TypedFunc<(), ()>,
    event: TypedFunc<(), ()>,
    sent: Option<TypedFunc<(), ()>>,
    _slot: Slot,
}

impl core::fmt::Debug for Running {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Running").field("io", &self.io).finish_non_exhaustive()
    }
}

impl Running {
    /// Creates an instance with its parameters.
    pub fn new(compiled: &Compiled, params: &[u64; PARAMS]) -> Result<Running, Stopped> {
        let slot = Slot::take().ok_or(Stopped::NoRoom)?;
        let limits = StoreLimitsBuilder::new()
            .memory_size(MAX_MEMORY)
            .table_elements(MAX_TABLE)
            .instances(1)
            .memories(1)
            .tables(1)
            .build();
        let mut store = Store::new(compiled.pre.module().engine(), limits);
        store.limiter(|limits| limits);
        store.set_fuel(CALL_BUDGET)?;
        let instance = compiled.pre.instantiate(&mut store)?;
        let memory = instance
            .get_memory(&mut store, "memory")
            .ok_or_else(|| Stopped::Trapped("its memory is gone".to_owned()))?;
        let place: TypedFunc<(), u32> = instance.get_typed_func(&mut store, "oc_io")?;
        let io = place.call(&mut store, ())? as usize;
        let fits = io.is_multiple_of(WORD)
            && io.checked_add(IO * WORD).is_some_and(|end| end <= memory.data_size(&store));
        if !fits {
            return Err(Stopped::Trapped(format!("its oc_io() is at {io:#x}, out of its memory")));
        }
        let get = |store: &mut Store<StoreLimits>, name| instance.get_typed_func(store, name);
        let mut running = Running {
            init: get(&mut store, "oc_init")?,
            feedback: get(&mut store, "oc_feedback")?,
            event: get(&mut store, "oc_event")?,
            sent: sent_callback(&instance, &mut store, compiled.wants_sent)?,
            store,
            memory,
            io,
            _slot: slot,
        };
        write(running.io_area(), DECISION, params);
        Ok(running)
    }

    /// Stores the telemetry of hops for the next feedback.
    pub fn set_hops(&mut self, hops: &[cc::Hop]) {
        write(self.io_area(), DECISION + PARAMS + SIGNALS, &words::hops(hops));
    }

    /// Calls a callback.
    pub fn call(&mut self, call: Call, signals: &[u64; SIGNALS]) -> Result<Answer, Stopped> {
        let area = self.io_area();
        write(area, DECISION + PARAMS, signals);
        write(area, 0, &[NONE]);
        if let Call::Event(number) = call {
            write(area, EVENT, &[number]);
        }
        // Borrowed, since a copy would count references to the function's type, which all threads share.
        let function = match call {
            Call::Init => &self.init,
            Call::Feedback => &self.feedback,
            Call::Event(_) => &self.event,
            Call::Sent => self.sent.as_ref().unwrap_or(&self.feedback),
        };
        self.store.set_fuel(CALL_BUDGET)?;
        function.call(&mut self.store, ())?;
        let left = self.io_area();
        let word = |i: usize| {
            let mut bytes = [0; WORD];
            bytes.copy_from_slice(&left[i * WORD..][..WORD]);
            u64::from_le_bytes(bytes)
        };
        Ok(Answer { rate: word(0), cwnd: word(1), quantum: word(2), state: word(4) })
    }

    /// `struct oc_io`, whose bounds were checked at creation.
    fn io_area(&mut self) -> &mut [u8] {
        &mut self.memory.data_mut(&mut self.store)[self.io..][..IO * WORD]
    }
}

/// Writes words into `struct oc_io`, from word `at` on.
fn write(area: &mut [u8], at: usize, words: &[u64]) {
    let (places, _) = area[at * WORD..][..words.len() * WORD].as_chunks_mut::<WORD>();
    for (place, word) in places.iter_mut().zip(words) {
        *place = word.to_le_bytes();
    }
}

fn sent_callback(
    instance: &Instance,
    store: &mut Store<StoreLimits>,
    hears: bool,
) -> Result<Option<TypedFunc<(), ()>>, Stopped> {
    if !hears {
        return Ok(None);
    }
    Ok(Some(instance.get_typed_func(store, "oc_sent")?))
}
