//! A framework as small as can be: storages on the heap or on a GPU, driven through the C ABI as
//! Python drives them. It knows what every byte must be, and checks it whenever it may look.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, c_char, c_void};
use std::path::PathBuf;
use std::ptr::{null, null_mut};

use tidelog::abi::*;

use tidelog_engine::pool::Pool;
use tidelog_gds::cuda::Event;

use super::Choices;
use super::callbacks;
use super::compute_device::{ComputeDevice, Room, raw};
use super::storage::FrameworkStorage;

/// Bytes of staging of every session here.
pub const STAGING: u64 = 512 << 10;

/// The text of this thread's last error.
pub fn last_error() -> String {
    let mut text = vec![0_u8; 4096];
    // SAFETY: the buffer has as many bytes as it says; null is allowed for the storage.
    let length =
        unsafe { tide_last_error(text.as_mut_ptr().cast(), text.len(), std::ptr::null_mut()) };
    text.truncate(length);
    String::from_utf8(text).unwrap()
}

/// A fresh folder that is removed again.
pub struct Folder(
    /// Path of the folder.
    pub PathBuf,
);

impl Folder {
    /// An empty folder that nobody else uses under this name.
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tidelog-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Returns the path as C takes it.
    pub fn text(&self) -> CString {
        CString::new(self.0.to_str().unwrap()).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns the start of the part that a request is about.
fn part_begin(session: u64, action: &tide_action) -> usize {
    let mut begin = 0;
    // SAFETY: one number of ours.
    let told = unsafe { tide_session_part_begin(session, action.sequence, &raw mut begin) };
    assert_eq!(told, TIDE_READY, "{}", last_error());
    begin as usize
}

/// Delivery of a session's requests to a framework.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum Delivery {
    /// Pull: the framework takes request after request.
    #[default]
    Pulled,
    /// The session calls back.
    Callbacks,
}

/// Fidelity of the framework to requests.
#[derive(Clone, Copy, Default)]
pub struct CallerBehaviour {
    /// Percentage of requests that are taken twice before they are reported done.
    pub redelivered: u64,
    /// Percentage of requests to move or allocate that are answered with 0.
    pub refused: u64,
    /// Percentage of requests that are preceded by a report under another number.
    pub misreported: u64,
    /// True if the storages are on GPU 0, and not in host memory.
    pub gpu: bool,
    /// True if transfers go by cuFile.
    pub gds: bool,
    /// Host memory that takes a GPU's storages first, in bytes.
    pub host_memory: u64,
    /// True if parts of storages may move.
    pub parts: bool,
    /// Delivery of the session's requests.
    pub delivery: Delivery,
    /// Percentage of callbacks that end the call that has called them.
    pub interrupted: u64,
    /// Percentage of running ops and requests inside of which another op runs.
    pub nested: u64,
}

/// The most ops that are around one.
const DEPTH_MAX: u32 = 3;

/// A session and the framework's side of it.
pub struct Framework {
    /// The handle.
    pub session: u64,
    /// Budget of the session.
    pub budget: u64,
    choices: Choices,
    manners: CallerBehaviour,
    device: ComputeDevice,
    storages: BTreeMap<u32, FrameworkStorage>,
    /// Memory of storages that died with a transfer in flight: kept until the session is closed.
    parked: Vec<(Option<Room>, [Option<Event>; 2])>,
    parked_numbers: BTreeSet<u32>,
    /// Number of ops and requests around the present one.
    depth: u32,
    /// Bytes of outputs that ops around may make yet.
    granted: Vec<usize>,
    /// Storages of the requests in progress.
    in_hand: Vec<u32>,
    /// Storages that ops around use.
    used: Vec<u32>,
    births: Vec<tide_birth>,
    deaths: Vec<u32>,
    /// Folder of the pool, if it has one.
    _folder: Option<Folder>,
}

impl Framework {
    /// Opens a session on a pool of its own.
    pub fn open(name: &str, budget: u64, seed: u64, manners: CallerBehaviour) -> Self {
        let folder = Folder::new(name);
        let devices = folder.text();
        let options = tide_session_options {
            size: size_of::<tide_session_options>() as u64,
            devices: devices.as_ptr(),
            data_path: if manners.gds { c"gds" } else { c"auto" }.as_ptr(),
            budget,
            staging: STAGING,
            host_memory: manners.host_memory,
            pool_size: 128 << 20,
            share: 0,
            buffered: u8::from(!manners.gds),
            reactive: 0,
            policy: 0,
            gpu: u8::from(manners.gpu),
            must_exist: 0,
            share_count: 0,
            sparse: 0,
            degraded: 0,
        };
        let mut session = 0;
        // SAFETY: the options' texts are NUL-terminated and alive; the result is ours.
        let opened = unsafe { tide_session_open(&raw const options, &raw mut session) };
        assert_eq!(opened, TIDE_READY, "{}", last_error());
        if manners.parts {
            assert_eq!(tide_session_use_parts(session), TIDE_READY, "{}", last_error());
        }
        Self::with(session, budget, seed, manners, Some(folder))
    }

