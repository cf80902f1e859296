//! Behaviour of the bridge on a GPU, as it was measured, as it is and with its memory ordered by
//! events, and the plan that it follows then.

use super::constants::{Constants, OpsIn, RangeEnd};
use crate::cost::{HostLink, Machine, SsdLink};
use crate::plan::Plan;
use crate::simulate::{
    ChecksumStream, CopyRates, GpuBehaviour, GpuCosts, GpuRuntime, Runtime, SimulateError,
};
use crate::tidelog::{Idea, Search, TidelogOptions};
use crate::trace::{Op, Trace};
use crate::units::{Bandwidth, Bytes, Nanos};
use serde::Serialize;

/// Number of ops for which a session fetches ahead, whatever its plan says (`LOOKAHEAD_OPS` of the
/// bridge).
const LOOKAHEAD_OPS: u32 = 32;

/// Rates at which the measured sessions planned the link: their own rates.
const KNOWN_LINK: CopyRates =
    CopyRates { out: Bandwidth(37_000_000_000), back: Bandwidth(30_000_000_000) };
const KNOWN_LATENCY: Nanos = Nanos(200_000);
const KNOWN_VERIFY: Bandwidth = Bandwidth(8_000_000_000);

/// The steps of the search that a session had made before the steps that were timed.
const FIRST_SEARCH_STEPS: u64 = 4;

/// The pool, which no plan uses as long as host memory has room (a virtual disk).
const POOL: SsdLink = SsdLink {
    read: Bandwidth(1_700_000_000),
    write: Bandwidth(2_200_000_000),
    latency: KNOWN_LATENCY,
};

/// Behaviour of the bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bridge {
    /// Behaviour of the measured sessions: the host waits for transfers, checks what was written
    /// again, and works in torch's allocator; ops and requests are Python's; the plan is the
    /// search's first, for rates that are too low.
    Measured,
    /// Measured behaviour under the plan that the search ends with.
    MeasuredPlanned,
    /// Native behaviour, with the changes since: ops and requests are C++'s, and what is written is
    /// copied behind the last op that used it.
    Native,
    /// Native behaviour in which what is written is ordered by events: the host waits for none of
    /// it.
    Ordered,
    /// Ordered behaviour in an arena ([`crate::arena`]): who takes memory waits for who had it.
    Arena,
    /// Measured behaviour under the best plan, and the check behind the copy, in a stream of its
    /// own.
    ChecksInStream,
    /// Streams wait for events, memory is an arena's, and ops and requests are C++'s.
    EventOrdered,
}

impl Bridge {
    /// Every one, from the slowest.
    pub const ALL: [Self; 7] = [
        Self::Measured,
        Self::MeasuredPlanned,
        Self::Native,
        Self::Ordered,
        Self::Arena,
        Self::ChecksInStream,
        Self::EventOrdered,
    ];

