//! Scrubbing: every tensor is read and compared with its checksums, before somebody needs it.

use std::ops::Range;

use super::Pool;
use super::error::{ScrubError, Unusable};
use super::held::Reading;
use super::pieces::{self, PieceGroup};
use crate::layout::{TensorId, TensorKey};
use crate::memory::Destination;
use crate::schedule::{Done, Finish, Reactor, Transfer, TransferError, Urgency};
use crate::units::{ByteCount, DeviceIndex};

/// Read at once: this much, or one stripe unit if that is more.
const READ_BYTES: u64 = 4 << 20;

/// One tensor that was scrubbed.
#[derive(Clone, Debug, PartialEq)]
pub struct Scrubbed {
    /// The tensor.
    pub id: TensorId,
    /// Name, if it has one.
    pub name: Option<String>,
    /// Number by which seals refer to this version; `None` if none holds it.
    pub number: Option<u64>,
    /// The seals that hold it, if something of it cannot be read.
    pub seals: Vec<String>,
    /// True if the version is what stands under its id; if not, only seals hold it.
    pub current: bool,
    /// Length in bytes.
    pub length: ByteCount,
    /// Parts that cannot be read; empty if it is whole.
    pub bad: Vec<BadUnit>,
    /// Parts of which one copy was bad, and has been written again from the other one.
    pub healed: u64,
}

/// A stripe unit, or a part of one, whose bytes are lost. Where there are two copies each is one.
#[derive(Clone, Debug, PartialEq)]
pub struct BadUnit {
    /// The device's place in the pool.
    pub device: DeviceIndex,
    /// The device's path.
    pub path: String,
    /// Offset on the device; a multiple of 4 KiB. In blocks of 512 bytes it is the LBA that
    /// `blockdev`, `badblocks` and the kernel's log speak of.
    pub offset: ByteCount,
    /// Length in bytes.
    pub length: ByteCount,
    /// Range of the tensor's bytes.
    pub tensor: Range<u64>,
    /// Error of the read.
    pub error: TransferError,
}

/// Result of a whole scrub.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScrubReport {
    /// Tensors that were read.
    pub tensors: u64,
    /// Tensor bytes that were read.
    pub bytes: ByteCount,
    /// Tensors that have lost something.
    pub damaged: Vec<Scrubbed>,
    /// Parts of tensors of which one copy was bad, and has been written again from the other one.
    pub healed: u64,
}

/// A pass over the tensors that stand in a pool when it begins, one a step.
pub struct Scrub {
    pool: Pool,
    pass: Pass,
}

/// The tensors that a pass has still to read.
#[derive(Default)]
pub(super) struct Pass {
    left: std::vec::IntoIter<ScrubTarget>,
}

/// Object that is to be read.
pub(super) enum ScrubTarget {
    /// The current version of an id.
    Tensor(TensorId),
    /// A version that only seals hold, by its number.
    Held(u64),
}

impl ScrubTarget {
    /// Starts to read it, if it is still there.
    pub(super) fn read(&self, pool: &Pool) -> Option<Reading> {
        match self {
            Self::Tensor(id) => Reading::start(&pool.0.shared, *id),
            Self::Held(number) => Reading::start_held(&pool.0.shared, *number),
        }
    }
}

impl Pool {
    /// Begins a pass over all tensors, scratch and durable, in the order of their ids, and then all
    /// that only seals hold.
    pub fn scrub_steps(&self) -> Result<Scrub, Unusable> {
        self.check_usable()?;
        Ok(Scrub { pool: self.clone(), pass: self.scrub_pass() })
    }

    /// Reads every tensor, all copies of it, and compares it with its checksums. A copy that is bad
    /// is written again from the other one, unless the pool is open for reading only. What is
    /// damaged in all copies is only reported: the other tensors, and the other parts of this one,
    /// can be read as before.
    pub fn scrub(&self) -> Result<ScrubReport, ScrubError> {
        let mut report = ScrubReport::default();
        let mut steps = self.scrub_steps()?;
        while let Some(scrubbed) = steps.step()? {
            report.add(scrubbed);
        }
        Ok(report)
    }

    /// Reads everything that a seal holds and compares it with its checksums.
    ///
    /// # Errors
    /// There is no seal of this name, or a read ended without an answer from the medium.
    pub fn scrub_seal(&self, seal: &str) -> Result<ScrubReport, ScrubError> {
        let numbers = self.0.shared.contents().seal(seal).map(|seal| seal.versions.clone());
        let numbers = numbers.ok_or_else(|| ScrubError::NoSeal(seal.into()))?;
        let targets: Vec<ScrubTarget> = numbers.into_iter().map(ScrubTarget::Held).collect();
        let mut pass = Pass { left: targets.into_iter() };
        let mut report = ScrubReport::default();
        while let Some(scrubbed) = self.scrub_next(&mut pass)? {
            report.add(scrubbed);
        }
        Ok(report)
    }

    /// Reads one tensor and compares it with its checksums.
    pub fn scrub_tensor(&self, key: impl Into<TensorKey>) -> Result<Scrubbed, ScrubError> {
        let key = key.into();
        let mut pass = Pass { left: vec![ScrubTarget::Tensor(key.id)].into_iter() };
        self.scrub_next(&mut pass)?.ok_or(ScrubError::Unknown(key))
    }
}

