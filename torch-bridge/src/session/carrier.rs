//! Who carries a transfer out: the pool, or the tier in host memory. Both tell of its end in the session's queue.

use tidelog_engine::layout::{LifetimeClass, TensorId, TensorKey};
use tidelog_engine::pool::PutOptions;
use tidelog_engine::schedule::{Ticket, Urgency};
use tidelog_gds::{HostTier, tier};
use tidelog_planner::migration::Target;
use tidelog_planner::residency::{CopyKind, TransferId};
use tidelog_planner::trace::Kind;

use super::transfers::Direction;
use super::{Request, Session};
use crate::abi::CallerMemory;

/// A transfer as its carrier knows it.
pub(super) enum Carrier {
    Pool(Ticket),
    Tier(tier::Ticket),
}

impl Carrier {
    /// Asks it to stop; its end is told all the same.
    pub(super) fn cancel(&self) {
        match self {
            Self::Pool(ticket) => ticket.cancel(),
            Self::Tier(ticket) => ticket.cancel(),
        }
    }

    /// An op waits for it now.
    pub(super) fn expedite(&self) {
        match self {
            Self::Pool(ticket) => ticket.expedite(),
            Self::Tier(ticket) => ticket.expedite(),
        }
    }

    /// Waits for its end where that takes no more than waiting: the tier waits for all of its transfers when it is closed.
    pub(super) fn wait(&self) {
        if let Self::Pool(ticket) = self {
            let _ = ticket.wait();
        }
    }
}

/// A transfer to begin.
pub(super) struct Cargo<'a> {
    pub(super) transfer: TransferId,
    pub(super) key: TensorKey,
    pub(super) kind: Kind,
    pub(super) direction: Direction,
    pub(super) urgency: Urgency,
    pub(super) target: Target,
    pub(super) request: &'a Request,
    pub(super) memory: &'a CallerMemory,
}

impl Session {
    /// Begins a transfer, or says why that cannot be.
    pub(super) fn carry(&self, cargo: &Cargo<'_>) -> Result<Carrier, String> {
        match cargo.target {
            Target::Ssd => self.carry_by_pool(cargo).map(Carrier::Pool),
            Target::Host => {
                let tier = self.tier.as_ref().ok_or("the session has no host memory")?;
                self.carry_by_tier(tier, cargo).map(Carrier::Tier)
            }
        }
    }

    fn carry_by_pool(&self, cargo: &Cargo<'_>) -> Result<Ticket, String> {
        let &Cargo { ref key, urgency, request, memory, .. } = cargo;
        let (key, notify) = (key.clone(), Some((self.completions.clone(), cargo.transfer.0)));
        match cargo.direction {
            Direction::Out(CopyKind::Write) => {
                let options = PutOptions { lifetime: lifetime_of(cargo.kind), urgency, notify };
                let source = memory.source(self.place, request);
                self.pool.put(key, source, options).map_err(|error| error.to_string())
            }
            Direction::Out(CopyKind::Verify) => {
                let source = memory.source(self.place, request);
                self.pool.verify(key, source, notify).map_err(|error| error.to_string())
            }
            Direction::In => {
                let destination = memory.destination(self.place, request);
                let got = self.pool.get(key, 0..request.size, destination, urgency, notify);
                got.map_err(|error| error.to_string())
            }
        }
    }

    fn carry_by_tier(&self, tier: &HostTier, cargo: &Cargo<'_>) -> Result<tier::Ticket, String> {
        let &Cargo { key: TensorKey { id, .. }, urgency, request, memory, .. } = cargo;
        let notify = (self.completions.clone(), cargo.transfer.0);
        let begun = match cargo.direction {
            Direction::Out(CopyKind::Write) => {
                tier.put(id, memory.gpu_source(request), urgency, notify)
            }
            Direction::Out(CopyKind::Verify) => tier.verify(id, memory.gpu_source(request), notify),
            Direction::In => tier.get(id, memory.gpu_destination(request), urgency, notify),
        };
        begun.map_err(|error| error.to_string())
    }

    /// A copy is not needed any more.
    pub(super) fn forget(&self, id: TensorId, target: Target) {
        // Unknown where a first write never finished: nothing to forget.
        match target {
            Target::Ssd => drop(self.pool.delete(id)),
            Target::Host => drop(self.tier.as_ref().map(|tier| tier.delete(id))),
        }
    }
}

/// What dies together shares segments: activations within a step, gradients and what the optimizer
/// rewrites once a step, and the rest, which may stay for the whole run.
fn lifetime_of(kind: Kind) -> LifetimeClass {
    match kind {
        Kind::Activation => LifetimeClass::Transient,
        Kind::Gradient | Kind::Parameter | Kind::OptimizerState => LifetimeClass::Step,
        Kind::Other => LifetimeClass::Persistent,
    }
}
