//! The simulated machine room: the residency machine, the links, and what memory holds, checked
//! independently of what the residency machine believes.

use super::links::{Ended, Flight, Links, Way};
use super::{SimulatedTransfer, Simulation};
use crate::plan::Target;
use crate::report::{Direction, Ending, MemorySample};
use crate::residency::{Action, Attributes, CopyKind, Residency, StorageId, TransferId, Urgency};
use crate::trace::{PlanStorage, Trace};
use crate::units::{Bytes, Nanos, OpIndex};

/// One storage that exists now, or still holds memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Instance {
    pub(super) storage: PlanStorage,
    size: u64,
    pub(super) holds_memory: bool,
    /// Transfers on it that have not completed.
    pub(super) moving: bool,
    dead: bool,
    /// Where its copy is.
    target: Target,
}

pub(super) struct World<'a> {
    pub(super) trace: &'a Trace,
    pub(super) residency: Residency,
    pub(super) links: Links,
    pub(super) now: u64,
    pub(super) recording: bool,
    pub(super) result: Simulation,
    /// What tensors may hold, staging taken off.
    capacity: u64,
    /// When the current iteration began.
    origin: u64,
    instances: Vec<Instance>,
    free_ids: Vec<StorageId>,
    held: u64,
    moving: u64,
    wanted: u64,
    actions: Vec<Action>,
}

impl<'a> World<'a> {
    pub(super) fn new(
        trace: &'a Trace,
        residency: Residency,
        links: Links,
        capacity: Bytes,
    ) -> Self {
        Self {
            trace,
            residency,
            links,
            now: 0,
            recording: false,
            result: Simulation::default(),
            capacity: capacity.0,
            origin: 0,
            instances: Vec::new(),
            free_ids: Vec::new(),
            held: 0,
            moving: 0,
            wanted: 0,
            actions: Vec::new(),
        }
    }

    /// From now on times count from here.
    pub(super) fn begin_iteration(&mut self) {
        self.origin = self.now;
    }

    pub(super) fn instance(&self, id: StorageId) -> &Instance {
        &self.instances[id.0 as usize]
    }

    pub(super) fn into_simulation(mut self, policy: &str) -> Simulation {
        for flight in self.links.under_way() {
            let ended = SimulatedTransfer {
                storage: flight.storage,
                direction: flight.direction(),
                target: flight.target(),
                begin: self.since_origin(flight.begin),
                moved: self.since_origin(self.now),
                end: self.since_origin(self.now),
                urgent: flight.urgent,
                ending: Ending::UnderWay,
            };
            self.result.transfers.push(ended);
        }
        self.result.transfers.sort_by_key(|t| (t.begin, t.moved, t.end, t.storage));
        self.result.time = self.since_origin(self.now);
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
        let instance = Instance {
            storage,
            size,
            holds_memory: true,
            moving: false,
            dead: false,
            target: Target::Ssd,
        };
        let id = if let Some(id) = self.free_ids.pop() {
            self.instances[id.0 as usize] = instance;
            id
        } else {
            self.instances.push(instance);
            StorageId(self.instances.len() as u32 - 1)
        };
        self.held += size;
        self.wanted += size;
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
            self.bury(id);
        }
        self.sample();
    }

    /// Frees a dead storage's memory and its number, once nothing moves on it.
    fn bury(&mut self, id: StorageId) {
        let instance = &mut self.instances[id.0 as usize];
        if std::mem::take(&mut instance.holds_memory) {
            self.held -= instance.size;
        }
        self.free_ids.push(id);
    }

    /// Tells the machine of everything that has completed by now.
    pub(super) fn complete(&mut self) {
        for ended in self.links.take_ended(self.now) {
            let id = ended.flight.id;
            let instance = &mut self.instances[id.0 as usize];
            instance.moving = false;
            self.moving -= instance.size;
            if instance.dead {
                self.bury(id);
            }
            self.count(&ended);
            self.residency.completed(ended.transfer, ended.flight.outcome());
            self.perform();
        }
    }

    pub(super) fn perform(&mut self) {
        let mut actions = std::mem::take(&mut self.actions);
        self.residency.take_actions(&mut actions);
        for action in actions.drain(..) {
            self.act(action);
        }
        self.actions = actions;
        self.sample();
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Evict { storage, transfer, copy, target } => {
                let way = match copy {
                    CopyKind::Write => Way::Out(target),
                    CopyKind::Verify => Way::Verify(target),
                };
                self.instances[storage.0 as usize].target = target;
                self.launch(storage, transfer, way, false);
            }
            Action::Fetch { storage, transfer, urgency } => {
                let instance = &mut self.instances[storage.0 as usize];
                instance.holds_memory = true;
                self.held += instance.size;
                let way = Way::In(instance.target);
                self.launch(storage, transfer, way, urgency == Urgency::Urgent);
            }
            Action::Release { storage } => {
                let instance = &mut self.instances[storage.0 as usize];
                if std::mem::take(&mut instance.holds_memory) {
                    self.held -= instance.size;
                }
            }
            Action::Expedite { transfer } => self.links.expedite(self.now, transfer),
            Action::Cancel { transfer } => self.links.cancel(self.now, transfer),
            // The log's space is not simulated.
            Action::Forget { .. } => {}
        }
        self.sample();
    }

    fn launch(&mut self, id: StorageId, transfer: TransferId, way: Way, urgent: bool) {
        let instance = &mut self.instances[id.0 as usize];
        instance.moving = true;
        self.moving += instance.size;
        let (storage, bytes) = (instance.storage, Bytes(instance.size));
        let flight = Flight { id, storage, way, bytes, begin: self.now, urgent, cancelled: false };
        self.links.submit(transfer, flight);
    }

    fn count(&mut self, ended: &Ended) {
        if !self.recording {
            return;
        }
        let flight = &ended.flight;
        let transfer = SimulatedTransfer {
            storage: flight.storage,
            direction: flight.direction(),
            target: flight.target(),
            begin: self.since_origin(flight.begin),
            moved: self.since_origin(ended.moved),
            end: self.since_origin(ended.end),
            urgent: flight.urgent,
            ending: flight.ending(),
        };
        self.result.transfers.push(transfer);
        match (transfer.ending, transfer.direction) {
            (Ending::Moved, Direction::Out) => {
                self.result.bytes.add_out(transfer.target, flight.bytes);
            }
            (Ending::Moved, Direction::In) => {
                self.result.bytes.add_back(transfer.target, flight.bytes);
            }
            _ => {}
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
