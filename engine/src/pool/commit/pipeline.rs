//! The stages that commits go through, and what takes them from one to the next.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::flight::CommitIo;
use super::work::{Before, Work};
use super::{Commit, Commits, Pending};
use crate::layout::{Change, LogMark, TensorId};
use crate::log::{Append, ChangeLog, IndexFull, LogEnd, MetaWrite};
use crate::path::{Capabilities, Feature};
use crate::pool::error::CommitError;
use crate::pool::options::CommitStats;
use crate::schedule::{ControlError, SubmitError, TransferError};
use crate::units::{ByteCount, DeviceIndex, DeviceSet};

/// Records up to this long are written with FUA (the Force Unit Access bit of the `NVMe` Write
/// command, command dword 12): the device completes the write once these bytes are on non-volatile
/// media. A Flush command would have it write back all that its volatile cache holds of the
/// namespace, other tensors in flight included, for the sake of one block, and is a second round
/// trip. Longer writes (checkpoints) are many commands, which one flush settles together.
const FORCED_BYTES_MAX: usize = 64 << 10;

/// The stages. Commits pass them in the order in which they were started.
pub(super) struct Pipeline {
    log: ChangeLog,
    /// Devices with a volatile cache.
    volatile: DeviceSet,
    /// Commits whose writes may still be in flight.
    waiting: VecDeque<Pending>,
    flushing: Option<Flushing>,
    /// Commits whose data is on the media of every device.
    flushed: VecDeque<Pending>,
    recording: Option<Recording>,
    closed: bool,
    stats: CommitStats,
}

/// A group whose data is on its way out of volatile caches.
struct Flushing {
    group: Vec<Pending>,
    /// One for each device, which fails those commits alone that it touches.
    flushes: Vec<DeviceFlush>,
}

struct DeviceFlush {
    device: DeviceIndex,
    flight: CommitIo,
    ended: Option<Result<(), ControlError>>,
}

/// A group whose record is on its way to the media.
struct Recording {
    group: Vec<Pending>,
    /// Writes that follow the one in flight.
    left: Vec<MetaWrite>,
    /// The devices that are written.
    touched: DeviceSet,
    checkpoint: Option<(usize, usize)>,
    end: LogEnd,
    step: Step,
    flight: CommitIo,
}

#[derive(Clone, Copy, PartialEq)]
enum Step {
    /// A write that is on the medium when it ends.
    Force,
    Write,
    /// Flush of these writes.
    Flush,
}

impl Pipeline {
    pub(super) fn new(log: ChangeLog, capabilities: &Capabilities) -> Self {
        let devices = capabilities.devices.iter().zip(0..).filter(|(it, _)| it.volatile_cache);
        let volatile: DeviceSet = devices.map(|(_, index)| DeviceIndex(index)).collect();
        let on_volatile = log.devices().any(|device| volatile.contains(device));
        let forced_records = if on_volatile {
            Feature::On
        } else {
            Feature::Off("no metadata device has a volatile cache: a write is durable".into())
        };
        Self {
            log,
            volatile,
            waiting: VecDeque::new(),
            flushing: None,
            flushed: VecDeque::new(),
            recording: None,
            closed: false,
            stats: CommitStats { forced_records, ..CommitStats::default() },
        }
    }

    /// Takes a commit that was started.
    pub(super) fn admit(&mut self, pending: Pending) {
        if self.closed {
            return pending.end(Err(CommitError::Unusable(crate::pool::Unusable::Closed)));
        }
        self.waiting.push_back(pending);
    }

    /// Takes no more; returns the last that was taken, if any is in flight.
    pub(super) fn close(&mut self) -> Option<Commit> {
        self.closed = true;
        self.in_flight().next().map(|pending| pending.commit.clone())
    }

    /// See [`Commits::outcome`].
    pub(super) fn outcome(&self, id: TensorId) -> Option<bool> {
        self.in_flight().find_map(|pending| pending.work.outcome(id))
    }

    /// See [`Commits::seal_outcome`].
    pub(super) fn seal_outcome(&self, name: &str) -> Option<bool> {
        self.in_flight().find_map(|pending| pending.work.seal_outcome(name))
    }

    pub(super) fn stats(&self) -> CommitStats {
        CommitStats { in_doubt: self.doubt(), ..self.stats.clone() }
    }

    /// Returns the reason why only opening the pool again shows what is on the media, if that is
    /// so.
    pub(super) fn doubt(&self) -> Option<String> {
        self.log.stopped().map(str::to_owned)
    }

    /// Returns the mark of the change log's end, for an event to come.
    pub(super) fn mark(&self) -> LogMark {
        self.log.mark(self.in_flight().next().is_none())
    }

