//! The reason why steps that were recorded gave no plan yet.

use tidelog_planner::trace::{Storage, Trace};

/// The last steps that are remembered.
const STEPS_MAX: usize = 16;

/// The steps since the block began, or the last of them, that were recorded and led to no plan.
#[derive(Default)]
pub(super) struct HeldBack {
    steps: Vec<String>,
}

impl HeldBack {
    /// The step `step`, counted from 1, was recorded, and gave no plan for this reason.
    pub(super) fn note(&mut self, step: u64, why: &str) {
        if self.steps.len() == STEPS_MAX {
            self.steps.remove(0);
        }
        self.steps.push(format!("step {step}: {why}"));
    }

    pub(super) fn steps(&self) -> &[String] {
        &self.steps
    }
}

/// Describes the first place at which a step did something else than the one before; `None` where a
/// plan for one serves the other.
pub(super) fn difference(before: &Trace, now: &Trace) -> Option<String> {
    let ops = before.ops.iter().zip(&now.ops).enumerate();
    let mut other = ops.filter(|(_, (before, now))| before.fingerprint != now.fingerprint);
    if let Some((index, (before, now))) = other.next() {
        return Some(if before.name == now.name {
            format!("{} at op {index} has other shapes than in the step before", now.name)
        } else {
            format!("{} ran at op {index}, where {} ran in the step before", now.name, before.name)
        });
    }
    if before.ops.len() != now.ops.len() {
        return Some(format!("{} ops, {} in the step before", now.ops.len(), before.ops.len()));
    }
    let storages = before.storages.iter().zip(&now.storages);
    if let Some((before, now)) = storages.into_iter().find(|(before, now)| !alike(before, now)) {
        return Some(format!("it uses {}, the step before {}", describe(now), describe(before)));
    }
    let (before, now) = (before.storages.len(), now.storages.len());
    (before != now).then(|| format!("{now} storages, {before} in the step before"))
}

/// Kinds are for reports alone.
fn alike(one: &Storage, other: &Storage) -> bool {
    (&one.identity, one.size, one.movable) == (&other.identity, other.size, other.movable)
}

fn describe(storage: &Storage) -> String {
    let Storage { identity, size, movable, .. } = storage;
    format!("{identity} ({size}{})", if *movable { "" } else { ", which cannot move" })
}

#[cfg(test)]
mod tests {
    use tidelog_planner::instances::deep_network;
    use tidelog_planner::trace::Identity;
    use tidelog_planner::units::Bytes;

    use super::*;

    #[test]
    fn what_differs_is_named() {
        let trace = || deep_network(4);
        assert_eq!(difference(&trace(), &trace()), None);
        let changed = |change: &dyn Fn(&mut Trace)| {
            let mut other = trace();
            change(&mut other);
            assert_ne!(other.fingerprint(), trace().fingerprint());
            difference(&trace(), &other).expect("they differ")
        };
        let shapes = changed(&|trace| trace.ops[4].fingerprint += 1);
        assert!(shapes.contains("at op 4 has other shapes"), "{shapes}");
        let other = changed(&|trace| {
            trace.ops[4].fingerprint += 1;
            trace.ops[4].name = "another".to_owned();
        });
        assert!(other.starts_with("another ran at op 4, where "), "{other}");
        let fewer = changed(&|trace| drop(trace.ops.pop()));
        assert!(fewer.ends_with(" in the step before") && fewer.contains(" ops, "), "{fewer}");
        let arrival = changed(&|trace| trace.storages[0].identity = Identity::Arrival);
        assert!(arrival.starts_with("it uses arrival"), "{arrival}");
        let wider = changed(&|trace| trace.storages[0].size = Bytes(11));
        assert!(wider.contains("(11 B)"), "{wider}");
        let more = changed(&|trace| trace.storages.push(trace.storages[0].clone()));
        assert!(more.contains(" storages, "), "{more}");
    }

    #[test]
    fn the_last_steps_are_remembered() {
        let mut held = HeldBack::default();
        (1..=20).for_each(|step| held.note(step, "because"));
        assert_eq!(held.steps().len(), STEPS_MAX);
        assert_eq!(held.steps()[0], "step 5: because");
    }
}
