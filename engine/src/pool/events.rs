//! Counting the openings and closings of a share on all of its devices, and finding devices that
//! missed some: a device that is an older copy of itself is told by that.

use std::time::Duration;

use super::error::OpenError;
use super::format::random_id;
use super::holder::{holder_offset, this_process};
use super::media::MemberMedia;
use super::members::{Member, Members};
use crate::layout::{BLOCK_BYTES, Events, Holder, LogMark, ShareEvent, Superblock};
use crate::log::{LogPlace, Recovered, recover};
use crate::schedule::{ControlError, Reactor, TransferError};
use crate::units::{ByteCount, DeviceIndex, DeviceSet};

/// Time for which closing waits for a device to count it. Where it does not answer the pool is
/// closed as if its process had been killed.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);

/// A device of which a share was used without it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OlderCopy {
    /// The device.
    pub device: String,
    /// Evidence that the copy is older.
    pub why: String,
}

/// Events of a share that devices have seen, by one reading of their holder blocks.
pub(super) struct SeenOfShare {
    /// `None` where a device is not at hand, or its count is lost: it has rotted, or no holder
    /// block stands there or it cannot be read while the index says that the device has missed
    /// nothing. Where the index does not say so, it has seen no event.
    pub(super) events: Vec<Option<Events>>,
    /// The devices that lack an event which another one confirms.
    pub(super) older: Vec<OlderCopy>,
}

impl SeenOfShare {
    /// Returns the mark of the share's log at the last event that these devices have seen of it.
    /// What an older copy lacks is told by that, or has been given up.
    pub(super) fn mark(&self) -> LogMark {
        if self.older.is_empty() { last_mark(&self.events) } else { LogMark::NONE }
    }
}

/// A share on the devices of its pool.
#[derive(Clone, Copy)]
pub(super) struct ShareOnDevices<'a> {
    /// Superblock of any of the devices.
    pub(super) superblock: &'a Superblock,
    /// Members in stripe order; `None` where one is not at hand.
    pub(super) members: &'a [Option<&'a Member>],
    pub(super) share: u32,
}

impl ShareOnDevices<'_> {
    /// Returns the events that the devices have seen. Who reads without its lock may read one
    /// device before an event and the next one after it, so where one looks older all are read
    /// again.
    pub(super) fn seen(&self) -> SeenOfShare {
        let name = |member: Option<&Member>| member.map_or(String::new(), |it| it.name());
        let names: Vec<String> = self.members.iter().copied().map(name).collect();
        let read = || {
            let events = self.events();
            SeenOfShare { older: older_copies(&events, &names), events }
        };
        let mut seen = read();
        for _ in 1..READS {
            if seen.older.is_empty() {
                break;
            }
            seen = read();
        }
        seen
    }

    /// Returns the devices that are not at hand.
    pub(super) fn missing(&self) -> DeviceSet {
        let absent = (0..).zip(self.members).filter(|(_, member)| member.is_none());
        absent.map(|(place, _)| DeviceIndex(place)).collect()
    }

    fn events(&self) -> Vec<Option<Events>> {
        let read = |member: Option<&Member>| {
            member.map(|it| it.read(holder_offset(self.share), BLOCK_BYTES as usize).ok())
        };
        let blocks: Vec<_> = self.members.iter().copied().map(read).collect();
        let decode = |block: &Option<Option<Vec<u8>>>| match block {
            Some(Some(block)) => Events::decode(block, self.superblock.pool, self.share),
            _ => None,
        };
        let mut found: Vec<Option<Events>> = blocks.iter().map(decode).collect();
        if confirmed(&found).is_none_or(|(_, event)| event.number == 0) {
            return found;
        }
        for (place, block) in blocks.into_iter().enumerate() {
            let no_event = found[place] == Some(Events::NONE);
            // Zeroes where the count stands, in a block that is no holder block: those of an unused
            // place, or of a write that went astray.
            let says_nothing = |block: Option<Vec<u8>>| {
                block.is_none_or(|block| no_event && !Holder::stands_in(&block))
            };
            if block.is_some_and(says_nothing) {
                let lacks_nothing = self.lacks_nothing(place, &found);
                found[place] = (!lacks_nothing).then_some(Events::NONE);
            }
        }
        found
    }

    /// Returns whether a device has, by itself, the index that all copies together have, and
    /// another one of them is of a device that counts events: then nothing was committed without
    /// it.
    fn lacks_nothing(&self, device: usize, found: &[Option<Events>]) -> bool {
        let Some(place) = LogPlace::of(self.superblock, self.share) else { return false };
        let counts = |it: &u8| found[usize::from(*it)].is_some_and(|events| events != Events::NONE);
        let (own, others): (Vec<u8>, Vec<u8>) =
            place.copies().partition(|it| usize::from(*it) == device);
        let (Some(&own), Some(&other)) = (own.first(), others.iter().find(|it| counts(it))) else {
            return false;
        };
        let media = MemberMedia(self.members);
        let mark = last_mark(found);
        let only = |copy| recover(LogPlace { only: Some(copy), ..place }, mark, &media).ok();
        let all = recover(place, mark, &media).ok().filter(|it| it.passed_over.is_empty());
        let (Some(own), Some(_), Some(all)) = (only(own), only(other), all) else {
            return false;
        };
        let at = |it: &Recovered| (it.log.epoch(), it.log.records());
        at(&own) == at(&all) && own.index == all.index
    }
}

