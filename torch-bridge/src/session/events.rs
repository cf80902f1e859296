//! What the caller reports, handed to the machine; and the answer that each call gives.

use std::time::{Duration, Instant};

use tidelog_planner::residency::{
    Attributes, Misuse, OpBegin, Progress, Refusal, State as Residence, StorageId, TransferId, Use,
};
use tidelog_planner::trace::Kind;
use tidelog_planner::units::{Bytes, OpIndex};

use super::history::Label;
use super::{CurrentOp, Known, Session, State, Waiting};
use crate::abi::{Failure, Status, TIDE_MODIFIES};

/// Storage numbers stay below this, because tables are as long as the largest.
const STORAGES_MAX: u32 = 1 << 24;
const _: () = assert!(STORAGES_MAX <= TIDE_MODIFIES);
/// The most bytes of all storages together; no machine has as many.
pub(super) const BYTES_MAX: u64 = 1 << 60;

/// A storage that came into being.
pub(crate) struct Birth {
    pub(crate) storage: u64,
    pub(crate) size: u64,
    pub(crate) movable: bool,
    pub(crate) op: Option<u32>,
    pub(crate) slot: u16,
}

/// An op that is about to run.
pub(crate) struct Op<'a> {
    pub(crate) index: Option<u32>,
    pub(crate) fingerprint: u64,
    pub(crate) name: &'a str,
    /// Storage numbers, with `TIDE_MODIFIES` where the op writes.
    pub(crate) uses: &'a [u32],
    pub(crate) needs: u64,
}

impl Session {
    pub(crate) fn sync(
        &self,
        births: impl Iterator<Item = Birth>,
        deaths: &[u32],
    ) -> Result<i32, Failure> {
        let mut state = self.lock();
        for birth in births {
            state.born(&birth)?;
        }
        for &storage in deaths {
            state.died(StorageId(storage));
        }
        self.carry_out(&mut state);
        Ok(0)
    }

    pub(crate) fn name(&self, storage: u32, kind: u32, name: &str) -> Result<i32, Failure> {
        const KINDS: [Kind; 6] = [
            Kind::Other,
            Kind::Parameter,
            Kind::Gradient,
            Kind::OptimizerState,
            Kind::Activation,
            Kind::Parameter,
        ];
        let kind = KINDS.get(kind as usize).copied().ok_or_else(|| {
            Failure::invalid(format!("kind {kind} is unknown; the header lists 0 to 5"))
        })?;
        let mut state = self.lock();
        let known = state.known_mut(storage)?;
        known.kind = kind;
        known.name = Some(name.into());
        Ok(0)
    }

    pub(crate) fn resized(&self, storage: u32, size: u64) -> Result<i32, Failure> {
        self.lock().check_size(size)?;
        self.change(storage, |state, id| {
            if let Some(known) = state.known.get_mut(&id) {
                known.size = size;
            }
            state.profile.resized(id, size);
            state.machine.resized(id, Bytes(size))
        })
    }

    pub(crate) fn modified(&self, storage: u32) -> Result<i32, Failure> {
        self.change(storage, |state, id| state.machine.modified(id))
    }

    pub(crate) fn pin(&self, storage: u32, on: bool) -> Result<i32, Failure> {
        self.change(storage, |state, id| {
            if let Some(known) = state.known.get_mut(&id) {
                known.pins =
                    if on { known.pins.saturating_add(1) } else { known.pins.saturating_sub(1) };
            }
            if on {
                state.machine.pin(id);
            } else {
                state.machine.unpin(id);
            }
            Ok(())
        })
    }

    pub(crate) fn set_budget(&self, budget: u64) -> i32 {
        let mut state = self.lock();
        state.machine.set_budget(Bytes(budget.min(BYTES_MAX)));
        self.carry_out(&mut state);
        Status::Ready as i32
    }

    /// One event about one storage that the session knows.
    fn change(
        &self,
        storage: u32,
        event: impl FnOnce(&mut State, StorageId) -> Result<(), Misuse>,
    ) -> Result<i32, Failure> {
        let mut state = self.lock();
        state.known_mut(storage)?;
        event(&mut state, StorageId(storage))
            .map_err(|misuse| Failure::invalid(misuse.to_string()).about(storage))?;
        self.carry_out(&mut state);
        Ok(0)
    }

    pub(crate) fn evict(&self, storage: u32) -> Result<i32, Failure> {
        let mut refused = None;
        let status = self.advance(|state| {
            state.machine.evict(StorageId(storage)).unwrap_or_else(|error| {
                refused = Some(error);
                Progress::Ready
            })
        });
        match refused {
            Some(error) => Err(Failure::invalid(error.to_string()).about(storage)),
            None => status,
        }
    }

