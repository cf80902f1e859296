//! A session that calls back for memory: what its functions return, and what a callback may do.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::rc::Rc;
use std::time::{Duration, Instant};

use tidelog::abi::*;

use tidelog_tests::abi::{CallerBehaviour, Framework, STAGING, last_error};

const SIZE: usize = 64 << 10;
/// Two storages fill it.
const BUDGET: u64 = STAGING + 2 * SIZE as u64;

/// Call of a callback: its name, and the storage that it was about.
type Call = (&'static str, u32);
/// Act of a callback beside what it is asked for, and what it returns.
type Act = fn(&Caller, Call) -> i32;

/// A caller whose storages are on the heap. Callbacks change it while it waits for a function.
struct Caller {
    framework: Framework,
    memory: RefCell<BTreeMap<u32, Vec<u8>>>,
    calls: RefCell<Vec<Call>>,
    act: Cell<Act>,
    waits: RefCell<Vec<Duration>>,
    wait_began: Cell<Instant>,
    /// Return value of `wait_begins`.
    wait_ms: Cell<i32>,
}

impl Caller {
    /// A caller of this many storages that are in memory, each full of its number.
    fn open(name: &str, storages: u32) -> Rc<Self> {
        let framework = Framework::open(name, BUDGET, 1, CallerBehaviour::default());
        let memory = (0..storages).map(|number| (number, vec![number as u8; SIZE])).collect();
        let caller = Rc::new(Self {
            framework,
            memory: RefCell::new(memory),
            calls: RefCell::default(),
            act: Cell::new(|_, _| TIDE_READY),
            waits: RefCell::default(),
            wait_began: Cell::new(Instant::now()),
            wait_ms: Cell::new(50),
        });
        assert_eq!(caller.set(&caller.callbacks()), TIDE_READY, "{}", last_error());
        for number in 0..storages {
            caller.tell(Some(number), None);
        }
        caller
    }

    /// Tells the session of a birth, or a death.
    fn tell(&self, born: Option<u32>, died: Option<u32>) {
        let birth =
            |number: u32| tide_birth { storage: number.into(), size: SIZE as u64, place: u64::MAX };
        let (births, deaths) = (Vec::from_iter(born.map(birth)), Vec::from_iter(died));
        // SAFETY: both lists have as many items as they say.
        let told = unsafe {
            let (born, dead) = (births.as_ptr(), deaths.as_ptr());
            tide_session_sync(self.session(), born, births.len(), dead, deaths.len())
        };
        assert_eq!(told, TIDE_READY, "{}", last_error());
    }

    /// Storage 0 dies in the middle of this callback, which fails.
    fn dies_in(&self, (name, storage): Call, at: &str) -> i32 {
        if (name, storage) != (at, 0) {
            return TIDE_READY;
        }
        assert!(tide_session_nest(self.session(), 1) >= 0, "{}", last_error());
        self.memory.borrow_mut().remove(&0);
        self.tell(None, Some(0));
        assert!(tide_session_nest(self.session(), 0) >= 0, "{}", last_error());
        TIDE_INTERRUPTED
    }

    fn session(&self) -> u64 {
        self.framework.session
    }

    fn callbacks(self: &Rc<Self>) -> tide_session_callbacks {
        tide_session_callbacks {
            size: size_of::<tide_session_callbacks>() as u64,
            context: Rc::as_ptr(self).cast_mut().cast(),
            evict: Some(evict),
            release: Some(release),
            allocate: Some(allocate),
            settle: Some(settle),
            wait_begins: Some(wait_begins),
            wait_ends: Some(wait_ends),
        }
    }

    fn set(&self, callbacks: &tide_session_callbacks) -> i32 {
        // SAFETY: as large as its size says; the functions take a caller, which lives until the
        // session is closed.
        unsafe { tide_session_set_callbacks(self.session(), callbacks) }
    }

    fn is_in_memory(&self, storage: u32) -> bool {
        self.memory.borrow().contains_key(&storage)
    }

    /// Begins an op that uses this storage.
    fn begin_op(&self, storage: u32) -> i32 {
        // SAFETY: the name is NUL-terminated, and there is one use.
        unsafe {
            tide_session_op_begin(self.session(), -1, 0, c"op".as_ptr(), &raw const storage, 1, 0)
        }
    }

    /// Runs one.
    fn op(&self, storage: u32) {
        assert_eq!(self.begin_op(storage), TIDE_READY, "{}", last_error());
        assert_eq!(self.memory.borrow()[&storage], vec![storage as u8; SIZE]);
        assert_eq!(tide_session_op_end(self.session()), TIDE_READY, "{}", last_error());
    }

    fn called(&self, name: &'static str, storage: u32) -> i32 {
        self.calls.borrow_mut().push((name, storage));
        (self.act.get())(self, (name, storage))
    }

    fn end(self: Rc<Self>) {
        let Self { framework, .. } = Rc::into_inner(self).expect("nobody else has it");
        framework.end();
    }
}

/// The caller and what it is asked about.
///
/// # Safety
/// `context` is a caller that lives, and `bytes` is readable.
unsafe fn caller_of<'a>(context: *mut c_void, bytes: *const tide_bytes) -> (&'a Caller, u32) {
    // SAFETY: by this function's contract.
    let (caller, bytes) = unsafe { (&*context.cast::<Caller>(), *bytes) };
    assert_eq!((bytes.begin, bytes.length, bytes.is_part), (0, SIZE as u64, 0));
    (caller, bytes.storage)
}

