//! Handling of operations that ended: counted, compared, and their buffers free again.

use std::path::Path;
use std::time::{Duration, Instant};

use tidelog_engine::memory::{DmaBuffer, Memory};
use tidelog_engine::path::{Completion, IoPriority};

use super::{Flight, Phase, RawJob};
use crate::direction::DataDirection;
use crate::load::{BadBlock, BlockRange, Origin, check};
use crate::option::LogOptions;
use crate::run::dump;
use crate::stats::{Operated, OperationLatency, Recorder, nanos};

/// An operation that ended, as far as it is counted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct CompletedIo {
    operated: Operated,
    latency: OperationLatency,
}

impl RawJob {
    pub(super) fn complete(&mut self, phase: Phase, recorder: &mut Recorder) {
        let mut completions = std::mem::take(&mut self.completions);
        self.path.poll(&mut completions);
        let [least, most] = self.job.queue.complete.map(|it| it as usize);
        let in_flight = self.flights.len() - self.idle.len() - usize::from(self.waiting.is_some());
        while phase == Phase::Load && completions.len() < least.min(in_flight) {
            // A path that is dead says so again where it is waited for.
            if self.path.wait(None).is_err() {
                break;
            }
            self.path.poll(&mut completions);
        }
        let count = if most > 0 { completions.len().min(most) } else { completions.len() };
        self.landed_at = Instant::now();
        let now = nanos(self.epoch, self.landed_at);
        if count > 0 && phase == Phase::Load {
            recorder.completed.count_batch(count);
        }
        for Completion { tag, memory, result, .. } in completions.drain(..count) {
            let buffer = memory.and_then(Memory::into_host);
            let tag = tag as usize;
            let Flight { place, direction, priority, pass, is_check, is_sync, slat, issued } =
                self.flights[tag];
            if is_sync {
                self.syncing -= 1;
                recorder.synced(self.epoch + Duration::from_nanos(issued), self.landed_at);
            }
            if direction == DataDirection::Write
                && !is_sync
                && let Some(zones) = self.member.zones.get(place.file)
            {
                zones.landed(place.offset, place.length);
            }
            match (result, &buffer) {
                (Err(error), _) => {
                    self.ended.fail(format!("{}: {error}", self.job.filename[place.file]));
                }
                (Ok(()), _) if is_sync => {}
                (Ok(()), buffer) => {
                    if phase == Phase::Load && !is_check {
                        let latency = OperationLatency { slat, clat: now - issued };
                        // Operations that a log tells apart are not alike.
                        let LogOptions { offsets, .. } = self.job.logs;
                        let operated = Operated {
                            direction,
                            offset: if offsets { place.offset } else { 0 },
                            bytes: place.length,
                            priority: priority.map_or(0, IoPriority::number),
                        };
                        self.note(CompletedIo { operated, latency });
                    }
                    if direction == DataDirection::Write {
                        self.backlog.landed(place, pass);
                    }
                    if direction == DataDirection::Trim && self.job.load.writes_what_it_trims() {
                        self.trimmed.push(place);
                    }
                    if let (true, DataDirection::Read, Some(buffer)) =
                        (self.job.verify, direction, buffer)
                    {
                        // Whatever is read in a load was written by some run; what is read back, by
                        // this one.
                        let oldest = Origin { pass, ..self.origin };
                        let is_read_back = phase != Phase::Load || is_check;
                        self.compare(place, buffer, is_read_back.then_some(oldest));
                    }
                }
            }
            let buffer = buffer.or_else(|| self.parked[tag].take());
            self.idle.extend(buffer.map(|buffer| (tag, buffer)));
        }
        self.completions = completions;
    }

    fn note(&mut self, landed: CompletedIo) {
        match self.landed.last_mut() {
            Some((last, times)) if *last == landed => *times += 1,
            _ => self.landed.push((landed, 1)),
        }
    }

    pub(super) fn count_landed(&mut self, recorder: &mut Recorder) {
        if let Some(steady) = self.steady() {
            let each = self.landed.iter();
            let sums = each.map(|(landed, times)| (*times, landed.operated.bytes * times));
            let (operations, bytes) = sums.fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
            steady.count(operations, bytes);
        }
        for (CompletedIo { operated, latency }, times) in self.landed.drain(..) {
            if let Some(depth) = &mut self.depth {
                (0..times).for_each(|_| depth.landed(latency.slat + latency.clat));
            }
            recorder.completed_alike(times, operated, latency, self.landed_at);
        }
    }

    fn compare(&mut self, place: BlockRange, buffer: &DmaBuffer, oldest: Option<Origin>) {
        let block = &buffer[..place.length as usize];
        self.ended.verified += 1;
        if let Err(fault) = check(block, place.offset, oldest) {
            let file = self.job.filename[place.file].clone();
            if let (true, Some(origin)) = (self.job.verify_dump, oldest)
                && let Err(error) = dump::dump(Path::new(""), block, &file, place, origin)
            {
                self.ended.fail(format!("verify_dump: {file} at byte {}: {error}", place.offset));
            }
            self.ended.bad(BadBlock { file, offset: place.offset, length: place.length, fault });
        }
    }
}
