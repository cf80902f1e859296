//! Faults of the disks, and the errors that may follow.

use std::collections::BTreeMap;
use std::ops::Range;

use tidelog_engine::layout::{
    BLOCK_BYTES, Copies, HOLDERS_OFFSET, METADATA_OFFSET, SUPERBLOCK_OFFSET,
};
use tidelog_engine::path::sim::{Fault, PowerCut, SimDisk};
use tidelog_engine::path::{Extent, OperationKind};
use tidelog_engine::schedule::{TransferError, TransferOutcome};

use super::{Check, Runner, text};
use crate::sim::coverage::{FaultSeen, Under};
use crate::sim::model::Content;
use crate::sim::script::{Cut, OneTimeFault};

/// Errors that are allowed, because of faults of the disks.
#[derive(Default)]
pub(in crate::sim) struct AllowedErrors {
    /// Writes and flushes may fail: a fault is planned or has struck since the pool was opened.
    pub(in crate::sim) writes: bool,
    /// Number of reads that may fail or return other bytes, once. One alone is retried and never
    /// seen.
    pub(super) reads: u64,
    /// Number of tensors that may be unreadable for good.
    pub(super) damaged: u64,
    /// The copy of the metadata that was hurt since the pool was opened.
    pub(super) metadata: Option<usize>,
    /// Disks of which a superblock may have been hurt since the pool was opened, and which one.
    pub(super) superblocks: BTreeMap<usize, SuperblockCopy>,
    /// True if blocks of tensors may be unreadable for good.
    pub(super) unreadable: bool,
    /// A disk is gone.
    pub(super) removed: bool,
}

/// One of a disk's two.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum SuperblockCopy {
    First,
    Second,
}

/// The longest write. In the superblock's neighbourhood a longer one may hit it.
const WRITE_MAX: u64 = 32 << 10;
/// Share, 1 / this, of astray operations that go to the first superblock and what is beside it.
const TO_START: u16 = 4;
const START: u64 = 16 << 10;

impl AllowedErrors {
    pub(super) fn any(&self) -> bool {
        self.writes || self.reads > 1 || self.damaged > 0 || self.removed
    }
}

