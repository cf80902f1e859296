//! Queues of transfers that have pieces to begin, by device.
//!
//! Each device has queues of its own, so that pieces for others pass one that is full or slow. A
//! transfer stands in the queues of the devices that it still has pieces for, once in each, with
//! the next of them. Where all devices have room, pieces are begun in the order of their transfers,
//! and of each transfer in its own.

use std::collections::VecDeque;

use super::in_progress::TransferKey;
use super::transfer::{Piece, Urgency};
use crate::units::DeviceIndex;

/// No further piece.
const NONE: u32 = u32::MAX;

/// Resources that a piece needs before it can be begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PieceNeeds {
    /// A chunk of staging memory.
    pub(super) chunk: bool,
    /// Room on its device.
    pub(super) room: bool,
}

/// A transfer's next piece for a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitingPiece {
    pub(super) transfer: TransferKey,
    /// Index of the transfer's piece.
    pub(super) piece: u32,
    pub(super) needs: PieceNeeds,
    /// Counts up with the transfers that came.
    order: u64,
}

/// Place of a waiting piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueuePlace {
    queue: usize,
    pub(super) urgency: Urgency,
}

impl QueuePlace {
    /// The device that the piece goes to or comes from; beyond all of them, if that is none.
    pub(super) fn device(self) -> DeviceIndex {
        DeviceIndex(self.queue as u8)
    }
}

#[derive(Default)]
struct Queue {
    by_urgency: [VecDeque<WaitingPiece>; Urgency::ALL.len()],
}

impl Queue {
    fn of(&self, urgency: Urgency) -> &VecDeque<WaitingPiece> {
        &self.by_urgency[urgency as usize]
    }

    fn of_mut(&mut self, urgency: Urgency) -> &mut VecDeque<WaitingPiece> {
        &mut self.by_urgency[urgency as usize]
    }
}

/// The queues of all devices, and behind them one for pieces that go to none.
pub(super) struct Queues {
    by_device: Vec<Queue>,
    /// First piece of each device, while links are made.
    first: Vec<u32>,
    orders: u64,
    /// Entries in all queues of each urgency.
    counts: [usize; Urgency::ALL.len()],
}

impl Queues {
    pub(super) fn new(devices: usize) -> Self {
        let by_device = std::iter::repeat_with(Queue::default).take(devices + 1).collect();
        Self {
            by_device,
            first: vec![NONE; devices + 1],
            orders: 0,
            counts: [0; Urgency::ALL.len()],
        }
    }

    /// Enters a transfer at the end, with all of its pieces; of which each goes to the one after it
    /// on the same device by `links`. `on_devices` says whether they go to any.
    pub(super) fn enter(
        &mut self,
        transfer: TransferKey,
        urgency: Urgency,
        needs: PieceNeeds,
        on_devices: bool,
        (pieces, links): (&[Piece], &mut Vec<u32>),
    ) {
        links.clear();
        let none = self.by_device.len() - 1;
        let queue_of = |piece: &Piece| if on_devices { piece.device.0.into() } else { none };
        let order = self.orders;
        self.orders += 1;
        if let [only] = pieces {
            return self.push(
                queue_of(only),
                urgency,
                WaitingPiece { transfer, piece: 0, needs, order },
            );
        }
        links.resize(pieces.len(), NONE);
        for (index, piece) in pieces.iter().enumerate().rev() {
            let first = &mut self.first[queue_of(piece)];
            links[index] = std::mem::replace(first, index as u32);
        }
        for queue in 0..self.by_device.len() {
            let piece = std::mem::replace(&mut self.first[queue], NONE);
            if piece != NONE {
                self.push(queue, urgency, WaitingPiece { transfer, piece, needs, order });
            }
        }
    }

    fn push(&mut self, queue: usize, urgency: Urgency, waiting: WaitingPiece) {
        self.by_device[queue].of_mut(urgency).push_back(waiting);
        *self.count(urgency) += 1;
    }

    fn count(&mut self, urgency: Urgency) -> &mut usize {
        &mut self.counts[urgency as usize]
    }

    /// The piece to begin next, of those that `may` be begun: of the most urgent ones that of the
    /// transfer that came first.
    pub(super) fn next(
        &self,
        may: impl Fn(QueuePlace, &WaitingPiece) -> bool,
    ) -> Option<(QueuePlace, WaitingPiece)> {
        let first_of = |urgency: Urgency| {
            let some = self.counts[urgency as usize] > 0;
            let queues = if some { &self.by_device[..] } else { &[] };
            let heads = queues.iter().enumerate().filter_map(move |(queue, waiting)| {
                Some((QueuePlace { queue, urgency }, *waiting.of(urgency).front()?))
            });
            let ready = heads.filter(|(place, waiting)| may(*place, waiting));
            ready.min_by_key(|(_, waiting)| (waiting.order, waiting.piece))
        };
        Urgency::ALL.into_iter().find_map(first_of)
    }

