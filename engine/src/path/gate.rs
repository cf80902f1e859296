//! Checks that every backend makes before it takes an operation, and its memory of failures.

use super::device::Device;
use super::latch::Latch;
use super::operation::{Action, DeviceError, Extent, Operation, OperationKind, Refusal};
use super::{Capabilities, DeviceCapabilities};
use crate::memory::{ALIGNMENT, GpuSlice, Memory, MemoryKind};
use crate::units::DeviceIndex;

/// The rules of admission, and the latch of each device.
#[derive(Debug)]
pub struct Gate {
    latches: Vec<Latch>,
    /// True if a page cache is between us and each of them, in which an earlier write may have been
    /// lost by the time that a later one is answered.
    cached: Vec<bool>,
}

impl Gate {
    /// Makes a gate to `devices` devices, none of which has failed.
    pub fn new(devices: usize) -> Self {
        let latches = std::iter::repeat_with(Latch::default).take(devices).collect();
        Self { latches, cached: vec![false; devices] }
    }

    /// A gate to these devices of the kernel's, with what other data paths to them know.
    pub(super) fn to(devices: &[Device]) -> Self {
        let latches = devices.iter().map(|device| device.latch().clone()).collect();
        Self { latches, cached: devices.iter().map(|device| !device.is_direct()).collect() }
    }

    /// Checks that `operation` may go to its device.
    #[inline]
    pub fn admit(&self, capabilities: &Capabilities, operation: &Operation) -> Result<(), Refusal> {
        let index = usize::from(operation.device.0);
        let Some(device) = capabilities.devices.get(index) else {
            return Err(Refusal::Invalid("there is no such device"));
        };
        if operation.tag == u64::MAX {
            return Err(Refusal::Invalid("the tag u64::MAX is reserved"));
        }
        let kind = operation.action.memory().map(Memory::kind);
        match kind.filter(|kind| !capabilities.memory.take(*kind)) {
            Some(MemoryKind::Gpu) => {
                return Err(Refusal::Invalid("the data path does not reach that GPU's memory"));
            }
            Some(_) => {
                let why = "the data path does not reach another device's memory";
                return Err(Refusal::Invalid(why));
            }
            None => {}
        }
        if operation.priority.is_some() && !capabilities.priorities {
            return Err(Refusal::Invalid("the data path passes no priority on"));
        }
        check_extent(device, operation)?;
        self.unlatched(operation.device, operation.action.kind())
    }

    /// Checks that no failure keeps operations of this kind from a device that exists.
    #[inline]
    pub fn unlatched(&self, device: DeviceIndex, kind: OperationKind) -> Result<(), Refusal> {
        match self.latches[usize::from(device.0)].cause() {
            Some(cause) if refuses(cause, kind) => Err(Refusal::Latched(cause)),
            _ => Ok(()),
        }
    }

    /// Remembers a failure that makes what the device holds uncertain.
    pub fn judge(&self, error: DeviceError) {
        let device = usize::from(error.device.0);
        let is_harmless = match error.kind {
            OperationKind::Write | OperationKind::WriteZeroes
                if error.status.is_lack_of_room() && !self.cached[device] =>
            {
                true
            }
            // Giving space back is advice: whatever became of it, nothing that counts on the device
            // has changed.
            OperationKind::Read | OperationKind::Deallocate => !error.status.is_removal(),
            _ => error.status.is_unsupported(),
        };
        if !is_harmless {
            self.latches[device].close(error);
        }
    }
}

/// A device whose write failed still releases what was written before (and checksums tell if not):
/// shutting reads out would lose the last good copy of everything it holds.
fn refuses(cause: DeviceError, kind: OperationKind) -> bool {
    cause.status.is_removal() || kind != OperationKind::Read
}

