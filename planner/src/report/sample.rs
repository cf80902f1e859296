//! Samples of events for pictures: columns, lanes and ticks.

use super::TransferSpan;
use crate::migration::{MemorySample, MigrationDirection};
use crate::units::{Bandwidth, Bytes, Nanos};

/// Limit of memory samples; more are drawn as the maximum of each column.
const SAMPLES_MAX: usize = 4000;

/// The columns of the bandwidth picture.
const BINS: u64 = 240;

/// The samples to draw: all of them, or the highest of each column, so that no peak is lost.
pub(super) fn thin(samples: &[MemorySample], duration: Nanos) -> Vec<MemorySample> {
    if samples.len() <= SAMPLES_MAX {
        return samples.to_vec();
    }
    let width = (duration.0 / SAMPLES_MAX as u64).max(1);
    let mut columns: Vec<MemorySample> = Vec::with_capacity(SAMPLES_MAX + 1);
    let mut current = u64::MAX;
    for sample in samples {
        let column = sample.at.0 / width;
        match columns.last_mut() {
            Some(last) if column == current => {
                let held = |s: &MemorySample| s.resident.0 + s.moving.0;
                if held(sample) > held(last) {
                    (last.resident, last.moving) = (sample.resident, sample.moving);
                }
                last.wanted = last.wanted.max(sample.wanted);
            }
            _ => columns.push(*sample),
        }
        current = column;
    }
    columns
}

/// A lane for each span of time, so that no two in one lane overlap, and the number of lanes. What
/// does not fit in `most` lanes shares the one that is free the soonest.
pub(crate) fn lanes(spans: &[(Nanos, Nanos)], most: usize) -> (Vec<usize>, usize) {
    let mut order: Vec<usize> = (0..spans.len()).collect();
    order.sort_by_key(|index| (spans[*index], *index));
    let mut free_from: Vec<Nanos> = Vec::new();
    let mut lane_of = vec![0; spans.len()];
    for index in order {
        let (begin, end) = spans[index];
        let free = free_from.iter().position(|free| *free <= begin);
        let lane = match free {
            Some(lane) => lane,
            None if free_from.len() < most => {
                free_from.push(Nanos(0));
                free_from.len() - 1
            }
            None => (0..most).min_by_key(|lane| free_from[*lane]).unwrap_or(0),
        };
        free_from[lane] = free_from[lane].max(end);
        lane_of[index] = lane;
    }
    (lane_of, free_from.len())
}

/// Bytes per second in each of [`BINS`] equal columns, what each transfer moved in the step spread
/// evenly over the time in which it moved there.
pub(crate) fn bandwidth(
    transfers: &[TransferSpan],
    direction: MigrationDirection,
    duration: Nanos,
) -> Vec<Bandwidth> {
    let width = duration.0.div_ceil(BINS).max(1);
    let mut bytes = vec![0u128; BINS as usize];
    let moving = transfers
        .iter()
        .filter(|t| t.direction == direction && t.carries_bytes() && t.moved < t.end);
    for transfer in moving {
        let length = u128::from(transfer.end.0 - transfer.moved.0);
        let last_bin = ((transfer.end.0 - 1) / width).min(BINS - 1);
        for bin in transfer.moved.0 / width..=last_bin {
            let from = transfer.moved.0.max(bin * width);
            let to = transfer.end.0.min((bin + 1) * width);
            let share = u128::from(transfer.in_step.0) * u128::from(to.saturating_sub(from));
            bytes[bin as usize] += share / length;
        }
    }
    let per_second = |bytes: u128| Bandwidth((bytes * 1_000_000_000 / u128::from(width)) as u64);
    bytes.into_iter().map(per_second).collect()
}

/// Round times below `duration`, five to ten of them.
pub(super) fn time_ticks(duration: Nanos) -> Vec<Nanos> {
    let mut step = 1u64;
    'found: while duration.0 / step >= 10 {
        for factor in [2, 5, 10] {
            if duration.0 / (step * factor) < 10 {
                step *= factor;
                break 'found;
            }
        }
        step *= 10;
    }
    (0..=duration.0 / step).map(|tick| Nanos(tick * step)).collect()
}