    /// Returns the name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::MeasuredPlanned => "measured, best plan",
            Self::Native => "native",
            Self::Ordered => "ordered",
            Self::Arena => "arena",
            Self::ChecksInStream => "checks in stream",
            Self::EventOrdered => "event-ordered",
        }
    }

    /// Returns the word of the command line.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::MeasuredPlanned => "measured-planned",
            Self::Native => "native",
            Self::Ordered => "ordered",
            Self::Arena => "arena",
            Self::ChecksInStream => "checks-in-stream",
            Self::EventOrdered => "event-ordered",
        }
    }

    /// Returns the runtime that carries a plan out.
    pub fn runtime(self, constants: &Constants) -> GpuRuntime {
        let (behaviour, ops) = match self {
            Self::Measured | Self::MeasuredPlanned => (GpuBehaviour::HOST_WAITS, OpsIn::Python),
            Self::Native => (GpuBehaviour::WRITES_AFTER_LAST_USE, OpsIn::Native),
            Self::Ordered => (GpuBehaviour::WRITES_ORDERED, OpsIn::Native),
            Self::Arena => (GpuBehaviour::WRITES_ORDERED_IN_ARENA, OpsIn::Native),
            Self::ChecksInStream => (CHECKS_IN_STREAM, OpsIn::Python),
            Self::EventOrdered => (GpuBehaviour::EVENT_ORDERED, OpsIn::Native),
        };
        GpuRuntime { lookahead: LOOKAHEAD_OPS, behaviour, costs: constants.costs(ops) }
    }

    /// The plan that is followed for a step whose kernels take the trace's times.
    pub fn plan(
        self,
        constants: &Constants,
        trace: &Trace,
        budget: Bytes,
    ) -> Result<Plan, SimulateError> {
        let runtime = self.runtime(constants);
        if self == Self::Measured {
            // What a transfer takes of the thread is measured, kernels are seen with their gaps.
            let handling = Nanos(2 * runtime.costs.request.0);
            // That day's search had no plans for host memory alone.
            let options = TidelogOptions {
                without: Some(Idea::HostAlone),
                runtime: Runtime { lookahead: LOOKAHEAD_OPS, handling },
                ..TidelogOptions::default()
            };
            let machine = known_machine(budget);
            let profiled = profiled(trace, runtime.costs.dispatch);
            let mut search = Search::new(&profiled, &machine, options)?;
            search.advance(FIRST_SEARCH_STEPS)?;
            return Ok(best_of(&search));
        }
        let options = TidelogOptions { gpu: Some(runtime), ..TidelogOptions::default() };
        let machine = machine(constants, budget);
        let mut search = Search::new(trace, &machine, options)?;
        search.run(|_| true)?;
        Ok(best_of(&search))
    }
}

/// Returns the runtime of a session whose tensors leave a GPU for host memory, for its plans: the
/// likeliest costs, and for a request what it was measured to take, if it was. `in_arena`: whether
/// large tensors come from an arena. Rates both ways at once are the measured ones, which are those
/// of steps that move both ways.
pub fn session_runtime(in_arena: bool, request: Option<Nanos>) -> GpuRuntime {
    let bridge = if in_arena { Bridge::Arena } else { Bridge::Ordered };
    let runtime = bridge.runtime(&Constants::at(RangeEnd::Value));
    let request = request.unwrap_or(runtime.costs.request);
    GpuRuntime { costs: GpuCosts { request, both_ways: None, ..runtime.costs }, ..runtime }
}

const CHECKS_IN_STREAM: GpuBehaviour = GpuBehaviour {
    checksums: ChecksumStream::OwnStream,
    recheck: false,
    ..GpuBehaviour::HOST_WAITS
};

/// A plain step: torch alone, everything in memory.
pub(super) fn plain(constants: &Constants) -> GpuRuntime {
    let in_step = GpuRuntime::in_step(Runtime::default());
    let behaviour = GpuBehaviour { loss_is_read: true, ..in_step.behaviour };
    GpuRuntime { behaviour, costs: constants.costs(OpsIn::Torch), ..in_step }
}

/// The machine as it is: host memory takes all that leaves.
pub(super) fn machine(constants: &Constants, budget: Bytes) -> Machine {
    with_link(budget, constants.link(), Nanos(0), constants.costs(OpsIn::Native).checksum)
}

/// The machine as the measured sessions knew it.
fn known_machine(budget: Bytes) -> Machine {
    with_link(budget, KNOWN_LINK, KNOWN_LATENCY, KNOWN_VERIFY)
}

fn with_link(budget: Bytes, link: CopyRates, latency: Nanos, verify: Bandwidth) -> Machine {
    let memory = Bytes(1 << 42);
    let host = HostLink { read: link.back, write: link.out, latency, memory };
    Machine { budget, staging: Bytes(0), ssd: POOL, host: Some(host), verify }
}

/// The trace as a session records it: by events around each op, which see the gap to the next
/// launch, too.
fn profiled(trace: &Trace, dispatch: Nanos) -> Trace {
    let seen = |time| if time > Nanos(0) { dispatch.max(time) } else { time };
    let with_gap = |op: &Op| Op { duration: seen(op.duration), ..op.clone() };
    Trace { ops: trace.ops.iter().map(with_gap).collect(), ..trace.clone() }
}

fn best_of(search: &Search<'_>) -> Plan {
    search.best().expect("the first step of a search makes a plan").0
}
