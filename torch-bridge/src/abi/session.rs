//! A training session: the residency machine and its pool, driven op by op by the framework.

use std::ffi::{c_char, c_void};
use std::time::Duration;

use tidelog_engine::pool::Pool;

use tidelog_planner::recompute::{CheckpointedRegion, SameWrites};
use tidelog_planner::residency::{OpUse, StorageId};
use tidelog_planner::simulate::TimeCause;
use tidelog_planner::trace::StorageKind;

use super::drive::{OpenSession, driven, wait_driven};
use super::handles::HandleTable;
use super::{
    Options, ReturnCode, TIDE_ACTION, TIDE_READY, TIDE_WAITING, array_argument, boundary,
    options_argument, place_numbered, text_argument, write_answer, write_result,
};
use crate::error::Failure;
use crate::executor::{
    OpCall, PART_NUMBERS, PlannerPolicy, Readiness, STORAGES_MAX, Session, SessionConfig,
    StorageBirth, ToldSpan,
};
use crate::memory::{CallerMemory, MemoryAction, MemoryRequest, PartState, RequestedBytes};
use crate::pool::PoolConfig;

pub(super) static SESSIONS: HandleTable<OpenSession> = HandleTable::new("session");

impl ReturnCode for Readiness {
    fn code(self) -> i32 {
        match self {
            Self::Ready => TIDE_READY,
            Self::Requests => TIDE_ACTION,
            Self::Waiting => TIDE_WAITING,
        }
    }
}

/// Options to open a session.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tide_session_options {
    /// `sizeof` this struct: tells which version of it the caller was built with.
    pub size: u64,
    /// Devices of the pool, separated by commas: directories, files or block devices. `\,` is a
    /// comma that is part of a name, and `\\` a backslash.
    pub devices: *const c_char,
    /// "auto", "uring", "uring-cmd" or "posix"; where a GPU is named also "gds" and "gds-compat".
    pub data_path: *const c_char,
    /// Bytes of storages and staging that may be in memory at once.
    pub budget: u64,
    /// Bytes of staging buffers, part of the budget.
    pub staging: u64,
    /// The most page-locked host memory that takes a GPU's storages before SSDs do; 0: none. All of
    /// it is allocated when the session opens, and freed when it closes. Without a GPU it must be
    /// 0.
    pub host_memory: u64,
    /// Bytes of the pool where Tidelog makes the files of directories; 0 lets it choose.
    pub pool_size: u64,
    /// The share of the pool to own.
    pub share: u32,
    /// Non-zero allows a file system without `O_DIRECT`.
    pub buffered: u8,
    /// Non-zero never makes a plan.
    pub reactive: u8,
    /// Planner: 1 the published algorithm, 2 Tidelog's own; 0 leaves the choice to Tidelog.
    pub policy: u8,
    /// Device of the storages: CUDA's number of the GPU plus one; 0: in host memory.
    pub gpu: u8,
    /// Non-zero refuses a pool that is not there. Otherwise one is made where none of its devices
    /// exists; and where a file system is not mounted, its directory is empty, and the pool would
    /// be made on another disk.
    pub must_exist: u64,
    /// Number of shares of a pool that is made, one for each process that will own one; 0: one.
    pub share_count: u64,
    /// Non-zero leaves the files of a pool that is made sparse: no space of them is reserved, and a
    /// write fails once the file system is full. Otherwise all is; with zeroes, where the file
    /// system cannot reserve, which takes as long as it takes to write them.
    pub sparse: u64,
    /// Non-zero goes on where one device of a pool with two copies is missing: the pool must be
    /// there, and is degraded until the device is replaced.
    pub degraded: u64,
}

// SAFETY: numbers and pointers, of which any bytes are a value; `size` comes first.
unsafe impl Options for tide_session_options {
    const NAME: &str = "tide_session_options";
    const LENGTH_MIN: usize = std::mem::offset_of!(Self, must_exist);
}

/// A request to a caller without callbacks, who alone can free and allocate a storage's memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct tide_action {
    /// Hand back to `tide_session_action_done`.
    pub sequence: u64,
    /// Bytes of the storage, or of the part; for `TIDE_SETTLE` non-zero where there is a copy of
    /// the same bytes, for `TIDE_SETTLE_PART` one of `TIDE_PARTS_RESIDENT` to `TIDE_PARTS_AWAY`.
    pub size: u64,
    /// `TIDE_EVICT`, `TIDE_RELEASE`, `TIDE_ALLOCATE` or `TIDE_SETTLE`; once
    /// `tide_session_use_parts` was called, also one of those of a part.
    pub kind: u32,
    /// The storage's number.
    pub storage: u32,
}