/// Round sizes up to `most`, three to six of them.
pub(super) fn byte_ticks(most: Bytes) -> Vec<Bytes> {
    let mut step = (most.0 / 6).max(1).next_power_of_two();
    if most.0 / step < 3 && step > 1 {
        step /= 2;
    }
    (0..=most.0 / step).map(|tick| Bytes(tick * step)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::migration::{Ending, Target};
    use crate::trace::StorageKind;

    fn transfer(begin: u64, end: u64, bytes: u64) -> TransferSpan {
        TransferSpan {
            name: String::new(),
            kind: StorageKind::Other,
            bytes: Bytes(bytes),
            direction: MigrationDirection::Out,
            target: Target::Ssd,
            begin: Nanos(begin),
            moved: Nanos(begin),
            end: Nanos(end),
            in_step: Bytes(bytes),
            urgent: false,
            ending: Ending::Moved,
        }
    }

    #[test]
    fn thinning_keeps_the_peak() {
        let sample = |at: u64| MemorySample {
            at: Nanos(at),
            resident: Bytes(if at == 77_777 { 900 } else { at % 100 }),
            moving: Bytes(0),
            wanted: Bytes(1000 + at % 3),
        };
        let samples: Vec<_> = (0..100_000).map(sample).collect();
        let thinned = thin(&samples, Nanos(100_000));
        assert!(thinned.len() <= SAMPLES_MAX + 1);
        assert_eq!(thinned.iter().map(|s| s.resident.0).max(), Some(900));
        assert!(thinned.is_sorted_by_key(|s| s.at));
    }

    #[test]
    fn transfers_in_one_lane_do_not_overlap() {
        let spans: Vec<_> = (0..12).map(|i| transfer(i * 10, i * 10 + 25, 1)).collect();
        let times: Vec<_> = spans.iter().map(|span| (span.begin, span.end)).collect();
        let (lane_of, count) = lanes(&times, 24);
        assert_eq!(count, 3);
        for (a, first) in spans.iter().enumerate() {
            for (b, second) in spans.iter().enumerate().skip(a + 1) {
                assert!(lane_of[a] != lane_of[b] || first.end <= second.begin);
            }
        }
    }

    #[test]
    fn bandwidth_is_bytes_over_time() {
        let spans = [transfer(0, 1200, 1200), transfer(2400, 4800, 1200)];
        let rates = bandwidth(&spans, MigrationDirection::Out, Nanos(4800));
        assert_eq!(rates[0], Bandwidth(1_000_000_000));
        assert_eq!(rates[100], Bandwidth(0));
        assert_eq!(rates[200], Bandwidth(500_000_000));
        assert!(
            bandwidth(&spans, MigrationDirection::In, Nanos(4800)).iter().all(|rate| rate.0 == 0)
        );
    }

    #[test]
    fn what_began_before_the_step_counts_with_what_it_moved_in_it() {
        let mut span = transfer(0, 1200, 2400);
        span.in_step = Bytes(1200);
        assert_eq!(
            bandwidth(&[span], MigrationDirection::Out, Nanos(4800))[0],
            Bandwidth(1_000_000_000)
        );
    }

    #[test]
    fn ticks_are_round_and_few() {
        for duration in [1, 7, 999, 1_000, 123_456_789, 987_654_321_000] {
            let ticks = time_ticks(Nanos(duration));
            assert!((2..=10).contains(&ticks.len()), "{duration}: {ticks:?}");
        }
        for most in [1, 100, 4096, 5 << 30, (5 << 30) + 123, 900 << 30] {
            let ticks = byte_ticks(Bytes(most));
            assert!((2..=7).contains(&ticks.len()), "{most}: {ticks:?}");
        }
    }
}
