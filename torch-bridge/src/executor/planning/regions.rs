//! Choice of the regions that a program runs twice and that are better run once: looked for on a
//! thread of its own, beside the training. What the program is told is in its own numbers of
//! regions.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use serde_json::{Value, json};
use tidelog_planner::cost::{Machine, MachineError};
use tidelog_planner::lifetime::Lifetimes;
use tidelog_planner::recompute::{
    CheckpointedRegion, LeftOut, Reruns, SameWrites, choose, finalists, without_aliases,
};
use tidelog_planner::simulate::{Runtime, SimulateError};
use tidelog_planner::tidelog::{QUICK_STEPS, TidelogOptions, step_cost};
use tidelog_planner::trace::Trace;
use tidelog_planner::units::{Bytes, Nanos};

/// Steps of a search for the choices that look best.
const FULL_STEPS: u64 = 16;
/// Number of choices that are planned by the longer search, besides all regions run twice, and
/// none.
const PLANNED: usize = 2;
/// Threshold of a change, in percent of the step as the program has it: nothing else is worth a
/// change.
const WORTH_PERCENT: u128 = 98;

/// Task of a choice.
pub(super) struct ChoiceTask {
    pub(super) trace: Trace,
    pub(super) machine: Machine,
    pub(super) runtime: Runtime,
    pub(super) regions: Vec<CheckpointedRegion>,
    /// Ops of the step that write the same bytes.
    pub(super) same: Vec<SameWrites>,
    /// Space in the pool for all storages of a step: what stays in memory may have a copy there,
    /// too.
    pub(super) room: Bytes,
}

/// A choice that is being made, or is there. Dropped, it ends soon.
pub(super) struct RegionChoice {
    slot: Arc<ChoiceSlot>,
}

/// Slot between the thread and the session.
#[derive(Default)]
struct ChoiceSlot {
    made: Mutex<Value>,
    dropped: AtomicBool,
}

/// The reason why there is no choice.
enum NoChoice {
    Dropped,
    Simulation(SimulateError),
}

impl From<MachineError> for NoChoice {
    fn from(error: MachineError) -> Self {
        Self::Simulation(error.into())
    }
}

impl From<SimulateError> for NoChoice {
    fn from(error: SimulateError) -> Self {
        Self::Simulation(error)
    }
}

impl RegionChoice {
    pub(super) fn begin(
        task: impl FnOnce() -> ChoiceTask + Send + 'static,
    ) -> Result<Self, String> {
        let slot = Arc::new(ChoiceSlot::default());
        let of_thread = Arc::clone(&slot);
        let look = move || {
            let made = match task().choose(&of_thread) {
                Err(NoChoice::Simulation(error)) => json!({ "why_not": error.to_string() }),
                Err(NoChoice::Dropped) => return,
                Ok(made) => made,
            };
            *of_thread.made.lock().unwrap_or_else(PoisonError::into_inner) = made;
        };
        let thread = thread::Builder::new().name("tidelog-regions".to_owned()).spawn(look);
        thread.map_err(|error| error.to_string())?;
        Ok(Self { slot })
    }