/// Keep the storage alive and return its address: its bytes are about to be copied out. Return 0 if
/// it cannot move now: it is not asked for again before the next op.
pub const TIDE_EVICT: u32 = 1;
/// Free the storage's memory and guard it: its bytes are in the log, or in host memory.
pub const TIDE_RELEASE: u32 = 2;
/// Allocate the storage's memory, keep it alive and guarded, and return its address: its bytes are
/// coming. Return 0 if there is no memory: other storages leave and it is asked again; where none
/// is left that could leave, the op that needs it fails.
pub const TIDE_ALLOCATE: u32 = 3;
/// Lift the guard: the storage is resident, no transfer touches it.
pub const TIDE_SETTLE: u32 = 4;

/// Request to evict a part, as `TIDE_EVICT` is for a storage; it begins where
/// `tide_session_part_begin` says: return the address of that part. Others of its parts may be out,
/// and those bytes are somewhere in memory all the same.
pub const TIDE_EVICT_PART: u32 = 5;
/// Guard the storage, and give back the pages of this part alone. The others keep theirs, whether
/// in memory or on their way, so the storage keeps its address.
pub const TIDE_RELEASE_PART: u32 = 6;
/// Keep the storage alive and guarded, and return the address of the part: its bytes are coming.
pub const TIDE_ALLOCATE_PART: u32 = 7;
/// No transfer touches this part. Unless `size` is `TIDE_PARTS_AWAY` all parts are in memory: lift
/// the guard.
pub const TIDE_SETTLE_PART: u32 = 8;

/// All parts of the storage are in memory.
pub const TIDE_PARTS_RESIDENT: u64 = 0;
/// State of parts of which a copy has the bytes of one at least.
pub const TIDE_PARTS_COPIED: u64 = 1;
/// All are in memory, and one at least is being copied out.
pub const TIDE_PARTS_LEAVING: u64 = 2;
/// One at least is out, or its bytes are not there yet.
pub const TIDE_PARTS_AWAY: u64 = 3;

/// Least number of storages for the framework where plans may move parts of storages; lower numbers
/// are the session's own.
pub const TIDE_PART_NUMBERS: u32 = 4096;
const _: () = assert!(TIDE_PART_NUMBERS == PART_NUMBERS);

/// Flag in an element of `uses`: the op writes the storage.
pub const TIDE_MODIFIES: u32 = 0x8000_0000;
const _: () = assert!(STORAGES_MAX <= TIDE_MODIFIES);

/// Cause of a span: kernels ran.
pub const TIDE_TIME_KERNELS: u32 = 0;
const _: () = assert!(TIDE_TIME_KERNELS == TimeCause::Kernels as u32);
/// Cause of a span: it waited for a copy out, or for the memory of one.
pub const TIDE_TIME_COPIES_OUT: u32 = 3;
const _: () = assert!(TIDE_TIME_COPIES_OUT == TimeCause::CopiesOut as u32);
/// Cause of a span: it waited for a copy in.
pub const TIDE_TIME_COPIES_IN: u32 = 4;
const _: () = assert!(TIDE_TIME_COPIES_IN == TimeCause::CopiesIn as u32);
/// Cause of a span: the thread was in the allocator, or waited there.
pub const TIDE_TIME_ALLOCATOR: u32 = 8;
const _: () = assert!(TIDE_TIME_ALLOCATOR == TimeCause::Allocator as u32);
/// Cause of a span of a GPU's: nothing was launched. What the thread did then is the cause.
pub const TIDE_TIME_NOT_LAUNCHED: u32 = 255;

/// Clock of a span: the GPU's.
pub const TIDE_CLOCK_GPU: u32 = 0;
/// Clock of a span: that of the thread that calls the session.
pub const TIDE_CLOCK_THREAD: u32 = 1;

/// Span of a step.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tide_step_span {
    /// Time at which it began: nanoseconds before it is reported.
    pub began_ago: u64,
    /// Time at which it ended: nanoseconds before it is reported.
    pub ended_ago: u64,
    /// `TIDE_TIME_...`
    pub cause: u32,
    /// `TIDE_CLOCK_...`
    pub clock: u32,
}

/// Flag in the `storage` of a birth: its memory is not the framework's own and must stay.
pub const TIDE_UNMOVABLE: u64 = 0x1_0000_0000;

/// A storage that came into being.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tide_birth {
    /// The storage's number, plus `TIDE_UNMOVABLE` where its memory must stay; below
    /// `TIDE_MODIFIES`, chosen by the caller: small, and not that of another live storage.
    pub storage: u64,
    /// The bytes.
    pub size: u64,
    /// The op's index times 65,536 plus the output slot; an index of 0xFFFFFFFF is outside a step.
    pub place: u64,
}

