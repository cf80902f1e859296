//! Wear of the drives by a plan, before the first byte is written: terabytes per day, how long each
//! drive lasts, and what writing less would cost in speed.

mod budget;

use crate::hardware::Hardware;
use crate::plan::Plan;
use crate::simulate::Simulation;
use crate::units::{Bytes, Nanos};
use budget::{DAY, whole};
pub use budget::{WriteAllowance, WriteBudget};
use serde::Serialize;

/// Budgets on the curve, as parts of what the plan without a budget writes per day, in per cent.
const BUDGETS_PERCENT: [u64; 8] = [100, 90, 80, 65, 50, 40, 30, 20];

/// The drives that take the writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Wearing {
    /// Model of the drives.
    pub model: String,
    /// Number of drives that share the bytes.
    pub drives: u32,
    /// GPUs that write to them.
    pub writers: u32,
    /// Bytes that one holds, if known.
    pub capacity: Option<Bytes>,
    /// Bytes that may be written to one in all, if known.
    pub endurance: Option<Bytes>,
    /// Bytes written to the drives for a hundred that the plan writes.
    pub amplification_percent: u32,
}

/// Wear of the drives by a step that is repeated day and night.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DriveWear {
    /// The length of a step.
    #[serde(rename = "step_ns")]
    pub step: Nanos,
    /// Bytes that one GPU's plan writes in a step.
    pub written_per_step: Bytes,
    /// Bytes that reach all the drives in a day.
    pub written_per_day: Bytes,
    /// Bytes that reach one drive in a day.
    pub written_per_day_and_drive: Bytes,
    /// Drive writes per day, in thousandths.
    pub drive_writes_per_day_per_mille: Option<u64>,
    /// Hours until a drive's rating is used up.
    pub lifetime_hours: Option<u64>,
    /// Steps until then: a training run either needs more of them or it does not, however fast it
    /// is.
    pub lifetime_steps: Option<u64>,
}

/// A way to run the step.
#[derive(Clone, Debug)]
pub struct StepChoice {
    /// The plan.
    pub plan: Plan,
    /// Simulation of its step on the machine as it is.
    pub simulation: Simulation,
}

/// The best that can be done under a budget with the choices there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct WriteBudgetPoint {
    /// Bytes per day that one GPU may write.
    pub budget_per_day: Bytes,
    /// The length of a step.
    #[serde(rename = "step_ns")]
    pub step: Nanos,
    /// Part of it that is a pause, to keep to the budget.
    #[serde(rename = "pause_ns")]
    pub pause: Nanos,
    /// Bytes written in a step.
    pub written_per_step: Bytes,
    /// Index of the choice.
    pub choice: usize,
}

impl Wearing {
    /// The drives of a machine.
    pub fn of(hardware: &Hardware, amplification_percent: u32) -> Self {
        let drive = hardware.drives.drive().ok();
        Self {
            model: hardware.drives.model.clone(),
            drives: hardware.drives.count,
            writers: hardware.writers(),
            capacity: drive.as_ref().and_then(|drive| drive.capacity),
            endurance: drive.as_ref().and_then(|drive| drive.endurance),
            amplification_percent,
        }
    }

    /// Returns the wear by a step of this length that writes `written` bytes.
    pub fn wear(&self, step: Nanos, written: Bytes) -> DriveWear {
        let per_step = u128::from(written.0)
            * u128::from(self.writers)
            * u128::from(self.amplification_percent)
            / 100;
        let per_day = per_step * DAY / u128::from(step.0.max(1));
        let per_drive = per_day / u128::from(self.drives.max(1));
        let divided = |amount: u128, by: u128| (by > 0).then(|| whole(amount / by));
        let of_rating = |amount: u128, by: u128| {
            divided(u128::from(self.endurance?.0) * u128::from(self.drives) * amount, by)
        };
        DriveWear {
            step,
            written_per_step: written,
            written_per_day: Bytes(whole(per_day)),
            written_per_day_and_drive: Bytes(whole(per_drive)),
            drive_writes_per_day_per_mille: self
                .capacity
                .and_then(|capacity| divided(per_drive * 1000, u128::from(capacity.0))),
            lifetime_hours: of_rating(24, per_day),
            lifetime_steps: of_rating(1, per_step),
        }
    }
}

/// Bytes per day that a choice writes, if nothing pauses.
fn per_day(simulation: &Simulation) -> u128 {
    u128::from(simulation.bytes.ssd_written.0) * DAY / u128::from(simulation.time.0.max(1))
}

/// The choices that no other one beats in both time and bytes written, fastest first.
pub fn unbeaten(mut found: Vec<StepChoice>) -> Vec<StepChoice> {
    found.sort_by_key(|choice| (choice.simulation.time, choice.simulation.bytes.ssd_written));
    let mut least = None;
    found.retain(|choice| {
        let written = choice.simulation.bytes.ssd_written;
        let better = least.is_none_or(|least| written < least);
        least = Some(least.map_or(written, |least| written.min(least)));
        better
    });
    found
}

/// The fastest way to keep to a budget: a choice that does, or one that pauses between steps until
/// it does.
pub fn under_budget(choices: &[StepChoice], budget_per_day: Bytes) -> Option<WriteBudgetPoint> {
    let point = |(choice, one): (usize, &StepChoice)| {
        let written = one.simulation.bytes.ssd_written;
        let budget = WriteBudget { per_day: budget_per_day, beside: Nanos(0) };
        let step = budget.paced(one.simulation.time, written);
        WriteBudgetPoint {
            budget_per_day,
            step,
            pause: Nanos(step.0 - one.simulation.time.0),
            written_per_step: written,
            choice,
        }
    };
    choices.iter().enumerate().map(point).min_by_key(|point| (point.step, point.written_per_step))
}

/// Returns the cost of smaller and smaller budgets, from what the fastest choice writes down to a
/// fifth of it.
pub fn curve(choices: &[StepChoice]) -> Vec<WriteBudgetPoint> {
    let Some(fastest) = choices.first() else { return Vec::new() };
    let all = per_day(&fastest.simulation);
    let budgets = BUDGETS_PERCENT.into_iter().filter(|_| all > 0);
    budgets
        .filter_map(|percent| {
            let budget = if percent == 100 { all + 1 } else { all * u128::from(percent) / 100 };
            under_budget(choices, Bytes(whole(budget)))
        })
        .collect()
}

#[cfg(test)]
mod tests;
