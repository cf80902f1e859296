//! Events behind uses of memory, in each stream that uses some.

use std::collections::VecDeque;
use std::sync::Arc;

use tidelog_gds::Gpu;
use tidelog_gds::cuda::{CudaError, Event, ForeignStream};
use tidelog_planner::arena::{StreamNumber, StreamUse};

/// Streams, with the events that were recorded in them and may not have happened.
#[derive(Debug)]
pub(super) struct Timelines {
    gpu: Arc<Gpu>,
    streams: Vec<Timeline>,
    /// Number of the last use, of whatever stream.
    last: u64,
    /// Events to be recorded again.
    spare: Vec<Event>,
}

#[derive(Debug)]
struct Timeline {
    stream: ForeignStream,
    /// Uses, each with the event behind it, in order.
    marks: VecDeque<(u64, Event)>,
    /// Last use that is known to have happened.
    happened: u64,
}

impl Timelines {
    pub(super) fn new(gpu: &Arc<Gpu>) -> Self {
        Self { gpu: Arc::clone(gpu), streams: Vec::new(), last: 0, spare: Vec::new() }
    }

    /// The number of a stream.
    pub(super) fn number_of(&mut self, stream: ForeignStream) -> StreamNumber {
        let known = self.streams.iter().position(|known| known.stream == stream);
        let at = known.unwrap_or_else(|| {
            self.streams.push(Timeline { stream, marks: VecDeque::new(), happened: 0 });
            self.streams.len() - 1
        });
        StreamNumber(at as u32)
    }

    /// Notes all that was put into a stream so far as a use.
    ///
    /// # Safety
    /// The stream is open.
    pub(super) unsafe fn mark(&mut self, stream: ForeignStream) -> Result<StreamUse, CudaError> {
        let number = self.number_of(stream);
        let event = match self.spare.pop() {
            Some(event) => event,
            None => Event::new(&self.gpu)?,
        };
        // SAFETY: by this function's contract.
        unsafe { event.record_in(stream) }?;
        self.last += 1;
        self.streams[number.0 as usize].marks.push_back((self.last, event));
        Ok(StreamUse { stream: number, number: self.last })
    }

    /// Looks which uses have happened.
    pub(super) fn look(&mut self) -> Result<(), CudaError> {
        for timeline in &mut self.streams {
            while let Some((number, event)) = timeline.marks.front() {
                if !event.has_happened()? {
                    break;
                }
                timeline.happened = *number;
                self.spare.extend(timeline.marks.pop_front().map(|(_, event)| event));
            }
        }
        Ok(())
    }

    /// Returns whether a use was seen to have happened.
    pub(super) fn has_happened(&self, one: StreamUse) -> bool {
        one.number <= self.streams[one.stream.0 as usize].happened
    }

    /// Returns the event behind a use, unless that was seen to have happened.
    pub(super) fn event_behind(&self, one: StreamUse) -> Option<&Event> {
        let marks = &self.streams[one.stream.0 as usize].marks;
        let at = marks.partition_point(|(number, _)| *number < one.number);
        marks.get(at).map(|(_, event)| event)
    }

    /// Waits until a use has happened. Returns whether it was not seen to have.
    pub(super) fn wait_for(&self, one: StreamUse) -> Result<bool, CudaError> {
        self.event_behind(one).map_or(Ok(false), |event| event.wait().map(|()| true))
    }

    /// Waits until all uses have happened.
    pub(super) fn wait_for_all(&mut self) -> Result<(), CudaError> {
        for timeline in &self.streams {
            if let Some((_, event)) = timeline.marks.back() {
                event.wait()?;
            }
        }
        self.look()
    }
}