/// A part of the model that a step runs twice, as activation checkpointing does: ops of the first
/// run and of the second one, each from its first to before its last.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tide_region {
    /// The first op of the first run.
    pub first_begin: u32,
    /// End of the first run.
    pub first_end: u32,
    /// The first op of the second run, which may end before the first run did.
    pub again_begin: u32,
    /// End of the second run.
    pub again_end: u32,
}

fn region_of(region: &tide_region) -> CheckpointedRegion {
    let tide_region { first_begin, first_end, again_begin, again_end } = *region;
    CheckpointedRegion { first: first_begin..first_end, again: again_begin..again_end }
}

/// Two ops of a step, the later of which writes the bytes that the first one wrote.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tide_same_writes {
    /// The op that wrote them first.
    pub first: u32,
    /// The op that writes them again.
    pub later: u32,
}

fn with_session<T: ReturnCode>(
    handle: u64,
    body: impl FnOnce(&Session) -> Result<T, Failure>,
) -> i32 {
    boundary(|| body(&*SESSIONS.get(handle)?))
}

/// The request as C sees it.
fn action_of(request: MemoryRequest) -> tide_action {
    let MemoryRequest { sequence, action, of: RequestedBytes { storage, part }, size } = request;
    let of_part = |whole, kind| if part.is_some() { kind } else { whole };
    let (kind, size) = match action {
        MemoryAction::Evict => (of_part(TIDE_EVICT, TIDE_EVICT_PART), size),
        MemoryAction::Release => (of_part(TIDE_RELEASE, TIDE_RELEASE_PART), size),
        MemoryAction::Allocate => (of_part(TIDE_ALLOCATE, TIDE_ALLOCATE_PART), size),
        MemoryAction::Settle { clean } => (TIDE_SETTLE, clean.into()),
        MemoryAction::SettlePart { state } => (TIDE_SETTLE_PART, state_number(state)),
    };
    tide_action { sequence, size, kind, storage }
}

pub(super) fn state_number(state: PartState) -> u64 {
    match state {
        PartState::Resident => TIDE_PARTS_RESIDENT,
        PartState::Copied => TIDE_PARTS_COPIED,
        PartState::Leaving => TIDE_PARTS_LEAVING,
        PartState::Away => TIDE_PARTS_AWAY,
    }
}

fn birth_of(birth: &tide_birth) -> StorageBirth {
    let index = (birth.place >> 16) as u32;
    StorageBirth {
        storage: birth.storage & !TIDE_UNMOVABLE,
        size: birth.size,
        movable: birth.storage & TIDE_UNMOVABLE == 0,
        op: (index != u32::MAX).then_some(index),
        slot: birth.place as u16,
    }
}

fn use_of(word: u32) -> OpUse {
    OpUse { storage: StorageId(word & !TIDE_MODIFIES), modifies: word & TIDE_MODIFIES != 0 }
}

fn policy_numbered(number: u8) -> Result<PlannerPolicy, Failure> {
    match number {
        0 => Ok(PlannerPolicy::default()),
        1 => Ok(PlannerPolicy::Algorithm1),
        2 => Ok(PlannerPolicy::Tidelog),
        _ => Err(Failure::invalid(format!("policy {number}: expected 0, 1 or 2"))),
    }
}

fn kind_numbered(number: u32) -> Result<StorageKind, Failure> {
    match number {
        0 => Ok(StorageKind::Other),
        // A buffer is kept as a parameter is.
        1 | 5 => Ok(StorageKind::Parameter),
        2 => Ok(StorageKind::Gradient),
        3 => Ok(StorageKind::OptimizerState),
        4 => Ok(StorageKind::Activation),
        _ => Err(Failure::invalid(format!("kind {number} is unknown; the header lists 0 to 5"))),
    }
}