/// Returns the mark of a share's log at the last event that devices have seen of it.
fn last_mark(found: &[Option<Events>]) -> LogMark {
    let last = found.iter().flatten().map(|events| events.begun.number).max();
    let of_last = found.iter().flatten().filter(|events| Some(events.begun.number) == last);
    of_last.map(|events| events.mark).max_by_key(|mark| mark.end).unwrap_or_default()
}

/// Returns the holder block of each share for a device that the pool gets: it has seen what the
/// others confirm, and nobody holds it.
///
/// # Errors
/// One of the others is an older copy of itself.
pub(super) fn blocks_for_new(
    members: &[Option<&Member>],
    superblock: &Superblock,
) -> Result<Vec<Vec<u8>>, OpenError> {
    let seen = seen_of_shares(members, superblock);
    refuse_older_by(&seen)?;
    let pool = superblock.pool;
    let block = |(share, seen): (u32, &SeenOfShare)| {
        Holder::nobody().encode(pool, share, accepted(&seen.events))
    };
    Ok((0..).zip(&seen).map(block).collect())
}

/// Number of readings of a share that another process may be opening.
const READS: usize = 3;

/// Refuses a pool of which a share was used without one of these devices.
pub(super) fn refuse_older(
    members: &[Option<&Member>],
    superblock: &Superblock,
) -> Result<(), OpenError> {
    refuse_older_by(&seen_of_shares(members, superblock))
}

fn refuse_older_by(seen: &[SeenOfShare]) -> Result<(), OpenError> {
    match (0..).zip(seen).find(|(_, seen)| !seen.older.is_empty()) {
        Some((share, seen)) => Err(OpenError::OlderCopy { share, devices: seen.older.clone() }),
        None => Ok(()),
    }
}

/// Returns the events of each share that the devices have seen.
fn seen_of_shares(members: &[Option<&Member>], superblock: &Superblock) -> Vec<SeenOfShare> {
    let shares = 0..superblock.geometry.shares;
    shares.map(|share| ShareOnDevices { superblock, members, share }.seen()).collect()
}

/// The last event that all devices of a pool had, by what these say; which of them says it.
fn confirmed(found: &[Option<Events>]) -> Option<(usize, ShareEvent)> {
    let known = found.iter().enumerate().filter_map(|(at, events)| Some((at, (*events)?)));
    known.map(|(at, events)| (at, events.confirmed)).max_by_key(|(_, event)| event.number)
}

/// Returns the events from which a device whose own count is lost continues to count: one of the
/// pool's must not look older than that.
pub(super) fn accepted(found: &[Option<Events>]) -> Events {
    let confirmed = confirmed(found).map_or(ShareEvent::default(), |(_, event)| event);
    Events { begun: confirmed, confirmed, mark: last_mark(found) }
}

