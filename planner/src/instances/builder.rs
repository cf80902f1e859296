//! Writes a trace op by op.

use crate::trace::{
    Access, Birth, Death, Identity, Op, PlanStorage, Storage, StorageKind, Trace, Use,
};
use crate::units::{Bytes, Nanos, OpIndex};

/// A trace under construction.
#[derive(Default)]
pub(crate) struct Builder {
    pub(crate) trace: Trace,
}

impl Builder {
    /// A storage that is alive across the iteration.
    pub(crate) fn global(&mut self, name: &str, size: u64) -> PlanStorage {
        self.storage(Identity::Name(name.to_owned()), size, StorageKind::Parameter)
    }

    /// The next op; returns its index.
    pub(crate) fn op(&mut self, duration: u64) -> usize {
        let index = self.trace.ops.len();
        self.trace.ops.push(Op {
            name: format!("op{index}"),
            duration: Nanos(duration),
            fingerprint: index as u64 ^ 0x9e37_79b9,
            uses: Vec::new(),
            births: Vec::new(),
            deaths: Vec::new(),
        });
        index
    }

    pub(crate) fn uses(&mut self, op: usize, storage: PlanStorage, access: Access) {
        self.trace.ops[op].uses.push(Use { storage, access, previous: false });
    }

    pub(crate) fn birth(&mut self, op: usize, size: u64) -> PlanStorage {
        let slot = self.trace.ops[op].births.len() as u16;
        let identity = Identity::Output { op: OpIndex(op as u32), slot };
        let storage = self.storage(identity, size, StorageKind::Activation);
        self.trace.ops[op].births.push(Birth { storage, slot });
        storage
    }

    pub(crate) fn death(&mut self, op: usize, storage: PlanStorage, previous: bool) {
        self.trace.ops[op].deaths.push(Death { storage, previous });
    }

    fn storage(&mut self, identity: Identity, size: u64, kind: StorageKind) -> PlanStorage {
        let index = PlanStorage(self.trace.storages.len() as u32);
        let (size, part, movable) = (Bytes(size), None, true);
        self.trace.storages.push(Storage { identity, size, part, kind, movable });
        index
    }

    pub(crate) fn finish(self) -> Trace {
        self.trace.validate().expect("the test's trace is valid");
        self.trace
    }
}