/// Opens a session: formats the pool where its devices are fresh directories, unless it must exist,
/// opens the share, starts the reactor. A pool that was made is told in the statistics (`made`).
///
/// # Safety
/// `options` points to options as long as their `size` says, whose texts are NUL-terminated;
/// `session` points to one `uint64_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_session_open(
    options: *const tide_session_options,
    session: *mut u64,
) -> i32 {
    boundary(|| {
        // SAFETY: by this function's contract null or one set of options, as long as it says.
        let options = unsafe { options_argument(options) }?;
        // SAFETY: by this function's contract null or NUL-terminated.
        let devices = unsafe { text_argument(options.devices, "devices") }?;
        // SAFETY: as above.
        let data_path = unsafe { text_argument(options.data_path, "data_path") }?;
        let opened = Session::open(&SessionConfig {
            pool: PoolConfig {
                devices,
                data_path,
                staging: options.staging,
                size: options.pool_size,
                share: options.share,
                buffered: options.buffered != 0,
                must_exist: options.must_exist != 0,
                sparse: options.sparse != 0,
                read_only: false,
                degraded: options.degraded != 0,
                share_count: share_count_of(options.share_count)?,
                place: place_numbered(options.gpu),
                arena: None,
            },
            budget: options.budget,
            host_memory: options.host_memory,
            reactive: options.reactive != 0,
            policy: policy_numbered(options.policy)?,
        })?;
        let handle = SESSIONS.insert(OpenSession::new(opened));
        // SAFETY: by this function's contract null or one u64 of the caller's.
        unsafe { write_result(session, handle, "session") }.inspect_err(|_| {
            // Its error is the one that counts; closing gives the share back.
            let _ = SESSIONS.remove(handle).and_then(|session| session.close());
        })?;
        Ok(())
    })
}

fn share_count_of(count: u64) -> Result<u32, Failure> {
    let count = count.max(1);
    u32::try_from(count).map_err(|_| Failure::invalid(format!("{count} shares are too many")))
}

/// Opens a session in host memory on a pool that is open already, whatever its data path, and
/// returns its handle. For programs in Rust; the pool is closed with the session.
pub fn session_on(pool: Pool, budget: u64, staging: u64) -> u64 {
    SESSIONS.insert(OpenSession::new(Session::on_pool(pool, budget, staging)))
}

/// Closes a session: cancels what is in flight, waits until no device or copy touches the caller's
/// memory, releases the share.
#[unsafe(no_mangle)]
pub extern "C" fn tide_session_close(session: u64) -> i32 {
    boundary(|| SESSIONS.remove(session)?.close())
}

/// The address of a `uint32_t` that is non-zero while completions wait to be processed: a cheap
/// look between ops. Null for a stale handle. It is valid until the session is closed.
#[unsafe(no_mangle)]
pub extern "C" fn tide_session_attention(session: u64) -> *const c_void {
    let mut address = std::ptr::null();
    with_session(session, |session| {
        address = session.attention_address().cast();
        Ok(())
    });
    address
}

/// Changes the budget; takes effect at the next op boundary.
#[unsafe(no_mangle)]
pub extern "C" fn tide_session_set_budget(session: u64, budget: u64) -> i32 {
    with_session(session, |session| {
        session.set_budget(budget);
        Ok(())
    })
}

/// Sets how many bytes a day may go to the pool's devices from here on, padding, metadata and
/// checkpoints included; 0: as many as it takes. Plans keep to it as far as any does, and
/// `tide_session_throttle` to the rest. What was not written is there to be written for an hour.
/// Another budget forgets what was written under the one before.
#[unsafe(no_mangle)]
pub extern "C" fn tide_session_set_write_budget(session: u64, bytes_per_day: u64) -> i32 {
    with_session(session, |session| {
        session.set_write_budget(bytes_per_day);
        Ok(())
    })
}

/// Pauses between two steps as long as the write budget asks for, at most `timeout_ms`. Returns
/// `TIDE_WAITING` where that was not long enough: call it again. A caller that begins the next step
/// instead has what is left added to the pause behind it.
#[unsafe(no_mangle)]
pub extern "C" fn tide_session_throttle(session: u64, timeout_ms: u32) -> i32 {
    with_session(session, |session| Ok(session.throttle(Duration::from_millis(timeout_ms.into()))))
}

/// Reports storages that were born and that died. Repeating a report is harmless.
///
/// # Safety
/// `births` has `birth_count` items and `deaths` has `death_count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_session_sync(
    session: u64,
    births: *const tide_birth,
    birth_count: usize,
    deaths: *const u32,
    death_count: usize,
) -> i32 {
    with_session(session, |session| {
        // SAFETY: by this function's contract.
        let births = unsafe { array_argument(births, birth_count, "births") }?;
        // SAFETY: by this function's contract.
        let deaths = unsafe { array_argument(deaths, death_count, "deaths") }?;
        let births = births.iter().map(birth_of);
        session.sync(births, deaths)
    })
}

/// Names a storage for errors and reports, and says what it is for: 0 other, 1 parameter, 2
/// gradient, 3 optimizer state, 4 activation, 5 buffer.
///
/// # Safety
/// `name` is NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_session_name(
    session: u64,
    storage: u32,
    kind: u32,
    name: *const c_char,
) -> i32 {
    with_session(session, |session| {
        // SAFETY: by this function's contract.
        let name = unsafe { text_argument(name, "name") }?;
        session.name(storage, kind_numbered(kind)?, name)
    })
}

