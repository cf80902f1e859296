//! Made-up training steps with activation checkpointing, and the same without.

use super::Builder;
use crate::trace::{Access, PlanStorage, StorageKind, Trace};
use tidelog_random::Random;

/// A training step over a chain of blocks that are all alike, each of which is checkpointed.
#[derive(Clone, Debug)]
pub struct CheckpointedStep {
    /// Number of blocks.
    pub blocks: usize,
    /// Number of micro-batches, one after the other.
    pub micro_batches: usize,
    /// Size of a parameter.
    pub weight: u64,
    /// The ops of a block's forward pass.
    pub ops: Vec<BlockOp>,
}

/// An op of a block. It makes one value; value 0 is the block's input, value `n` what op `n - 1`
/// makes.
#[derive(Clone, Debug)]
pub struct BlockOp {
    /// The values it reads.
    pub reads: Vec<usize>,
    /// Values that the op changes in place.
    pub changes: Vec<usize>,
    /// Values that its backward op reads.
    pub saves: Vec<usize>,
    /// True if the op has a parameter.
    pub has_weight: bool,
    /// Size of its output.
    pub size: u64,
    /// Duration of the op.
    pub time: u64,
}

impl CheckpointedStep {
    /// Two products with something in between that is larger than the block's input.
    pub fn of(blocks: usize, micro_batches: usize) -> Self {
        let op = |reads: usize, has_weight, size, time| BlockOp {
            reads: vec![reads],
            changes: Vec::new(),
            saves: vec![reads],
            has_weight,
            size,
            time,
        };
        let ops = vec![
            op(0, true, 40_000, 20_000),
            op(1, false, 40_000, 2_000),
            op(2, true, 10_000, 20_000),
        ];
        Self { blocks, micro_batches, weight: 30_000, ops }
    }

    /// Blocks of up to four ops that read, change and save what they like, as far as autograd
    /// allows it: what is saved is not changed any more.
    pub fn random(random: &mut Random) -> Self {
        let mut ops = Vec::new();
        let mut is_saved = vec![false];
        for number in 0..=random.below(4) as usize {
            let any = |random: &mut Random| random.below(number as u64 + 1) as usize;
            // The first takes the block's input.
            let mut reads = if number == 0 { vec![0] } else { vec![any(random)] };
            let other = any(random);
            if !reads.contains(&other) && random.chance(2) {
                reads.push(other);
            }
            let value = any(random);
            let may_change = value > 0 && !is_saved[value] && !reads.contains(&value);
            let changes = if may_change && random.chance(3) { vec![value] } else { Vec::new() };
            let mut saves: Vec<usize> =
                reads.iter().copied().filter(|_| random.chance(2)).collect();
            is_saved.push(false);
            if random.chance(4) {
                saves.push(number + 1);
            }
            for value in &saves {
                is_saved[*value] = true;
            }
            let has_weight = number == 0 || random.chance(2);
            let (size, time) = (1 + random.below(60), 1 + random.below(40));
            ops.push(BlockOp { reads, changes, saves, has_weight, size, time });
        }
        let (blocks, micro_batches) = (1 + random.below(3) as usize, 1 + random.below(2) as usize);
        Self { blocks, micro_batches, weight: 1 + random.below(40), ops }
    }

    /// The step as a program without checkpointing runs it.
    pub fn plain(&self) -> Trace {
        self.trace(false)
    }

    /// The step as a program with every block checkpointed runs it.
    pub fn checkpointed(&self) -> Trace {
        self.trace(true)
    }

    fn trace(&self, checkpointed: bool) -> Trace {
        let mut b = Builder::default();
        let weights: Vec<Vec<Option<PlanStorage>>> = (0..self.blocks)
            .map(|block| {
                let of_op = |(index, op): (usize, &BlockOp)| {
                    op.has_weight.then(|| b.global(&format!("layers.{block}.{index}"), self.weight))
                };
                self.ops.iter().enumerate().map(of_op).collect()
            })
            .collect();
        let mut writing = Writing { step: self, b, weights, gradients: Vec::new(), checkpointed };
        writing.gradients = vec![vec![None; self.ops.len()]; self.blocks];
        for _ in 0..self.micro_batches {
            writing.micro_batch();
        }
        writing.update();
        let mut trace = writing.b.trace;
        die_after_their_last_use(&mut trace);
        Builder { trace }.finish()
    }

