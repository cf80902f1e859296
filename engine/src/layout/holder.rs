//! The holder block: which process holds a share, for the message to the one that wants it too.
//!
//! The lock itself is the operating system's and dies with its holder; this block is only the name
//! on the door, and a stale one means nothing. The event count in the same block does mean
//! something: see [`Events`].

use std::fmt;

use bytemuck::{Pod, Zeroable};

use super::endian::{U32, U64, U128};
use super::event::Events;
use super::{BLOCK_BYTES, checksum_of};

const MAGIC: [u8; 8] = *b"TIDEHOLD";
const COMMAND_BYTES: usize = 1024;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct HolderOnMedia {
    pub(super) magic: [u8; 8],
    /// CRC32C over the block with this field as zero.
    pub(super) checksum: U32,
    pub(super) share: U32,
    pub(super) pool: U128,
    pub(super) process: U32,
    pub(super) command_bytes: U32,
    pub(super) since: U64,
    pub(super) command: [u8; COMMAND_BYTES],
    pub(super) event: U64,
    pub(super) opening: U128,
    pub(super) confirmed: U64,
    pub(super) confirmed_opening: U128,
    pub(super) event_checksum: U32,
    pub(super) log_epoch: U64,
    pub(super) log_sequence: U64,
    pub(super) commit_epoch: U64,
    pub(super) commit_sequence: U64,
    pub(super) log_state: U32,
    pub(super) mark_checksum: U32,
    pub(super) reserved: [u8; 2932],
}

const _: () = assert!(size_of::<HolderOnMedia>() == BLOCK_BYTES as usize);

/// The process that holds, or last held, a share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The process id.
    pub process: u32,
    /// The command line, cut at 1 KiB.
    pub command: String,
    /// Time at which the process opened the share, in seconds since 1970.
    pub since: u64,
}

impl fmt::Display for Holder {
    /// Writes, for example, `process 12 (python train.py) since 2026-01-31 12:00:00 UTC`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "process {} ({}) since {}", self.process, self.command, utc(self.since))
    }
}

/// Seconds since 1970 as in `2026-01-31 12:00:00 UTC`.
pub fn utc(seconds: u64) -> String {
    let (year, month, day) = civil_date(seconds / 86_400);
    let second = seconds % 86_400;
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// Year, month and day of a day counted from 1970-01-01.
fn civil_date(days: u64) -> (u64, u64, u64) {
    // Years begin in March, so that the leap day is a year's last; 719468 days lie between 1 March
    // of the year 0 and 1970. The calendar repeats every 400 years, which have 146097 days.
    let days = days.saturating_add(719_468);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let january_or_february = month >= 10;
    let month = if january_or_february { month - 9 } else { month + 3 };
    (era * 400 + year + u64::from(january_or_february), month, date)
}

impl Holder {
    /// No process, for disks that are simulated.
    pub(crate) const fn nobody() -> Self {
        Self { process: 0, command: String::new(), since: 0 }
    }

    /// Returns whether a block begins as a holder block does, though it be damaged.
    pub fn is_marked(block: &[u8]) -> bool {
        super::is_marked(block, MAGIC)
    }

    /// Returns whether a holder block stands there, by its mark alone. Other marks of ours differ
    /// from it in fewer bits than may have rotted.
    pub fn stands_in(block: &[u8]) -> bool {
        block.starts_with(&MAGIC)
    }

    /// The block that stands on the media, with the events that were counted.
    pub fn encode(&self, pool: u128, share: u32, events: Events) -> Vec<u8> {
        let mut block = HolderOnMedia::zeroed();
        let mut length = self.command.len().min(COMMAND_BYTES);
        while !self.command.is_char_boundary(length) {
            length -= 1;
        }
        block.magic = MAGIC;
        block.share = share.into();
        block.pool = pool.into();
        block.process = self.process.into();
        block.since = self.since.into();
        block.command_bytes = (length as u32).into();
        block.command[..length].copy_from_slice(&self.command.as_bytes()[..length]);
        events.enter(&mut block, pool, share);
        block.checksum = checksum_of(&[bytemuck::bytes_of(&block)]).into();
        bytemuck::bytes_of(&block).to_vec()
    }

    /// Reads a block; `None` if no holder stands there. The pool is not compared: the reader was
    /// just refused a lock on this very place and may not have read a superblock yet.
    pub fn decode(bytes: &[u8], share: u32) -> Option<Self> {
        let mut block: HolderOnMedia = bytemuck::try_pod_read_unaligned(bytes).ok()?;
        let checksum = block.checksum.get();
        block.checksum = 0.into();
        let whole = block.magic == MAGIC
            && block.share.get() == share
            && checksum == checksum_of(&[bytemuck::bytes_of(&block)]);
        let command = block.command.get(..block.command_bytes.get() as usize)?;
        whole.then(|| Self {
            process: block.process.get(),
            command: String::from_utf8_lossy(command).into_owned(),
            since: block.since.get(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_read_back_and_long_commands_are_cut_at_a_character() {
        let holder = Holder { process: 77, command: "python train.py".into(), since: 12 };
        assert_eq!(Holder::decode(&holder.encode(1, 3, Events::NONE), 3), Some(holder.clone()));
        assert_eq!(
            Holder::decode(&holder.encode(1, 3, Events::NONE), 2),
            None,
            "another share's block"
        );

        let long = Holder { command: "é".repeat(2000), ..holder };
        let read = Holder::decode(&long.encode(1, 0, Events::NONE), 0).unwrap();
        assert_eq!(read.command, "é".repeat(512));
    }

    #[test]
    fn the_holder_is_said_with_a_date_a_person_can_read() {
        let said = |since| Holder { process: 7, command: "x y".into(), since }.to_string();
        assert_eq!(said(0), "process 7 (x y) since 1970-01-01 00:00:00 UTC");
        assert_eq!(said(951_782_399), "process 7 (x y) since 2000-02-28 23:59:59 UTC");
        assert_eq!(said(951_782_400), "process 7 (x y) since 2000-02-29 00:00:00 UTC");
        assert_eq!(said(1_798_761_600), "process 7 (x y) since 2027-01-01 00:00:00 UTC");
        assert!(!said(u64::MAX).is_empty());
    }

    #[test]
    fn a_damaged_or_blank_block_names_nobody() {
        let block = Holder { process: 1, command: "x".into(), since: 1 };
        let mut block = block.encode(1, 0, Events::NONE);
        block[4000] ^= 1;
        assert_eq!(Holder::decode(&block, 0), None);
        assert_eq!(Holder::decode(&[0; 4096], 0), None);
        assert_eq!(Holder::decode(&[], 0), None);
    }
}