unsafe extern "C" fn evict(
    context: *mut c_void,
    bytes: *const tide_bytes,
    memory: *mut tide_memory,
) -> i32 {
    // SAFETY: as the library calls it.
    let (caller, storage) = unsafe { caller_of(context, bytes) };
    let address = caller.memory.borrow()[&storage].as_ptr().expose_provenance() as u64;
    // SAFETY: as the library calls it.
    unsafe { (*memory).address = address };
    caller.called("evict", storage)
}

unsafe extern "C" fn release(context: *mut c_void, bytes: *const tide_bytes) -> i32 {
    // SAFETY: as the library calls it.
    let (caller, storage) = unsafe { caller_of(context, bytes) };
    caller.memory.borrow_mut().remove(&storage);
    caller.called("release", storage)
}

unsafe extern "C" fn allocate(
    context: *mut c_void,
    bytes: *const tide_bytes,
    memory: *mut tide_memory,
) -> i32 {
    // SAFETY: as the library calls it.
    let (caller, storage) = unsafe { caller_of(context, bytes) };
    let address = {
        let mut all = caller.memory.borrow_mut();
        let bytes = all.entry(storage).or_insert_with(|| vec![0xCD; SIZE]);
        bytes.as_mut_ptr().expose_provenance() as u64
    };
    // SAFETY: as the library calls it.
    unsafe { (*memory).address = address };
    caller.called("allocate", storage)
}

unsafe extern "C" fn settle(context: *mut c_void, bytes: *const tide_bytes, state: u64) -> i32 {
    // SAFETY: as the library calls it.
    let (caller, storage) = unsafe { caller_of(context, bytes) };
    assert!([TIDE_PARTS_RESIDENT, TIDE_PARTS_COPIED].contains(&state));
    caller.called("settle", storage)
}

unsafe extern "C" fn wait_begins(context: *mut c_void) -> i32 {
    // SAFETY: as the library calls it.
    let caller = unsafe { &*context.cast::<Caller>() };
    caller.wait_began.set(Instant::now());
    caller.wait_ms.get()
}

unsafe extern "C" fn wait_ends(context: *mut c_void) -> i32 {
    // SAFETY: as the library calls it.
    let caller = unsafe { &*context.cast::<Caller>() };
    caller.waits.borrow_mut().push(caller.wait_began.get().elapsed());
    let count = caller.waits.borrow().len() as u32;
    (caller.act.get())(caller, ("wait", count))
}

fn storage_of_last_error() -> u32 {
    let mut about = 0;
    // SAFETY: no buffer, and the place is ours.
    unsafe { tide_last_error(null_mut(), 0, &raw mut about) };
    about
}

