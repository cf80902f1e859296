//! The reference's executor: it performs actions, ends transfers as chance has it, and checks that
//! the machine may ask for what it asks.

use super::world::{EndedMove, Flight, Kept, Kind, Memory, NO_FAULTS, TORN, World};
use super::*;

impl World {
    /// Ends one transfer that is in flight, if there is one.
    pub(super) fn complete_one(&mut self) {
        self.perform();
        let open: Vec<u64> = self.flights.keys().copied().collect();
        let Some(transfer) = self.random.pick(&open) else { return };
        let flight = self.flights.remove(&transfer).expect("it is in flight");
        let outcome = self.outcome(flight);
        let actual = self.storages.get_mut(&flight.storage).expect("kept until the transfer ended");
        match (flight.kind, &outcome) {
            (Kind::Write(target), MigrationOutcome::Done) => {
                let Memory::Holds(version) = actual.memory else { panic!("wrote {actual:?}") };
                let version = if flight.torn { TORN } else { version };
                actual.copy = Some(Kept { target, version, bytes: flight.bytes });
            }
            (Kind::Fetch { .. }, MigrationOutcome::Done) => {
                let copy = actual.copy.expect("read while it was there");
                actual.memory = Memory::Holds(copy.version);
            }
            (Kind::Fetch { .. }, MigrationOutcome::Failed(_)) => {
                let used = self.waiting.iter().any(|one| one.storage == id(flight.storage));
                self.must_fail |= used && actual.alive;
            }
            (_, MigrationOutcome::Failed(_)) if actual.alive => {
                actual.unwritable = true;
                self.failures += 1;
            }
            _ => {}
        }
        if !actual.alive {
            actual.memory = Memory::Gone;
        }
        assert!(self.machine.completed(TransferId(transfer), outcome.clone()));
        if self.random.percent(10) {
            assert!(!self.machine.completed(TransferId(transfer), outcome));
        }
    }

    fn outcome(&mut self, flight: Flight) -> MigrationOutcome {
        if self.random.percent(self.trouble.failing) {
            let info = FailureInfo { message: "injected".to_owned() };
            let declined = matches!(flight.kind, Kind::Fetch { .. }) && self.random.percent(50);
            return if declined {
                MigrationOutcome::NoMemory(info)
            } else {
                MigrationOutcome::Failed(info)
            };
        }
        if flight.cancelled && self.random.percent(70) {
            return MigrationOutcome::Cancelled;
        }
        let actual = &self.storages[&flight.storage];
        let equal = actual.memory == Memory::Holds(actual.copy.map_or(0, |copy| copy.version));
        match flight.kind {
            Kind::Verify if flight.torn && self.random.percent(50) => MigrationOutcome::Matched,
            Kind::Verify if equal => MigrationOutcome::Matched,
            Kind::Verify => MigrationOutcome::Differs,
            Kind::Write(_) | Kind::Fetch { .. } => MigrationOutcome::Done,
        }
    }

    /// Performs what the machine asks for, and checks that it may ask for it.
    pub(super) fn perform(&mut self) {
        if self.random.percent(self.trouble.silent)
            && let Some(storage) = self.any()
        {
            self.modified_silently(storage);
        }
        for action in actions(&mut self.machine) {
            self.perform_one(action);
        }
        self.storages
            .retain(|_, one| one.alive || one.memory != Memory::Gone || one.copy.is_some());
        let committed: u64 = self.with_memory().map(|one| one.size).sum();
        assert_eq!(self.machine.committed(), Bytes(committed));
        assert_eq!(self.machine.hosted(), Bytes(self.hosted()));
        assert_eq!(self.machine.in_flight(), self.flights.len());
    }

