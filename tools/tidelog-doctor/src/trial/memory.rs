//! Memory of a trial's tensor.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::{Destination, GpuDestination, GpuSource, Source};
use tidelog_engine::pool::{Pool, PutOptions};
use tidelog_engine::schedule::{Ticket, Urgency};
use tidelog_gds::Gpu;
use tidelog_gds::cuda::{CudaError, DeviceMemory};

use super::{TrialError, timed};

/// The host's memory, which the engine makes as it needs it, or a GPU's.
pub(super) enum TrialMemory {
    Host,
    Gpu(DeviceMemory),
}

impl TrialMemory {
    pub(super) fn new(length: usize, gpu: Option<&Arc<Gpu>>) -> Result<Self, TrialError> {
        let Some(gpu) = gpu else { return Ok(Self::Host) };
        Ok(Self::Gpu(DeviceMemory::new(gpu, length).map_err(of_cuda)?))
    }

    /// Puts the bytes from here. Returns how long that took once they were here.
    pub(super) fn put(
        &mut self,
        pool: &Pool,
        id: TensorId,
        bytes: Vec<u8>,
    ) -> Result<Duration, TrialError> {
        let source = match self {
            Self::Host => Source::from(bytes),
            Self::Gpu(memory) => {
                memory.write(0, &bytes).map_err(of_cuda)?;
                // SAFETY: within the memory, which nobody frees or writes before the put's end was
                // told, below.
                Source::Gpu(unsafe { GpuSource::new(memory.base().0, bytes.len(), None) })
            }
        };
        let put = || {
            let ticket = pool.put(id, source, PutOptions::default());
            ended(&ticket.map_err(TrialError::failed)?)
        };
        timed(put).map(|(time, ())| time)
    }

    /// Gets a tensor of this length to here. Returns how long that took, and what came.
    pub(super) fn get(
        &mut self,
        pool: &Pool,
        id: TensorId,
        length: usize,
    ) -> Result<(Duration, Vec<u8>), TrialError> {
        let destination = match self {
            Self::Host => Destination::buffer(length),
            Self::Gpu(memory) => {
                // What is there would look right if nothing came.
                memory.write(0, &vec![0xEE; length]).map_err(of_cuda)?;
                // SAFETY: within the memory, which nobody frees or uses before the get's end was
                // told, below.
                Destination::Gpu(unsafe {
                    GpuDestination::new(memory.base().0, length, None, None)
                })
            }
        };
        let get = || {
            let range = 0..length as u64;
            let ticket = pool.get(id, range, destination, Urgency::Urgent, None);
            let ticket = ticket.map_err(TrialError::failed)?;
            ended(&ticket).map(|()| ticket)
        };
        let (time, ticket) = timed(get)?;
        Ok((time, self.found(&ticket, length)?))
    }

    fn found(&self, ticket: &Ticket, length: usize) -> Result<Vec<u8>, TrialError> {
        match self {
            Self::Host => {
                ticket.take_bytes().ok_or_else(|| TrialError::failed("the engine kept the bytes"))
            }
            Self::Gpu(memory) => {
                let mut bytes = vec![0; length];
                memory.read(0, &mut bytes).map_err(of_cuda)?;
                Ok(bytes)
            }
        }
    }
}

/// Waits until a transfer's end is told: nothing touches its memory then.
fn ended(ticket: &Ticket) -> Result<(), TrialError> {
    Ok(ticket.wait().map(drop)?)
}

fn of_cuda(error: CudaError) -> TrialError {
    TrialError::failed(error)
}