    /// Opens a session on a pool that is open already.
    pub fn on(pool: Pool, budget: u64, seed: u64) -> Self {
        let session = session_on(pool, budget, STAGING);
        Self::with(session, budget, seed, CallerBehaviour::default(), None)
    }

    fn with(
        session: u64,
        budget: u64,
        seed: u64,
        manners: CallerBehaviour,
        folder: Option<Folder>,
    ) -> Self {
        Self {
            session,
            budget,
            choices: Choices::of_seed(seed),
            manners,
            device: ComputeDevice::of(manners.gpu),
            storages: BTreeMap::new(),
            parked: Vec::new(),
            parked_numbers: BTreeSet::new(),
            depth: 0,
            granted: Vec::new(),
            in_hand: Vec::new(),
            used: Vec::new(),
            births: Vec::new(),
            deaths: Vec::new(),
            _folder: folder,
        }
    }

    /// The numbers of the storages that live.
    pub fn numbers(&self) -> Vec<u32> {
        self.storages.keys().copied().collect()
    }

    /// Returns whether the framework may decline what it is asked for.
    pub fn may_refuse(&self) -> bool {
        self.manners.refused > 0
    }

    /// The first number that a storage may have.
    pub fn first_number(&self) -> u32 {
        if self.manners.parts { TIDE_PART_NUMBERS } else { 0 }
    }

    fn is_free(&self, n: u32) -> bool {
        !self.storages.contains_key(&n)
            && !self.parked_numbers.contains(&n)
            && !self.in_hand.contains(&n)
            && !self.deaths.contains(&n)
    }

    /// A number that no storage has.
    pub fn free_number(&self) -> u32 {
        (self.first_number()..u32::MAX).find(|&number| self.is_free(number)).unwrap()
    }

    /// Returns a free number inside ops, which none of them is about to give.
    fn free_number_inside(&self) -> u32 {
        let first = self.first_number() + (self.depth << 10);
        (first..u32::MAX).find(|&number| self.is_free(number)).unwrap()
    }

    /// A storage comes into being with some bytes in it, told at the next call.
    pub fn make(&mut self, number: u32, size: usize, place: Option<(u32, u16)>) {
        let seed = self.choices.content();
        let mut memory = self.device.room(size, 0);
        let last_use = self.kernel(|| memory.fill(seed, size));
        let memory = Some(memory);
        let storage =
            FrameworkStorage { size, seed, memory, last_use, ..FrameworkStorage::default() };
        assert!(self.storages.insert(number, storage).is_none());
        let place = place
            .map_or(u64::from(u32::MAX) << 16, |(op, slot)| u64::from(op) << 16 | u64::from(slot));
        self.births.push(tide_birth { storage: number.into(), size: size as u64, place });
    }