    pub(crate) fn op_begin(&self, op: &Op<'_>) -> Result<i32, Failure> {
        self.advance(|state| {
            state.held = None;
            state.ask_declined_again();
            state.op_begins(op);
            let mut uses = std::mem::take(&mut state.uses);
            uses.clear();
            uses.extend(op.uses.iter().map(|&word| Use {
                storage: StorageId(word & !TIDE_MODIFIES),
                modifies: word & TIDE_MODIFIES != 0,
            }));
            if let Some(index) = op.index {
                state.follow(index, op.fingerprint);
                state.profile.op_begins(index, op.name, op.fingerprint, &uses);
            }
            let progress = state.machine.op_begin(&OpBegin {
                index: op.index.map(OpIndex),
                uses: &uses,
                needs: Bytes(op.needs.min(BYTES_MAX)),
            });
            state.uses = uses;
            progress
        })
    }

    pub(crate) fn durations(&self, nanoseconds: &[u64]) -> i32 {
        self.lock().profile.took(nanoseconds);
        Status::Ready as i32
    }

    pub(crate) fn op_end(&self) -> Result<i32, Failure> {
        self.advance(|state| {
            state.profile.op_ends();
            state.op_ended();
            state.machine.op_end();
            state.machine.settle()
        })
    }

    pub(crate) fn settle(&self) -> Result<i32, Failure> {
        self.advance(|state| state.machine.settle())
    }

    pub(crate) fn resume(&self) -> Result<i32, Failure> {
        self.advance(|state| match state.held.take() {
            Some(error) => error,
            None => state.machine.resume(),
        })
    }

    /// Waits for one completion at most `timeout`, without the lock, then looks again.
    pub(crate) fn wait(&self, timeout: Duration) -> Result<i32, Failure> {
        let ended = self.completions.oldest_end();
        let completed = self.completions.wait_pop(timeout);
        if let Some((tag, outcome)) = completed {
            let ended = ended.unwrap_or_else(Instant::now);
            self.complete(&mut self.lock(), TransferId(tag), outcome, ended);
        }
        self.resume()
    }

    /// Takes in what completed, tells the machine one thing, carries out what it decides, and says
    /// what the caller must do before it goes on.
    pub(super) fn advance(
        &self,
        event: impl FnOnce(&mut State) -> Progress,
    ) -> Result<i32, Failure> {
        let mut state = self.lock();
        state.requests_answered();
        self.take_in(&mut state);
        let progress = event(&mut state);
        self.carry_out(&mut state);
        if !state.requests.is_empty() {
            if matches!(progress, Progress::Refused(_) | Progress::Failed(_)) {
                state.held = Some(progress);
            }
            state.handing_out = Some(Instant::now());
            return Ok(Status::Action as i32);
        }
        state.count_stall(&progress);
        state.sample();
        match progress {
            Progress::Ready => {
                state.profile.op_runs();
                state.op_runs();
                Ok(Status::Ready as i32)
            }
            Progress::Waiting if state.in_flight.is_empty() => Err(Failure::new(
                Status::Panicked,
                "internal error (please report it): the op waits, but nothing is in flight",
            )),
            Progress::Waiting => Ok(Status::Waiting as i32),
            Progress::Refused(refusal) => Err(state.refused(&refusal)),
            Progress::Failed(failure) => {
                let refused = state.refused_by_pool.remove(&failure.storage);
                let status = if refused { Status::PoolFailed } else { Status::DeviceFailed };
                Err(Failure::new(status, failure.info.message).about(failure.storage.0))
            }
        }
    }
}

impl State {
    fn born(&mut self, birth: &Birth) -> Result<(), Failure> {
        let number = u32::try_from(birth.storage).ok().filter(|&number| number < STORAGES_MAX);
        let Some(number) = number else {
            return Err(Failure::invalid(format!(
                "storage number {} is too large: use small numbers again, below {STORAGES_MAX}",
                birth.storage
            )));
        };
        let storage = StorageId(number);
        if self.known.contains_key(&storage) {
            return Ok(()); // reported before
        }
        if self.machine.knows(storage) {
            return Err(Failure::invalid(format!(
                "storage number {number} is that of one that died with a transfer in flight: take \
                 another number"
            )));
        }
        self.check_size(birth.size)?;
        let place = birth.op.map(|op| (OpIndex(op), birth.slot));
        let kind = if place.is_some() { Kind::Activation } else { Kind::Other };
        let movable = birth.movable && birth.size > 0;
        let known = Known {
            size: birth.size,
            kind,
            name: None,
            movable,
            birth: birth.op.map(|op| (op, birth.slot)),
            pins: 0,
        };
        self.known.insert(storage, known);
        self.machine.born(storage, Bytes(birth.size), Attributes { movable, birth: place });
        self.profile.born(storage, birth.size, place);
        Ok(())
    }

