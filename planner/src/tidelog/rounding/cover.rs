//! Choice of the periods that are out so that every op fits: greedily the most worthwhile, then
//! without those that the later ones have made needless.

use super::super::tree::RangeMaximum;
use super::Span;
use super::worth::AbsencePeriod;
use crate::cost::Machine;
use crate::lifetime::Lifetimes;
use crate::migration::Target;
use std::collections::{HashMap, HashSet};

pub(super) struct Cover {
    ops: u32,
    capacity: i64,
    memory: RangeMaximum,
    /// Host memory, and what of it each op would meet taken.
    host_room: i64,
    host: RangeMaximum,
}

impl Cover {
    pub(super) fn new(lifetimes: &Lifetimes, machine: &Machine) -> Self {
        let memory: Vec<i64> = lifetimes.memory.iter().map(|bytes| signed(bytes.0)).collect();
        Self {
            ops: memory.len() as u32,
            capacity: signed(machine.capacity().0),
            host: RangeMaximum::new(&vec![0; memory.len()]),
            memory: RangeMaximum::new(&memory),
            host_room: machine.host.map_or(0, |host| signed(host.memory.0)),
        }
    }

    /// The choices taken, as indices. Where even all of them are not enough, all that help.
    pub(super) fn cover(mut self, choices: &[AbsencePeriod], spans: &[Span]) -> Vec<usize> {
        let (mut taken, mut chosen) = (Vec::new(), HashSet::new());
        let mut places: HashMap<u32, Target> = HashMap::new();
        for (index, (choice, span)) in choices.iter().zip(spans).enumerate() {
            let helps = span.gone < span.back && self.most(*span) > self.capacity;
            let place = places.get(&choice.contents);
            if !helps || chosen.contains(&choice.number) || !self.has_place(choice, place.copied())
            {
                continue;
            }
            if choice.target == Target::Host && place.is_none() {
                let size = signed(choice.period.size.0);
                let held = self.rounds(choice.held);
                add(&mut self.host, held, size);
            }
            places.insert(choice.contents, choice.target);
            chosen.insert(choice.number);
            self.free(*span, signed(choice.period.size.0));
            taken.push(index);
        }
        taken.reverse();
        taken.retain(|&index| {
            let (span, size) = (spans[index], signed(choices[index].period.size.0));
            let needless = self.most(span) + size <= self.capacity;
            if needless {
                self.free(span, -size);
            }
            !needless
        });
        taken
    }

    /// Returns whether the copy can be where the choice wants it: its contents have one copy, in
    /// one place.
    fn has_place(&self, choice: &AbsencePeriod, place: Option<Target>) -> bool {
        match (choice.target, place) {
            (target, Some(place)) => target == place,
            (Target::Ssd, None) => true,
            (Target::Host, None) => {
                let most = maximum(&self.host, self.rounds(choice.held));
                most + signed(choice.period.size.0) <= self.host_room
            }
        }
    }

    fn most(&self, span: Span) -> i64 {
        maximum(&self.memory, self.rounds((span.gone, span.back)))
    }

    fn free(&mut self, span: Span, bytes: i64) {
        let rounds = self.rounds((span.gone, span.back));
        add(&mut self.memory, rounds, -bytes);
    }

    /// The range's ops of this iteration and of the next, both counted from 0.
    fn rounds(&self, (from, to): (u32, u32)) -> [(usize, usize); 2] {
        let cut =
            |op: u32, base: u32| op.clamp(base, base + self.ops).saturating_sub(base) as usize;
        [0, self.ops].map(|base| (cut(from, base), cut(to, base)))
    }
}

fn maximum(line: &RangeMaximum, rounds: [(usize, usize); 2]) -> i64 {
    let most = rounds.map(|(from, to)| line.maximum(from, to));
    most[0].max(most[1])
}

fn add(line: &mut RangeMaximum, rounds: [(usize, usize); 2], bytes: i64) {
    for (from, to) in rounds {
        line.add(from, to, bytes);
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX / 4)
}