    /// A storage's last reference goes, told at the next call.
    pub fn kill(&mut self, number: u32) {
        let storage = self.storages.remove(&number).unwrap();
        if storage.moves() {
            self.parked.push((storage.memory, [storage.after, storage.last_use]));
            self.parked_numbers.insert(number);
        }
        self.deaths.push(number);
    }

    /// Tells the session who came into being and who died.
    pub fn sync(&mut self) {
        let (births, deaths) = (std::mem::take(&mut self.births), std::mem::take(&mut self.deaths));
        // SAFETY: both lists have as many items as they say.
        let told = unsafe {
            let (born, dead) = (births.as_ptr(), deaths.as_ptr());
            tide_session_sync(self.session, born, births.len(), dead, deaths.len())
        };
        assert_eq!(told, TIDE_READY, "{}", last_error());
    }

    /// Calls a function of the session, which may call back.
    pub fn call(&mut self, function: impl FnOnce(u64) -> i32) -> i32 {
        let session = self.session;
        if self.manners.delivery == Delivery::Pulled {
            return function(session);
        }
        let called = callbacks::of(self);
        // SAFETY: `called` has functions for a framework, which nobody else uses during the call;
        // afterwards they are taken back.
        unsafe {
            let set = tide_session_set_callbacks(session, &raw const called);
            assert_eq!(set, TIDE_READY, "{}", last_error());
            let status = function(session);
            let taken = tide_session_set_callbacks(session, null());
            assert_eq!(taken, TIDE_READY, "{}", last_error());
            status
        }
    }

    /// Does what is asked and waits where it must, until the answer is ready or an error.
    pub fn drive(&mut self, mut status: i32) -> i32 {
        for _ in 0..200_000 {
            status = match status {
                TIDE_INTERRUPTED if self.manners.interrupted > 0 => {
                    self.sync();
                    self.call(|session| tide_session_resume(session))
                }
                TIDE_ACTION => {
                    while self.perform_one() {}
                    self.sync();
                    tide_session_resume(self.session)
                }
                TIDE_WAITING => {
                    let milliseconds = self.about_to_wait();
                    tide_session_wait(self.session, milliseconds)
                }
                ended => return ended,
            }
        }
        panic!("the session never came to an end");
    }

    /// Returns the limit of the wait in milliseconds. An asynchronous use may end first.
    pub(super) fn about_to_wait(&mut self) -> u32 {
        self.sync();
        let used = self.storages.iter().find(|(_, storage)| storage.async_use);
        let used = used.map(|(&number, _)| number);
        if let Some(number) = used.filter(|_| self.choices.percent(30)) {
            self.async_use(number, false);
        }
        if used.is_some() { 1 } else { 50 }
    }

    /// Performs the next request, if there is one.
    pub fn perform_one(&mut self) -> bool {
        let mut action = tide_action::default();
        let mut again = true;
        let (address, after) = loop {
            // SAFETY: one action of ours.
            match unsafe { tide_session_next_action(self.session, &raw mut action) } {
                TIDE_ACTION => {}
                TIDE_READY => return false,
                error => panic!("next action: {error}: {}", last_error()),
            }
            let memory = self.perform_among_others(&action, None);
            if !again || !self.choices.percent(self.manners.redelivered) {
                break memory;
            }
            again = false;
        };
        // What was begun around it is not to be reported here.
        if self.depth == 0 && self.choices.percent(self.manners.misreported) {
            let earlier = self.choices.percent(50);
            let sequence = if earlier { action.sequence - 1 } else { action.sequence + (1 << 40) };
            // SAFETY: the number is not the next one's: nothing is done with the address.
            let answer =
                unsafe { tide_session_action_done(self.session, sequence, address, after) };
            assert_eq!(answer, if earlier { TIDE_READY } else { TIDE_INVALID_ARGUMENT });
        }
        let landed = self.landed(action.kind, after);
        // SAFETY: 0, or the address of the storage's memory, which stays until release or
        // settlement, as does the event; from then on the device's stream waits for it.
        let answer = unsafe {
            match action.kind {
                TIDE_ALLOCATE => {
                    let (session, sequence) = (self.session, action.sequence);
                    tide_session_allocated(session, sequence, address, after, landed)
                }
                _ => tide_session_action_done(self.session, action.sequence, address, after),
            }
        };
        assert_eq!(answer, TIDE_READY, "{}", last_error());
        true
    }

