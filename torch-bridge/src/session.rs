//! The executor: carries out what the residency machine decides.
//!
//! One thread drives a session at op boundaries. The machine answers every event with actions: those
//! that move bytes become puts, gets and verifications of the engine or of host memory, those that free or allocate
//! become requests to the caller, who owns the memory. Completions are taken in at the next boundary.

mod carrier;
mod data_path;
mod drift;
mod events;
mod figures;
mod history;
mod links;
mod open;
mod planned;
mod planning;
mod profile;
mod report;
mod simulated;
mod stats;
mod transfers;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tidelog_engine::schedule::CompletionQueue;
use tidelog_gds::HostTier;
use tidelog_planner::residency::{Action, Progress, Residency, StorageId, TransferId, Use};
use tidelog_planner::trace::Kind;
use tidelog_planner::units::Bytes;

use figures::Figures;
use history::{History, Label};
use links::Links;
use open::Lease;
use planned::Planned;
use planning::Planning;
use profile::Profile;
use transfers::InFlight;

use crate::abi::Place;

pub(crate) use events::{Birth, Op};
pub(crate) use open::{SessionConfig, open_pool};
pub(crate) use planned::Policy;

/// An open session.
pub(crate) struct Session {
    pool: Lease,
    /// Host memory in front of the pool, where storages are a GPU's.
    tier: Option<HostTier>,
    completions: CompletionQueue,
    place: Place,
    state: Mutex<State>,
}

struct State {
    machine: Residency,
    staging: Bytes,
    links: Links,
    known: HashMap<StorageId, Known>,
    in_flight: HashMap<TransferId, InFlight>,
    requests: VecDeque<Request>,
    next_sequence: u64,
    /// Pinned until the next op, because the caller could not let them go.
    declined: Vec<StorageId>,
    /// High half of the ids under which this session's storages lie in the log.
    log_prefix: u64,
    /// An error that the machine answered while requests had to be carried out first.
    held: Option<Progress>,
    /// Storages whose transfer the pool did not take: it is full, not broken.
    refused_by_pool: HashSet<StorageId>,
    figures: Figures,
    history: History,
    /// Bytes of storages on which a transfer is in flight.
    moving: u64,
    profile: Profile,
    planned: Option<Planned>,
    /// Whether the last step followed the plan to its end.
    last_followed: bool,
    planning: Planning,
    policy: Policy,
    op: CurrentOp,
    waiting: Option<Waiting>,
    /// Since when the caller has been answering requests.
    handing_out: Option<Instant>,
    actions: Vec<Action>,
    uses: Vec<Use>,
    notices: Vec<String>,
}

/// What the session knows of a storage beyond what the machine does.
struct Known {
    size: u64,
    kind: Kind,
    name: Option<Arc<str>>,
    movable: bool,
    /// The op of its step that made it, and which output it is.
    birth: Option<(u32, u16)>,
    /// How often the caller has pinned it.
    pins: u32,
}

/// The op that was begun last.
#[derive(Default)]
struct CurrentOp {
    name: String,
    index: Option<u32>,
    /// Asked for, and not ended yet.
    open: bool,
    /// When it was told to go.
    running_since: Option<Instant>,
}

/// What a call waits for: from the first time it had to until it is ready.
struct Waiting {
    since: Instant,
    /// The first storage that was not there; `None`: room.
    storage: Option<Label>,
}

/// What only the caller can do to a storage's memory; the numbers are the ABI's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestKind {
    Evict = 1,
    Release = 2,
    Allocate = 3,
    Settle = 4,
}

/// A request to the caller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) sequence: u64,
    pub(crate) kind: RequestKind,
    pub(crate) storage: u32,
    pub(crate) size: u64,
    /// The transfer that starts once the caller has answered with an address.
    transfer: Option<TransferId>,
}

impl Session {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic inside a call is reported by that call; the tables behind the lock stay usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn request(
        &mut self,
        kind: RequestKind,
        storage: StorageId,
        size: u64,
        transfer: Option<TransferId>,
    ) {
        self.next_sequence += 1;
        let sequence = self.next_sequence;
        self.requests.push_back(Request { sequence, kind, storage: storage.0, size, transfer });
    }

    fn kind_of(&self, storage: StorageId) -> Kind {
        self.known.get(&storage).map_or(Kind::Other, |known| known.kind)
    }

    fn label(&self, storage: StorageId) -> Label {
        let known = self.known.get(&storage);
        Label {
            storage: storage.0,
            name: known.and_then(|known| known.name.clone()),
            birth: known.and_then(|known| known.birth),
        }
    }

    /// Keeps how much memory is taken now, for the report.
    fn sample(&mut self) {
        let committed = self.machine.committed().0;
        let wanted = committed + self.machine.evicted().0;
        let resident = committed.saturating_sub(self.moving);
        self.history.sample(Instant::now(), resident, self.moving, wanted);
    }

    fn size_of(&self, storage: StorageId) -> u64 {
        self.known.get(&storage).map_or(0, |known| known.size)
    }
}
