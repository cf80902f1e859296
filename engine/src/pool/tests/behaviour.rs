//! Scratch tensors: put, get, verify, delete, and what happens when they get in each other's way.

use super::*;
use crate::path::OperationKind;
use crate::path::sim::Fault;
use crate::schedule::{CompletionQueue, TransferError};

#[test]
fn tensors_of_every_size_come_back_whole_and_in_parts() {
    for devices in [1, 2, 3] {
        let pool = open(&disks(devices, ByteCount::mib(8)));
        for length in [0, 1, 4095, 4096, 4097, 16 << 10, 100_000, 1_000_001] {
            let content = bytes(length as u64, length);
            put(&pool, 1, &content);
            assert_eq!(get(&pool, 1).unwrap(), content);
            let mut random = Random::new(length as u64);
            for _ in 0..20 {
                let start = random.below(length as u64 + 1);
                let end = start + random.below(length as u64 - start + 1);
                let expected = &content[start as usize..end as usize];
                assert_eq!(get_range(&pool, 1, start..end), expected, "{start}..{end}");
            }
            space(&pool);
        }
    }
}

#[test]
fn requests_that_make_no_sense_are_refused_with_the_figures() {
    let pool = open(&disks(2, ByteCount::mib(4)));
    put(&pool, 1, &bytes(1, 100));
    let get = |id, range, length| {
        let memory = Destination::buffer(length);
        pool.get(TensorId(id), range, memory, Urgency::Ahead, None)
    };
    assert!(matches!(get(2, 0..1, 1), Err(GetError::Unknown(key)) if key.id == TensorId(2)));
    assert!(matches!(get(1, 99..101, 2), Err(GetError::Range { length: 100, .. })));
    #[allow(clippy::reversed_empty_ranges)]
    let reversed = get(1, 3..2, 0);
    assert!(matches!(reversed, Err(GetError::Range { .. })));
    assert!(matches!(get(1, 0..10, 9), Err(GetError::Memory { found: 9, needed: 10, .. })));
    // No memory is asked for by a number that was not looked at.
    assert!(matches!(get(1, 0..100, 1 << 50), Err(GetError::Memory { needed: 100, .. })));
    assert!(matches!(get(1, 0..1 << 50, 1 << 50), Err(GetError::Range { length: 100, .. })));
    assert!(matches!(get(2, 0..1 << 50, 1 << 50), Err(GetError::Unknown(_))));
    assert_eq!(pool.delete(TensorId(2)), Err(DeleteError::Unknown(TensorId(2).into())));
    let short = pool.verify(TensorId(1), Source::from(vec![0; 99]), None);
    assert!(matches!(short, Err(GetError::Memory { found: 99, needed: 100, .. })));
}

#[test]
fn memory_is_verified_against_the_log_without_reading_it() {
    let disks = disks(2, ByteCount::mib(4));
    let pool = open(&disks);
    let mut content = bytes(3, 70_000);
    put(&pool, 1, &content);
    let reads = |disks: &[SimDisk]| disks.iter().map(|disk| disk.counters().reads).sum::<u64>();
    let before = reads(&disks);
    let verify = |content: &[u8]| {
        let ticket = pool.verify(TensorId(1), Source::from(content.to_vec()), None).unwrap();
        ticket.wait().unwrap().matched
    };
    assert!(verify(&content));
    content[69_999] ^= 1;
    assert!(!verify(&content));
    assert_eq!(reads(&disks), before);
}

#[test]
fn scratch_tensors_cost_no_metadata() {
    let disks = disks(2, ByteCount::mib(4));
    let pool = open(&disks);
    let before = pool.stats().unwrap();
    let flushes = |disks: &[SimDisk]| disks.iter().map(|it| it.counters().flushes).sum::<u64>();
    let flushes_before = flushes(&disks);
    for round in 0..20 {
        put(&pool, round % 3, &bytes(round as u64, 10_000));
    }
    pool.delete(TensorId(1)).unwrap();
    let stats = pool.stats().unwrap();
    assert_eq!(stats.written.metadata, before.written.metadata);
    assert_eq!(stats.written.scratch[LifetimeClass::Step as usize], ByteCount(200_000));
    let device_bytes = |stats: &PoolStats| {
        stats.reactor.devices.iter().map(|device| device.bytes_written).sum::<u64>()
    };
    // 10000 bytes are three blocks, and nothing else was written.
    assert_eq!(device_bytes(&stats) - device_bytes(&before), 20 * 3 * 4096);
    assert_eq!(flushes(&disks), flushes_before);
}