    /// The event that is behind a fetch, if it may end before: half of what comes to a GPU does so.
    fn landed(&mut self, kind: u32, after: *mut c_void) -> *mut c_void {
        let early = kind == TIDE_ALLOCATE && !after.is_null() && self.choices.percent(50);
        if early { after } else { null_mut() }
    }

    /// Does what a callback is asked for. Returns what it says, and the memory.
    pub(super) fn called_back(&mut self, action: &tide_action, begin: u64) -> (i32, tide_memory) {
        let (address, after) = self.perform_among_others(action, Some(begin as usize));
        let landed = self.landed(action.kind, after);
        let storage = self.storages.get(&action.storage).filter(|_| action.kind == TIDE_EVICT);
        let last_use = raw(storage.and_then(|storage| storage.last_use.as_ref()));
        (self.end_of_callback(), tide_memory { address, after, landed, last_use })
    }

    /// A kernel gives a storage that is in memory other bytes.
    fn overwrite(&mut self, number: u32, seed: u64) {
        let storage = self.storages.get_mut(&number).unwrap();
        let size = storage.size;
        let mut memory = storage.memory.take().expect("what is written is in memory");
        let last_use = self.kernel(|| memory.fill(seed, size));
        let storage = self.storages.get_mut(&number).unwrap();
        (storage.seed, storage.memory, storage.last_use) = (seed, Some(memory), last_use);
    }

    /// Launches a kernel. Returns the event that is behind it; where the framework does not know
    /// of it, one that is before.
    fn kernel(&mut self, launch: impl FnOnce()) -> Option<Event> {
        let before = self.device.now();
        launch();
        let is_unknown = before.is_some() && self.choices.percent(20);
        if is_unknown { before } else { self.device.now() }
    }

    /// Returns the result of a callback that has not failed.
    pub(super) fn end_of_callback(&mut self) -> i32 {
        self.sync();
        if self.choices.percent(self.manners.interrupted) { TIDE_INTERRUPTED } else { TIDE_READY }
    }

    /// Performs a request, with ops inside it by chance. Returns the memory's address and event.
    fn perform_among_others(
        &mut self,
        action: &tide_action,
        begin: Option<usize>,
    ) -> (u64, *mut c_void) {
        self.in_hand.push(action.storage);
        self.nested_op();
        let address = self.perform(action, begin);
        self.nested_op();
        self.in_hand.pop();
        let storage = self.storages.get(&action.storage);
        (address, raw(storage.and_then(|storage| storage.after.as_ref())))
    }

    /// `begin`: where the part begins, if a callback has said so.
    fn perform(&mut self, action: &tide_action, begin: Option<usize>) -> u64 {
        let refused = self.choices.percent(self.manners.refused);
        let Some(storage) = self.storages.get_mut(&action.storage) else { return 0 };
        if action.kind > TIDE_SETTLE {
            let begin = begin.unwrap_or_else(|| part_begin(self.session, action));
            return storage.perform_part(action, begin, refused);
        }
        match action.kind {
            TIDE_EVICT | TIDE_ALLOCATE if refused && !storage.in_flight => 0,
            TIDE_EVICT => {
                assert!(!storage.async_use, "storage {} is in use", action.storage);
                assert_eq!(action.size, storage.size as u64);
                storage.in_flight = true;
                storage.after = self.device.now();
                storage.memory.as_ref().expect("what is evicted is in memory").address()
            }
            TIDE_ALLOCATE => {
                assert_eq!(action.size, storage.size as u64);
                storage.in_flight = true;
                storage.after = self.device.now();
                let size = storage.size;
                storage.memory.get_or_insert_with(|| self.device.room(size, 0xCD)).address()
            }
            TIDE_RELEASE => {
                self.device.wait_for(storage.after.as_ref());
                assert!(!storage.async_use, "storage {} is in use", action.storage);
                storage.memory = None;
                storage.in_flight = false;
                0
            }
            TIDE_SETTLE => {
                self.device.wait_for(storage.after.as_ref());
                let memory = storage.memory.as_ref().expect("what is settled is in memory");
                memory.check(storage.seed, storage.size, action.storage);
                storage.in_flight = false;
                storage.last_use = self.device.now();
                0
            }
            kind => panic!("request of unknown kind {kind}"),
        }
    }

