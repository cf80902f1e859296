//! Zones that are written from their beginning on: `zonemode=zbd`, by fio's rules for files and
//! devices that have no zones of their own.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::stream::{BlockRange, FileWindow};

/// The zones of one file, for all jobs that work on it. All are empty in the beginning.
#[derive(Debug)]
pub struct Zones {
    size: u64,
    /// Limit of open zones, which are those that are neither empty nor full; 0: as many as there
    /// are.
    most_open: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Zones that were touched.
    zones: Vec<Zone>,
    open: Vec<usize>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Zone {
    /// Bytes written, from the beginning on.
    written: u64,
    /// Writer with a write in flight. One zone has one at a time, so that they complete in their
    /// order.
    writer: Option<u64>,
}

/// Place of an operation in zones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zoned {
    /// Offset of the place.
    To(u64),
    /// Place that is unknown before a write has completed.
    Busy,
    /// Nowhere: nothing was written there. What comes next in a sequential load may have been.
    Skip,
    /// No place in all of the job's zones.
    NoMore,
}

impl Zones {
    /// Makes zones of `size` bytes.
    pub fn new(size: u64, most_open: usize) -> Self {
        Self { size, most_open, state: Mutex::default() }
    }

    fn state(&self, window: FileWindow) -> (MutexGuard<'_, State>, std::ops::Range<usize>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let end = (window.start + window.length).div_ceil(self.size) as usize;
        if state.zones.len() < end {
            state.zones.resize(end, Zone::default());
        }
        (state, (window.start / self.size) as usize..end)
    }

    fn start(&self, zone: usize) -> u64 {
        zone as u64 * self.size
    }

    /// Returns whether nothing was written in a window.
    pub fn are_empty(&self, window: FileWindow) -> bool {
        let (state, range) = self.state(window);
        state.zones[range].iter().all(|zone| zone.written == 0)
    }

    /// Empties the zones of a window.
    pub fn reset(&self, window: FileWindow) {
        let (mut state, range) = self.state(window);
        state.zones[range.clone()].iter_mut().for_each(|zone| zone.written = 0);
        state.open.retain(|zone| !range.contains(zone));
    }

    /// Returns the place of a write that was meant for `place`: to the write pointer of that zone,
    /// or of one that is open. What was written is kept if it is to be read back.
    pub fn write(&self, window: FileWindow, place: BlockRange, writer: u64, keeps: bool) -> Zoned {
        let (mut state, range) = self.state(window);
        let State { zones, open } = &mut *state;
        let is_full = |zone: &Zone| zone.written + place.length > self.size;
        let meant = (place.offset / self.size) as usize;
        let has_room = self.most_open == 0 || open.len() < self.most_open;
        let may_open = |zone: usize| has_room && !(keeps && is_full(&zones[zone]));
        let chosen = if open.contains(&meant) || may_open(meant) {
            meant
        } else {
            // As in fio: the open zone as far along as the place that was meant.
            let ours: Vec<usize> =
                open.iter().copied().filter(|zone| range.contains(zone)).collect();
            let along = u128::from(place.offset - window.start) * ours.len() as u128;
            let first = (along / u128::from(window.length.max(1))) as usize;
            let mut others = (0..ours.len()).map(|step| ours[(first + step) % ours.len()]);
            let after = meant + 1..range.end;
            let mut rest = after.chain(range.start..meant).filter(|zone| !open.contains(zone));
            match others
                .find(|zone| !is_full(&zones[*zone]))
                .or_else(|| rest.find(|it| may_open(*it)))
            {
                Some(zone) => zone,
                // An open one is full when what is in flight has landed, and another takes its
                // place.
                None if open.iter().any(|zone| zones[*zone].writer.is_some()) => {
                    return Zoned::Busy;
                }
                None => return Zoned::NoMore,
            }
        };
        let zone = &mut zones[chosen];
        if zone.writer.is_some() {
            return Zoned::Busy;
        }
        if is_full(zone) {
            zone.written = 0;
        }
        let offset = self.start(chosen) + zone.written;
        zone.written += place.length;
        zone.writer = Some(writer);
        if self.most_open > 0 && !open.contains(&chosen) {
            open.push(chosen);
        }
        Zoned::To(offset)
    }