    /// Takes everything on as far as it goes without waiting.
    pub(super) fn run(&mut self, commits: &Arc<Commits>) {
        // Each moves something or returns that it did not.
        while self.end_record(commits)
            | self.end_flush()
            | self.begin_flush(commits)
            | self.begin_record(commits)
        {}
    }

    /// Iterates over the commits in flight, from the last on.
    fn in_flight(&self) -> impl Iterator<Item = &Pending> {
        let flushing = self.flushing.iter().flat_map(|it| it.group.iter().rev());
        let recording = self.recording.iter().flat_map(|it| it.group.iter().rev());
        let flushed = self.flushed.iter().rev();
        self.waiting.iter().rev().chain(flushing).chain(flushed).chain(recording)
    }

    /// Begins to flush the data of all commits whose writes have ended, up to the first whose have
    /// not.
    fn begin_flush(&mut self, commits: &Arc<Commits>) -> bool {
        if self.flushing.is_some() {
            return false;
        }
        let mut moved = false;
        let mut group = Vec::new();
        while let Some(written) = self.waiting.front_mut().and_then(|it| it.work.written()) {
            let Some(mut pending) = self.waiting.pop_front() else { break };
            moved = true;
            match written {
                Ok(()) => {
                    pending.touched = commits.touched(&pending.work);
                    group.push(pending);
                }
                Err(error) => pending.end(Err(error)),
            }
        }
        let touched =
            group.iter().map(|it| it.touched).fold(DeviceSet::default(), DeviceSet::union);
        let flushes: Vec<_> = touched
            .intersection(self.volatile)
            .iter()
            .map(|device| {
                let flush = |finish| commits.submitter.flush(&[device], finish);
                DeviceFlush { device, flight: CommitIo::begin(commits, flush), ended: None }
            })
            .collect();
        if flushes.is_empty() {
            self.flushed.extend(group);
        } else {
            self.stats.flush_rounds += 1;
            self.flushing = Some(Flushing { group, flushes });
        }
        moved
    }

    /// Ends the flush once every device has responded: what is flushed may be recorded.
    fn end_flush(&mut self) -> bool {
        let Some(flushing) = &mut self.flushing else { return false };
        for flush in &mut flushing.flushes {
            if flush.ended.is_none() {
                flush.ended = flush.flight.end();
            }
        }
        if flushing.flushes.iter().any(|flush| flush.ended.is_none()) {
            return false;
        }
        let Some(Flushing { group, flushes }) = self.flushing.take() else { return false };
        for pending in group {
            let touched = pending.touched;
            let failed = flushes.iter().find_map(|flush| match &flush.ended {
                Some(Err(error)) if touched.contains(flush.device) => Some(error.clone()),
                _ => None,
            });
            match failed {
                None => self.flushed.push_back(pending),
                Some(error) => pending.end(Err(CommitError::Flush(error))),
            }
        }
        true
    }

    /// Begins to record everything that is flushed, if nothing is being recorded.
    fn begin_record(&mut self, commits: &Arc<Commits>) -> bool {
        if self.recording.is_some() || self.flushed.is_empty() {
            return false;
        }
        if let Some(reason) = self.log.stopped() {
            let stopped = CommitError::Stopped(reason.to_owned());
            self.flushed.drain(..).for_each(|pending| pending.end(Err(stopped.clone())));
            return true;
        }
        // Where not all of it fits into the index the first may: commits fail one by one.
        let all = self.flushed.len();
        let (count, append) = match self.append_of(commits, all) {
            Err(_) if all > 1 => (1, self.append_of(commits, 1)),
            append => (all, append),
        };
        match append {
            Ok(append) => {
                let group = self.flushed.drain(..count).collect();
                match (append, commits.submitter.refusal()) {
                    (Some(append), _) => self.record(commits, group, append),
                    // Needs no device, and yet says what any other commit would.
                    (None, Some(refused)) => refuse(group, &refused),
                    (None, None) => self.acknowledge(group),
                }
            }
            Err(IndexFull { needed, room }) => {
                if let Some(first) = self.flushed.pop_front() {
                    first.end(Err(CommitError::IndexFull { needed, room }));
                }
            }
        }
        true
    }

    /// Returns the append that makes the first `count` commits durable, on top of what is; nothing
    /// if they change nothing.
    fn append_of(&mut self, commits: &Commits, count: usize) -> Result<Option<Append>, IndexFull> {
        let mut contents = commits.shared.contents();
        let mut before = Before::default();
        let mut moves = self.flushed.iter().take(count);
        let admitted = !moves.any(|pending| matches!(pending.work, Work::Moves { .. }));
        let group = self.flushed.iter_mut().take(count);
        let changes: Vec<Change> =
            group.flat_map(|pending| pending.work.changes(&contents, &mut before)).collect();
        if changes.is_empty() {
            return Ok(None);
        }
        contents.check_index(&changes, admitted)?;
        if self.log.has_room_for(&changes) {
            return Ok(Some(self.log.record(changes)));
        }
        let payload = contents.index_bytes_after(&changes);
        let segments = contents.index_segments_for(self.log.next_slot(), payload)?.to_vec();
        self.log.next_checkpoint(&contents.durable_after(&changes), &segments).map(Some)
    }