    /// Runs an op that uses storages, changes some, and makes others. Returns whether it fitted.
    pub fn op(
        &mut self,
        (index, name, fingerprint): (i64, &str, u64),
        uses: &[(u32, bool)],
        outputs: &[(u32, usize)],
    ) -> bool {
        let around = self.used.len();
        self.used.extend(uses.iter().map(|&(number, _)| number));
        let fitted = self.run_op((index, name, fingerprint), uses, outputs);
        self.used.truncate(around);
        fitted
    }

    fn run_op(
        &mut self,
        (index, name, fingerprint): (i64, &str, u64),
        uses: &[(u32, bool)],
        outputs: &[(u32, usize)],
    ) -> bool {
        let status = self.begin_op((index, name, fingerprint), uses, outputs);
        match self.drive(status) {
            TIDE_READY => {}
            TIDE_BUDGET_EXCEEDED => {
                self.check_refusal(uses, outputs);
                return false;
            }
            // It needs what the caller has begun to move around it.
            TIDE_BUSY if self.depth > 0 => {
                assert!(last_error().contains("inside another op"), "{}", last_error());
                return false;
            }
            TIDE_DEVICE_FAILED => {
                let text = last_error();
                assert!(self.manners.refused > 0 && text.contains("no memory"), "{text}");
                return false;
            }
            status => panic!("op begin: {status}: {}", last_error()),
        }
        let made: usize = outputs.iter().map(|&(_, size)| size).sum();
        self.check_budget(made);
        self.granted.push(made);
        self.nested_op();
        self.granted.pop();
        for &(number, modifies) in uses {
            let seed = self.choices.content();
            let storage = &self.storages[&number];
            let memory = storage.memory.as_ref().expect("an op may run: its storages are there");
            memory.check(storage.seed, storage.size, number);
            if modifies {
                assert!(!storage.moves(), "an op changes storage {number} while it moves");
                self.overwrite(number, seed);
            }
        }
        for (slot, &(number, size)) in outputs.iter().enumerate() {
            let place = u32::try_from(index).ok().map(|op| (op, slot as u16));
            self.make(number, size, place);
        }
        self.sync();
        let status = self.call(|session| tide_session_op_end(session));
        let status = self.drive(status);
        if status == TIDE_READY {
            self.check_budget(0);
        }
        true
    }

    /// Runs an op in the middle of another, or of a request, as a signal handler or a finalizer
    /// may.
    fn nested_op(&mut self) {
        if self.depth == DEPTH_MAX || !self.choices.percent(self.manners.nested) {
            return;
        }
        let numbers = self.numbers();
        let mut uses = BTreeMap::new();
        for _ in 0..self.choices.below(3).min(numbers.len() as u64) {
            let number = numbers[self.choices.below(numbers.len() as u64) as usize];
            uses.insert(number, self.choices.percent(50));
        }
        let uses: Vec<_> = uses.into_iter().collect();
        self.inside(|framework| {
            let size = (framework.choices.below(64 << 10) + 1) as usize;
            let makes = framework.storages.len() < 100 && framework.choices.percent(30);
            let makes = makes.then(|| (framework.free_number_inside(), size));
            let index = i64::from(framework.depth) - 2;
            framework.op((index, "nested", 0), &uses, makes.as_slice());
            framework.death_inside();
        });
    }