#[test]
fn a_tensor_that_is_read_while_it_is_deleted_or_replaced_keeps_its_bytes() {
    let disks = disks(2, ByteCount::mib(4));
    let pool = open(&disks);
    let usable = space(&pool).free.0 - space(&pool).reclaim_reserve.0;
    let content = bytes(1, usable as usize / 2);
    put(&pool, 1, &content);
    put(&pool, 2, &content);
    disks.iter().for_each(SimDisk::hold);
    let reads = [start_get(&pool, 1, 0..content.len() as u64), start_get(&pool, 2, 5..9)];
    pool.delete(TensorId(1)).unwrap();
    pool.delete(TensorId(2)).unwrap();
    assert!(!pool.contains(TensorId(1)));
    assert_eq!(space(&pool).reserved.0, usable);
    // Every byte is still held, so nobody can write over what is being read.
    assert!(matches!(start_put(&pool, 3, &[1]), Err(PutError::PoolFull { .. })));
    disks.iter().for_each(SimDisk::release);
    for read in &reads {
        read.wait().unwrap();
    }
    assert_eq!(reads[0].take_bytes().unwrap(), content);
    assert_eq!(reads[1].take_bytes().unwrap(), content[5..9]);
    let space = space(&pool);
    assert_eq!(space.free, space.capacity);
    put(&pool, 3, &content);
}

#[test]
fn a_full_pool_says_so_with_figures_and_stays_usable() {
    let pool = open(&disks(2, ByteCount::mib(4)));
    let content = bytes(1, 300_000);
    let mut stored = 0;
    let refused = loop {
        match start_put(&pool, stored, &content) {
            Ok(ticket) => assert!(ticket.wait().is_ok()),
            Err(error) => break error,
        }
        stored += 1;
    };
    let PutError::PoolFull { needed, available, space: reported, .. } = &refused else {
        panic!("not full: {refused}");
    };
    assert!(needed > available);
    assert_eq!(**reported, space(&pool));
    assert!(refused.to_string().contains("pool is full"), "{refused}");
    for id in 0..stored {
        assert_eq!(get(&pool, id).unwrap(), content);
    }
    // A replacement needs its space beside the old version, then gives the old one's back.
    assert!(matches!(start_put(&pool, 0, &content), Err(PutError::PoolFull { .. })));
    assert_eq!(get(&pool, 0).unwrap(), content, "the refused put left the older version");
    for id in 0..stored {
        pool.delete(TensorId(id)).unwrap();
    }
    assert_eq!(space(&pool).free, space(&pool).capacity);
    put(&pool, 0, &content);
}

#[test]
fn a_failed_put_leaves_the_older_version_and_gives_its_space_back() {
    let disks = disks(2, ByteCount::mib(4));
    let pool = open(&disks);
    let content = bytes(1, 50_000);
    put(&pool, 1, &content);
    let before = space(&pool);
    disks[1].plan_fault(OperationKind::Write, 0, Fault::Errno(5));
    let failed = start_put(&pool, 1, &bytes(2, 60_000)).unwrap().wait();
    assert!(matches!(failed, Err(TransferError::Device { .. })), "{failed:?}");
    assert_eq!(space(&pool), before);
    assert_eq!(get(&pool, 1).unwrap(), content);
    // The device takes no more writes until it is opened again, and every attempt leaves no trace.
    let refused = start_put(&pool, 2, &content).unwrap().wait();
    assert!(matches!(refused, Err(TransferError::Latched { .. })), "{refused:?}");
    assert_eq!(space(&pool), before);
}

#[test]
fn a_cancelled_put_leaves_the_older_version_and_gives_its_space_back() {
    let disks = disks(2, ByteCount::mib(4));
    let pool = open(&disks);
    put(&pool, 1, &[7; 10]);
    let before = space(&pool);
    disks.iter().for_each(SimDisk::hold);
    let ticket = start_put(&pool, 1, &bytes(2, 1_000_000)).unwrap();
    ticket.cancel();
    disks.iter().for_each(SimDisk::release);
    assert_eq!(ticket.wait(), Err(TransferError::Cancelled));
    assert_eq!(space(&pool), before);
    assert_eq!(get(&pool, 1).unwrap(), [7; 10]);
}

#[test]
fn rotten_bytes_are_an_error_that_says_where_and_never_data() {
    let disks = disks(2, ByteCount::mib(4));
    let pool = open(&disks);
    put(&pool, 1, &bytes(1, 100_000));
    put(&pool, 2, &bytes(2, 100_000));
    let offset = pool.description().geometry.data_offset;
    disks[0].rot(offset + 77, 4);
    let read = start_get(&pool, 1, 0..100_000);
    assert!(matches!(read.wait(), Err(TransferError::Checksum { .. })));
    assert_eq!(read.take_bytes(), None);
    assert_eq!(get(&pool, 2).unwrap(), bytes(2, 100_000), "others are not affected");
    assert!(space(&pool).live.0 > 0);
}

