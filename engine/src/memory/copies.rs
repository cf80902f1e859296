//! The copies of a GPU that are under way, each with the chunk of staging memory that it begins or
//! ends in.

use std::collections::VecDeque;
use std::ops::Range;

use super::dma::DmaBuffer;
use super::gpu::{GpuCopy, GpuDirection, GpuError, GpuEvent, GpuRange, OpenedCopies};

/// Keeps a chunk, and what `T` says of it, until its copy is done. Dropped, it waits for those
/// under way.
pub(crate) struct PendingCopies<T> {
    opened: Option<OpenedCopies>,
    free: Vec<u32>,
    /// Copies from the GPU and to it, each in the order in which they end.
    out: VecDeque<Copying<T>>,
    into: VecDeque<Copying<T>>,
}

struct Copying<T> {
    slot: u32,
    chunk: DmaBuffer,
    about: T,
}

/// A copy that ended: its chunk, unless the GPU may still use it, and the checksum that was taken.
pub(crate) type CopyResult<T> = (T, Result<(DmaBuffer, u32), GpuError>);

impl<T> PendingCopies<T> {
    /// No GPU, no copies.
    pub(crate) fn none() -> Self {
        let (out, into) = (VecDeque::new(), VecDeque::new());
        Self { opened: None, free: Vec::new(), out, into }
    }

    /// Limits copies in flight to as many as `opened` has slots: `chunks`.
    pub(crate) fn of(opened: OpenedCopies, chunks: u32) -> Self {
        let under_way = || VecDeque::with_capacity(chunks as usize);
        let (free, out, into) = ((0..chunks).rev().collect(), under_way(), under_way());
        Self { opened: Some(opened), free, out, into }
    }

    /// Returns whether the GPU takes checksums itself.
    pub(crate) fn take_checksums(&self) -> bool {
        self.opened.as_ref().is_some_and(|opened| opened.why_no_checksums.is_none())
    }

    /// Returns whether any is under way.
    pub(crate) fn is_any(&self) -> bool {
        !self.out.is_empty() || !self.into.is_empty()
    }

    /// Begins a copy between the bytes of a transfer's memory from `offset` on, as many as `part`
    /// is long, and `part` of a chunk; gives the chunk back where that cannot be. The transfer must
    /// not be released before the copy has ended, or, for one to the GPU, before `landed` was
    /// recorded.
    pub(crate) fn begin(
        &mut self,
        direction: GpuDirection,
        memory: GpuRange,
        offset: u64,
        mut chunk: DmaBuffer,
        part: Range<usize>,
        about: T,
    ) -> Result<(), (GpuError, DmaBuffer)> {
        let copy = memory.copy(direction, offset as usize, &mut chunk[part]);
        self.begin_with(&copy, chunk, about)
    }

    /// Has the GPU take the checksum of `length` bytes of a transfer's memory. Nothing comes to the
    /// chunk, which bounds how many are under way.
    pub(crate) fn begin_check(
        &mut self,
        memory: GpuRange,
        offset: u64,
        chunk: DmaBuffer,
        length: u32,
        about: T,
    ) -> Result<(), (GpuError, DmaBuffer)> {
        self.begin_with(&memory.check(offset as usize, length), chunk, about)
    }

    fn begin_with(
        &mut self,
        copy: &GpuCopy,
        chunk: DmaBuffer,
        about: T,
    ) -> Result<(), (GpuError, DmaBuffer)> {
        let (Some(opened), Some(slot)) = (&mut self.opened, self.free.pop()) else {
            return Err((GpuError("there is no GPU".into()), chunk));
        };
        // SAFETY: the GPU's end lies within memory that its owner vouched for until the release
        // (`GpuSource::new`, `GpuDestination::new`), which comes later, as the caller sees to; the
        // chunk is kept here meanwhile, and what was refused does not touch it.
        if let Err(error) = unsafe { opened.copies.begin(slot, copy) } {
            self.free.push(slot);
            return Err((error.into(), chunk));
        }
        let under_way = match copy.direction {
            GpuDirection::Fill => &mut self.out,
            GpuDirection::Drain => &mut self.into,
        };
        under_way.push_back(Copying { slot, chunk, about });
        Ok(())
    }

    /// A copy that ended, if one has.
    pub(crate) fn next_ended(&mut self) -> Option<CopyResult<T>> {
        let opened = self.opened.as_mut()?;
        for under_way in [&mut self.out, &mut self.into] {
            let Some(first) = under_way.front() else { continue };
            let done = opened.copies.is_done(first.slot);
            if done == Ok(false) {
                continue;
            }
            let Some(Copying { slot, chunk, about }) = under_way.pop_front() else { continue };
            let Err(error) = done else {
                self.free.push(slot);
                return Some((about, Ok((chunk, opened.copies.checksum(slot)))));
            };
            // The GPU no longer responds: whether it still uses the chunk nobody knows, so it is
            // nobody's.
            std::mem::forget(chunk);
            return Some((about, Err(error.into())));
        }
        None
    }

    /// Has a caller's event happen behind every copy to the GPU so far, and behind `after`.
    pub(crate) fn record(&mut self, landed: GpuEvent, after: Option<GpuEvent>) {
        let recorded = self.opened.as_mut().map(|opened| opened.copies.record(landed, after));
        if matches!(recorded, Some(Err(_))) {
            // An event that is not recorded is one that has happened: so be it now.
            self.wait();
        }
    }

    /// Returns whether an event has happened. Where the GPU does not tell, what waits for it tells
    /// of that.
    pub(crate) fn has_happened(&mut self, event: GpuEvent) -> bool {
        let opened = self.opened.as_mut();
        opened.is_none_or(|opened| opened.copies.has_happened(event).unwrap_or(true))
    }

    /// Waits for all that are under way; `next_ended` hands them out afterwards. Returns whether
    /// none touches its chunk any more.
    pub(crate) fn wait(&mut self) -> bool {
        self.opened.as_mut().is_none_or(|opened| opened.copies.stop())
    }
}

impl<T> Drop for PendingCopies<T> {
    fn drop(&mut self) {
        if !self.wait() {
            // Their chunks are nobody's any more, as in `next_ended`.
            let under_way = self.out.drain(..).chain(self.into.drain(..));
            under_way.for_each(|copying| std::mem::forget(copying.chunk));
        }
    }
}