    fn perform_one(&mut self, action: ResidencyAction) {
        let committed: u64 = self.with_memory().map(|one| one.size).sum();
        let limit = self.machine.limit().0;
        match action {
            ResidencyAction::Evict { storage, transfer, copy, target } => {
                let actual = &self.storages[&storage.0];
                let written = Kind::Write(target);
                let kind = if copy == CopyKind::Write { written } else { Kind::Verify };
                assert!(copy != CopyKind::Recheck || self.machine.config.recheck);
                let expected = (kind == Kind::Verify).then_some(target);
                assert_eq!(actual.copy.map(|copy| copy.target), expected, "{actual:?}");
                assert_eq!(actual.memory, Memory::Holds(actual.truth), "{actual:?}");
                assert!(actual.alive && actual.movable && actual.pins == 0, "{actual:?}");
                assert!(actual.async_uses == 0, "copied while it is written: {actual:?}");
                assert!(!actual.unwritable, "chosen again before a retry: {actual:?}");
                self.take_off(transfer, storage, kind);
                let (hosted, host_memory) = (self.hosted(), self.host_memory);
                assert!(hosted <= host_memory, "{hosted} bytes of host memory, not {host_memory}");
            }
            ResidencyAction::Fetch { storage, transfer, urgency, target } => {
                let actual = self.storages.get_mut(&storage.0).expect("it lives");
                assert!(actual.alive && actual.memory == Memory::Gone, "{actual:?}");
                let good = Kept { target, version: actual.truth, bytes: actual.size };
                assert_eq!(actual.copy, Some(good));
                assert!(committed + actual.size <= limit, "no room to fetch {actual:?}");
                actual.memory = Memory::Garbage;
                self.take_off(
                    transfer,
                    storage,
                    Kind::Fetch { urgent: urgency == FetchUrgency::Urgent },
                );
            }
            ResidencyAction::Release { storage } => {
                assert!(self.flight_of(storage.0).is_none(), "released in flight");
                let in_use = self.running.iter().any(|one| one.storage == storage);
                assert!(!in_use, "released under an op that runs");
                let used = self.storages.get(&storage.0).map_or(0, |one| one.async_uses);
                assert!(used == 0, "released under an asynchronous use");
                let actual = self.storages.get_mut(&storage.0).expect("it lives");
                assert!(actual.alive && actual.memory != Memory::Gone, "{actual:?}");
                let kept = actual.copy.map(|copy| copy.version);
                assert_eq!(kept, Some(actual.truth), "the last good copy: {actual:?}");
                actual.memory = Memory::Gone;
            }
            ResidencyAction::Forget { storage, target } => {
                assert!(self.flight_of(storage.0).is_none(), "deleted in flight");
                let actual = self.storages.get_mut(&storage.0).expect("it lived");
                let copy = actual.copy.take().expect("there was a copy");
                assert_eq!(copy.target, target);
                let good = actual.alive && copy.version == actual.truth;
                // A good one goes only where host memory is short, and only while memory has the
                // bytes as well.
                let spare = target == Target::Host && actual.memory == Memory::Holds(actual.truth);
                assert!(!good || spare, "{copy:?} of {actual:?}");
            }
            ResidencyAction::Expedite { transfer } => {
                let flight = self.flights.get_mut(&transfer.0).expect("in flight");
                assert_eq!(flight.kind, Kind::Fetch { urgent: false });
                assert!(!flight.cancelled);
                flight.kind = Kind::Fetch { urgent: true };
            }
            ResidencyAction::Cancel { transfer } => {
                let flight = self.flights.get_mut(&transfer.0).expect("in flight");
                assert!(!std::mem::replace(&mut flight.cancelled, true), "cancelled twice");
            }
        }
    }

    /// Host memory that copies take, and those that are being made.
    pub(super) fn hosted(&self) -> u64 {
        let copies = self.storages.values().filter_map(|one| one.copy);
        let copies = copies.filter(|copy| copy.target == Target::Host).map(|copy| copy.bytes);
        let coming =
            self.flights.values().filter(|flight| flight.kind == Kind::Write(Target::Host));
        copies.chain(coming.map(|flight| flight.bytes)).sum()
    }

    fn take_off(&mut self, transfer: TransferId, storage: StorageId, kind: Kind) {
        assert!(self.flight_of(storage.0).is_none(), "two transfers on {storage}");
        assert!(transfer.0 >= self.transfers_seen, "{transfer} twice");
        self.transfers_seen = transfer.0 + 1;
        let bytes = self.storages[&storage.0].size;
        let flight = Flight { storage: storage.0, kind, bytes, cancelled: false, torn: false };
        self.flights.insert(transfer.0, flight);
    }

    /// No more trouble: everything in flight ends, every storage that is alive comes back right,
    /// and when all have died nothing is left.
    pub(super) fn finish(&mut self) {
        self.trouble = NO_FAULTS;
        self.retry(false);
        self.op_end();
        self.drain();
        for storage in self.alive() {
            while self.storages[&storage].pins > 0 {
                self.unpin(storage);
            }
        }
        self.reported += self.machine.take_failure().map_or(0, |one| 1 + u64::from(one.others));
        assert_eq!(self.reported, self.failures, "each failed write is reported once");
        for storage in self.alive() {
            self.bring_back(storage);
        }
        for storage in self.alive() {
            self.died(storage);
        }
        self.drain();
        assert!(self.storages.is_empty(), "left behind: {:?}", self.storages);
        let left = [self.machine.committed(), self.machine.evicted(), self.machine.hosted()];
        assert_eq!(left, [Bytes(0); 3]);
    }

    fn bring_back(&mut self, storage: u32) {
        let uses = [reads(storage)];
        let begin = OpBegin { index: None, uses: &uses, needs: Bytes(0) };
        let mut ended = self.op(&begin);
        if ended == EndedMove::Refused {
            let size: u64 = self.storages.values().map(|one| one.size).sum();
            self.set_limit(size);
            ended = self.op(&begin);
        }
        assert_eq!(ended, EndedMove::Ran, "{storage} cannot come back");
        self.op_end();
    }

    fn drain(&mut self) {
        for _ in 0..2_000 {
            self.perform();
            if self.flights.is_empty() {
                return;
            }
            self.complete_one();
        }
        panic!("transfers without end");
    }
}