/// Reports that a storage now has another size.
#[unsafe(no_mangle)]
pub extern "C" fn tide_session_resized(session: u64, storage: u32, size: u64) -> i32 {
    with_session(session, |session| session.resized(storage, size))
}

/// Reports that a resident storage was written by something that is no op.
#[unsafe(no_mangle)]
pub extern "C" fn tide_session_modified(session: u64, storage: u32) -> i32 {
    with_session(session, |session| session.modified(storage))
}

/// Pins (`on` non-zero) or unpins a storage: pinned, its memory stays where it is. Pins are
/// counted.
#[unsafe(no_mangle)]
pub extern "C" fn tide_session_pin(session: u64, storage: u32, on: i32) -> i32 {
    with_session(session, |session| session.pin(storage, on != 0))
}

/// An op that has ended uses the storage still, as a collective does until its `Work` is complete:
/// it stays until this is called with `on` 0. What needs its room waits. Twice is once.
#[unsafe(no_mangle)]
pub extern "C" fn tide_session_async_use(session: u64, storage: u32, on: i32) -> i32 {
    with_session(session, |session| session.async_use(storage, on != 0))
}

/// Asks that one storage be moved out now; ready when it is out, or when it cannot go.
#[unsafe(no_mangle)]
pub extern "C" fn tide_session_evict(session: u64, storage: u32) -> i32 {
    driven(session, |session| session.evict(storage))
}

/// Moves out all that can leave memory, for a program that leaves the device to others for a while;
/// ready when it is out. Nothing comes back, and no op or step begins, before `tide_session_go_on`.
/// An op that ran has ended. What is pinned stays. Refused where a storage that could leave is in
/// asynchronous use, and (`TIDE_BUSY`) inside another op. The session's
/// buffers in host memory are given back, too, where no GPU and no device has them locked. Where it
/// fails, or the caller gives up waiting, call `tide_session_go_on`.
///
/// What a pause takes and moves counts to no step; births, deaths, statistics and the end of a step
/// may be reported in one.
#[unsafe(no_mangle)]
pub extern "C" fn tide_session_pause(session: u64) -> i32 {
    driven(session, Session::pause)
}

/// Ends a pause. `at_once` non-zero: ready when what left by it is back, as far as the budget has
/// room beside what was born since; where there is no memory for it, an error says so, and the
/// session goes on with what came. Zero: it comes back as ops need it. Where there is no pause,
/// nothing happens but what `tide_session_settle` does.
#[unsafe(no_mangle)]
pub extern "C" fn tide_session_go_on(session: u64, at_once: i32) -> i32 {
    driven(session, |session| session.go_on_after_pause(at_once != 0))
}

/// Marks a step: 1 begins, 0 ends one that is complete, 2 ends one that an exception cut short.
#[unsafe(no_mangle)]
pub extern "C" fn tide_session_step(session: u64, mark: i32) -> i32 {
    driven(session, |session| match mark {
        1 => session.step_begin(),
        0 | 2 => session.step_end(mark == 0),
        _ => Err(Failure::invalid(format!("step mark {mark}: expected 0, 1 or 2"))),
    })
}

/// Begins an op: ready once its storages are resident and its outputs have room. `index` below zero
/// is outside a step.
///
/// # Safety
/// `name` is NUL-terminated; `uses` has `use_count` items.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_session_op_begin(
    session: u64,
    index: i64,
    fingerprint: u64,
    name: *const c_char,
    uses: *const u32,
    use_count: usize,
    needs: u64,
) -> i32 {
    driven(session, |session| {
        // SAFETY: by this function's contract.
        let name = unsafe { text_argument(name, "name") }?;
        // SAFETY: by this function's contract.
        let uses = unsafe { array_argument(uses, use_count, "uses") }?;
        let index = u32::try_from(index).ok();
        let uses = uses.iter().copied().map(use_of);
        session.op_begin(&OpCall { index, fingerprint, name, needs }, uses)
    })
}

/// Ends an op, its births reported: ready once the budget holds with its outputs.
#[unsafe(no_mangle)]
pub extern "C" fn tide_session_op_end(session: u64) -> i32 {
    driven(session, Session::op_end)
}