fn check_extent(device: &DeviceCapabilities, operation: &Operation) -> Result<(), Refusal> {
    let extent = operation.extent;
    if matches!(operation.action, Action::Flush) {
        let nothing = extent == Extent::NOTHING;
        return if nothing { Ok(()) } else { Err(Refusal::Invalid("a flush has no extent")) };
    }
    if extent.length.0 == 0 {
        return Err(Refusal::Invalid("the extent is empty"));
    }
    if !extent.fits(device.size) {
        return Err(Refusal::Invalid("the extent is unaligned or ends beyond the device"));
    }
    match &operation.action {
        Action::Write { memory: Memory::Gpu(slice), .. }
            if slice.held() != (0..slice.checked()) =>
        {
            Err(Refusal::Invalid("what is written is not what is checked"))
        }
        Action::Read(memory) | Action::Write { memory, .. } => match memory {
            Memory::Host(buffer) => check_length(buffer.len(), extent),
            Memory::Peer(buffer) => check_length(buffer.len(), extent),
            Memory::Gpu(slice) => check_slice(slice, extent),
        },
        Action::Deallocate if !device.deallocate => {
            Err(Refusal::Invalid("only block devices are deallocated, never files"))
        }
        Action::WriteZeroes | Action::Deallocate | Action::Flush => Ok(()),
    }
}

fn check_slice(memory: &GpuSlice, extent: Extent) -> Result<(), Refusal> {
    if memory.held().end > memory.checked() {
        return Err(Refusal::Invalid("more is wanted than is checked"));
    }
    let length = extent.length.0;
    let last_block = length.saturating_sub(ALIGNMENT as u64)..=length;
    if !last_block.contains(&u64::from(memory.checked())) {
        return Err(Refusal::Invalid("the memory is not as long as the extent"));
    }
    check_length(length as usize, extent)
}

fn check_length(buffer: usize, extent: Extent) -> Result<(), Refusal> {
    if (buffer as u64) < extent.length.0 {
        return Err(Refusal::Invalid("the buffer is shorter than the extent"));
    }
    if extent.length.0 > u64::from(u32::MAX) {
        return Err(Refusal::Invalid("the extent is longer than one transfer can be"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::Status;

    fn failed(kind: OperationKind, errno: i32) -> DeviceError {
        let status = Status::Errno(errno);
        DeviceError { device: DeviceIndex(0), kind, extent: Extent::new(0, 4096), status }
    }

    fn latched_by(errors: &[DeviceError]) -> Option<DeviceError> {
        let gate = Gate::new(1);
        for &error in errors {
            gate.judge(error);
        }
        gate.latches[0].cause()
    }

    #[test]
    fn only_failures_that_leave_the_medium_uncertain_latch() {
        for kind in [OperationKind::Read, OperationKind::Deallocate] {
            assert_eq!(latched_by(&[failed(kind, libc::EIO)]), None);
            assert_eq!(latched_by(&[failed(kind, libc::ENODEV)]), Some(failed(kind, libc::ENODEV)));
        }
        assert_eq!(latched_by(&[failed(OperationKind::WriteZeroes, libc::EOPNOTSUPP)]), None);
        for kind in [OperationKind::Write, OperationKind::Flush] {
            assert_eq!(latched_by(&[failed(kind, libc::EIO)]), Some(failed(kind, libc::EIO)));
        }
    }

    #[test]
    fn a_write_without_room_latches_only_where_a_cache_may_have_lost_others() {
        for errno in [libc::ENOSPC, libc::EDQUOT, libc::EFBIG] {
            let write = failed(OperationKind::Write, errno);
            assert_eq!(latched_by(&[write]), None);
            // What a flush finds no room for was written before.
            let flush = failed(OperationKind::Flush, errno);
            assert_eq!(latched_by(&[flush]), Some(flush));
            let through_cache = Gate { cached: vec![true], ..Gate::new(1) };
            through_cache.judge(write);
            assert_eq!(through_cache.latches[0].cause(), Some(write));
        }
    }

    #[test]
    fn a_removal_outranks_an_earlier_failed_write() {
        let write = failed(OperationKind::Write, libc::EIO);
        let gone = failed(OperationKind::Read, libc::ENODEV);
        assert_eq!(latched_by(&[write, gone]), Some(gone));
        assert_eq!(latched_by(&[gone, write]), Some(gone));
        assert!(refuses(gone, OperationKind::Read) && !refuses(write, OperationKind::Read));
    }
}