    /// Returns the number of a block's ops that have to run again so that all that it has saved is
    /// there.
    fn again(&self) -> usize {
        let saved = |value: usize| self.ops.iter().any(|op| op.saves.contains(&value));
        let makes = |(index, op): (usize, &BlockOp)| {
            saved(index + 1) || op.changes.iter().any(|value| saved(*value))
        };
        let last = self.ops.iter().enumerate().rfind(|one| makes(*one));
        last.map_or(0, |(index, _)| index + 1)
    }
}

struct Writing<'a> {
    step: &'a CheckpointedStep,
    b: Builder,
    weights: Vec<Vec<Option<PlanStorage>>>,
    gradients: Vec<Vec<Option<PlanStorage>>>,
    checkpointed: bool,
}

impl Writing<'_> {
    fn micro_batch(&mut self) {
        let load = self.op("load", 1);
        let mut values = vec![vec![self.b.birth(load, self.step.ops[0].size)]];
        for block in 0..self.step.blocks {
            let before = &values[values.len() - 1];
            let input = before[before.len() - 1];
            let made = self.forward(block, input, self.step.ops.len());
            values.push(made);
        }
        let loss = self.op("loss", 1);
        let last = &values[self.step.blocks];
        self.b.uses(loss, last[last.len() - 1], Access::Read);
        let mut from_above = self.b.birth(loss, 1);
        for block in (0..self.step.blocks).rev() {
            let mut values = values.pop().expect("one for each block");
            if self.checkpointed {
                values = self.forward(block, values[0], self.step.again());
            }
            for index in (0..self.step.ops.len()).rev() {
                from_above = self.backward(block, index, &values, from_above);
            }
        }
    }

    /// The first ops of a block: its input and what they make.
    fn forward(&mut self, block: usize, input: PlanStorage, ops: usize) -> Vec<PlanStorage> {
        let mut values = vec![input];
        for (index, described) in self.step.ops.iter().enumerate().take(ops) {
            let op = self.op(&format!("forward{index}"), described.time);
            if let Some(weight) = self.weights[block][index] {
                self.b.uses(op, weight, Access::Read);
            }
            for value in &described.reads {
                self.b.uses(op, values[*value], Access::Read);
            }
            for value in &described.changes {
                self.b.uses(op, values[*value], Access::Update);
            }
            values.push(self.b.birth(op, described.size));
        }
        values
    }

    fn backward(
        &mut self,
        block: usize,
        index: usize,
        values: &[PlanStorage],
        from_above: PlanStorage,
    ) -> PlanStorage {
        let described = &self.step.ops[index];
        let op = self.op(&format!("backward{index}"), 2 * described.time);
        self.b.uses(op, from_above, Access::Read);
        for value in &described.saves {
            self.b.uses(op, values[*value], Access::Read);
        }
        let passed_on = self.b.birth(op, described.size);
        if let Some(weight) = self.weights[block][index] {
            self.b.uses(op, weight, Access::Read);
            if let Some(sum) = self.gradients[block][index] {
                self.b.uses(op, sum, Access::Update);
            } else {
                let gradient = self.b.birth(op, self.step.weight);
                self.b.trace.storages[gradient.0 as usize].kind = StorageKind::Gradient;
                self.gradients[block][index] = Some(gradient);
            }
        }
        passed_on
    }

    fn update(&mut self) {
        let pairs = self.weights.iter().flatten().zip(self.gradients.iter().flatten());
        let pairs: Vec<_> = pairs.filter_map(|(one, other)| one.zip(*other)).collect();
        for (weight, gradient) in pairs {
            let op = self.op("update", 1);
            self.b.uses(op, weight, Access::Update);
            self.b.uses(op, gradient, Access::Read);
        }
    }

    /// An op; those of one name look alike wherever they are.
    fn op(&mut self, name: &str, time: u64) -> usize {
        let op = self.b.op(time);
        let recorded = &mut self.b.trace.ops[op];
        name.clone_into(&mut recorded.name);
        recorded.fingerprint = name.bytes().map(u64::from).sum();
        op
    }
}

/// Ends each storage as soon as nobody needs it any more.
fn die_after_their_last_use(trace: &mut Trace) {
    let mut last = vec![None; trace.storages.len()];
    for (index, op) in trace.ops.iter().enumerate() {
        op.births.iter().for_each(|birth| last[birth.storage.0 as usize] = Some(index));
        for used in &op.uses {
            if let Some(last) = &mut last[used.storage.0 as usize] {
                *last = index;
            }
        }
    }
    for (storage, last) in last.into_iter().enumerate() {
        let Some(last) = last else { continue };
        let storage = PlanStorage(storage as u32);
        trace.ops[last].deaths.push(crate::trace::Death { storage, previous: false });
    }
}