/// Says how many ops are around those that begin from here on, for a caller that has code of others
/// run in the middle of an op or of a request (a signal handler, a finalizer), which runs ops
/// itself. One more than before: the next op is inside the one that was begun last, which stays as
/// it is. If that runs, what it uses stays where it is, and the room that it was granted stays its
/// own; if it waits, that is interrupted. One less: what was inside is over, and what is around
/// goes on. A wait for it (for an op, or after `tide_session_op_end`, `_settle`, `_evict` or
/// `_step`) goes on by `tide_session_resume`, which also has its error, should it fit no longer;
/// where the session has callbacks, by the call that has called back. A step that begins or ends
/// has none around it.
///
/// A request that was handed out is handed out again only where no more ops are around than there
/// were: inside of the op in which it was begun, others are. Until it is answered its storage is in
/// the hands of the caller: it makes no room for ops inside, and what it is to give up counts. Its
/// number is given to no other storage that is born inside.
///
/// An op inside is refused with `TIDE_BUSY` where it cannot run before what is around has gone on:
/// it uses what the caller is in the middle of moving, or needs room that this, or the op around,
/// has. `tide_session_evict` returns the same where it would have to wait for that. Nothing of the
/// op has happened then, and all else goes on; the op can run when the request was answered, or the
/// op around has ended. One that does not fit beside what the op around uses exceeds the budget
/// (`TIDE_BUDGET_EXCEEDED`).
#[unsafe(no_mangle)]
pub extern "C" fn tide_session_nest(session: u64, depth: u32) -> i32 {
    with_session(session, |session| session.nest(depth))
}

/// Processes what completed and evicts until the budget holds.
#[unsafe(no_mangle)]
pub extern "C" fn tide_session_settle(session: u64) -> i32 {
    driven(session, Session::settle)
}

/// Looks again at what the last call waits for.
#[unsafe(no_mangle)]
pub extern "C" fn tide_session_resume(session: u64) -> i32 {
    driven(session, Session::resume)
}

/// Looks again at what the last call waits for, and refuses it (`TIDE_BUDGET_EXCEEDED`) where it
/// waits for asynchronous uses alone that may themselves wait for the caller: sends and receives.
#[unsafe(no_mangle)]
pub extern "C" fn tide_session_resume_or_refuse(session: u64) -> i32 {
    driven(session, Session::resume_or_refuse)
}

/// Waits for a completion, at most `timeout_ms`, then looks again at what the last call waits for.
#[unsafe(no_mangle)]
pub extern "C" fn tide_session_wait(session: u64, timeout_ms: u32) -> i32 {
    wait_driven(session, Duration::from_millis(timeout_ms.into()))
}

/// The next request: returns `TIDE_ACTION` where there is one. The same request comes again until
/// it is reported done, or until its storage has died or has to move no more. Deprecated: version
/// 0.3 has callbacks alone (`tide_session_set_callbacks`).
///
/// # Safety
/// `action` points to one `tide_action`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_session_next_action(session: u64, action: *mut tide_action) -> i32 {
    with_session(session, |session| {
        let Some(request) = session.next_request() else { return Ok(Readiness::Ready) };
        // SAFETY: by this function's contract null or one tide_action of the caller's.
        unsafe { write_result(action, action_of(request), "action") }?;
        Ok(Readiness::Requests)
    })
}

/// Reports a request as done, with the storage's address where one was asked for (0: it cannot be
/// done), or the part's. On a GPU its memory is touched only once `after`, a `CUevent`, has
/// happened: the last kernel so far that writes an evicted storage, or uses what the memory of an
/// allocated one was before. Null: at once. When a storage is settled its bytes are there, for any
/// stream.
///
/// # Safety
/// `address` is 0 or that of the request's `size` bytes, on the session's GPU if it has one. They
/// stay alive, and for `TIDE_ALLOCATE` nobody else touches them after `after`, until the storage is
/// released or settled. So does the event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_session_action_done(
    session: u64,
    sequence: u64,
    address: u64,
    after: *mut c_void,
) -> i32 {
    with_session(session, |session| {
        // SAFETY: by this function's contract.
        let memory = unsafe { CallerMemory::new(sequence, address, after) };
        session.request_done(&memory)
    })
}

/// Completes `TIDE_ALLOCATE` on a GPU without a wait for the copies. When the storage is settled or
/// released, its bytes may still be on their way: by then the `CUevent` `landed` was recorded
/// behind them, and every stream that uses the bytes, or the memory, waits for it. It may be the
/// event that `after` is. Null: as `tide_session_action_done`.
///
/// # Safety
/// As for `tide_session_action_done`; and nobody else touches the memory before `landed` has
/// happened, also when the storage was settled or released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_session_allocated(
    session: u64,
    sequence: u64,
    address: u64,
    after: *mut c_void,
    landed: *mut c_void,
) -> i32 {
    with_session(session, |session| {
        // SAFETY: by this function's contract.
        let memory = unsafe { CallerMemory::new(sequence, address, after).with_landed(landed) };
        session.request_done(&memory)
    })
}

