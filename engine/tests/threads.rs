//! Several threads that move the tensors of a pool.

mod common;

use std::num::NonZero;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use common::{Directory, get, quick, small, stage};
use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::{Destination, Source};
use tidelog_engine::pool::{OpenOptions, Pool, PutOptions};
use tidelog_engine::schedule::{TransferError, Urgency};
use tidelog_engine::units::ByteCount;

const TENSORS: u64 = 24;

fn content(index: u64) -> Vec<u8> {
    let step = |at: u64| ((at * 2_654_435_761 + index) >> 7) as u8;
    (0..70_000 + 1000 * index).map(step).collect()
}

fn name(index: u64) -> String {
    format!("tensor {index}")
}

fn id(index: u64) -> TensorId {
    TensorId::from_name(&name(index))
}

/// A pool with a thread for each device, whatever this machine allows.
fn filled(directory: &Directory) -> Pool {
    let specs = directory.devices();
    Pool::format(&specs, &small()).unwrap();
    let reactors = NonZero::new(specs.len());
    let options = OpenOptions { staging: ByteCount::mib(16), reactors, ..quick() };
    let pool = Pool::open(&specs, &options).unwrap();
    assert_eq!(pool.stats().unwrap().reactor.threads, specs.len());
    let mut batch = pool.batch();
    (0..TENSORS).for_each(|index| stage(&mut batch, &name(index), content(index)));
    batch.commit().unwrap();
    pool
}

#[test]
fn there_are_as_many_as_asked_for_but_none_without_a_device_or_staging_memory() {
    let directory = Directory::new("threads-count");
    let specs = directory.devices();
    Pool::format(&specs, &small()).unwrap();
    let threads = |reactors: Option<usize>, staging| {
        let reactors = reactors.and_then(NonZero::new);
        let pool = Pool::open(&specs, &OpenOptions { reactors, staging, ..quick() }).unwrap();
        let threads = pool.stats().unwrap().reactor.threads;
        pool.close().unwrap();
        threads
    };
    let enough = ByteCount::mib(16);
    for asked in 1..=specs.len() + 1 {
        assert_eq!(threads(Some(asked), enough), asked.min(specs.len()));
    }
    assert_eq!(threads(Some(specs.len()), ByteCount::kib(256)), 1, "for chunks for one");
    let processors = std::thread::available_parallelism().unwrap().get();
    assert_eq!(threads(None, enough), specs.len().min(processors).min(4));
}

#[test]
fn what_they_read_and_verify_is_what_was_put_and_is_counted() {
    let directory = Directory::new("threads");
    let pool = Arc::new(filled(&directory));
    let before: u64 = pool.stats().unwrap().reactor.devices.iter().map(|it| it.reads).sum();
    let threads = (0..4).map(|thread| {
        let pool = Arc::clone(&pool);
        std::thread::spawn(move || {
            for turn in 0..2 * TENSORS {
                let index = (turn * 5 + thread) % TENSORS;
                let bytes = content(index);
                assert_eq!(get(&pool, id(index)).unwrap(), bytes);
                let start = (index * 1000 + thread) as usize;
                let range = start as u64..bytes.len() as u64 - 17;
                let length = (range.end - range.start) as usize;
                let memory = Destination::buffer(length);
                let part = pool.get(id(index), range, memory, Urgency::Urgent, None).unwrap();
                part.wait().unwrap();
                assert_eq!(part.take_bytes().unwrap(), bytes[start..start + length]);
                let mut changed = bytes.clone();
                changed[start] ^= 1;
                for (memory, same) in [(bytes, true), (changed, false)] {
                    let verified = pool.verify(id(index), Source::from(memory), None).unwrap();
                    assert_eq!(verified.wait().unwrap().matched, same);
                }
            }
        })
    });
    threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
    let devices = pool.stats().unwrap().reactor.devices;
    let reads: u64 = devices.iter().map(|device| device.reads).sum();
    assert!(reads - before >= 4 * 2 * TENSORS * 2, "all threads' reads are counted: {reads}");
    pool.audit().unwrap();
    pool.close().unwrap();
}