#[test]
fn a_read_that_fails_names_the_tensor_the_byte_in_it_and_the_devices_path() {
    let disks = disks(2, ByteCount::mib(4));
    let pool = open(&disks);
    let mut batch = pool.batch();
    let source = Source::from(bytes(1, 100_000));
    batch.put("layer.0.weight", source, PutOptions::default()).unwrap();
    batch.commit().unwrap();
    put(&pool, 2, &bytes(2, 100_000));
    let named = TensorId::from_name("layer.0.weight");
    let says = |text: &str, words: &[&str]| {
        assert!(words.iter().all(|words| text.contains(words)), "{text:?}: {words:?}");
    };
    let fails = |id: TensorId, range| start_get(&pool, id.0, range).wait().unwrap_err().to_string();
    for (id, words) in [(named, "\"layer.0.weight\""), (TensorId(2), &TensorId(2).to_string())] {
        let version = pool.current(id).unwrap();
        let piece = pool.0.stripes.placements(&version.entry.runs, 100_000).nth(3).unwrap();
        disks[usize::from(piece.device)].rot(piece.device_offset + 10, 4);
        let device = format!("device {0} (sim{0})", piece.device);
        let place = format!("byte {} of {words}", piece.tensor_offset);
        // Not counted from where the read begins.
        says(&fails(id, 40_000..100_000), &[&device, &place]);
        let report = pool.scrub().unwrap();
        let damaged = report.damaged.iter().find(|damaged| damaged.id == id).unwrap();
        says(&damaged.bad[0].error.to_string(), &[&device, &place]);
    }
    let piece = pool
        .0
        .stripes
        .placements(&pool.current(named).unwrap().entry.runs, 100_000)
        .nth(2)
        .unwrap();
    let device = format!("device {0} (sim{0})", piece.device);
    disks[usize::from(piece.device)].plan_fault(OperationKind::Read, 0, Fault::Errno(libc::ENXIO));
    for how in ["failed on", "until the pool is opened again"] {
        says(&fails(named, 40_000..40_100), &[how, &device, "byte 40000 of \"layer.0.weight\""]);
    }
    disks[1 - usize::from(piece.device)].plan_fault(OperationKind::Write, 0, Fault::Errno(5));
    let put = start_put(&pool, 3, &bytes(3, 100_000)).unwrap().wait().unwrap_err().to_string();
    says(&put, &["(sim", &TensorId(3).to_string()]);
}

#[test]
fn ends_are_told_to_a_queue_by_tag() {
    let pool = open(&disks(2, ByteCount::mib(4)));
    let queue = CompletionQueue::new();
    let options = PutOptions { notify: Some((queue.clone(), 42)), ..PutOptions::default() };
    drop(pool.put(TensorId(1), Source::from(vec![1; 5000]), options).unwrap());
    let (tag, outcome) = queue.wait_pop(std::time::Duration::from_secs(60)).unwrap();
    assert_eq!((tag, outcome.unwrap().bytes), (42, 5000));
    assert!(pool.contains(TensorId(1)), "it can be read once its end is told");
}

#[test]
fn a_closed_pool_says_so_and_scratch_is_gone_after_it() {
    let disks = disks(2, ByteCount::mib(4));
    let pool = open(&disks);
    let put_last = start_put(&pool, 1, &bytes(1, 500_000)).unwrap();
    pool.close().unwrap();
    assert!(put_last.wait().is_ok(), "what was in flight has ended");
    assert!(matches!(start_put(&pool, 1, &[1]), Err(PutError::Unusable(Unusable::Closed))));
    assert!(matches!(pool.close(), Err(CloseError::Unusable(Unusable::Closed))));
    assert_eq!(pool.delete(TensorId(1)), Err(DeleteError::Unusable(Unusable::Closed)));
    let pool = open(&disks);
    assert!(!pool.contains(TensorId(1)));
    assert_eq!(space(&pool).free, space(&pool).capacity);
}

#[test]
fn a_forked_child_is_told_that_the_pool_is_not_its_own() {
    let pool = open(&disks(2, ByteCount::mib(4)));
    put(&pool, 1, &[1; 10]);
    // What a fork sees: another process id than the one that opened the pool.
    let opener = std::process::id() + 1;
    pool.0.opener.store(opener, std::sync::atomic::Ordering::Relaxed);
    let forked = Unusable::Forked { opener };
    assert!(matches!(start_put(&pool, 1, &[1]), Err(PutError::Unusable(error)) if error == forked));
    let memory = Destination::buffer(1);
    let read = pool.get(TensorId(1), 0..1, memory, Urgency::Urgent, None);
    assert!(matches!(read, Err(GetError::Unusable(error)) if error == forked));
    let verified = pool.verify(TensorId(1), Source::from(vec![1; 10]), None);
    assert!(matches!(verified, Err(GetError::Unusable(error)) if error == forked));
    assert_eq!(pool.delete(TensorId(1)), Err(DeleteError::Unusable(forked)));
    let committed = pool.batch().commit();
    assert!(matches!(committed, Err(CommitError::Unusable(error)) if error == forked));
    assert_eq!(pool.stats().err(), Some(forked));
    assert!(matches!(pool.close(), Err(CloseError::Unusable(error)) if error == forked));
    assert!(!pool.contains(TensorId(1)));
}