/// The devices that lack an event which another one confirms, of those with these names.
fn older_copies(found: &[Option<Events>], names: &[String]) -> Vec<OlderCopy> {
    let Some((newest, last)) = confirmed(found) else { return Vec::new() };
    let why = |Events { begun, confirmed, .. }: Events| {
        let (number, other) = (begun.number, &names[newest]);
        if number == 0 && last.number > 0 {
            let last = last.number;
            return Some(format!(
                "it has seen no event of the share, {other} has seen event {last}; \
                 it is from before the first one, or has lost its holder block"
            ));
        }
        if number < last.number {
            let last = last.number;
            return Some(format!(
                "it has seen event {number} of the share, {other} has seen event {last}"
            ));
        }
        // The same count of another opening: both went on apart, so either may be the older one.
        let apart = |event: ShareEvent| event.number == last.number && event.id != last.id;
        (apart(begun) || apart(confirmed)).then(|| {
            format!("it and {other} were opened apart, each with other devices of the pool")
        })
    };
    let known = found.iter().zip(names).filter_map(|(events, name)| Some(((*events)?, name)));
    known
        .filter_map(|(events, name)| Some(OlderCopy { device: name.clone(), why: why(events)? }))
        .collect()
}

/// The event count of a share that is being opened, or is open.
#[derive(Debug)]
pub(super) struct EventCount {
    pool: u128,
    share: u32,
    holder: Holder,
    devices: Vec<DeviceIndex>,
    /// Events that were written last.
    last: Events,
}

impl EventCount {
    /// Reads the events of the share on all members but those of which nothing is read, and signs
    /// the share's doors with this process's name. A
    /// device that is an older copy of itself by the count of another share is one for this share,
    /// too: it would take writes that its twin lacks.
    ///
    /// # Errors
    /// A device is an older copy of itself, unless `accept` says that it may be; or cannot be read
    /// or signed.
    pub(super) fn begin(
        members: &Members,
        superblock: &Superblock,
        missing: DeviceSet,
        (share, accept): (u32, bool),
    ) -> Result<Self, OpenError> {
        let seen = seen_of_shares(&members.each_but(missing), superblock);
        let refused = refuse_older_by(&seen);
        let is_older = refused.is_err();
        if !accept {
            refused?;
        }
        let pool = superblock.pool;
        let found = &seen[share as usize].events;
        let holder = if members.are_private() { Holder::nobody() } else { this_process() };
        let accepted = accepted(found);
        let signed = members.present().filter(|(_, member)| !member.is_private());
        for (place, member) in signed {
            let events = found[usize::from(place)];
            // At once, for those who are refused: nothing of it is left in a page cache, from where
            // it could be written over what the data path writes there.
            let block = holder.encode(pool, share, events.unwrap_or(accepted));
            member.write(holder_offset(share), &block).map_err(|source| OpenError::System {
                what: format!("cannot write the share's holder to {}", member.name()),
                source,
            })?;
        }
        let begun = found.iter().flatten().map(|events| events.begun);
        let begun = begun.max_by_key(|event| event.number).unwrap_or_default();
        // What an older copy lacks has been given up.
        let mark = if is_older { LogMark::NONE } else { accepted.mark };
        let last = Events { begun, mark, ..accepted };
        let devices = members.present().map(|(place, _)| DeviceIndex(place)).collect();
        Ok(Self { pool, share, holder, devices, last })
    }

    /// Returns the mark of the share's log at the last event.
    pub(super) fn mark(&self) -> LogMark {
        self.last.mark
    }

    /// Counts an event up to which the log went as far as `mark` says, and waits at most `patience`
    /// for each step: on every device, then confirmed on every device. Returns the bytes written.
    ///
    /// # Errors
    /// A device failed, or took too long. The event is then on some devices, and confirmed on none
    /// of those that might lack it.
    pub(super) fn count(
        &mut self,
        reactor: &Reactor,
        mark: LogMark,
        patience: Duration,
    ) -> Result<u64, ControlError> {
        let id = random_id().map_err(|error| stopped(error.to_string()))?;
        self.last = self.last.next(id, mark);
        self.write(reactor, patience)?;
        self.last = self.last.confirm();
        self.write(reactor, patience)?;
        Ok(2 * BLOCK_BYTES * self.devices.len() as u64)
    }

