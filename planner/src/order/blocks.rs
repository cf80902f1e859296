//! Micro-batches and blocks of layers, found in a trace, and all micro-batches through each block.
//!
//! Micro-batches are found by what they use: the list of parameters that ops use, one use after the
//! other, is the same list several times over. Blocks are found by the parameters' names: up to and
//! with the first number (`model.layers.3`), or the module's where there is none (`lm_head`). A run
//! of uses of one block is a part of the pass; it begins, between its first use and the last one of
//! the part before, where the fewest bytes are alive.

use super::OrderError;
use crate::trace::{Identity, StorageKind, Trace};
use std::collections::HashMap;

/// The ops in the order in which all micro-batches pass a part before the next part.
pub(super) fn layer_wise(trace: &Trace, updates: &[bool]) -> Result<Vec<u32>, OrderError> {
    let uses = parameter_uses(trace, updates);
    let parameters: Vec<u32> = uses.iter().map(|(_, parameter)| *parameter).collect();
    let length = shortest_period(&parameters);
    if length == 0 || length == parameters.len() {
        return Err(OrderError::NoMicroBatches);
    }
    let last = uses[uses.len() - 1].0;
    let end = updates.iter().position(|is| *is).unwrap_or(trace.ops.len());
    if end <= last {
        return Err(OrderError::UpdatesInside { op: end as u32 });
    }
    let blocks = blocks(trace);
    let runs = runs(&parameters[..length], &blocks);
    let crossing = bytes_before(trace, end);
    let mut parts: Vec<Vec<std::ops::Range<usize>>> = vec![Vec::new(); runs.len()];
    let mut begin = 0;
    for (index, of_micro_batch) in uses.chunks(length).enumerate() {
        for (part, run) in runs.iter().enumerate() {
            let last = of_micro_batch[run.end - 1].0;
            let next = of_micro_batch.get(run.end).or(uses.get((index + 1) * length));
            let cut = next.map_or(end, |(next, _)| cheapest(&crossing, last + 1, *next));
            // One op may use parameters of two blocks.
            let cut = cut.max(begin);
            parts[part].push(begin..cut);
            begin = cut;
        }
    }
    let rest = end..trace.ops.len();
    Ok(parts.into_iter().flatten().chain([rest]).flatten().map(|op| op as u32).collect())
}

/// Each use of a parameter, in order: the op and the parameter. Updates do not count.
fn parameter_uses(trace: &Trace, updates: &[bool]) -> Vec<(usize, u32)> {
    let mut found = Vec::new();
    for (index, op) in trace.ops.iter().enumerate().filter(|(index, _)| !updates[*index]) {
        let storages = op.uses.iter().map(|used| used.storage);
        let parameters = storages.filter(|storage| {
            let storage = trace.storage(*storage);
            storage.kind == StorageKind::Parameter && matches!(storage.identity, Identity::Name(_))
        });
        found.extend(parameters.map(|parameter| (index, parameter.0)));
    }
    found
}

/// Returns the length of the shortest list of which `list` is several in a row; `list` itself if
/// there is no shorter one.
fn shortest_period(list: &[u32]) -> usize {
    // Of each beginning: how much of it is also its end.
    let mut borders = vec![0; list.len()];
    for index in 1..list.len() {
        let mut border: usize = borders[index - 1];
        while border > 0 && list[index] != list[border] {
            border = borders[border - 1];
        }
        borders[index] = border + usize::from(list[index] == list[border]);
    }
    let period = list.len() - borders.last().copied().unwrap_or(0);
    if period > 0 && list.len().is_multiple_of(period) { period } else { list.len() }
}

/// Returns the block of each storage.
fn blocks(trace: &Trace) -> Vec<usize> {
    let mut numbers = HashMap::new();
    let of_storage = trace.storages.iter().map(|storage| match &storage.identity {
        Identity::Name(name) => {
            let next = numbers.len();
            *numbers.entry(block_of(name)).or_insert(next)
        }
        _ => usize::MAX,
    });
    of_storage.collect()
}

/// `model.layers.3` of `model.layers.3.mlp.up_proj.weight`; `lm_head` of `lm_head.weight`.
fn block_of(name: &str) -> &str {
    let mut end = 0;
    for part in name.split('.') {
        end += part.len();
        if !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) {
            return &name[..end];
        }
        end += 1;
    }
    name.rsplit_once('.').map_or(name, |(module, _)| module)
}

/// The runs of uses of one block.
fn runs(parameters: &[u32], blocks: &[usize]) -> Vec<std::ops::Range<usize>> {
    let mut begin = 0;
    let same = |a: &u32, b: &u32| blocks[*a as usize] == blocks[*b as usize];
    let run = parameters.chunk_by(same).map(|run| {
        begin += run.len();
        begin - run.len()..begin
    });
    run.collect()
}

/// Returns for each op the bytes made in this iteration before it that it or a later op uses. What
/// the ops from `end` on use, such as sums of gradients, stays until then wherever a part begins.
fn bytes_before(trace: &Trace, end: usize) -> Vec<u64> {
    let mut last_use = vec![0; trace.storages.len()];
    for (index, op) in trace.ops.iter().enumerate() {
        op.uses.iter().for_each(|used| last_use[used.storage.0 as usize] = index);
    }
    // What is made before an op, and what has had its last use before it.
    let mut changes = vec![(0, 0); trace.ops.len() + 1];
    for (index, op) in trace.ops.iter().enumerate() {
        for storage in op.births.iter().map(|birth| birth.storage) {
            let (last, size) = (last_use[storage.0 as usize], trace.storage(storage).size.0);
            if (index + 1..end).contains(&last) {
                changes[index + 1].0 += size;
                changes[last + 1].1 += size;
            }
        }
    }
    let mut alive = 0;
    let sums = changes.iter().map(|(made, over)| {
        alive = alive + made - over;
        alive
    });
    sums.collect()
}

/// The first of the ops `from..=to` before which the fewest bytes are alive.
fn cheapest(bytes_before: &[u64], from: usize, to: usize) -> usize {
    (from.min(to)..=to).min_by_key(|op| bytes_before[*op]).unwrap_or(to)
}

#[cfg(test)]
mod tests {
    use super::{block_of, shortest_period};

    #[test]
    fn blocks_are_named_by_the_first_number_or_the_module() {
        for (name, block) in [
            ("model.layers.13.mlp.up_proj.weight", "model.layers.13"),
            ("transformer.h.0.attn.2.bias", "transformer.h.0"),
            ("lm_head.weight", "lm_head"),
            ("weight", "weight"),
            ("conv1.weight", "conv1"),
        ] {
            assert_eq!(block_of(name), block, "{name}");
        }
    }

    #[test]
    fn a_list_is_a_shorter_one_several_times_or_itself() {
        for (list, period) in [
            (&[1, 2, 3][..], 3),
            (&[1, 2, 1, 2], 2),
            (&[1, 2, 1], 3),
            (&[7, 7, 7], 1),
            (&[1, 2, 2, 1, 1, 2, 2, 1], 4),
            (&[], 0),
        ] {
            assert_eq!(shortest_period(list), period, "{list:?}");
        }
    }
}