    /// A write to this byte has ended. A zone that is full is closed.
    pub fn landed(&self, offset: u64, length: u64) {
        let (mut state, _) = self.state(FileWindow { start: offset, length });
        let zone = (offset / self.size) as usize;
        state.zones[zone].writer = None;
        if state.zones[zone].written + length > self.size {
            state.open.retain(|open| *open != zone);
        }
    }

    /// Forgets a writer that has nothing in flight any more.
    pub fn leave(&self, writer: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state
            .zones
            .iter_mut()
            .filter(|it| it.writer == Some(writer))
            .for_each(|it| it.writer = None);
    }

    /// Returns the place of a read that was meant for `place`: to what was written there, or, if it
    /// is random, as near as it can be.
    pub fn read(&self, window: FileWindow, place: BlockRange, random: bool) -> Zoned {
        let (state, range) = self.state(window);
        let meant = (place.offset / self.size) as usize;
        let within = place.offset - self.start(meant);
        let is_readable = |zone: &usize| state.zones[*zone].written >= place.length;
        if !random && within + place.length > state.zones[meant].written {
            return Zoned::Skip;
        }
        let near =
            (0..range.len()).flat_map(|step| [meant.checked_add(step), meant.checked_sub(step)]);
        let near = near.flatten().filter(|zone| range.contains(zone));
        let Some(zone) = near.into_iter().find(is_readable) else { return Zoned::NoMore };
        let Zone { written, writer } = state.zones[zone];
        if writer.is_some() {
            return Zoned::Busy;
        }
        let within = if within + place.length <= written || !random {
            within
        } else {
            within % (written / place.length * place.length)
        };
        Zoned::To(self.start(zone) + within)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: FileWindow = FileWindow { start: 0, length: 4 * 16384 };

    fn place(offset: u64) -> BlockRange {
        BlockRange { file: 0, offset, length: 4096 }
    }

    fn write(zones: &Zones, offset: u64) -> Zoned {
        let to = zones.write(WINDOW, place(offset), 1, false);
        if let Zoned::To(offset) = to {
            zones.landed(offset, 4096);
        }
        to
    }

    #[test]
    fn writes_go_to_the_write_pointer_and_a_full_zone_begins_again() {
        let zones = Zones::new(16384, 0);
        for expected in [16384, 20480, 24576, 28672, 16384] {
            assert_eq!(write(&zones, 24576), Zoned::To(expected));
        }
        let first = zones.write(WINDOW, place(0), 1, false);
        assert_eq!(first, Zoned::To(0));
        assert_eq!(zones.write(WINDOW, place(4096), 2, false), Zoned::Busy);
        zones.leave(1);
        assert_eq!(zones.write(WINDOW, place(4096), 2, false), Zoned::To(4096));
    }

    #[test]
    fn no_more_zones_are_open_than_may_be() {
        let zones = Zones::new(16384, 2);
        assert_eq!(write(&zones, 0), Zoned::To(0));
        assert_eq!(write(&zones, 32768), Zoned::To(32768));
        assert_eq!(write(&zones, 16384), Zoned::To(4096), "the open one as far along");
        assert_eq!(write(&zones, 49152), Zoned::To(36864));
        for _ in 0..2 {
            write(&zones, 0);
        }
        assert_eq!(write(&zones, 16384), Zoned::To(16384), "one was full, and is closed");
    }

    #[test]
    fn what_is_to_be_read_back_is_not_written_again() {
        let zones = Zones::new(16384, 0);
        let mut places: Vec<Zoned> = (0..16)
            .map(|_| {
                let to = zones.write(WINDOW, place(0), 1, true);
                let Zoned::To(offset) = to else { panic!("{to:?}") };
                zones.landed(offset, 4096);
                to
            })
            .collect();
        places.dedup();
        assert_eq!(places.len(), 16);
        assert_eq!(zones.write(WINDOW, place(0), 1, true), Zoned::NoMore);
        zones.reset(WINDOW);
        assert!(zones.are_empty(WINDOW));
    }

    #[test]
    fn reads_find_what_was_written() {
        let zones = Zones::new(16384, 0);
        assert_eq!(zones.read(WINDOW, place(0), true), Zoned::NoMore);
        assert_eq!(zones.read(WINDOW, place(0), false), Zoned::Skip);
        write(&zones, 32768);
        assert_eq!(zones.read(WINDOW, place(4096), true), Zoned::To(32768));
        assert_eq!(zones.read(WINDOW, place(32768), false), Zoned::To(32768));
        assert_eq!(zones.read(WINDOW, place(36864), false), Zoned::Skip);
    }
}