impl ScrubReport {
    /// Takes one tensor into the report, in the place of what was found in it before.
    pub fn add(&mut self, scrubbed: Scrubbed) {
        self.tensors += 1;
        self.bytes.0 += scrubbed.length.0;
        self.healed += scrubbed.healed;
        let is_it = |damaged: &Scrubbed| {
            damaged.id == scrubbed.id
                && damaged.current == scrubbed.current
                && (scrubbed.current || damaged.number == scrubbed.number)
        };
        self.damaged.retain(|damaged| !is_it(damaged));
        if !scrubbed.bad.is_empty() {
            self.damaged.push(scrubbed);
        }
    }
}

impl Scrub {
    /// Scrubs the next tensor; those that were deleted meanwhile are passed over. `None` at the
    /// end.
    pub fn step(&mut self) -> Result<Option<Scrubbed>, ScrubError> {
        self.pool.scrub_next(&mut self.pass)
    }
}

impl Pool {
    /// Returns a pass over all that can be read now.
    pub(super) fn scrub_pass(&self) -> Pass {
        let contents = self.0.shared.contents();
        let mut ids: Vec<TensorId> = contents.ids().collect();
        ids.sort_unstable();
        let held = contents.held_alone().map(ScrubTarget::Held);
        let targets: Vec<ScrubTarget> =
            ids.into_iter().map(ScrubTarget::Tensor).chain(held).collect();
        Pass { left: targets.into_iter() }
    }

    pub(super) fn scrub_next(&self, pass: &mut Pass) -> Result<Option<Scrubbed>, ScrubError> {
        let reactor = self.reactor()?;
        let reactor = reactor.as_ref().ok_or(Unusable::Closed)?;
        for target in pass.left.by_ref() {
            if let Some(reading) = target.read(self) {
                let scrubbed = Scrubbing { pool: self, reactor, reading: &reading }.run()?;
                self.0.shared.scrubbed().add(scrubbed.clone());
                return Ok(Some(scrubbed));
            }
        }
        Ok(None)
    }
}

/// Reading one version, which stays where it is meanwhile.
struct Scrubbing<'a> {
    pool: &'a Pool,
    reactor: &'a Reactor,
    reading: &'a Reading,
}

impl Scrubbing<'_> {
    fn run(&self) -> Result<Scrubbed, ScrubError> {
        let entry = &self.reading.version().entry;
        let whole = pieces::of_range(&self.pool.0.stripes, entry, 0..entry.length, true);
        let whole = whole.map(|piece| piece.healing(!self.pool.is_read_only()));
        let (mut bad, mut healed) = (Vec::new(), 0);
        for first in pieces::groups(whole, READ_BYTES) {
            let second = first.map(|piece| piece.swapped());
            for group in std::iter::once(first).chain(second) {
                match self.read(&group)? {
                    Ok(done) => healed += u64::from(done.healed),
                    // Somewhere in it: read again piece by piece, to find every one.
                    Err(_) => {
                        for piece in group.apart() {
                            match self.read(&piece)? {
                                Ok(done) => healed += u64::from(done.healed),
                                Err(error) => bad.push(self.bad_unit(&piece, error)),
                            }
                        }
                    }
                }
            }
        }
        let contents = self.pool.0.shared.contents();
        let version = self.reading.version();
        let (current, number) = (contents.is_standing(version), contents.number_of(version));
        // Looked for where it is told: there may be many seals.
        let seals = number.filter(|_| !bad.is_empty());
        let seals = seals.map(|number| contents.seals_with(number)).unwrap_or_default();
        drop(contents);
        Ok(Scrubbed {
            id: entry.id,
            name: entry.name.as_deref().map(str::to_owned),
            number,
            seals,
            current,
            length: ByteCount(entry.length),
            bad,
            healed,
        })
    }

    fn read(&self, group: &PieceGroup) -> Result<Result<Done, TransferError>, ScrubError> {
        let destination = Destination::buffer(group.bytes() as usize);
        let read = Transfer::Read { destination, pieces: group.pieces.clone() };
        let subject = self.reading.subject().from_byte(group.range.start);
        let finish = Finish::nothing();
        let ticket = self.reactor.submit_about(subject, read, Urgency::Ahead, None, finish)?;
        match ticket.wait() {
            Ok(done) => Ok(Ok(done)),
            Err(error @ (TransferError::Checksum { .. } | TransferError::Device { .. })) => {
                Ok(Err(error))
            }
            // Says nothing about the medium.
            Err(error) => {
                Err(ScrubError::Read { tensor: self.reading.version().entry.key(), source: error })
            }
        }
    }

    fn bad_unit(&self, group: &PieceGroup, error: TransferError) -> BadUnit {
        let piece = group.pieces[0];
        // The error is of the copy that was read last.
        let other = piece.swapped().filter(|it| error.device() == Some(it.device));
        let piece = other.unwrap_or(piece);
        BadUnit {
            device: piece.device,
            path: self.pool.0.description.devices[usize::from(piece.device.0)].clone(),
            offset: piece.offset,
            length: ByteCount(piece.length.into()),
            tensor: group.range.clone(),
            error,
        }
    }
}