/// Figures of the session so far as JSON, written to `buffer`. Returns the text's length, 0 for a
/// stale handle.
///
/// # Safety
/// `buffer` is null or has `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_session_stats(
    session: u64,
    buffer: *mut c_char,
    capacity: usize,
) -> usize {
    let answer = || Ok(SESSIONS.get(session)?.stats_json());
    // SAFETY: by this function's contract.
    unsafe { write_answer(answer, buffer, capacity) }
}

/// Writes the plan's simulation of a step at the pace of the last one to `buffer`, as JSON:
/// `time_ns`, `stall_ns`, `stalls`, `bytes_written`, `bytes_read`; null where the last step
/// followed no plan to its end. Simulates, which may take a while. Returns the text's length, 0 for
/// a stale handle.
///
/// # Safety
/// `buffer` is null or has `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_session_simulate(
    session: u64,
    buffer: *mut c_char,
    capacity: usize,
) -> usize {
    let answer = || Ok(SESSIONS.get(session)?.simulated_json());
    // SAFETY: by this function's contract.
    unsafe { write_answer(answer, buffer, capacity) }
}

/// Writes the HTML report to the file `path`.
///
/// # Safety
/// `path` is NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_session_report(session: u64, path: *const c_char) -> i32 {
    with_session(session, |session| {
        // SAFETY: by this function's contract.
        let path = unsafe { text_argument(path, "path") }?;
        session.write_report(path.as_ref())
    })
}

/// Writes the trace of the step that the plan is for to the file `path`, as docs/plan.md has it.
/// Refused before there is a plan.
///
/// # Safety
/// `path` is NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_session_trace(session: u64, path: *const c_char) -> i32 {
    with_session(session, |session| {
        // SAFETY: by this function's contract.
        let path = unsafe { text_argument(path, "path") }?;
        session.write_trace(path.as_ref())
    })
}

/// Reports the time of each op of the step that is about to end, in nanoseconds: for ops that had
/// not run when they were reported as ended, such as kernels. Without this call the time between
/// the two reports counts.
///
/// # Safety
/// `durations` has `count` items.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_session_durations(
    session: u64,
    durations: *const u64,
    count: usize,
) -> i32 {
    with_session(session, |session| {
        // SAFETY: by this function's contract.
        let durations = unsafe { array_argument(durations, count, "durations") }?;
        session.durations(durations);
        Ok(())
    })
}

/// Reports what the caller has seen of the last complete step, for `tide_session_stats` and
/// `tide_session_report`: spans of each clock by time, without overlap. Those of a GPU say when
/// kernels ran, when it waited, and when it had nothing to do.
///
/// # Safety
/// `spans` has `count` items.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_session_step_spans(
    session: u64,
    spans: *const tide_step_span,
    count: usize,
) -> i32 {
    with_session(session, |session| {
        // SAFETY: by this function's contract.
        let spans = unsafe { array_argument(spans, count, "spans") }?;
        let told: Result<Vec<_>, _> = spans.iter().map(told).collect();
        session.step_spans(&told?);
        Ok(())
    })
}

fn told(span: &tide_step_span) -> Result<ToldSpan, Failure> {
    let &tide_step_span { began_ago, ended_ago, cause, clock } = span;
    let cause = match cause {
        TIDE_TIME_NOT_LAUNCHED => None,
        _ => Some(*TimeCause::ALL.get(cause as usize).ok_or_else(|| {
            Failure::invalid(format!(
                "{cause} is no cause of a span: take a TIDE_TIME_... constant"
            ))
        })?),
    };
    let (began_ago, ended_ago) = (Duration::from_nanos(began_ago), Duration::from_nanos(ended_ago));
    Ok(ToldSpan { began_ago, ended_ago, cause, of_thread: clock != TIDE_CLOCK_GPU })
}

/// The step follows the plan no longer: the caller saw that it does something else.
#[unsafe(no_mangle)]
pub extern "C" fn tide_session_leave_plan(session: u64) -> i32 {
    with_session(session, |session| {
        session.leave_plan();
        Ok(())
    })
}

/// Holds the first plan: with `on` non-zero it is not followed, once ready, until this is called
/// with 0: ranks of a distributed program begin to follow theirs in the same step. Returns 1 if it
/// is ready, so that the next step can follow it; else 0.
#[unsafe(no_mangle)]
pub extern "C" fn tide_session_hold_plan(session: u64, on: i32) -> i32 {
    with_session(session, |session| Ok(session.hold_plan(on != 0)))
}

