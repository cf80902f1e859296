//! Checks of tensors: every byte of them.

use std::collections::VecDeque;

use super::check::CheckProgress;
use super::damage::DamagedTensor;
use super::index::IndexView;
use crate::layout::TensorEntry;
use crate::log::StripeMap;
use crate::memory::Destination;
use crate::pool::pieces::{self, PieceGroup};
use crate::schedule::{Finish, Reactor, Ticket, Transfer, Urgency};
use crate::units::ByteCount;

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
}

/// Reads tensors back and compares them with their checksums.
pub(super) struct Reader<'a> {
    pub(super) reactor: &'a Reactor,
    pub(super) stripes: StripeMap,
    /// Size of all tensors.
    pub(super) bytes: ByteCount,
}

/// Some neighbouring pieces of one tensor, on their way.
struct Window {
    tensor: usize,
    group: PieceGroup,
    ticket: Option<Ticket>,
}

impl Reader<'_> {
    pub(super) fn damaged(
        &self,
        tensors: &[ReadableVersion],
        progress: &mut dyn FnMut(CheckProgress),
    ) -> Vec<DamagedTensor> {
        let mut losses = vec![(0_u64, None::<String>); tensors.len()];
        let mut done = 0;
        let mut complete = |window: Window| {
            let (lost, why) = self.end(&window);
            let (bytes, first) = &mut losses[window.tensor];
            *bytes += lost;
            *first = first.take().or(why);
            done += window.group.bytes();
            progress(CheckProgress { done: ByteCount(done), total: self.bytes });
        };
        let mut in_flight: VecDeque<Window> = VecDeque::new();
        for (index, ReadableVersion { entry: tensor, .. }) in tensors.iter().enumerate() {
            let whole = pieces::of_range(&self.stripes, tensor, 0..tensor.length, true);
            for group in pieces::groups(whole, WINDOW_BYTES) {
                if in_flight.len() == WINDOWS_IN_FLIGHT {
                    in_flight.pop_front().into_iter().for_each(&mut complete);
                }
                in_flight.push_back(self.start(index, group));
            }
        }
        in_flight.into_iter().for_each(&mut complete);
        let lost = tensors.iter().zip(losses).filter_map(|(read, (lost, why))| {
            let ReadableVersion { share, entry: tensor, seals, current } = read;
            Some(DamagedTensor {
                share: *share,
                id: tensor.id,
                name: tensor.name.as_deref().map(str::to_owned),
                seals: seals.clone(),
                current: *current,
                length: ByteCount(tensor.length),
                lost: ByteCount(lost),
                why: why?,
            })
        });
        lost.collect()
    }

    fn start(&self, tensor: usize, group: PieceGroup) -> Window {
        // What cannot even be submitted shows again, piece by piece, at the window's end.
        let ticket = self.submit(&group).ok();
        Window { tensor, group, ticket }
    }

    /// Bytes of the window that are lost, and why the first of them are.
    fn end(&self, window: &Window) -> (u64, Option<String>) {
        if window.ticket.as_ref().is_some_and(|ticket| ticket.wait().is_ok()) {
            return (0, None);
        }
        let (mut lost, mut first) = (0, None);
        for piece in window.group.apart() {
            let failure = match self.submit(&piece) {
                Ok(ticket) => ticket.wait().err().map(|error| error.to_string()),
                Err(why) => Some(why),
            };
            if let Some(why) = failure {
                lost += piece.bytes();
                first.get_or_insert(format!("at byte {} of the tensor, {why}", piece.range.start));
            }
        }
        (lost, first)
    }

    fn submit(&self, group: &PieceGroup) -> Result<Ticket, String> {
        let destination = Destination::buffer(group.bytes() as usize);
        let read = Transfer::Read { destination, pieces: group.pieces.clone() };
        let ticket = self.reactor.submit(read, Urgency::Ahead, None, Finish::nothing());
        ticket.map_err(|error| error.to_string())
    }
}