    /// A storage may die that no op around uses.
    fn death_inside(&mut self) {
        let mut numbers = self.numbers();
        numbers.retain(|number| !self.used.contains(number));
        if !numbers.is_empty() && self.choices.percent(20) {
            let dies = numbers[self.choices.below(numbers.len() as u64) as usize];
            self.kill(dies);
            self.sync();
        }
    }

    /// Does this inside the op, or the request, that it is in the middle of.
    pub fn inside<T>(&mut self, does: impl FnOnce(&mut Self) -> T) -> T {
        self.depth += 1;
        let entered = tide_session_nest(self.session, self.depth);
        assert!(entered >= 0, "{}", last_error());
        let done = does(self);
        self.depth -= 1;
        let left = tide_session_nest(self.session, self.depth);
        assert!(left >= 0, "{}", last_error());
        done
    }

    /// Performs the next request, and does this in the middle of it.
    pub fn perform_one_around<T>(&mut self, does: impl FnOnce(&mut Self) -> T) -> T {
        let mut action = tide_action::default();
        // SAFETY: one action of ours.
        let next = unsafe { tide_session_next_action(self.session, &raw mut action) };
        assert_eq!(next, TIDE_ACTION, "{}", last_error());
        let done = self.inside(does);
        let address = self.perform(&action, None);
        // SAFETY: 0, or the address of the storage's memory, which stays until release or
        // settlement.
        let answer =
            unsafe { tide_session_action_done(self.session, action.sequence, address, null_mut()) };
        assert_eq!(answer, TIDE_READY, "{}", last_error());
        done
    }

    /// Begins an op, and returns what the session said.
    pub fn begin_op(
        &mut self,
        (index, name, fingerprint): (i64, &str, u64),
        uses: &[(u32, bool)],
        outputs: &[(u32, usize)],
    ) -> i32 {
        self.sync();
        let name = CString::new(name).unwrap();
        let words: Vec<u32> = uses
            .iter()
            .map(|&(n, modifies)| n | if modifies { TIDE_MODIFIES } else { 0 })
            .collect();
        let needs = outputs.iter().map(|&(_, size)| size as u64).sum();
        let (name, uses) = (name.as_ptr(), words.as_ptr());
        // SAFETY: the name is NUL-terminated, the uses are as many as they say.
        self.call(|session| unsafe {
            tide_session_op_begin(session, index, fingerprint, name, uses, words.len(), needs)
        })
    }

    /// Bytes in memory, and those to come, which the budget allows.
    fn check_budget(&self, to_come: usize) {
        let held: usize = self.storages.values().map(FrameworkStorage::held).sum();
        let granted: usize = self.granted.iter().sum();
        let taken = (held + granted + to_come) as u64 + STAGING;
        assert!(taken <= self.budget, "{taken} bytes are taken of a budget of {}", self.budget);
    }

    /// A refusal is right only where the op, and what cannot move, exceed the budget.
    fn check_refusal(&mut self, uses: &[(u32, bool)], outputs: &[(u32, usize)]) {
        let mut needed: BTreeSet<u32> = uses.iter().map(|&(number, _)| number).collect();
        needed.extend(self.storages.iter().filter(|(_, s)| s.pins > 0).map(|(&number, _)| number));
        let held: usize = needed.iter().map(|number| self.storages[number].size).sum();
        let made: usize = outputs.iter().map(|&(_, size)| size).sum();
        let text = last_error();
        if self.manners.refused > 0 || self.manners.nested > 0 {
            return; // what was declined, or an op around uses, stays in the way of the op
        }
        assert!((held + made) as u64 + STAGING > self.budget, "refused, but it fits: {text}");
    }

    /// Pins a storage, or releases one of its pins.
    pub fn pin(&mut self, number: u32, on: bool) {
        self.sync();
        let storage = self.storages.get_mut(&number).unwrap();
        if !on && storage.pins == 0 {
            return;
        }
        storage.pins = if on { storage.pins + 1 } else { storage.pins - 1 };
        assert_eq!(tide_session_pin(self.session, number, i32::from(on)), TIDE_READY);
    }

