//! The simulated machine room: the residency machine, the links, and what memory holds, checked
//! independently of what the residency machine believes.

use super::link::TransferProgress;
use super::links::{CompletedTransfer, LinkId, LinkTransfer, SimulatedLinks};
use super::thread::ProgramThread;
use super::{SimulatedTransfer, Simulation};
use crate::migration::{Ending, MemorySample, MigrationDirection};
use crate::residency::{
    Attributes, CopyKind, FetchUrgency, Residency, ResidencyAction, StorageId, StorageState,
    TransferId,
};
use crate::trace::{PlanStorage, Trace};
use crate::units::{Bytes, Nanos, OpIndex};
use std::collections::HashMap;

/// One storage that exists now, or still holds memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct SimulatedStorage {
    pub(super) storage: PlanStorage,
    size: u64,
    pub(super) holds_memory: bool,
    /// Transfers on it that have not completed.
    pub(super) moving: bool,
    dead: bool,
}

impl SimulatedStorage {
    pub(super) fn size(&self) -> u64 {
        self.size
    }
}

pub(super) struct World<'a> {
    pub(super) trace: &'a Trace,
    pub(super) residency: Residency,
    pub(super) links: SimulatedLinks,
    /// The thread that runs the ops where tensors are a GPU's; without one the ops take its time.
    pub(super) thread: Option<ProgramThread>,
    /// The thread's clock.
    pub(super) now: u64,
    pub(super) recording: bool,
    pub(super) result: Simulation,
    /// Capacity for tensors, staging taken off, in bytes.
    capacity: u64,
    /// Time at which the current iteration began.
    origin: u64,
    /// Bytes that had moved of transfers in flight then.
    moved_before: HashMap<TransferId, Bytes>,
    instances: Vec<SimulatedStorage>,
    free_ids: Vec<StorageId>,
    held: u64,
    moving: u64,
    wanted: u64,
    actions: Vec<ResidencyAction>,
    /// Transfers in their streams, and so complete for the session.
    pub(super) enqueued: Vec<TransferId>,
    /// Time of a transfer on the thread that runs the ops, in ns, and what it has not yet spent on
    /// those begun.
    handling: u64,
    unhandled: u64,
}

impl<'a> World<'a> {
    pub(super) fn new(
        trace: &'a Trace,
        residency: Residency,
        links: SimulatedLinks,
        thread: Option<ProgramThread>,
        [capacity, handling]: [u64; 2],
    ) -> Self {
        Self {
            trace,
            residency,
            links,
            thread,
            now: 0,
            recording: false,
            result: Simulation::default(),
            capacity,
            origin: 0,
            moved_before: HashMap::new(),
            instances: Vec::new(),
            free_ids: Vec::new(),
            held: 0,
            moving: 0,
            wanted: 0,
            actions: Vec::new(),
            enqueued: Vec::new(),
            handling,
            unhandled: 0,
        }
    }

    /// Begins an iteration, from which times, and bytes that move, count.
    pub(super) fn begin_iteration(&mut self) {
        self.origin = self.now;
        self.begin_gpu_step();
        if self.recording {
            self.result = Simulation { peak: self.result.peak, ..Simulation::default() };
            let under_way = self.links.under_way(self.now).into_iter();
            let moved = under_way.map(|(transfer, flight, progress)| {
                (transfer, so_far(&flight, progress, self.now).1)
            });
            self.moved_before = moved.collect();
        }
    }

    /// Returns the name of the storage that an instance is of.
    pub(super) fn name_of(&self, id: StorageId) -> String {
        self.trace.label(self.instance(id).storage)
    }

    pub(super) fn instance(&self, id: StorageId) -> &SimulatedStorage {
        &self.instances[id.0 as usize]
    }

    pub(super) fn into_simulation(mut self, policy: &str) -> Simulation {
        for (transfer, flight, progress) in self.links.under_way(self.now) {
            let (started, bytes) = so_far(&flight, progress, self.now);
            let told = self.told(transfer, &flight, [started, self.now], bytes, Ending::UnderWay);
            self.result.transfers.push(told);
        }
        self.result.transfers.sort_by_key(|t| (t.begin, t.moved, t.end, t.storage));
        self.result.time = self.since_origin(self.now);
        self.tell_gpu_step();
        policy.clone_into(&mut self.result.policy);
        self.result.stats = self.residency.stats();
        self.result
    }