    /// The first piece of a place was begun: its transfer stands there with the next one, or no
    /// more.
    pub(super) fn advance(&mut self, place: QueuePlace, links: &[u32]) {
        let queue = self.by_device[place.queue].of_mut(place.urgency);
        let Some(waiting) = queue.front_mut() else { return };
        match links.get(waiting.piece as usize) {
            Some(&next) if next != NONE => waiting.piece = next,
            _ => {
                queue.pop_front();
                *self.count(place.urgency) -= 1;
            }
        }
    }

    /// Takes a transfer out.
    pub(super) fn remove(&mut self, transfer: TransferKey, urgency: Urgency) {
        let mut left = 0;
        for queue in &mut self.by_device {
            let queue = queue.of_mut(urgency);
            queue.retain(|waiting| waiting.transfer != transfer);
            left += queue.len();
        }
        *self.count(urgency) = left;
    }

    /// Puts a transfer that was asked for ahead of time at the end of those that are urgent.
    pub(super) fn expedite(&mut self, transfer: TransferKey) {
        let order = self.orders;
        self.orders += 1;
        for queue in 0..self.by_device.len() {
            let ahead = self.by_device[queue].of_mut(Urgency::Ahead);
            let place = ahead.iter().position(|waiting| waiting.transfer == transfer);
            if let Some(waiting) = place.and_then(|place| ahead.remove(place)) {
                *self.count(Urgency::Ahead) -= 1;
                self.push(queue, Urgency::Urgent, WaitingPiece { order, ..waiting });
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::units::ByteCount;
    use Urgency::{Ahead, Idle, Urgent};

    const NEEDS: PieceNeeds = PieceNeeds { chunk: true, room: true };

    struct Bench {
        queues: Queues,
        /// Links by the slot of their transfer.
        links: Vec<(u32, Vec<u32>)>,
    }

    impl Bench {
        fn new(devices: usize) -> Self {
            Self { queues: Queues::new(devices), links: Vec::new() }
        }

        fn enter(&mut self, slot: u32, urgency: Urgency, devices: &[u8]) {
            let piece = |&device: &u8| Piece::new(DeviceIndex(device), ByteCount::ZERO, 0, 1);
            let pieces: Vec<Piece> = devices.iter().map(piece).collect();
            let mut links = Vec::new();
            let (key, pieces) = (TransferKey::of_slot(slot), (&pieces[..], &mut links));
            self.queues.enter(key, urgency, NEEDS, true, pieces);
            self.links.push((slot, links));
        }

        /// Begins what can be while one device is full: transfers and pieces.
        fn begin(&mut self, full: Option<u8>) -> Vec<(u32, u32)> {
            let full = full.map(DeviceIndex);
            let mut begun = Vec::new();
            while let Some((place, waiting)) =
                self.queues.next(|place, _| Some(place.device()) != full)
            {
                let transfer = waiting.transfer.slot;
                begun.push((transfer, waiting.piece));
                let links = self.links.iter().find(|(slot, _)| *slot == transfer);
                self.queues.advance(place, &links.unwrap().1);
            }
            begun
        }
    }

    #[test]
    fn where_all_have_room_transfers_come_one_after_the_other_and_urgent_ones_first() {
        let mut bench = Bench::new(2);
        bench.enter(1, Ahead, &[0, 1, 0]);
        bench.enter(2, Urgent, &[1, 0]);
        bench.enter(3, Ahead, &[1]);
        let expected = [(2, 0), (2, 1), (1, 0), (1, 1), (1, 2), (3, 0)];
        assert_eq!(bench.begin(None), expected);
    }

    #[test]
    fn a_device_that_is_full_is_passed_and_its_pieces_follow_in_order() {
        let mut bench = Bench::new(3);
        bench.enter(1, Ahead, &[0, 1, 2, 0, 1]);
        bench.enter(2, Ahead, &[2, 0]);
        bench.enter(3, Urgent, &[0]);
        assert_eq!(bench.begin(Some(0)), [(1, 1), (1, 2), (1, 4), (2, 0)]);
        assert_eq!(bench.begin(None), [(3, 0), (1, 0), (1, 3), (2, 1)]);
        assert_eq!(bench.queues.counts, [0; 3]);
    }

    #[test]
    fn what_is_idle_makes_way_for_all_others() {
        let mut bench = Bench::new(2);
        bench.enter(1, Idle, &[0, 1]);
        bench.enter(2, Ahead, &[1]);
        bench.enter(3, Urgent, &[1]);
        assert_eq!(bench.begin(Some(0)), [(3, 0), (2, 0), (1, 1)]);
        bench.enter(4, Ahead, &[0]);
        assert_eq!(bench.begin(None), [(4, 0), (1, 0)]);
    }

    #[test]
    fn what_is_expedited_or_removed_leaves_every_queue() {
        let mut bench = Bench::new(2);
        bench.enter(1, Ahead, &[0, 1]);
        bench.enter(2, Ahead, &[0, 1, 0]);
        bench.enter(3, Ahead, &[1]);
        bench.queues.expedite(TransferKey::of_slot(2));
        bench.queues.remove(TransferKey::of_slot(1), Ahead);
        assert_eq!(bench.begin(None), [(2, 0), (2, 1), (2, 2), (3, 0)]);
        assert!(bench.begin(None).is_empty());
    }
}