#[test]
fn an_op_is_two_calls_whatever_moves_for_it() {
    let caller = Caller::open("callbacks", 3);
    assert_eq!(tide_session_settle(caller.session()), TIDE_READY, "{}", last_error());
    let out = (0..3).find(|number| !caller.is_in_memory(*number)).expect("two fit");
    caller.calls.borrow_mut().clear();
    caller.op(out);
    let moved = caller.calls.borrow().clone();
    let came = [("allocate", out), ("settle", out)];
    assert!(came.iter().all(|call| moved.contains(call)), "{moved:?}");
    caller.end();
}

#[test]
fn a_callback_that_fails_ends_the_call_and_is_called_again() {
    for (at, status) in [("evict", TIDE_INTERRUPTED), ("release", -77)] {
        let caller = Caller::open(&format!("callback-fails-{at}"), 2);
        caller.act.set(match at {
            "evict" => |_, (name, _)| if name == "evict" { TIDE_INTERRUPTED } else { 0 },
            _ => |_, (name, _)| if name == "release" { -77 } else { 0 },
        });
        assert_eq!(tide_session_evict(caller.session(), 0), status, "{}", last_error());
        assert!(last_error().contains(&format!("returned {status}")), "{}", last_error());
        assert_eq!(storage_of_last_error(), 0);
        let again = caller.calls.borrow().last().copied();
        caller.calls.borrow_mut().clear();
        caller.act.set(|_, _| TIDE_READY);
        assert_eq!(tide_session_resume(caller.session()), TIDE_READY, "{}", last_error());
        assert_eq!(caller.calls.borrow().first().copied(), again);
        assert!(!caller.is_in_memory(0));
        caller.op(0);
        caller.end();
    }
}

#[test]
fn what_a_callback_begins_is_inside_what_waits() {
    let caller = Caller::open("callback-nests", 2);
    caller.act.set(|caller, (name, storage)| {
        let releases = caller.calls.borrow().iter().filter(|(name, _)| *name == "release").count();
        if (name, storage, releases) == ("release", 0, 1) {
            let session = caller.session();
            assert_eq!(caller.begin_op(1), TIDE_BUSY, "the op would be the one that waits");
            assert!(last_error().contains("tide_session_nest"), "{}", last_error());
            assert!(tide_session_nest(session, 1) >= 0, "{}", last_error());
            caller.op(1);
            assert_eq!(caller.begin_op(0), TIDE_BUSY, "it is in the middle of leaving");
            assert!(last_error().contains("inside another op"), "{}", last_error());
            assert!(tide_session_nest(session, 0) >= 0, "{}", last_error());
        }
        TIDE_READY
    });
    assert_eq!(tide_session_evict(caller.session(), 0), TIDE_READY, "{}", last_error());
    // The op inside has asked for it, so it came back and left again.
    let moved: Vec<_> = caller.calls.borrow().iter().map(|(name, _)| *name).collect();
    assert!(moved.starts_with(&["evict", "release"]) && moved.ends_with(&["release"]), "{moved:?}");
    assert!(!caller.is_in_memory(0));
    caller.end();
}

/// A request that a callback did not answer is not made to a storage that was born since.
#[test]
fn a_number_is_used_again_where_its_storage_died_in_a_callback_that_failed() {
    for at in ["evict", "release", "allocate"] {
        let caller = Caller::open(&format!("callback-dies-{at}"), 2);
        if at == "allocate" {
            assert_eq!(tide_session_evict(caller.session(), 0), TIDE_READY, "{}", last_error());
        }
        caller.act.set(match at {
            "evict" => |caller, call| caller.dies_in(call, "evict"),
            "release" => |caller, call| caller.dies_in(call, "release"),
            _ => |caller, call| caller.dies_in(call, "allocate"),
        });
        let status = if at == "allocate" {
            caller.begin_op(0)
        } else {
            tide_session_evict(caller.session(), 0)
        };
        assert_eq!(status, TIDE_INTERRUPTED, "{}", last_error());
        caller.act.set(|_, _| TIDE_READY);
        caller.memory.borrow_mut().insert(0, vec![0; SIZE]);
        caller.tell(Some(0), None);
        caller.calls.borrow_mut().clear();
        assert_eq!(tide_session_resume(caller.session()), TIDE_READY, "{}", last_error());
        let calls = caller.calls.borrow().clone();
        assert!(!calls.iter().any(|&(_, storage)| storage == 0), "{at}: {calls:?}");
        caller.op(0);
        caller.end();
    }
}