    fn record(&mut self, commits: &Arc<Commits>, group: Vec<Pending>, append: Append) {
        let touched = append.devices();
        let Append { writes: mut left, checkpoint, end } = append;
        let Some(write) = left.pop() else { return self.acknowledge(group) };
        let short = checkpoint.is_none() && write.bytes.len() <= FORCED_BYTES_MAX;
        let forced = short && self.stats.forced_records == Feature::On;
        let step = if forced { Step::Force } else { Step::Write };
        if forced {
            // The device may refuse, and then it is needed again.
            left.push(write.clone());
        }
        let flight = self.write(commits, step, write);
        self.recording = Some(Recording { group, left, touched, checkpoint, end, step, flight });
    }

    fn write(&self, commits: &Arc<Commits>, step: Step, write: MetaWrite) -> CommitIo {
        let MetaWrite { devices, offset, bytes } = write;
        let absent = self.log.absent();
        let devices: Vec<DeviceIndex> = devices.without(absent).iter().collect();
        let copies = (bytes.len() * devices.len()) as u64;
        commits.shared.written.metadata.fetch_add(copies, Ordering::Relaxed);
        CommitIo::begin(commits, |finish| {
            let (offset, fua) = (ByteCount(offset), step == Step::Force);
            commits.submitter.write_meta(&devices, offset, bytes, fua, finish)
        })
    }

    /// Goes on with the record in flight, once its write or flush has ended.
    fn end_record(&mut self, commits: &Arc<Commits>) -> bool {
        let Some(recording) = &self.recording else { return false };
        let Some(ended) = recording.flight.end() else { return false };
        let Some(mut recording) = self.recording.take() else { return false };
        let caches: Vec<_> = recording.touched.intersection(self.volatile).iter().collect();
        if let (Step::Write, Ok(())) = (recording.step, &ended)
            && let Some(write) = recording.left.pop()
        {
            recording.flight = self.write(commits, Step::Write, write);
            self.recording = Some(recording);
            return true;
        }
        match (recording.step, ended) {
            (Step::Write, Ok(())) if !caches.is_empty() => {
                recording.step = Step::Flush;
                recording.flight =
                    CommitIo::begin(commits, |finish| commits.submitter.flush(&caches, finish));
                self.recording = Some(recording);
            }
            (_, Ok(())) => {
                self.log.complete(recording.end);
                if let Some((slot, used)) = recording.checkpoint {
                    self.stats.checkpoints += 1;
                    commits.shared.contents().checkpoint_is_written(slot, used);
                } else {
                    self.stats.records += 1;
                }
                self.acknowledge(recording.group);
            }
            (Step::Force, Err(error)) if is_unsupported(&error) => {
                self.stats.forced_records = Feature::Off(format!("refused: {error}"));
                let Some(write) = recording.left.pop() else { return true };
                recording.step = Step::Write;
                recording.flight = self.write(commits, Step::Write, write);
                self.recording = Some(recording);
            }
            (Step::Force | Step::Write, Err(ControlError::Submit(refused))) => {
                refuse(recording.group, &refused);
            }
            (_, Err(error)) => {
                self.log.stop(error.to_string());
                for mut pending in recording.group {
                    pending.work.leave_in_doubt();
                    pending.end(Err(CommitError::InDoubt(error.clone())));
                }
            }
        }
        true
    }

    /// Acknowledges a group that is durable, and so is everything before it.
    fn acknowledge(&mut self, group: Vec<Pending>) {
        self.stats.commits += group.len() as u64;
        self.stats.group_max = self.stats.group_max.max(group.len() as u64);
        for mut pending in group {
            let changed = pending.work.apply();
            pending.end(Ok(changed));
        }
    }
}

/// The reactor has taken nothing of what would make this group durable: there is no doubt about it.
fn refuse(group: Vec<Pending>, refused: &SubmitError) {
    for pending in group {
        pending.end(Err(CommitError::Submit(refused.clone())));
    }
}

/// Returns whether the kernel or the device does not know this kind of write, so that nothing
/// happened.
fn is_unsupported(error: &ControlError) -> bool {
    match error {
        ControlError::Transfer(TransferError::Device { error, .. }) => {
            error.status.is_unsupported()
        }
        _ => false,
    }
}