/// Lets plans move parts of storages, and the caller is asked for parts. Before any storage is
/// born. Where storages are on a GPU only those that are called divisible move in parts.
#[unsafe(no_mangle)]
pub extern "C" fn tide_session_use_parts(session: u64) -> i32 {
    with_session(session, |session| {
        session.use_parts();
        Ok(())
    })
}

/// The memory that this storage has, and gets again when it has been out, can be given back in
/// parts: a plan may move parts of it from here on. Matters for a GPU's memory alone.
#[unsafe(no_mangle)]
pub extern "C" fn tide_session_divisible(session: u64, storage: u32) -> i32 {
    with_session(session, |session| session.divisible(storage))
}

/// Writes to `begin` where in its storage the part begins that the next request, which is number
/// `sequence`, is about, in bytes. A multiple of 2 MiB.
///
/// # Safety
/// `begin` points to one `uint64_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_session_part_begin(
    session: u64,
    sequence: u64,
    begin: *mut u64,
) -> i32 {
    with_session(session, |session| {
        let at = session.part_begin(sequence)?;
        // SAFETY: by this function's contract null or one u64 of the caller's.
        unsafe { write_result(begin, at, "begin") }
    })
}

/// The plan's triggers: in `due` one byte per op, non-zero where a migration begins, and in `count`
/// how many; 0 while there is no plan. They stay where they are until the next step begins, which
/// may bring another plan for the same ops.
///
/// # Safety
/// `due` points to one pointer and `count` to one `uint64_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_session_plan(
    session: u64,
    due: *mut *const u8,
    count: *mut u64,
) -> i32 {
    with_session(session, |session| {
        // The session keeps these bytes until the next step begins.
        let plan = session.due();
        let (address, ops) =
            plan.map_or((std::ptr::null(), 0), |plan| (plan.as_ptr(), plan.len() as u64));
        // SAFETY: by this function's contract.
        unsafe { write_result(due, address, "due") }?;
        // SAFETY: by this function's contract.
        unsafe { write_result(count, ops, "count") }?;
        Ok(())
    })
}

/// Chooses which of these regions of the planned step are better run once, so that what they make
/// stays or moves: looked for from here on, beside the training. Refused before there is a plan.
///
/// # Safety
/// `regions` has `count` items.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_session_choose_regions(
    session: u64,
    regions: *const tide_region,
    count: usize,
) -> i32 {
    with_session(session, |session| {
        // SAFETY: by this function's contract.
        let regions = unsafe { array_argument(regions, count, "regions") }?;
        session.choose_regions(regions.iter().map(region_of).collect())
    })
}

/// Names ops of the planned step that write the same bytes, as the caller has compared them, for
/// the next `tide_session_choose_regions`: what is gathered from other ranks once more, for one.
/// What reads the bytes of either is taken to read the same. The caller compares them in later
/// steps, too.
///
/// From the first call on, which may name none, a storage is one and the same in all of a step,
/// also where that empties it and fills it again; before, plans have each such time as a storage of
/// its own.
///
/// # Safety
/// `pairs` has `count` items.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_session_same_writes(
    session: u64,
    pairs: *const tide_same_writes,
    count: usize,
) -> i32 {
    with_session(session, |session| {
        // SAFETY: by this function's contract.
        let pairs = unsafe { array_argument(pairs, count, "pairs") }?;
        let same = |pair: &tide_same_writes| SameWrites { first: pair.first, later: pair.later };
        session.same_writes(pairs.iter().map(same).collect());
        Ok(())
    })
}

/// The choice that was asked for, as JSON, written to `buffer`: `once`, the regions that are better
/// run once, by their places; `best`, those that run once in the best choice, however little it
/// brings; `refused`, a list of places each with why that region cannot be; `tried` and
/// `without_room`, how many choices were looked at and how many of them the pool has no room for;
/// `own_ns`, `none_ns` and `best_ns`, what a step is expected to take with all run twice, with none
/// and with the best choice. Or `why_not` alone; null while it is being made. Returns the text's
/// length, 0 for a stale handle.
///
/// # Safety
/// `buffer` is null or has `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_session_chosen_regions(
    session: u64,
    buffer: *mut c_char,
    capacity: usize,
) -> usize {
    let answer = || Ok(SESSIONS.get(session)?.chosen_regions_json());
    // SAFETY: by this function's contract.
    unsafe { write_answer(answer, buffer, capacity) }
}

/// Restarts learning between two steps: those to come are others. There is no plan from here on;
/// they are recorded and planned for as the first ones were.
#[unsafe(no_mangle)]
pub extern "C" fn tide_session_learn_again(session: u64) -> i32 {
    with_session(session, |session| {
        session.learn_again();
        Ok(())
    })
}
