//! The step without some of its reruns: what their first runs made lives on instead.

use super::{KeptStep, Rerun};
use crate::trace::{Death, Identity, PlanStorage, Trace, TraceError};
use crate::units::OpIndex;

/// Leaves out the second run of each rerun of `kept`.
pub(super) fn keep(base: &Trace, kept: &[&Rerun]) -> Result<KeptStep, TraceError> {
    let plan = LeavingOut::of(base, kept);
    let mut trace = Trace { name: base.name.clone(), ..Trace::default() };
    let mut numbers = vec![PlanStorage(0); base.storages.len()];
    for (index, storage) in base.storages.iter().enumerate() {
        if plan.instead[index].0 as usize == index {
            numbers[index] = PlanStorage(trace.storages.len() as u32);
            trace.storages.push(storage.clone());
        }
    }
    let number = |storage: PlanStorage| numbers[plan.stands_for(storage)];
    let mut deaths = plan.deaths(base);
    let mut schedule = Vec::with_capacity(base.ops.len());
    for (index, op) in base.ops.iter().enumerate().filter(|(index, _)| !plan.left_out[*index]) {
        let mut op = op.clone();
        op.deaths = std::mem::take(&mut deaths[index]);
        op.deaths.iter_mut().for_each(|death| death.storage = number(death.storage));
        op.uses.iter_mut().for_each(|used| used.storage = number(used.storage));
        let at = OpIndex(trace.ops.len() as u32);
        for birth in &mut op.births {
            birth.storage = number(birth.storage);
            let identity = Identity::Output { op: at, slot: birth.slot };
            trace.storages[birth.storage.0 as usize].identity = identity;
        }
        schedule.push(index as u32);
        trace.ops.push(op);
    }
    trace.validate()?;
    Ok(KeptStep { trace, schedule })
}

struct LeavingOut {
    /// The ops that do not run.
    left_out: Vec<bool>,
    /// Storage in place of each storage: itself, unless an op that does not run makes it.
    instead: Vec<PlanStorage>,
    /// Storages that do not die where they do in the program: those that live on, and those that
    /// only a second run knows.
    dies_elsewhere: Vec<bool>,
}

impl LeavingOut {
    fn of(base: &Trace, kept: &[&Rerun]) -> Self {
        let storages = base.storages.len();
        let mut plan = Self {
            left_out: vec![false; base.ops.len()],
            instead: (0..storages).map(|storage| PlanStorage(storage as u32)).collect(),
            dies_elsewhere: vec![false; storages],
        };
        for rerun in kept {
            rerun.again.clone().for_each(|op| plan.left_out[op as usize] = true);
            for one in &rerun.made {
                plan.instead[one.again.0 as usize] = one.first;
                let dead = if one.outlives { one.first } else { one.again };
                plan.dies_elsewhere[dead.0 as usize] = true;
            }
        }
        plan
    }

    fn stands_for(&self, storage: PlanStorage) -> usize {
        self.instead[storage.0 as usize].0 as usize
    }

    /// Returns the deaths beside each op that runs. Beside one that does not run dies what was held
    /// for it, which then goes after its last use, and what happens to go meanwhile, which goes
    /// before.
    fn deaths(&self, base: &Trace) -> Vec<Vec<Death>> {
        let mut last_use = vec![None; base.storages.len()];
        let mut is_held = vec![false; base.storages.len()];
        for (index, op) in base.ops.iter().enumerate() {
            let uses = op.uses.iter().filter(|used| !used.previous).map(|used| used.storage);
            for storage in uses.chain(op.births.iter().map(|birth| birth.storage)) {
                let storage = self.stands_for(storage);
                if self.left_out[index] {
                    is_held[storage] = true;
                } else {
                    last_use[storage] = Some(index);
                }
            }
        }
        let mut deaths = vec![Vec::new(); base.ops.len()];
        let mut before = 0;
        for (index, op) in base.ops.iter().enumerate() {
            if !self.left_out[index] {
                before = index;
            }
            for death in &op.deaths {
                let storage = self.stands_for(death.storage);
                let was_held = self.left_out[index] && is_held[storage] && !death.previous;
                let at = last_use[storage].filter(|_| was_held).unwrap_or(before);
                if !self.dies_elsewhere[death.storage.0 as usize] {
                    deaths[at].push(*death);
                }
            }
        }
        deaths
    }
}