/// The op was refused: who resumes must not take it for granted.
#[test]
fn the_error_of_a_wait_that_was_interrupted_is_told_to_who_resumes() {
    let caller = Caller::open("wait-interrupted", 2);
    let session = caller.session();
    for number in 0..2 {
        assert_eq!(tide_session_async_use(session, number, 1), TIDE_READY);
    }
    caller.wait_ms.set(0);
    caller.act.set(|_, (name, _)| if name == "wait" { TIDE_INTERRUPTED } else { TIDE_READY });
    let needs = SIZE as u64;
    // SAFETY: the name is NUL-terminated, and there are no uses.
    let begun = unsafe { tide_session_op_begin(session, -1, 0, c"op".as_ptr(), null(), 0, needs) };
    assert_eq!(begun, TIDE_INTERRUPTED, "{}", last_error());
    caller.act.set(|_, _| TIDE_READY);
    assert_eq!(tide_session_resume(session), TIDE_BUDGET_EXCEEDED, "{}", last_error());
    assert!(last_error().contains("communication"), "{}", last_error());
    assert_eq!(tide_session_resume(session), TIDE_READY, "nothing waits: {}", last_error());
    caller.end();
}

#[test]
fn another_thread_is_refused_while_one_moves_storages() {
    let caller = Caller::open("callback-threads", 2);
    caller.act.set(|caller, _| {
        let session = caller.session();
        let other = move || {
            let refused = [tide_session_settle(session), tide_session_evict(session, 1)];
            assert!(refused.iter().all(|&status| status == TIDE_BUSY), "{refused:?}");
            assert!(last_error().contains("another thread"), "{}", last_error());
            assert_eq!(tide_session_modified(session, 1), TIDE_READY, "{}", last_error());
        };
        std::thread::spawn(other).join().unwrap();
        TIDE_READY
    });
    assert_eq!(tide_session_evict(caller.session(), 0), TIDE_READY, "{}", last_error());
    caller.act.set(|_, _| TIDE_READY);
    let session = caller.session();
    let other = std::thread::spawn(move || tide_session_settle(session));
    assert_eq!(other.join().unwrap(), TIDE_READY, "none is in the middle of anything");
    caller.end();
}

#[test]
fn waits_are_short_and_end_where_the_caller_says_so() {
    let caller = Caller::open("callback-waits", 2);
    let session = caller.session();
    for number in 0..2 {
        assert_eq!(tide_session_async_use(session, number, 1), TIDE_READY);
    }
    let room = |needs| {
        // SAFETY: the name is NUL-terminated, and there are no uses.
        unsafe { tide_session_op_begin(session, -1, 0, c"op".as_ptr(), null(), 0, needs) }
    };
    caller.wait_ms.set(i32::MAX);
    caller.act.set(|_, (name, count)| match (name, count) {
        ("wait", 3) => TIDE_INTERRUPTED,
        _ => TIDE_READY,
    });
    assert_eq!(room(SIZE as u64), TIDE_INTERRUPTED, "{}", last_error());
    assert_eq!(storage_of_last_error(), TIDE_NO_STORAGE);
    let most = Duration::from_millis(45)..Duration::from_secs(2);
    assert!(
        caller.waits.borrow().iter().all(|wait| most.contains(wait)),
        "{:?}",
        caller.waits.borrow()
    );
    assert_eq!(caller.waits.borrow().len(), 3);

    caller.wait_ms.set(1);
    caller.act.set(|caller, (name, count)| {
        if (name, count) == ("wait", 6) {
            assert_eq!(tide_session_async_use(caller.session(), 0, 0), TIDE_READY);
        }
        TIDE_READY
    });
    assert_eq!(room(SIZE as u64), TIDE_READY, "{}", last_error());
    assert!(caller.waits.borrow().len() >= 6 && !caller.is_in_memory(0));

    caller.wait_ms.set(0);
    assert_eq!(room(2 * SIZE as u64), TIDE_BUDGET_EXCEEDED, "{}", last_error());
    assert!(last_error().contains("communication"), "{}", last_error());
    caller.end();
}

