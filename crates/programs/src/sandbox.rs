//! Where programs run: WebAssembly without imports, with little memory and a budget of operations for each call.
//!
//! Time is bounded by counting operations and not by a clock: what a program may do does not depend on how busy the host
//! is, a simulation that fails repeats exactly, and nothing has to tick. Bounds of memory are checked by the compiled code
//! itself, so that no signal handler of the process is touched.

use crate::words::{self, DECISION, EVENT, IO, NONE, PARAMS, SIGNALS};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use wasmtime::{
    Config, Engine, ExternType, Instance, InstancePre, Linker, Memory, Module, Store, StoreLimits,
    StoreLimitsBuilder, Trap, TypedFunc, ValType,
};

/// WebAssembly operations that one call may take: some ten microseconds. Each shipped program takes below 1,500. (An operation
/// on a whole range of memory counts as one and takes microseconds at most, since [`MAX_MEMORY`] is small.)
pub const BUDGET: u64 = 20_000;
/// Most memory of an instance, in bytes.
pub const MAX_MEMORY: usize = 128 * 1024;
/// Most instances in a process: flows beyond run the fallback.
pub const MAX_INSTANCES: usize = 4_096;
/// Most stack of the host that a call may use, in bytes.
const MAX_STACK: usize = 64 * 1024;
/// Most entries of tables: programs seldom have any.
const MAX_TABLE: usize = 256;
const WORD: usize = 8;

/// What went wrong in a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// It used up its budget.
    Overran,
    /// It did what WebAssembly forbids, in its words.
    Trapped(String),
    /// There is no room for another instance.
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

/// The engine of the process.
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
                // Images of memory would be files, and the thread that loads a program need not share descriptors with the one that
                // runs it.
                .memory_init_cow(false)
                .max_wasm_stack(MAX_STACK)
                .wasm_backtrace(false)
                .wasm_simd(false)
                .wasm_relaxed_simd(false)
                .wasm_memory64(false)
                .wasm_multi_memory(false)
                .wasm_tail_call(false)
                // The same numbers on every processor.
                .cranelift_nan_canonicalization(true);
            Engine::new(&config).map_err(|e| e.to_string())
        })
        .as_ref()
        .map_err(Clone::clone)
}

/// A module that was verified and compiled.
#[derive(Clone)]
pub struct Compiled {
    pre: InstancePre<StoreLimits>,
    hears_sent: bool,
}

impl core::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Compiled").field("hears_sent", &self.hears_sent).finish_non_exhaustive()
    }
}

impl Compiled {
    /// Compiles a module. What is wrong with one that is none, in words.
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
        let hears_sent = module.get_export("oc_sent").is_some();
        let pre = Linker::new(engine).instantiate_pre(&module).map_err(|e| e.to_string())?;
        Ok(Compiled { pre, hears_sent })
    }

    /// Whether it wants to hear of each train.
    pub fn hears_sent(&self) -> bool {
        self.hears_sent
    }
}

/// A place among [`MAX_INSTANCES`].
#[derive(Debug)]
struct Slot;

static TAKEN: AtomicUsize = AtomicUsize::new(0);

impl Slot {
    fn take() -> Option<Slot> {
        let more = |n| (n < MAX_INSTANCES).then_some(n + 1);
        TAKEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| Slot)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        TAKEN.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Which callback.
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

/// The words of `struct oc_decision` that a call left; [`NONE`] as rate when it left none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub rate: u64,
    pub bound: u64,
    pub quantum: u64,
    pub state: u64,
}

/// A program in a flow.
pub struct Running {
    store: Store<StoreLimits>,
    memory: Memory,
    /// Where `struct oc_io` is; all of it lies within the memory, which never shrinks.
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
    /// An instance with its parameters.
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
        store.set_fuel(BUDGET)?;
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
            sent: sent(&instance, &mut store, compiled.hears_sent)?,
            store,
            memory,
            io,
            _slot: slot,
        };
        write(running.area(), DECISION, params);
        Ok(running)
    }

    /// Tells the program what hops wrote, for the next feedback.
    pub fn set_hops(&mut self, hops: &[cc::Hop]) {
        write(self.area(), DECISION + PARAMS + SIGNALS, &words::hops(hops));
    }

    /// Makes a call.
    pub fn call(&mut self, call: Call, signals: &[u64; SIGNALS]) -> Result<Answer, Stopped> {
        let area = self.area();
        write(area, DECISION + PARAMS, signals);
        write(area, 0, &[NONE]);
        if let Call::Event(number) = call {
            write(area, EVENT, &[number]);
        }
        // Not a copy of it: that would count users of the function's type, which all threads share.
        let function = match call {
            Call::Init => &self.init,
            Call::Feedback => &self.feedback,
            Call::Event(_) => &self.event,
            Call::Sent => self.sent.as_ref().unwrap_or(&self.feedback),
        };
        self.store.set_fuel(BUDGET)?;
        function.call(&mut self.store, ())?;
        let left = self.area();
        let word = |i: usize| {
            let mut bytes = [0; WORD];
            bytes.copy_from_slice(&left[i * WORD..][..WORD]);
            u64::from_le_bytes(bytes)
        };
        Ok(Answer { rate: word(0), bound: word(1), quantum: word(2), state: word(4) })
    }

    /// `struct oc_io`. Its place was checked, and memory does not shrink.
    fn area(&mut self) -> &mut [u8] {
        &mut self.memory.data_mut(&mut self.store)[self.io..][..IO * WORD]
    }
}

/// Puts words into `struct oc_io`, from word `at` on.
fn write(area: &mut [u8], at: usize, words: &[u64]) {
    let (places, _) = area[at * WORD..][..words.len() * WORD].as_chunks_mut::<WORD>();
    for (place, word) in places.iter_mut().zip(words) {
        *place = word.to_le_bytes();
    }
}

fn sent(
    instance: &Instance,
    store: &mut Store<StoreLimits>,
    hears: bool,
) -> Result<Option<TypedFunc<(), ()>>, Stopped> {
    if !hears {
        return Ok(None);
    }
    Ok(Some(instance.get_typed_func(store, "oc_sent")?))
}