#[test]
fn what_they_write_in_turns_is_there_and_is_counted() {
    let directory = Directory::new("threads-write");
    let pool = Arc::new(filled(&directory));
    let before: u64 = pool.stats().unwrap().reactor.devices.iter().map(|it| it.writes).sum();
    let scratch = |thread: u64, turn: u64| format!("scratch {thread} {}", turn % 3);
    let threads = (0..4).map(|thread| {
        let pool = Arc::clone(&pool);
        std::thread::spawn(move || {
            for turn in 0..24 {
                // Each is written anew while its last version may still be on its way.
                let put = |turn: u64| {
                    let (name, bytes) = (scratch(thread, turn), content(100 * thread + turn));
                    pool.put(&*name, Source::from(bytes), PutOptions::default()).unwrap()
                };
                let tickets = [put(turn), put(turn + 1), put(turn)];
                for ticket in tickets {
                    ticket.wait().unwrap();
                }
                let there = TensorId::from_name(&scratch(thread, turn));
                assert_eq!(get(&pool, there).unwrap(), content(100 * thread + turn));
                if turn % 6 == thread {
                    let mut batch = pool.batch();
                    stage(&mut batch, &name(thread), content(turn));
                    batch.commit().unwrap();
                }
            }
        })
    });
    threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
    let writes: u64 = pool.stats().unwrap().reactor.devices.iter().map(|it| it.writes).sum();
    assert!(writes - before >= 4 * 24 * 3 * 3, "all threads' writes are counted: {writes}");
    pool.audit().unwrap();
    Arc::into_inner(pool).unwrap().close().unwrap();
    let pool = Pool::open(&directory.devices(), &quick()).unwrap();
    for index in 0..TENSORS {
        let last = if index < 4 { 18 + index } else { index };
        assert_eq!(get(&pool, id(index)).unwrap(), content(last), "tensor {index}");
    }
    pool.close().unwrap();
}

#[test]
fn rot_that_they_find_names_its_device_and_is_not_delivered() {
    let directory = Directory::new("threads-rot");
    let pool = filled(&directory);
    // Every place of every device that holds tensors: whoever reads finds it.
    let (geometry, names) = (pool.description().geometry, pool.description().devices.clone());
    for name in &names {
        let file = std::fs::OpenOptions::new().write(true).open(name).unwrap();
        let end = geometry.data_offset + u64::from(geometry.segments) * geometry.segment_bytes;
        for at in (geometry.data_offset..end).step_by(4096) {
            file.write_all_at(b"rot", at).unwrap();
        }
        file.sync_all().unwrap();
    }
    let mut found = Vec::new();
    for index in 0..TENSORS {
        let whole = content(index).len();
        for length in [whole, 4096] {
            let memory = Destination::buffer(length);
            let range = 0..length as u64;
            let ticket = pool.get(id(index), range, memory, Urgency::Urgent, None).unwrap();
            match ticket.wait() {
                Err(error @ TransferError::Checksum { device, .. }) => {
                    let name = &names[usize::from(device.0)];
                    assert!(error.to_string().contains(name.as_str()), "{error}");
                    // Of a whole tensor, whose rot is found first is up to the threads; its first
                    // bytes lie on one device.
                    found.extend((length < whole).then_some(device));
                }
                other => panic!("tensor {index}: {other:?}"),
            }
            assert!(ticket.take_bytes().is_none());
        }
    }
    found.sort_unstable_by_key(|device| device.0);
    found.dedup();
    assert_eq!(found.len(), names.len(), "tensors begin on every device, and so every thread read");
    let failures: u64 =
        pool.stats().unwrap().reactor.devices.iter().map(|it| it.checksum_failures).sum();
    assert!(failures >= TENSORS);
    pool.close().unwrap();
}

#[test]
fn closing_waits_for_what_they_read_and_takes_no_more() {
    let directory = Directory::new("threads-close");
    let pool = filled(&directory);
    let tickets: Vec<_> = (0..TENSORS)
        .map(|index| {
            let length = content(index).len();
            let memory = Destination::buffer(length);
            pool.get(id(index), 0..length as u64, memory, Urgency::Ahead, None).unwrap()
        })
        .collect();
    pool.close().unwrap();
    for (index, ticket) in (0..).zip(tickets) {
        ticket.wait().unwrap();
        assert_eq!(ticket.take_bytes().unwrap(), content(index));
    }
    let memory = Destination::buffer(1);
    assert!(pool.get(id(0), 0..1, memory, Urgency::Ahead, None).is_err());
}

#[test]
fn staging_memory_that_cannot_be_shared_alike_is_not_left_for_callers() {
    let directory = Directory::new("threads-odd");
    let specs = directory.devices();
    Pool::format(&specs, &small()).unwrap();
    for chunks in 16..20 {
        let staging = ByteCount::kib(32 * chunks);
        let pool = Pool::open(&specs, &OpenOptions { staging, ..quick() }).unwrap();
        assert!(pool.buffer(1).unwrap().is_none(), "{chunks} chunks");
        pool.close().unwrap();
    }
}