impl Runner<'_> {
    pub(super) fn plan(&mut self, disk: u8, nth: u8, see_fault: OneTimeFault) {
        let index = usize::from(disk);
        let size = self.disks[index].size().0;
        let place = |at: u16| {
            let of = if at.is_multiple_of(TO_START) { START } else { size };
            u64::from(at) * (of >> 16)
        };
        let silent =
            matches!(see_fault, OneTimeFault::WriteLost | OneTimeFault::WriteMisdirected(_));
        if silent && !self.may_hurt_metadata(index) {
            return;
        }
        if let OneTimeFault::WriteMisdirected(at) = see_fault
            && !self.may_hurt_superblock(index, place(at)..place(at) + WRITE_MAX)
        {
            return;
        }
        let (kind, fault) = match see_fault {
            OneTimeFault::ReadError => (OperationKind::Read, Fault::Errno(5)),
            OneTimeFault::ReadShort => (OperationKind::Read, Fault::Short(0)),
            OneTimeFault::ReadCorrupt => (OperationKind::Read, Fault::Corrupt),
            OneTimeFault::ReadMisdirected(at) => {
                (OperationKind::Read, Fault::Misdirected(place(at)))
            }
            OneTimeFault::ReadSlow => (OperationKind::Read, Fault::Slow(10_000)),
            OneTimeFault::WriteError => (OperationKind::Write, Fault::Errno(5)),
            OneTimeFault::WriteShort => (OperationKind::Write, Fault::Short(0)),
            OneTimeFault::WriteLost => (OperationKind::Write, Fault::Lost),
            OneTimeFault::WriteMisdirected(at) => {
                (OperationKind::Write, Fault::Misdirected(place(at)))
            }
            OneTimeFault::WriteSlow => (OperationKind::Write, Fault::Slow(10_000)),
            OneTimeFault::FlushError => (OperationKind::Flush, Fault::Errno(5)),
        };
        match see_fault {
            OneTimeFault::WriteError | OneTimeFault::WriteShort | OneTimeFault::FlushError => {
                self.allowed_errors.writes = true;
            }
            OneTimeFault::ReadError
            | OneTimeFault::ReadShort
            | OneTimeFault::ReadCorrupt
            | OneTimeFault::ReadMisdirected(_) => self.allowed_errors.reads += 1,
            OneTimeFault::WriteLost | OneTimeFault::WriteMisdirected(_) => {
                self.allowed_errors.metadata = Some(copy_on(index));
            }
            _ => {}
        }
        self.disks[index].plan_fault(kind, nth.into(), fault);
    }

    /// Returns whether a superblock of a disk may be hurt, only one at a time.
    fn may_hurt_superblock(&mut self, disk: usize, bytes: Range<u64>) -> bool {
        let last = self.disks[disk].size().0 - BLOCK_BYTES;
        let copy = match bytes {
            bytes if bytes.start < SUPERBLOCK_OFFSET + BLOCK_BYTES => SuperblockCopy::First,
            bytes if bytes.end > last => SuperblockCopy::Second,
            _ => return true,
        };
        *self.allowed_errors.superblocks.entry(disk).or_insert(copy) == copy
    }

    /// Returns whether a copy of the metadata may be hurt: only one at a time, and there must be
    /// two.
    pub(super) fn may_hurt_metadata(&self, disk: usize) -> bool {
        self.script.disks > 1
            && self.allowed_errors.metadata.is_none_or(|hurt| hurt == copy_on(disk))
    }

    /// Flips bits of a byte, or has its block not be read any more.
    pub(super) fn spoil(&mut self, disk: u8, metadata: bool, at: u16, mask: Option<u8>) -> Check {
        let index = usize::from(disk);
        let geometry = self.pool()?.description().geometry;
        let (begin, end) = if metadata {
            (4096, geometry.data_offset)
        } else {
            (geometry.data_offset, geometry.second_superblock_offset())
        };
        let place = begin + u64::from(at) * (end - begin) / 65_536;
        if metadata || self.is_of_index(place)? {
            // What is in places that nobody writes would not be read again.
            let is_unused = (HOLDERS_OFFSET + BLOCK_BYTES..METADATA_OFFSET).contains(&place);
            if (metadata && index > 1)
                || (mask.is_none() && is_unused)
                || !self.may_hurt_metadata(index)
                || !self.may_hurt_superblock(index, place..place + 1)
            {
                return Ok(());
            }
            self.allowed_errors.metadata = Some(copy_on(index));
            if place < METADATA_OFFSET {
                self.stained.insert(index);
            }
            self.see_fault(
                match mask {
                    None => FaultSeen::LostInMetadata,
                    Some(_) if metadata => FaultSeen::RotInMetadata,
                    Some(_) => FaultSeen::RotInIndex,
                },
                Under::Rest,
            );
        } else {
            self.allowed_errors.damaged += 1;
            self.allowed_errors.unreadable |= mask.is_none();
            let seen = if mask.is_some() { FaultSeen::RotInData } else { FaultSeen::LostInData };
            self.see_fault(seen, Under::Rest);
        }
        match mask {
            Some(mask) => self.disks[index].rot(place, mask),
            None => self.disks[index].make_unreadable(place),
        }
        Ok(())
    }

    /// Returns whether something may be wrong with a copy of the metadata that no crash has done.
    pub(super) fn may_be_hurt(&self) -> bool {
        let AllowedErrors { metadata, superblocks, .. } = &self.allowed_errors;
        metadata.is_some()
            || !superblocks.is_empty()
            || !self.astray.is_empty()
            || self.is_any_unreadable()
    }

    pub(super) fn is_any_unreadable(&self) -> bool {
        self.disks.iter().any(|disk| !disk.unreadable().is_empty())
    }

    /// Returns whether a read failed that nothing allows to fail: of what has two copies, with the
    /// other one whole on a disk that is there; or of anything like that while one disk is gone and
    /// nothing else was ever wrong.
    pub(super) fn fails_beside_a_copy(
        &self,
        content: Content,
        durable: bool,
        outcome: &TransferOutcome,
    ) -> bool {
        let Err(error) = outcome else { return false };
        let faultless = self.allowed_errors.reads == 0;
        if self.script.copies(durable, content) == Copies::One || !faultless {
            return false;
        }
        let off = self.disks.iter().filter(|disk| disk.is_off()).count();
        if off > 0 {
            return off == 1 && self.allowed_errors.damaged == 0;
        }
        let (device, offset, length) = match error {
            TransferError::Checksum { device, offset, length, .. } => (*device, offset.0, length.0),
            TransferError::Device { error, .. } => {
                (error.device, error.extent.offset.0, error.extent.length.0)
            }
            _ => return false,
        };
        // The error is of the second copy. The first is on the disk before, one row above.
        let disk = (usize::from(device.0) + self.disks.len() - 1) % self.disks.len();
        let Some(offset) = offset.checked_sub(self.script.stripe_kib << 10) else { return false };
        self.holds(disk, offset, length, content)
    }

    /// Returns whether a disk has a part of a tensor there. What is shorter than a few words may be
    /// anything.
    fn holds(&self, disk: usize, offset: u64, length: u64, content: Content) -> bool {
        let (disk, bytes) = (&self.disks[disk], content.bytes());
        let found = disk.peek(offset, length as usize);
        let parts = (0..bytes.len()).step_by(BLOCK_BYTES as usize).map(|start| &bytes[start..]);
        let mut parts = parts.map(|part| &part[..part.len().min(found.len())]);
        disk.is_readable(offset, length)
            && parts.any(|part| part.len() >= 64 && found.starts_with(part))
    }

    /// Returns whether a read failed at bytes that the disk does not have any more, where some may
    /// be lost. The disk is asked: a read that met a fault, or a disk that was gone, fails in the
    /// same way.
    pub(super) fn is_lost(&self, outcome: &TransferOutcome) -> bool {
        match outcome {
            Err(TransferError::Checksum { device, offset, length, expected, .. }) => {
                let bytes = self.disks[usize::from(device.0)].peek(offset.0, length.0 as usize);
                self.allowed_errors.damaged > 0 && crc32c::crc32c(&bytes) != *expected
            }
            Err(TransferError::Device { error, .. }) => {
                let Extent { offset, length } = error.extent;
                let disk = &self.disks[usize::from(error.device.0)];
                self.allowed_errors.unreadable && !disk.is_readable(offset.0, length.0)
            }
            _ => false,
        }
    }

    /// Returns whether a byte of a disk's data lies in a segment that the index goes on in.
    fn is_of_index(&self, place: u64) -> Result<bool, String> {
        let geometry = self.pool()?.description().geometry;
        let segments = self.pool()?.index_segments().map_err(text)?;
        let segment = (place - geometry.data_offset) / geometry.segment_bytes;
        Ok(segments.iter().any(|it| u64::from(*it) == segment))
    }

    /// Cuts the power of all disks at once.
    pub(super) fn blow(&mut self, cut: Cut, under: Under) {
        for disk in &self.disks {
            disk.cut_power(power_cut(cut));
        }
        self.cut = cut;
        self.see_fault(struck_by(cut), under);
    }

    pub(in crate::sim) fn count_struck(&mut self, under: Under) {
        for index in 0..self.disks.len() {
            for (kind, fault) in self.disks[index].take_struck() {
                // What was written, and up to two tensors where it went instead.
                self.allowed_errors.damaged += match (kind, fault) {
                    (_, Fault::Lost) => 1,
                    (OperationKind::Write, Fault::Misdirected(place))
                        if place < METADATA_OFFSET =>
                    {
                        self.astray.insert(index);
                        1
                    }
                    (OperationKind::Write, Fault::Misdirected(_)) => 3,
                    _ => 0,
                };
                self.see_fault(struck(kind, fault), under);
            }
        }
        if self.disks.iter().all(SimDisk::is_off) && self.pool.is_some() {
            self.see_fault(struck_by(self.cut), under);
        }
    }

    pub(super) fn see_fault(&mut self, struck: FaultSeen, under: Under) {
        self.figures.faults += 1;
        self.figures.coverage.count(struck, under);
        if self.commits.len() > 1 {
            self.figures.coverage.count(struck, Under::Flight);
        }
    }

    pub(super) fn allow_write(&self, error: &TransferError) -> Check {
        match error {
            TransferError::Cancelled => Ok(()),
            _ if self.allowed_errors.writes || self.is_down() => Ok(()),
            error => Err(format!("a write failed: {error}")),
        }
    }

    pub(in crate::sim) fn is_down(&self) -> bool {
        self.disks.iter().any(SimDisk::is_off)
    }
}