    /// The choice, as JSON; null while it is being made.
    pub(super) fn made(&self) -> Value {
        self.slot.made.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for RegionChoice {
    fn drop(&mut self) {
        self.slot.dropped.store(true, Ordering::Relaxed);
    }
}

impl ChoiceTask {
    /// Chooses the regions that are better run once, which cannot be and why, and what steps would
    /// take.
    fn choose(&self, slot: &ChoiceSlot) -> Result<Value, NoChoice> {
        let (trace, regions, same) = without_aliases(&self.trace, &self.regions, &self.same);
        let (reruns, places) = Reruns::of_regions(&trace, &regions, &same);
        let refused = places.iter().enumerate();
        let refused = refused.filter_map(|(region, place)| Some((region, place.as_ref().err()?)));
        let refused: Vec<Value> =
            refused.map(|(region, why)| json!([region, why.to_string()])).collect();
        if reruns.all().is_empty() {
            return Ok(json!({ "once": [], "refused": refused }));
        }
        // What the program needs as it is, it has.
        let room = self.room.max(Lifetimes::of(&trace).peak());
        let (mut tried, mut without_room) = (0, 0);
        let found = choose(&reruns, &self.machine, |trace| {
            tried += 1;
            if Lifetimes::of(trace).peak() > room {
                without_room += 1;
                return Ok(None);
            }
            self.cost(trace, QUICK_STEPS, slot)
        })?;
        let mut best: Option<(Nanos, LeftOut)> = None;
        let (mut own, mut none) = (None, None);
        for left_out in finalists(&reruns, found, PLANNED) {
            let Ok(step) = reruns.without(&left_out) else { continue };
            if Lifetimes::of(&step.trace).peak() > room {
                continue;
            }
            let Some((time, _)) = self.cost(&step.trace, FULL_STEPS, slot)? else { continue };
            if left_out.0.is_empty() {
                own = Some(time);
            }
            if left_out == reruns.every() {
                none = Some(time);
            }
            if best.as_ref().is_none_or(|(least, _)| time < *least) {
                best = Some((time, left_out));
            }
        }
        let (time, left_out) = best.unwrap_or_default();
        let is_worth =
            own.is_none_or(|own| u128::from(time.0) * 100 <= u128::from(own.0) * WORTH_PERCENT);
        let is_left_out =
            |place: &Result<u32, _>| place.as_ref().is_ok_and(|place| left_out.0.contains(place));
        let best: Vec<usize> =
            (0..places.len()).filter(|region| is_left_out(&places[*region])).collect();
        Ok(json!({
            "once": if is_worth { best.clone() } else { Vec::new() },
            "best": best,
            "refused": refused,
            "none_ns": none.map(|none| none.0),
            "own_ns": own.map(|own| own.0),
            "best_ns": time.0,
            "tried": tried,
            "without_room": without_room,
        }))
    }

    /// Returns the time and the written bytes of the best plan of a search; nothing where the step
    /// cannot run. The thread rests as long as it has searched.
    fn cost(
        &self,
        trace: &Trace,
        steps: u64,
        slot: &ChoiceSlot,
    ) -> Result<Option<(Nanos, Bytes)>, NoChoice> {
        if slot.dropped.load(Ordering::Relaxed) {
            return Err(NoChoice::Dropped);
        }
        let began = Instant::now();
        let options = TidelogOptions { runtime: self.runtime, ..Default::default() };
        let found = step_cost(trace, &self.machine, options, steps);
        thread::sleep(began.elapsed());
        Ok(found?)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidelog_planner::cost::SsdLink;
    use tidelog_planner::instances::CheckpointedStep;
    use tidelog_planner::units::Bandwidth;

    use super::*;

    fn chosen(budget: u64, rate: u64, room: u64) -> Value {
        let trace = CheckpointedStep::of(4, 1).checkpointed();
        let reruns = Reruns::of(&trace);
        let region = |rerun: &tidelog_planner::recompute::Rerun| CheckpointedRegion {
            first: rerun.first.clone(),
            again: rerun.again.clone(),
        };
        let regions: Vec<CheckpointedRegion> = reruns.all().iter().map(region).collect();
        let rate = Bandwidth(rate);
        let machine = Machine {
            budget: Bytes(budget),
            staging: Bytes(0),
            ssd: SsdLink { read: rate, write: rate, latency: Nanos(0) },
            host: None,
            verify: rate,
        };
        let (runtime, task_trace) = (Runtime::default(), trace.clone());
        let room = Bytes(room);
        let same = Vec::new();
        let task = move || ChoiceTask { trace: task_trace, machine, runtime, regions, same, room };
        let choice = RegionChoice::begin(task).unwrap();
        let began = Instant::now();
        while choice.made().is_null() {
            assert!(began.elapsed() < Duration::from_secs(60), "never came");
            thread::sleep(Duration::from_millis(1));
        }
        choice.made()
    }

    #[test]
    fn where_all_fits_nothing_runs_twice() {
        let made = chosen(100_000_000, 1_000_000_000, 100_000_000);
        assert_eq!(made["once"], json!([0, 1, 2, 3]), "{made}");
        assert!(made["best_ns"].as_u64() < made["own_ns"].as_u64(), "{made}");
        assert_eq!((&made["best"], &made["none_ns"]), (&made["once"], &made["best_ns"]), "{made}");
    }

    #[test]
    fn where_links_are_slow_what_runs_twice_is_left_so() {
        let made = chosen(500_000, 1_000_000, 100_000_000);
        assert_eq!(made["once"], json!([]), "{made}");
        assert!(made["none_ns"].as_u64() > made["own_ns"].as_u64(), "{made}");
    }

    #[test]
    fn what_a_pool_has_no_room_for_is_not_chosen() {
        let made = chosen(100_000_000, 1_000_000_000, 1);
        let once = made["once"].as_array().unwrap();
        assert!(once.len() < 4 && made["without_room"].as_u64() > Some(0), "{made}");
    }
}
