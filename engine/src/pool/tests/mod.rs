//! The pool over simulated disks; `engine/tests` has it over files and processes.

mod behaviour;
mod commits;
mod copies;
mod degraded;
mod durable;
mod events;
mod format;
mod housekeeping;
mod in_doubt;
mod index;
mod log_end;
mod lost;
mod names;
mod own_puts;
mod puts;
mod read_only;
mod rebuilding;
mod reclamation;
mod reshape;
mod scrub;
mod seal_moves;
mod seals;
mod start;
mod superblocks;
mod unequal;
mod unreadable;
mod workload;

use std::time::Duration;

use super::*;
use crate::layout::LifetimeClass;
use crate::path::sim::{PowerCut, SimDisk, SimProfile};
use crate::units::ByteCount;
use tidelog_random::Random;

/// Formatted disks, small enough to be filled.
fn disks(count: usize, size: ByteCount) -> Vec<SimDisk> {
    let disks: Vec<SimDisk> = (0..count).map(|_| SimDisk::new(size)).collect();
    Pool::format(&disks, &small()).unwrap();
    disks
}

/// Formatted disks that are not all as most are.
fn formatted<const COUNT: usize>(profiles: [SimProfile; COUNT]) -> Vec<SimDisk> {
    let disks = profiles.map(|profile| SimDisk::with_profile(ByteCount::mib(4), profile));
    Pool::format(&disks, &small()).unwrap();
    disks.into()
}

fn small() -> FormatOptions {
    FormatOptions { stripe_unit: ByteCount::kib(16), ..FormatOptions::default() }
}

fn open(disks: &[SimDisk]) -> Pool {
    let options = OpenOptions { staging: ByteCount::kib(256), ..quick() };
    Pool::open(disks, &options).unwrap()
}

fn quick() -> OpenOptions {
    OpenOptions { huge_pages: false, ..OpenOptions::default() }
}

/// Bytes that tell one tensor's version from every other.
fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let words = std::iter::repeat_with(|| random.draw().to_le_bytes());
    words.take(length.div_ceil(8)).flatten().take(length).collect()
}

fn put(pool: &Pool, id: u128, content: &[u8]) {
    start_put(pool, id, content).unwrap().wait().unwrap();
}

fn start_put(pool: &Pool, id: u128, content: &[u8]) -> Result<Ticket, PutError> {
    pool.put(TensorId(id), Source::from(content.to_vec()), PutOptions::default())
}

fn get(pool: &Pool, id: u128) -> Option<Vec<u8>> {
    let length = pool.length(TensorId(id))?;
    Some(get_range(pool, id, 0..length))
}

fn get_range(pool: &Pool, id: u128, range: Range<u64>) -> Vec<u8> {
    let ticket = start_get(pool, id, range);
    ticket.wait().unwrap();
    ticket.take_bytes().unwrap()
}

fn start_get(pool: &Pool, id: u128, range: Range<u64>) -> Ticket {
    let memory = Destination::buffer((range.end - range.start) as usize);
    pool.get(TensorId(id), range, memory, Urgency::Urgent, None).unwrap()
}

fn space(pool: &Pool) -> SpaceUse {
    pool.audit().unwrap()
}

/// A batch with these changes.
fn batch(pool: &Pool, puts: &[(u128, &[u8])], deletes: &[u128]) -> Batch {
    let mut batch = pool.batch();
    for (id, content) in puts {
        let source = Source::from(content.to_vec());
        batch.put(TensorId(*id), source, PutOptions::default()).unwrap();
    }
    for id in deletes {
        batch.delete(TensorId(*id)).unwrap();
    }
    batch
}

fn commit(pool: &Pool, puts: &[(u128, &[u8])], deletes: &[u128]) -> Result<(), CommitError> {
    batch(pool, puts, deletes).commit()
}

fn cut_power(disks: &[SimDisk], cut: PowerCut) {
    for disk in disks {
        disk.cut_power(cut);
    }
}
