//! The executor: carries out what the residency machine decides.
//!
//! One thread drives a session at op boundaries. The machine answers every event with actions: those
//! that move bytes become puts, gets and verifications of the engine, those that free or allocate
//! become requests to the caller, who owns the memory. Completions are taken in at the next boundary.

mod events;
mod figures;
mod open;
mod planned;
mod profile;
mod stats;
mod transfers;

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tidelog_engine::pool::Pool;
use tidelog_engine::schedule::CompletionQueue;
use tidelog_planner::residency::{Action, Progress, Residency, StorageId, TransferId, Use};
use tidelog_planner::trace::Kind;
use tidelog_planner::units::Bytes;

use figures::Figures;
use planned::Planned;
use profile::Profile;
use transfers::InFlight;

pub(crate) use events::{Birth, Op};
pub(crate) use open::{SessionConfig, open_pool};

/// An open session.
pub(crate) struct Session {
    pool: Pool,
    completions: CompletionQueue,
    state: Mutex<State>,
}

struct State {
    machine: Residency,
    staging: Bytes,
    known: HashMap<StorageId, Known>,
    in_flight: HashMap<TransferId, InFlight>,
    requests: VecDeque<Request>,
    next_sequence: u64,
    /// High half of the ids under which this session's storages lie in the log.
    log_prefix: u64,
    /// An error that the machine answered while requests had to be carried out first.
    held: Option<Progress>,
    figures: Figures,
    profile: Profile,
    planned: Option<Planned>,
    /// The name of the op that is being begun, for errors.
    op_name: String,
    waiting_since: Option<Instant>,
    actions: Vec<Action>,
    uses: Vec<Use>,
    notices: Vec<String>,
}

/// What the session knows of a storage beyond what the machine does.
struct Known {
    size: u64,
    kind: Kind,
    name: Option<String>,
    movable: bool,
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

    fn size_of(&self, storage: StorageId) -> u64 {
        self.known.get(&storage).map_or(0, |known| known.size)
    }
}