    /// Sums of sizes must not overflow, whatever sizes a caller makes up.
    fn check_size(&self, size: u64) -> Result<(), Failure> {
        let taken = self.machine.committed().0 + self.machine.evicted().0;
        if size > BYTES_MAX - taken.min(BYTES_MAX) {
            return Err(Failure::invalid(format!(
                "a storage of {size} bytes beside {taken} others: no memory is that large"
            )));
        }
        Ok(())
    }

    fn died(&mut self, storage: StorageId) {
        if self.known.remove(&storage).is_some() {
            self.declined.retain(|&each| each != storage);
            self.machine.died(storage);
            self.profile.died(storage);
            self.planning.died(storage);
        }
    }

    fn known_mut(&mut self, storage: u32) -> Result<&mut Known, Failure> {
        self.known.get_mut(&StorageId(storage)).ok_or_else(|| {
            Failure::invalid(format!("storage {storage} is not known: report its birth first"))
        })
    }

    /// What the caller could not let go may be movable by now.
    pub(super) fn ask_declined_again(&mut self) {
        for storage in self.declined.drain(..) {
            self.machine.unpin(storage);
        }
    }

    fn op_begins(&mut self, op: &Op<'_>) {
        self.op.name.clear();
        self.op.name.push_str(op.name);
        self.op = CurrentOp {
            name: std::mem::take(&mut self.op.name),
            index: op.index,
            open: true,
            running_since: None,
        };
    }

    /// The op that was begun may run.
    fn op_runs(&mut self) {
        if self.op.open {
            self.op.running_since.get_or_insert_with(Instant::now);
        }
    }

    fn op_ended(&mut self) {
        self.op.open = false;
        if let Some(since) = self.op.running_since.take() {
            self.history.ran(&self.op.name, self.op.index, since, Instant::now());
        }
    }

    /// The caller comes back: what it did since it was given requests is the handling of transfers.
    fn requests_answered(&mut self) {
        if let Some(since) = self.handing_out.take() {
            self.figures.handled(since.elapsed());
        }
    }

    /// Time from the first Waiting to the first Ready is a stall of the op.
    fn count_stall(&mut self, progress: &Progress) {
        if matches!(progress, Progress::Waiting) {
            if self.waiting.is_none() {
                let storage = self.missing();
                self.waiting = Some(Waiting { since: Instant::now(), storage });
            }
        } else if let Some(Waiting { since, storage }) = self.waiting.take() {
            self.figures.stalled(since.elapsed());
            let named = !self.op.name.is_empty();
            let op = named.then_some((self.op.name.as_str(), self.op.index));
            self.history.waited(op, storage, since, Instant::now());
        }
    }

    /// The first storage of the op that is begun which is not in memory.
    fn missing(&self) -> Option<Label> {
        if !self.op.open {
            return None;
        }
        let away = |used: &&Use| {
            let state = self.machine.state(used.storage);
            matches!(state, Some(Residence::Evicted | Residence::Fetching))
        };
        self.uses.iter().find(away).map(|used| self.label(used.storage))
    }

    fn refused(&self, refusal: &Refusal) -> Failure {
        let largest: Vec<String> = refusal
            .largest
            .iter()
            .map(|part| format!("{} ({})", self.describe(part.storage), part.size))
            .collect();
        Failure::new(
            Status::BudgetExceeded,
            format!(
                "{} does not fit the budget: {} must be in memory at once, but the budget is {}: {} that it uses, \
                 {} of outputs, {} pinned or not movable, {} of staging; the largest: {}. The smallest budget that \
                 would do is {} bytes: raise memory= to it, or make the op smaller (a smaller batch, fewer tensors at once)",
                self.op.name,
                refusal.smallest_budget,
                refusal.budget,
                refusal.uses,
                refusal.outputs,
                refusal.unmovable,
                refusal.staging,
                largest.join(", "),
                refusal.smallest_budget.0,
            ),
        )
    }

    pub(super) fn describe(&self, storage: StorageId) -> String {
        let name = self.known.get(&storage).and_then(|known| known.name.as_deref());
        name.map_or_else(|| storage.to_string(), str::to_owned)
    }
}
