//! The fixed table of what is in flight: what the backends keep while a device owns a buffer.

use super::operation::{Completion, DeviceError, Operation, OperationKind, Status};
use crate::memory::ALIGNMENT;

/// A table of as many slots as may be in flight. Nothing is allocated after `new`.
#[derive(Debug)]
pub struct Slots {
    held: Vec<Option<Operation>>,
    free: Vec<u32>,
}

impl Slots {
    /// A table of `depth` empty slots.
    pub fn new(depth: u32) -> Self {
        let held = std::iter::repeat_with(|| None).take(depth as usize).collect();
        Self { held, free: (0..depth).rev().collect() }
    }

    /// Returns whether every slot is in use.
    pub fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Returns the number of slots in use.
    pub fn in_flight(&self) -> usize {
        self.held.len() - self.free.len()
    }

    /// Keeps `operation`; returns its slot and where it lies there. The table must not be full.
    #[inline]
    pub fn keep(&mut self, operation: Operation) -> (u32, &mut Operation) {
        let slot = self.free.pop().expect("the caller saw a free slot");
        (slot, self.held[slot as usize].insert(operation))
    }

    /// Returns the operation in a slot, if it is in use.
    pub fn get(&self, slot: u32) -> Option<&Operation> {
        self.held.get(slot as usize)?.as_ref()
    }

    /// The operation in a slot.
    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut Operation> {
        self.held.get_mut(slot as usize)?.as_mut()
    }

    /// Empties a slot; `None` if it was empty.
    #[inline]
    pub fn take(&mut self, slot: u32) -> Option<Operation> {
        let operation = self.held.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        Some(operation)
    }

    /// The slots in use whose operation carries `tag`, or all of them.
    pub fn find(&self, tag: Option<u64>) -> impl Iterator<Item = u32> + '_ {
        self.held.iter().enumerate().filter_map(move |(slot, operation)| {
            let carried = operation.as_ref()?.tag;
            tag.is_none_or(|tag| tag == carried).then_some(slot as u32)
        })
    }

    /// Leaks every buffer still held, because a device may yet write it.
    pub fn leak(&mut self) {
        self.held.drain(..).flatten().for_each(std::mem::forget);
    }
}

/// Returns the offset at which a read or write continues of which the kernel did a part: `done`
/// bytes before, `moved` in the last go. Only what follows tells why it stopped there. `None` where
/// it is whole, or the last go brought it no further by any block, as at the end of a file.
pub(super) fn goes_on_at(operation: &Operation, done: u32, moved: u32) -> Option<u32> {
    let end = done + moved;
    if u64::from(end) >= operation.extent.length.0 {
        return None;
    }
    let block = end - end % ALIGNMENT as u32;
    let moves_bytes = operation.action.memory().is_some();
    (moves_bytes && block > done).then_some(block)
}

/// The completion of `operation`, given what the kernel answered: the bytes moved (anything for
/// calls that move none), or an error number.
#[inline]
pub(super) fn complete(operation: Operation, answer: Result<u32, i32>) -> Completion {
    conclude(operation, answer.map_err(Status::Errno))
}

/// The completion of `operation`, given how many bytes were moved (anything where none are), or
/// what went wrong.
#[inline]
pub fn conclude(operation: Operation, answer: Result<u32, Status>) -> Completion {
    let Operation { tag, device, extent, action, .. } = operation;
    let kind = action.kind();
    let memory = action.into_memory();
    let moves_bytes = matches!(kind, OperationKind::Read | OperationKind::Write);
    let expected = if moves_bytes { extent.length.0 } else { 0 };
    let status = match answer {
        Err(status) => Some(status),
        Ok(moved) if u64::from(moved) < expected => Some(Status::Short { moved }),
        Ok(_) => None,
    };
    let result = match status {
        Some(status) => Err(DeviceError { device, kind, extent, status }),
        None => Ok(()),
    };
    Completion { tag, memory, checksum: None, result }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::DmaPool;
    use crate::path::{Action, Extent};
    use crate::units::{ByteCount, DeviceIndex};

    fn read_of_8_kib() -> Operation {
        let buffer = DmaPool::new(ByteCount::kib(8), false).unwrap().take(8192).unwrap();
        let extent = Extent::new(4096, 8192);
        let action = Action::read(buffer);
        Operation::new(5, DeviceIndex(1), extent, action)
    }

    #[test]
    fn a_short_transfer_is_a_failure_and_gives_the_buffer_back() {
        let completion = complete(read_of_8_kib(), Ok(4096));
        assert_eq!(completion.result.unwrap_err().status, Status::Short { moved: 4096 });
        assert_eq!(completion.into_buffer().unwrap().len(), 8192);
        assert!(complete(read_of_8_kib(), Ok(0)).result.is_err(), "nothing at all is short too");
        assert!(complete(read_of_8_kib(), Ok(8192)).result.is_ok());
    }

    #[test]
    fn a_part_goes_on_at_its_last_whole_block_unless_it_got_nowhere() {
        let read = read_of_8_kib();
        assert_eq!(goes_on_at(&read, 0, 4096), Some(4096));
        assert_eq!(goes_on_at(&read, 0, 5000), Some(4096));
        // What follows is the end of a file of 5000 bytes.
        assert_eq!(goes_on_at(&read, 4096, 904), None);
        for (done, moved) in [(0, 8192), (4096, 4096), (0, 0), (4096, 0), (0, 100)] {
            assert_eq!(goes_on_at(&read, done, moved), None, "{done} {moved}");
        }
        let flush = Operation::new(5, DeviceIndex(1), Extent::NOTHING, Action::Flush);
        assert_eq!(goes_on_at(&flush, 0, 0), None);
    }

    #[test]
    fn each_lack_of_room_and_a_failed_medium_have_texts_of_their_own() {
        let text = |errno| complete(read_of_8_kib(), Err(errno)).result.unwrap_err().to_string();
        for (errno, says) in [
            (libc::ENOSPC, "No space left on device (os error 28): the file system"),
            (libc::EDQUOT, "(os error 122): its owner's quota"),
            (libc::EFBIG, "(os error 27): a limit"),
            (libc::EIO, "Input/output error (os error 5): the device"),
        ] {
            assert!(text(errno).contains(says), "{}", text(errno));
            assert_eq!(Status::Errno(errno).is_lack_of_room(), errno != libc::EIO);
        }
    }

    #[test]
    fn a_failure_names_device_extent_and_cause() {
        let error = complete(read_of_8_kib(), Err(libc::EIO)).result.unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("read of 8 KiB at byte 4096 failed on device 1: "), "{text}");
        assert!(text.contains("os error 5"), "{text}");
    }

    #[test]
    fn a_slot_is_free_again_once_taken() {
        let mut slots = Slots::new(1);
        let (slot, _) = slots.keep(read_of_8_kib());
        assert!(slots.is_full());
        assert_eq!(slots.find(Some(5)).collect::<Vec<_>>(), [slot]);
        assert_eq!(slots.find(Some(6)).count(), 0);
        assert!(slots.take(slot).is_some() && slots.take(slot).is_none());
        assert_eq!(slots.in_flight(), 0);
    }
}
