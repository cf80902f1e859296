//! Which periods are out so that every op fits: greedily the most worthwhile, then without those
//! that the later ones have made needless.

use super::super::tree::RangeMaximum;
use super::Span;
use super::worth::AbsencePeriod;
use crate::cost::Machine;
use crate::lifetime::Lifetimes;

pub(super) struct Cover {
    ops: u32,
    capacity: i64,
    memory: RangeMaximum,
}

impl Cover {
    pub(super) fn new(lifetimes: &Lifetimes, machine: &Machine) -> Self {
        let memory: Vec<i64> = lifetimes.memory.iter().map(|bytes| signed(bytes.0)).collect();
        Self {
            ops: memory.len() as u32,
            capacity: signed(machine.capacity().0),
            memory: RangeMaximum::new(&memory),
        }
    }

    /// The choices taken, as indices. Where even all of them are not enough, all that help.
    pub(super) fn cover(mut self, choices: &[AbsencePeriod], spans: &[Span]) -> Vec<usize> {
        let mut taken = Vec::new();
        for (index, (choice, span)) in choices.iter().zip(spans).enumerate() {
            if span.gone < span.back && self.most(*span) > self.capacity {
                self.add(*span, -signed(choice.period.size.0));
                taken.push(index);
            }
        }
        taken.reverse();
        taken.retain(|&index| {
            let (span, size) = (spans[index], signed(choices[index].period.size.0));
            let needless = self.most(span) + size <= self.capacity;
            if needless {
                self.add(span, size);
            }
            !needless
        });
        taken
    }

    fn most(&self, span: Span) -> i64 {
        let most = self.rounds(span).map(|(from, to)| self.memory.maximum(from, to));
        most[0].max(most[1])
    }

    fn add(&mut self, span: Span, bytes: i64) {
        for (from, to) in self.rounds(span) {
            self.memory.add(from, to, bytes);
        }
    }

    /// The span's ops of this iteration and of the next, both counted from 0.
    fn rounds(&self, span: Span) -> [(usize, usize); 2] {
        let cut =
            |op: u32, base: u32| op.clamp(base, base + self.ops).saturating_sub(base) as usize;
        [0, self.ops].map(|base| (cut(span.gone, base), cut(span.back, base)))
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX / 4)
}