#[test]
fn figures_say_what_took_a_steps_time() {
    let caller = Caller::open("step-time", 2);
    let step = |mark| assert_eq!(tide_session_step(caller.session(), mark), TIDE_READY);
    step(1);
    caller.act.set(|_, (name, _)| {
        if name == "release" {
            std::thread::sleep(Duration::from_millis(60));
        }
        TIDE_READY
    });
    assert_eq!(tide_session_evict(caller.session(), 0), TIDE_READY, "{}", last_error());
    step(0);
    let time = caller.framework.stats()["step_time"].clone();
    assert_eq!((&time["clock"], &time["step"]), (&"thread".into(), &1.into()));
    let of = |cause: &str| time["causes_ns"][cause].as_u64().unwrap();
    let sum: u64 = time["causes_ns"].as_object().unwrap().keys().map(|cause| of(cause)).sum();
    assert_eq!(Some(sum), time["time_ns"].as_u64(), "{time}");
    assert!((60_000_000..).contains(&of("requests")) && of("copies_out") > 0, "{time}");

    // A session without a GPU has no clock of one, and is told of none of its causes.
    let span = |cause| tide_step_span { began_ago: 2, ended_ago: 1, cause, clock: TIDE_CLOCK_GPU };
    let tell = |span: tide_step_span| {
        // SAFETY: there is one.
        unsafe { tide_session_step_spans(caller.session(), &raw const span, 1) }
    };
    assert_eq!(tell(span(TIDE_TIME_KERNELS)), TIDE_READY, "{}", last_error());
    assert_eq!(tell(span(77)), TIDE_INVALID_ARGUMENT);
    assert!(last_error().contains("77 is no cause"), "{}", last_error());
    caller.end();
}

#[test]
fn a_callback_may_close_the_session() {
    let caller = Caller::open("callback-closes", 2);
    caller.act.set(|caller, _| tide_session_close(caller.session()));
    assert_eq!(tide_session_evict(caller.session(), 0), TIDE_STALE_HANDLE, "{}", last_error());
    assert_eq!(*caller.calls.borrow(), [("evict", 0)]);
}

#[test]
fn callbacks_are_checked_and_can_be_taken_back() {
    let caller = Caller::open("callbacks-taken", 2);
    let good = caller.callbacks();
    for (name, lacking) in [
        ("evict", tide_session_callbacks { evict: None, ..good }),
        ("release", tide_session_callbacks { release: None, ..good }),
        ("allocate", tide_session_callbacks { allocate: None, ..good }),
        ("settle", tide_session_callbacks { settle: None, ..good }),
        ("sizeof", tide_session_callbacks { size: 8, ..good }),
    ] {
        assert_eq!(caller.set(&lacking), TIDE_INVALID_ARGUMENT);
        assert!(last_error().contains(name), "{}", last_error());
    }
    let no_waits = tide_session_callbacks { wait_begins: None, wait_ends: None, ..good };
    assert_eq!(caller.set(&no_waits), TIDE_READY, "{}", last_error());
    assert_eq!(tide_session_evict(caller.session(), 0), TIDE_READY, "{}", last_error());
    // SAFETY: null takes them back.
    let taken = unsafe { tide_session_set_callbacks(caller.session(), null()) };
    assert_eq!(taken, TIDE_READY, "{}", last_error());
    assert_eq!(tide_session_evict(caller.session(), 1), TIDE_ACTION, "{}", last_error());
    caller.end();
}