/// The copy of the metadata that a disk may have a part of: where the index goes on in segments,
/// disks take turns.
fn copy_on(disk: usize) -> usize {
    disk % 2
}

pub(super) fn power_cut(cut: Cut) -> PowerCut {
    match cut {
        Cut::Drop => PowerCut::DropAll,
        Cut::Keep => PowerCut::KeepAll,
        Cut::Torn(seed) => PowerCut::Torn(seed.into()),
    }
}

pub(super) fn struck_by(cut: Cut) -> FaultSeen {
    match cut {
        Cut::Drop => FaultSeen::PowerDropped,
        Cut::Keep => FaultSeen::PowerKept,
        Cut::Torn(_) => FaultSeen::PowerTorn,
    }
}

fn struck(kind: OperationKind, fault: Fault) -> FaultSeen {
    match (kind, fault) {
        (OperationKind::Read, Fault::Errno(_)) => FaultSeen::ReadError,
        (OperationKind::Read, Fault::Short(_)) => FaultSeen::ReadShort,
        (OperationKind::Read, Fault::Misdirected(_)) => FaultSeen::ReadMisdirected,
        (OperationKind::Read, Fault::Slow(_)) => FaultSeen::ReadSlow,
        (OperationKind::Read, _) => FaultSeen::ReadCorrupt,
        (OperationKind::Flush, _) => FaultSeen::FlushError,
        (_, Fault::Errno(_)) => FaultSeen::WriteError,
        (_, Fault::Short(_)) => FaultSeen::WriteShort,
        (_, Fault::Misdirected(_)) => FaultSeen::WriteMisdirected,
        (_, Fault::Slow(_)) => FaultSeen::WriteSlow,
        (_, _) => FaultSeen::WriteLost,
    }
}