    pub(super) fn make(
        &mut self,
        storage: PlanStorage,
        birth: Option<(OpIndex, u16)>,
    ) -> StorageId {
        let described = self.trace.storage(storage);
        let size = described.size.0;
        let instance =
            SimulatedStorage { storage, size, holds_memory: true, moving: false, dead: false };
        let id = if let Some(id) = self.free_ids.pop() {
            self.instances[id.0 as usize] = instance;
            id
        } else {
            self.instances.push(instance);
            StorageId(self.instances.len() as u32 - 1)
        };
        self.held += size;
        self.wanted += size;
        self.take_memory_of_birth(id);
        let attributes = Attributes { movable: described.movable, birth };
        self.residency.born(id, described.size, attributes);
        self.sample();
        id
    }

    pub(super) fn unmake(&mut self, id: StorageId) {
        self.residency.died(id);
        let instance = &mut self.instances[id.0 as usize];
        instance.dead = true;
        self.wanted -= instance.size;
        if !instance.moving {
            self.record_death(id);
        }
        self.sample();
    }

    /// Frees a dead storage's memory and its number, once nothing moves on it.
    fn record_death(&mut self, id: StorageId) {
        self.give_up_memory(id, true);
        self.free_ids.push(id);
    }

    /// Tells the machine of everything that has completed by now.
    pub(super) fn complete(&mut self) {
        let ended = self.links.take_ended(self.now);
        self.tell(ended);
    }

    pub(super) fn tell(&mut self, ended: Vec<CompletedTransfer>) {
        for ended in ended {
            if ended.flight.is_told {
                self.count(&ended);
                continue;
            }
            let id = ended.flight.id;
            self.stop_moving(id);
            self.residency.completed(ended.transfer, ended.flight.outcome());
            let flight = LinkTransfer { stays: self.is_here(id), ..ended.flight };
            self.count(&CompletedTransfer { flight, ..ended });
            self.perform();
        }
    }

    /// Performs what the machine asks for. Returns whether it was told of something meanwhile, so
    /// that what waits may go on.
    pub(super) fn perform(&mut self) -> bool {
        let mut has_told = false;
        loop {
            let mut actions = std::mem::take(&mut self.actions);
            self.residency.take_actions(&mut actions);
            for action in actions.drain(..) {
                self.act(action);
            }
            self.actions = actions;
            if self.enqueued.is_empty() {
                break;
            }
            self.tell_enqueued();
            has_told = true;
        }
        self.sample();
        has_told
    }

    fn act(&mut self, action: ResidencyAction) {
        match action {
            ResidencyAction::Evict { storage, transfer, copy, target } => {
                let way = match copy {
                    CopyKind::Write => LinkId::Out(target),
                    CopyKind::Verify => LinkId::Verify(target),
                    CopyKind::Recheck => LinkId::Recheck(target),
                };
                let flight = self.flight(storage, way, false);
                self.launch(transfer, flight);
            }
            ResidencyAction::Fetch { storage, transfer, urgency, target } => {
                let instance = &mut self.instances[storage.0 as usize];
                instance.holds_memory = true;
                self.held += instance.size;
                let urgent = urgency == FetchUrgency::Urgent;
                let flight = self.flight(storage, LinkId::In(target), urgent);
                self.launch(transfer, flight);
            }
            ResidencyAction::Release { storage } => {
                self.request();
                self.give_up_memory(storage, false);
            }
            // What is in its stream has its place there.
            ResidencyAction::Expedite { transfer } | ResidencyAction::Cancel { transfer }
                if self.links.flight(transfer).is_some_and(|flight| flight.is_told) => {}
            ResidencyAction::Expedite { transfer } => self.links.expedite(self.now, transfer),
            ResidencyAction::Cancel { transfer } => self.links.cancel(self.now, transfer),
            // The log's space is not simulated.
            ResidencyAction::Forget { .. } => {}
        }
        self.sample();
    }

    fn give_up_memory(&mut self, id: StorageId, by_kernel: bool) {
        let instance = &mut self.instances[id.0 as usize];
        if std::mem::take(&mut instance.holds_memory) {
            self.held -= instance.size;
            let size = instance.size;
            if let Some(thread) = &mut self.thread {
                thread.release(id, size, by_kernel);
            }
        }
    }

    /// The thread that runs the ops spends its time on the transfers that were begun.
    pub(super) fn handle(&mut self) {
        self.now += std::mem::take(&mut self.unhandled);
    }