    fn write(&self, reactor: &Reactor, patience: Duration) -> Result<(), ControlError> {
        let block = self.holder.encode(self.pool, self.share, self.last);
        let offset = ByteCount(holder_offset(self.share));
        reactor.write_everywhere(&self.devices, offset, block, patience)
    }
}

fn stopped(reason: String) -> ControlError {
    TransferError::Stopped { reason }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes the events of a device: the last event, and the one that it knows all devices had,
    /// each a number and an id.
    fn seen(begun: (u64, u128), confirmed: (u64, u128)) -> Events {
        let [begun, confirmed] = [begun, confirmed].map(|(number, id)| ShareEvent { number, id });
        Events { begun, confirmed, mark: LogMark::NONE }
    }

    fn all_had(number: u64) -> Events {
        seen((number, number.into()), (number, number.into()))
    }

    fn begun(number: u64) -> Events {
        seen((number, number.into()), (number - 1, u128::from(number) - 1))
    }

    fn older<const COUNT: usize>(found: [Events; COUNT]) -> Vec<String> {
        older_of_known(&found.map(Some))
    }

    fn older_of_known(found: &[Option<Events>]) -> Vec<String> {
        let names: Vec<String> = (0..found.len()).map(|at| format!("device{at}")).collect();
        older_copies(found, &names).into_iter().map(|it| it.device).collect()
    }

    #[test]
    fn a_device_that_lacks_what_another_confirms_is_an_older_copy() {
        assert_eq!(older([all_had(7), all_had(5)]), ["device1"]);
        assert_eq!(older([begun(5), all_had(7)]), ["device0"]);
        assert_eq!(older([Events::NONE, all_had(1)]), ["device0"]);
        assert_eq!(older([all_had(6), all_had(7), all_had(3)]), ["device0", "device2"]);
        // Also where the others were killed in the midst of the next event.
        assert_eq!(older([begun(8), all_had(6)]), ["device1"]);
    }

    #[test]
    fn what_a_crash_leaves_is_no_older_copy() {
        assert!(older_of_known(&[None, None]).is_empty());
        assert!(older([Events::NONE, Events::NONE]).is_empty());
        // Killed while it was begun, while it was confirmed, and after it was.
        assert!(older([begun(8), all_had(7)]).is_empty());
        assert!(older([all_had(8), begun(8)]).is_empty());
        assert!(older([all_had(8), all_had(8)]).is_empty());
        // Twice, before any device had the other one.
        assert!(older([seen((8, 2), (7, 7)), seen((8, 3), (7, 7))]).is_empty());
        // A block that rotted says nothing.
        assert!(older_of_known(&[Some(all_had(8)), None]).is_empty());
        assert!(older([all_had(8)]).is_empty());
    }

    #[test]
    fn the_mark_is_that_of_the_last_event() {
        let mark = |sequence| {
            let end = crate::layout::LogPoint { epoch: 3, sequence };
            LogMark { end, commit: end, closed: false }
        };
        let with = |number, sequence| Some(Events { mark: mark(sequence), ..all_had(number) });
        assert_eq!(last_mark(&[with(7, 2), with(8, 5), None]), mark(5));
        // Older software has counted since.
        assert_eq!(last_mark(&[with(7, 2), Some(all_had(8))]), LogMark::NONE);
        assert_eq!(last_mark(&[None, None]), LogMark::NONE);
    }

    #[test]
    fn devices_that_were_used_apart_are_not_taken_for_one_pool() {
        assert_eq!(older([seen((8, 3), (8, 3)), seen((8, 2), (8, 2))]), ["device0"]);
        assert_eq!(older([seen((8, 3), (7, 7)), seen((8, 2), (8, 2))]), ["device0"]);
        assert_eq!(older([seen((9, 4), (8, 3)), seen((8, 2), (8, 2))]), ["device0"]);
    }
}