    /// An op that has ended uses the storage still, or no longer.
    pub fn async_use(&mut self, number: u32, on: bool) {
        self.sync();
        self.storages.get_mut(&number).unwrap().async_use = on;
        let told = tide_session_async_use(self.session, number, i32::from(on));
        assert_eq!(told, TIDE_READY, "{}", last_error());
    }

    /// Asks for a storage to leave.
    pub fn evict(&mut self, number: u32) {
        self.sync();
        let status = self.call(|session| tide_session_evict(session, number));
        let status = self.drive(status);
        assert!(matches!(status, TIDE_READY | TIDE_INVALID_ARGUMENT), "{}", last_error());
    }

    /// Has all leave that can, and go on.
    pub fn pause(&mut self, at_once: bool) {
        self.sync();
        let status = self.call(|session| tide_session_pause(session));
        let status = self.drive(status);
        let is_usual =
            [TIDE_READY, TIDE_INVALID_ARGUMENT, TIDE_INTERRUPTED, TIDE_BUSY].contains(&status);
        assert!(is_usual, "{status}: {}", last_error());
        if status == TIDE_READY {
            let here = self.storages.values().filter(|it| it.memory.is_some() && it.size > 0);
            let here = here.count();
            assert!(here == 0 || self.manners.refused > 0, "{here} storages stay in a pause");
            let began = self.call(|session| tide_session_step(session, 1));
            assert_eq!(began, TIDE_INVALID_ARGUMENT, "a step begins in a pause");
        }
        let status = self.call(|session| tide_session_go_on(session, i32::from(at_once)));
        let status = self.drive(status);
        let may_fail = self.manners.refused > 0 || status == TIDE_INTERRUPTED;
        assert!(status == TIDE_READY || may_fail, "{status}: {}", last_error());
    }

    /// Writes a storage without an op, if it is in memory and nothing moves it.
    pub fn write_beside(&mut self, number: u32) {
        self.sync();
        let seed = self.choices.content();
        let storage = &self.storages[&number];
        if storage.memory.is_some() && !storage.moves() && storage.out.is_empty() {
            self.overwrite(number, seed);
            assert_eq!(tide_session_modified(self.session, number), TIDE_READY, "{}", last_error());
        }
    }

    /// Marks a step: 1 begins one, 0 ends it.
    pub fn step(&mut self, mark: i32) {
        self.sync();
        let status = self.call(|session| tide_session_step(session, mark));
        self.drive(status);
    }

    /// Changes the budget.
    pub fn set_budget(&mut self, budget: u64) {
        self.budget = budget;
        assert_eq!(tide_session_set_budget(self.session, budget), TIDE_READY);
    }

    /// The session's figures.
    pub fn stats(&self) -> serde_json::Value {
        self.told_by(tide_session_stats)
    }

    /// Returns the plan's simulation of the last step; null where that followed none.
    pub fn simulated(&self) -> serde_json::Value {
        self.told_by(tide_session_simulate)
    }

    fn told_by(
        &self,
        tell: unsafe extern "C" fn(u64, *mut c_char, usize) -> usize,
    ) -> serde_json::Value {
        // SAFETY: null with no capacity asks for the length; then the buffer is as long as it says.
        let text = unsafe {
            let length = tell(self.session, std::ptr::null_mut(), 0);
            let mut text = vec![0_u8; length + 65];
            let written = tell(self.session, text.as_mut_ptr().cast::<c_char>(), text.len());
            text.truncate(written);
            text
        };
        serde_json::from_slice(&text).unwrap()
    }

    /// Touches every storage, whose bytes must all be right, and closes the session.
    pub fn end(mut self) {
        self.manners = CallerBehaviour::default();
        for number in self.numbers() {
            assert!(self.op((-1, "look", 0), &[(number, false)], &[]), "{}", last_error());
        }
        assert_eq!(tide_session_close(self.session), TIDE_READY, "{}", last_error());
        assert_eq!(tide_session_close(self.session), TIDE_STALE_HANDLE);
    }
}
