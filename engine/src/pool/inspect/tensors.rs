//! Checks of tensors: every byte of them.

use std::collections::{BTreeMap, VecDeque};

use super::check::CheckProgress;
use super::damage::{DamagedTensor, DamagedTensorCopy};
use super::index::IndexView;
use crate::layout::{Copies, TensorEntry};
use crate::log::StripeMap;
use crate::memory::Destination;
use crate::pool::pieces::{self, PieceGroup};
use crate::schedule::{Finish, Reactor, Ticket, Transfer, Urgency};
use crate::units::{ByteCount, DeviceIndex};

/// Tensor bytes in one read, at least one stripe unit.
pub(super) const WINDOW_BYTES: u64 = 8 << 20;
/// Reads in flight.
const WINDOWS_IN_FLIGHT: usize = 4;

/// A version of a tensor that can be read: what stands under its id, or what seals hold.
pub(super) struct ReadableVersion {
    share: u32,
    entry: TensorEntry,
    /// The seals that hold it.
    seals: Vec<String>,
    /// True if the readable version stands under its id.
    pub(super) current: bool,
}

impl ReadableVersion {
    pub(super) fn all(share: u32, index: &IndexView) -> impl Iterator<Item = Self> {
        let readable = index.readable();
        readable.map(move |(entry, seals, current)| {
            let entry = entry.clone();
            Self { share, entry, seals, current }
        })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.entry.length
    }

    /// Returns the bytes of all copies.
    pub(super) fn bytes_to_read(&self) -> u64 {
        let copies = self.entry.runs.first().map_or(Copies::One, |run| run.copies);
        self.entry.length * u64::from(copies.count())
    }

    fn damaged(&self, lost: u64, why: String) -> DamagedTensor {
        let Self { share, entry, seals, current } = self;
        DamagedTensor {
            share: *share,
            id: entry.id,
            name: entry.name.as_deref().map(str::to_owned),
            seals: seals.clone(),
            current: *current,
            length: ByteCount(entry.length),
            lost: ByteCount(lost),
            why,
        }
    }
}

/// Findings of reading tensors.
#[derive(Default)]
pub(super) struct Findings {
    /// Tensors of which bytes are lost.
    pub(super) tensors: Vec<DamagedTensor>,
    /// Copies that are bad where the other one is whole, one for each tensor and device.
    pub(super) copies: Vec<DamagedTensorCopy>,
}

/// Reads tensors back and compares them with their checksums.
pub(super) struct Reader<'a> {
    pub(super) reactor: &'a Reactor,
    pub(super) stripes: StripeMap,
    /// The devices' names, in stripe order.
    pub(super) devices: &'a [String],
}

/// Some neighbouring pieces of one copy of a tensor, on their way.
struct Window {
    tensor: usize,
    copy: usize,
    group: PieceGroup,
    ticket: Option<Ticket>,
}

/// Pieces of a tensor that are bad, by their first byte, in each copy.
type BadPieces = [BTreeMap<u64, BadPiece>; 2];

/// A piece that cannot be read, or is not what was written.
struct BadPiece {
    bytes: u64,
    device: DeviceIndex,
    why: String,
}

impl Reader<'_> {
    pub(super) fn damaged(
        &self,
        tensors: &[ReadableVersion],
        progress: &mut dyn FnMut(CheckProgress),
    ) -> Findings {
        let mut bad: Vec<BadPieces> = tensors.iter().map(|_| BadPieces::default()).collect();
        let total = ByteCount(tensors.iter().map(ReadableVersion::bytes_to_read).sum());
        let mut done = 0;
        let mut complete = |window: Window| {
            bad[window.tensor][window.copy].extend(self.end(&window));
            done += window.group.bytes();
            progress(CheckProgress { done: ByteCount(done), total });
        };
        let mut in_flight: VecDeque<Window> = VecDeque::new();
        for (index, ReadableVersion { entry: tensor, .. }) in tensors.iter().enumerate() {
            let whole = pieces::of_range(&self.stripes, tensor, 0..tensor.length, true);
            for group in pieces::groups(whole, WINDOW_BYTES) {
                let first = group.map(|piece| Some(piece.alone()));
                let second = group.map(|piece| Some(piece.swapped()?.alone()));
                for (copy, group) in first.into_iter().chain(second).enumerate() {
                    if in_flight.len() == WINDOWS_IN_FLIGHT {
                        in_flight.pop_front().into_iter().for_each(&mut complete);
                    }
                    in_flight.push_back(self.start(index, copy, group));
                }
            }
        }
        in_flight.into_iter().for_each(&mut complete);
        let mut findings = Findings::default();
        tensors.iter().zip(bad).for_each(|(read, bad)| self.judge(read, bad, &mut findings));
        findings
    }

    /// Tells what is lost in all copies from what another copy still has.
    fn judge(
        &self,
        read: &ReadableVersion,
        [mut first, mut second]: BadPieces,
        findings: &mut Findings,
    ) {
        let has_one = read.bytes_to_read() == read.bytes();
        let lost: Vec<u64> =
            first.keys().copied().filter(|start| has_one || second.contains_key(start)).collect();
        let (mut bytes, mut why) = (0, None);
        for start in lost {
            second.remove(&start);
            let Some(piece) = first.remove(&start) else { continue };
            bytes += piece.bytes;
            why.get_or_insert(piece.why);
        }
        findings.tensors.extend(why.map(|why| read.damaged(bytes, why)));
        let mut by_device: BTreeMap<DeviceIndex, (u64, String)> = BTreeMap::new();
        for BadPiece { bytes, device, why } in first.into_values().chain(second.into_values()) {
            by_device.entry(device).or_insert((0, why)).0 += bytes;
        }
        findings.copies.extend(by_device.into_iter().map(|(device, (bytes, why))| {
            DamagedTensorCopy {
                device: self.devices[usize::from(device.0)].clone(),
                tensor: read.damaged(bytes, why),
            }
        }));
    }

    fn start(&self, tensor: usize, copy: usize, group: PieceGroup) -> Window {
        // What cannot even be submitted shows again, piece by piece, at the window's end.
        let ticket = self.submit(&group).ok();
        Window { tensor, copy, group, ticket }
    }

    /// The bad pieces of the window, by their first byte in the tensor.
    fn end(&self, window: &Window) -> Vec<(u64, BadPiece)> {
        if window.ticket.as_ref().is_some_and(|ticket| ticket.wait().is_ok()) {
            return Vec::new();
        }
        let bad = window.group.apart().filter_map(|piece| {
            let why = match self.submit(&piece) {
                Ok(ticket) => ticket.wait().err()?.to_string(),
                Err(why) => why,
            };
            let (start, device) = (piece.range.start, piece.pieces[0].device);
            let why = format!("at byte {start} of the tensor, {why}");
            Some((start, BadPiece { bytes: piece.bytes(), device, why }))
        });
        bad.collect()
    }

    fn submit(&self, group: &PieceGroup) -> Result<Ticket, String> {
        let destination = Destination::buffer(group.bytes() as usize);
        let read = Transfer::Read { destination, pieces: group.pieces.clone() };
        let ticket = self.reactor.submit(read, Urgency::Ahead, None, Finish::nothing());
        ticket.map_err(|error| error.to_string())
    }
}