    fn flight(&self, id: StorageId, way: LinkId, urgent: bool) -> LinkTransfer {
        let SimulatedStorage { storage, size, .. } = *self.instance(id);
        let (bytes, is_told) = (Bytes(size), self.tells_at_once(way));
        let urgent = urgent && !is_told;
        let (begin, stays, cancelled) = (self.now, false, false);
        LinkTransfer { id, storage, way, bytes, begin, urgent, is_told, stays, cancelled }
    }

    fn launch(&mut self, transfer: TransferId, flight: LinkTransfer) {
        let instance = &mut self.instances[flight.id.0 as usize];
        instance.moving = true;
        self.moving += instance.size;
        self.unhandled += self.handling;
        if self.thread.is_some() {
            self.put_into_stream(transfer, flight);
        } else {
            self.links.submit(transfer, flight, Vec::new());
        }
    }

    /// The session takes what is in its stream for complete.
    fn tell_enqueued(&mut self) {
        for transfer in std::mem::take(&mut self.enqueued) {
            let Some(flight) = self.links.flight(transfer) else { continue };
            self.stop_moving(flight.id);
            self.residency.completed(transfer, flight.outcome());
            let stays = self.is_here(flight.id);
            self.links.set_stays(transfer, stays);
        }
    }

    /// Returns whether a storage has its memory, and no transfer touches it.
    fn is_here(&self, id: StorageId) -> bool {
        matches!(self.residency.state(id), Some(StorageState::Resident { .. }))
    }

    fn stop_moving(&mut self, id: StorageId) {
        let instance = &mut self.instances[id.0 as usize];
        instance.moving = false;
        self.moving -= instance.size;
        if instance.dead {
            self.record_death(id);
        }
    }

    fn count(&mut self, ended: &CompletedTransfer) {
        if !self.recording {
            return;
        }
        let flight = &ended.flight;
        let moving = [ended.moved, ended.end];
        let transfer = self.told(ended.transfer, flight, moving, flight.bytes, flight.ending());
        self.result.transfers.push(transfer);
        match (transfer.ending, transfer.direction) {
            (Ending::Moved, MigrationDirection::Out) => {
                self.result.bytes.add_out(transfer.target, flight.bytes);
            }
            (Ending::Moved, MigrationDirection::In) => {
                self.result.bytes.add_back(transfer.target, flight.bytes);
            }
            _ => {}
        }
    }

    /// A transfer of which `bytes` have moved from `started` to `end`, as this iteration saw it.
    fn told(
        &self,
        transfer: TransferId,
        flight: &LinkTransfer,
        [started, end]: [u64; 2],
        bytes: Bytes,
        ending: Ending,
    ) -> SimulatedTransfer {
        let before = self.moved_before.get(&transfer).map_or(0, |bytes| bytes.0);
        SimulatedTransfer {
            storage: flight.storage,
            direction: flight.direction(),
            target: flight.target(),
            begin: self.since_origin(flight.begin),
            moved: self.since_origin(started),
            end: self.since_origin(end),
            in_step: Bytes(bytes.0.saturating_sub(before)),
            urgent: flight.urgent,
            stays: flight.stays && flight.direction() == MigrationDirection::Out,
            ending,
        }
    }

    /// Checks the budget; while recording, notes how memory stands.
    fn sample(&mut self) {
        assert!(
            self.held <= self.capacity,
            "the residency machine holds {} bytes of {}",
            self.held,
            self.capacity
        );
        self.result.peak = self.result.peak.max(Bytes(self.held));
        if !self.recording {
            return;
        }
        let sample = MemorySample {
            at: self.since_origin(self.now),
            resident: Bytes(self.held - self.moving),
            moving: Bytes(self.moving),
            wanted: Bytes(self.wanted),
        };
        // Of what happens in one instant, how it ends is what lasts.
        match self.result.memory.last_mut() {
            Some(last) if last.at == sample.at => *last = sample,
            _ => self.result.memory.push(sample),
        }
    }

    pub(super) fn since_origin(&self, time: u64) -> Nanos {
        Nanos(time.saturating_sub(self.origin))
    }
}

/// Returns the time at which a transfer's first byte moved, and the number of bytes that have
/// moved.
fn so_far(flight: &LinkTransfer, progress: Option<TransferProgress>, now: u64) -> (u64, Bytes) {
    progress.map_or((now, Bytes(0)), |TransferProgress { started, done, total }| {
        let moved = u128::from(flight.bytes.0) * u128::from(done) / u128::from(total);
        (started, Bytes(moved as u64))
    })
}
