//! What the reactor promises, on simulated disks whose every fault is chosen.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::*;
use crate::memory::{Destination, Source};
use crate::path::sim::{Fault, PowerCut, SimDisk, SimDisks, SimProfile};
use crate::path::{Extent, OperationKind, Status};
use crate::units::{ByteCount, DeviceIndex};

const CHUNK: u32 = 32 << 10;
const DISK: ByteCount = ByteCount::mib(8);
/// Far longer than anything here takes, far shorter than a hung test is worth.
const SOON: Duration = Duration::from_secs(20);

fn disks(count: u64) -> Vec<SimDisk> {
    let disk = |seed| SimDisk::with_profile(DISK, SimProfile { seed, ..SimProfile::default() });
    (0..count).map(disk).collect()
}

fn start(disks: &[SimDisk], chunks: u64) -> Reactor {
    let chunk = ByteCount(u64::from(CHUNK));
    let staging = ByteCount(chunk.0 * chunks);
    let options = ReactorOptions { staging, chunk, ..ReactorOptions::default() };
    Reactor::start(Box::new(SimDisks(disks.to_vec())), options).unwrap()
}

fn bytes(length: usize, seed: u8) -> Vec<u8> {
    let step = |index: usize| (index as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3] ^ seed;
    (0..length).map(step).collect()
}

/// `length` bytes striped over `devices`, one chunk after the other, from `offset` on.
fn striped(length: usize, devices: usize, offset: u64) -> Vec<Piece> {
    let chunk = CHUNK as usize;
    let piece = |(index, start): (usize, usize)| {
        let at = ByteCount(offset + (index / devices * chunk) as u64);
        let device = DeviceIndex((index % devices) as u8);
        Piece::new(device, at, start as u64, (length - start).min(chunk) as u32)
    };
    (0..length).step_by(chunk).enumerate().map(piece).collect()
}

fn nothing() -> Finish {
    Box::new(|_| ())
}

fn write(reactor: &Reactor, bytes: &[u8], pieces: &[Piece]) -> Vec<Piece> {
    let (tell, told) = mpsc::channel();
    let finish: Finish = Box::new(move |result| tell.send(result).unwrap());
    let (source, pieces) = (Source::from(bytes.to_vec()), pieces.to_vec());
    let transfer = Transfer::Write { source, pieces: pieces.clone() };
    let ticket = reactor.submit(transfer, Urgency::Ahead, None, finish).unwrap();
    assert_eq!(ticket.wait().unwrap().bytes, bytes.len() as u64);
    let sums = told.recv().unwrap().outcome.unwrap().checksums;
    pieces.iter().zip(sums).map(|(piece, sum)| piece.expecting(sum)).collect()
}

fn read_ticket(reactor: &Reactor, length: usize, pieces: &[Piece]) -> Ticket {
    let destination = Destination::buffer(length);
    let transfer = Transfer::Read { destination, pieces: pieces.to_vec() };
    reactor.submit(transfer, Urgency::Urgent, None, nothing()).unwrap()
}

fn read(reactor: &Reactor, length: usize, pieces: &[Piece]) -> Result<Vec<u8>, TransferError> {
    let ticket = read_ticket(reactor, length, pieces);
    ticket.wait_timeout(SOON).expect("the read ends")?;
    Ok(ticket.take_bytes().expect("an owned destination comes back"))
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < SOON, "{what} did not come about");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_transfer_far_larger_than_the_staging_ring_streams_through_it() {
    for chunks in [1, 2, 5] {
        let disks = disks(3);
        let reactor = start(&disks, chunks);
        let tensor = bytes(3 * 1024 * 1024 + 777, 1);
        let pieces = write(&reactor, &tensor, &striped(tensor.len(), 3, 0));
        for (piece, part) in pieces.iter().zip(tensor.chunks(CHUNK as usize)) {
            assert_eq!(piece.checksum, Some(crc32c::crc32c(part)));
        }
        assert_eq!(read(&reactor, tensor.len(), &pieces).unwrap(), tensor);
        assert_eq!(reactor.close(), Ok(()));
    }
}

#[test]
fn the_end_of_the_last_block_is_written_as_zeroes() {
    let disks = disks(1);
    let reactor = start(&disks, 1);
    write(&reactor, &[0xFF; 8192], &striped(8192, 1, 0));
    write(&reactor, &[7; 5000], &striped(5000, 1, 0));
    let expected = [vec![7; 5000], vec![0; 3192]].concat();
    assert_eq!(disks[0].peek(0, 8192), expected);
}

#[test]
fn a_window_of_a_piece_is_read_and_the_whole_piece_checked() {
    let disks = disks(1);
    let reactor = start(&disks, 2);
    let tensor = bytes(20_000, 3);
    let piece = write(&reactor, &tensor, &striped(tensor.len(), 1, 0))[0];
    assert_eq!(read(&reactor, 5, &[piece.window(9_000, 5)]).unwrap(), tensor[9_000..9_005]);
    disks[0].rot(19_999, 1);
    let failed = read(&reactor, 5, &[piece.window(9_000, 5)]).unwrap_err();
    assert!(matches!(failed, TransferError::Checksum { .. }), "{failed}");
}

#[test]
fn rot_is_reported_with_device_and_offset_and_never_delivered() {
    let disks = disks(2);
    let reactor = start(&disks, 4);
    let tensor = bytes(4 * CHUNK as usize, 4);
    let pieces = write(&reactor, &tensor, &striped(tensor.len(), 2, 4096));
    disks[1].rot(4096 + u64::from(CHUNK) + 10, 0x80);
    let ticket = read_ticket(&reactor, tensor.len(), &pieces);
    let TransferError::Checksum { device, offset, tensor_offset, expected, found, .. } =
        ticket.wait().unwrap_err()
    else {
        panic!("a checksum error was expected")
    };
    assert_eq!((device, offset), (DeviceIndex(1), ByteCount(4096 + u64::from(CHUNK))));
    assert_eq!(tensor_offset, 3 * u64::from(CHUNK));
    assert_eq!(Some(expected), pieces[3].checksum);
    assert_ne!(expected, found);
    assert_eq!(ticket.take_bytes(), None, "damaged bytes are not given out");
    let stats = reactor.stats().devices[1];
    assert_eq!((stats.checksum_retries, stats.checksum_failures), (1, 1));
}

#[test]
fn a_flip_that_does_not_repeat_is_read_again_and_not_reported() {
    let disks = disks(1);
    let reactor = start(&disks, 2);
    let tensor = bytes(10_000, 5);
    let pieces = write(&reactor, &tensor, &striped(tensor.len(), 1, 0));
    disks[0].plan_fault(OperationKind::Read, 0, Fault::Corrupt);
    assert_eq!(read(&reactor, tensor.len(), &pieces).unwrap(), tensor);
    assert_eq!(reactor.stats().devices[0].checksum_retries, 1);
}

#[test]
fn a_failed_read_fails_its_transfer_only() {
    let disks = disks(1);
    let reactor = start(&disks, 2);
    let tensor = bytes(10_000, 6);
    let pieces = write(&reactor, &tensor, &striped(tensor.len(), 1, 8192));
    for fault in [Fault::Errno(libc::EIO), Fault::Short(4096)] {
        disks[0].plan_fault(OperationKind::Read, 0, fault);
        let failed = read(&reactor, tensor.len(), &pieces).unwrap_err();
        let TransferError::Device { error, .. } = failed else { panic!("{failed}") };
        assert_eq!((error.kind, error.extent), (OperationKind::Read, Extent::new(8192, 12_288)));
        assert_eq!(read(&reactor, tensor.len(), &pieces).unwrap(), tensor);
    }
    assert_eq!(reactor.stats().devices[0].errors, 2);
}

#[test]
fn a_failed_write_latches_its_device_against_writes_and_not_against_reads() {
    let disks = disks(2);
    let reactor = start(&disks, 4);
    let tensor = bytes(CHUNK as usize * 2, 7);
    let good = write(&reactor, &tensor, &striped(tensor.len(), 2, 0));
    disks[1].plan_fault(OperationKind::Write, 0, Fault::Errno(libc::ENOSPC));
    let attempt = |offset| {
        let pieces = striped(tensor.len(), 2, offset);
        let transfer = Transfer::Write { source: tensor.clone().into(), pieces };
        reactor.submit(transfer, Urgency::Ahead, None, nothing()).unwrap().wait().unwrap_err()
    };
    let first = attempt(1 << 20);
    let TransferError::Device { error, .. } = &first else { panic!("{first}") };
    assert_eq!((error.device, error.status), (DeviceIndex(1), Status::Errno(libc::ENOSPC)));
    let second = attempt(2 << 20);
    assert!(matches!(&second, TransferError::Latched { cause, .. } if cause == error), "{second}");
    assert!(matches!(
        reactor.flush(&[DeviceIndex(1)]),
        Err(ControlError::Transfer(TransferError::Latched { .. }))
    ));
    assert_eq!(reactor.flush(&[DeviceIndex(0)]), Ok(()), "the other device goes on");
    assert_eq!(read(&reactor, tensor.len(), &good).unwrap(), tensor, "what was good still is");
}

#[test]
fn a_device_that_vanishes_fails_what_is_in_flight_and_refuses_the_rest() {
    let disks = disks(1);
    let reactor = start(&disks, 2);
    let tensor = bytes(CHUNK as usize * 8, 8);
    let pieces = write(&reactor, &tensor, &striped(tensor.len(), 1, 0));
    disks[0].hold();
    let ticket = read_ticket(&reactor, tensor.len(), &pieces);
    until("a full ring", || disks[0].in_flight() == 2);
    disks[0].vanish();
    let failed = ticket.wait_timeout(SOON).unwrap().unwrap_err();
    assert_eq!(failed.device(), Some(DeviceIndex(0)), "{failed}");
    let refused = read(&reactor, tensor.len(), &pieces).unwrap_err();
    assert!(matches!(refused, TransferError::Latched { .. }), "{refused}");
    assert_eq!(reactor.close(), Ok(()));
}

#[test]
fn an_urgent_read_overtakes_writes_that_were_asked_for_ahead() {
    let disks =
        [SimDisk::with_profile(DISK, SimProfile { latency_ticks_max: 1, ..SimProfile::default() })];
    let reactor = start(&disks, 4);
    let small = bytes(4096, 9);
    let pieces = write(&reactor, &small, &striped(4096, 1, 7 << 20));
    let (order, ended) = mpsc::channel();
    let note = |name: &'static str| -> Finish {
        let (order, disk) = (order.clone(), disks[0].clone());
        Box::new(move |_| order.send((name, disk.counters().writes)).unwrap())
    };
    disks[0].hold();
    let source = Source::from(bytes(4 << 20, 1));
    let transfer = Transfer::Write { source, pieces: striped(4 << 20, 1, 0) };
    let ahead = reactor.submit(transfer, Urgency::Ahead, None, note("ahead")).unwrap();
    let destination = Destination::buffer(4096);
    let transfer = Transfer::Read { destination, pieces };
    let urgent = reactor.submit(transfer, Urgency::Urgent, None, note("urgent")).unwrap();
    disks[0].release();
    urgent.wait().unwrap();
    ahead.wait().unwrap();
    let ended: Vec<_> = ended.iter().take(2).collect();
    assert_eq!((ended[0].0, ended[1].0), ("urgent", "ahead"));
    let written = ended[0].1;
    assert!(written < 16, "{written} of 129 pieces went first");
}

#[test]
fn an_expedited_transfer_overtakes_the_ones_before_it() {
    let disks = disks(1);
    let reactor = start(&disks, 2);
    let (order, ended) = mpsc::channel();
    disks[0].hold();
    let submit = |name: u8, offset| {
        let order = order.clone();
        let finish: Finish = Box::new(move |_| order.send(name).unwrap());
        let source = Source::from(bytes(1 << 20, name));
        let transfer = Transfer::Write { source, pieces: striped(1 << 20, 1, offset) };
        reactor.submit(transfer, Urgency::Ahead, None, finish).unwrap()
    };
    let tickets = [submit(0, 0), submit(1, 1 << 20), submit(2, 2 << 20)];
    tickets[2].expedite();
    disks[0].release();
    for ticket in &tickets {
        ticket.wait().unwrap();
    }
    assert_eq!(ended.iter().take(3).collect::<Vec<_>>(), [2, 0, 1]);
}

#[test]
fn a_cancelled_write_stops_at_the_next_piece_and_says_so_once_nothing_is_in_flight() {
    let disks = disks(1);
    let reactor = start(&disks, 2);
    disks[0].hold();
    let memory = bytes(1 << 20, 2);
    let transfer = Transfer::Write { source: memory.into(), pieces: striped(1 << 20, 1, 0) };
    let ticket = reactor.submit(transfer, Urgency::Ahead, None, nothing()).unwrap();
    until("a full ring", || disks[0].in_flight() == 2);
    assert!(!ticket.released());
    ticket.cancel();
    until("the release of the memory", || ticket.released());
    assert_eq!(ticket.wait_timeout(Duration::from_millis(20)), None, "the device still writes");
    disks[0].release();
    assert_eq!(ticket.wait(), Err(TransferError::Cancelled));
    assert!(reactor.stats().devices[0].writes <= 2);
    let tensor = bytes(1 << 20, 3);
    let pieces = write(&reactor, &tensor, &striped(1 << 20, 1, 0));
    assert_eq!(read(&reactor, 1 << 20, &pieces).unwrap(), tensor, "the reactor goes on");
}

#[test]
fn a_cancelled_read_writes_its_memory_no_more() {
    let disks = disks(1);
    let reactor = start(&disks, 4);
    let tensor = bytes(2 * CHUNK as usize, 2);
    let pieces = write(&reactor, &tensor, &striped(tensor.len(), 1, 0));
    disks[0].hold();
    let ticket = read_ticket(&reactor, tensor.len(), &pieces);
    until("both reads in flight", || disks[0].in_flight() == 2);
    ticket.cancel();
    until("the release of the memory", || ticket.released());
    disks[0].release();
    assert_eq!(ticket.wait(), Err(TransferError::Cancelled));
    assert_eq!(ticket.take_bytes(), None);
}

#[test]
fn a_cancel_that_comes_too_late_changes_nothing() {
    let disks = disks(1);
    let reactor = start(&disks, 2);
    let transfer = Transfer::Write { source: vec![1; 10].into(), pieces: striped(10, 1, 0) };
    let ticket = reactor.submit(transfer, Urgency::Ahead, None, nothing()).unwrap();
    ticket.wait().unwrap();
    ticket.cancel();
    ticket.expedite();
    assert_eq!(reactor.flush(&[DeviceIndex(0)]), Ok(()));
    assert_eq!(ticket.poll(), Some(Ok(Done { bytes: 10, matched: true })));
}

#[test]
fn a_dropped_ticket_detaches_and_the_transfer_goes_on() {
    let disks = disks(1);
    let reactor = start(&disks, 2);
    let queue = CompletionQueue::new();
    disks[0].hold();
    let tensor = bytes(300_000, 1);
    let pieces = striped(tensor.len(), 1, 0);
    let transfer = Transfer::Write { source: tensor.clone().into(), pieces: pieces.clone() };
    let notify = Some((queue.clone(), 77));
    drop(reactor.submit(transfer, Urgency::Ahead, notify, nothing()).unwrap());
    assert_eq!(queue.try_pop(), None);
    disks[0].release();
    let (tag, outcome) = queue.wait_pop(SOON).unwrap();
    assert_eq!((tag, outcome.unwrap().bytes), (77, 300_000));
    assert_eq!(read(&reactor, tensor.len(), &pieces).unwrap(), tensor);
}

#[test]
fn the_finish_runs_before_the_ticket_turns_ready_and_before_the_queue_is_told() {
    let disks = disks(1);
    let reactor = start(&disks, 2);
    let queue = CompletionQueue::new();
    let (go, gate) = mpsc::channel::<()>();
    let watched = queue.clone();
    let finish: Finish = Box::new(move |_| {
        gate.recv().unwrap();
        assert!(watched.is_empty());
    });
    let transfer = Transfer::Write { source: vec![1; 10].into(), pieces: striped(10, 1, 0) };
    let ticket = reactor.submit(transfer, Urgency::Ahead, Some((queue.clone(), 1)), finish);
    let ticket = ticket.unwrap();
    assert_eq!(ticket.wait_timeout(Duration::from_millis(20)), None);
    go.send(()).unwrap();
    ticket.wait().unwrap();
    assert_eq!(queue.wait_pop(SOON).unwrap().0, 1);
}

#[test]
fn verification_compares_memory_with_checksums_and_touches_no_device() {
    let disks = disks(2);
    let reactor = start(&disks, 2);
    let mut tensor = bytes(200_000, 1);
    let pieces = write(&reactor, &tensor, &striped(tensor.len(), 2, 0));
    let reads_before = disks[0].counters().reads;
    let matches = |tensor: &[u8]| {
        let transfer = Transfer::Verify { source: tensor.to_vec().into(), pieces: pieces.clone() };
        let ticket = reactor.submit(transfer, Urgency::Ahead, None, nothing()).unwrap();
        ticket.wait().unwrap().matched
    };
    assert!(matches(&tensor));
    tensor[150_000] ^= 1;
    assert!(!matches(&tensor));
    assert_eq!(disks[0].counters().reads, reads_before);
}

#[test]
fn a_transfer_of_nothing_ends_well() {
    let reactor = start(&disks(1), 1);
    let pieces = Vec::new();
    let transfer = Transfer::Write { source: Vec::new().into(), pieces };
    let ticket = reactor.submit(transfer, Urgency::Ahead, None, nothing()).unwrap();
    assert_eq!(ticket.wait(), Ok(Done { bytes: 0, matched: true }));
    assert_eq!(read(&reactor, 0, &[]), Ok(Vec::new()));
}

#[test]
fn pieces_that_break_the_rules_are_refused_and_name_the_rule() {
    let reactor = start(&disks(1), 2);
    let first = DeviceIndex(0);
    let refused = |piece: Piece| {
        let transfer = Transfer::Write { source: vec![0; 100_000].into(), pieces: vec![piece] };
        match reactor.submit(transfer, Urgency::Ahead, None, nothing()) {
            Err(SubmitError::Invalid { piece: 0, reason }) => reason,
            other => panic!("{piece:?} was answered {other:?}"),
        }
    };
    let rules = [
        (Piece::new(first, ByteCount(0), 0, 0), "empty"),
        (Piece::new(first, ByteCount(0), 0, CHUNK + 1), "longer than a chunk"),
        (Piece::new(first, ByteCount(512), 0, 1), "unaligned"),
        (Piece::new(first, DISK, 0, 1), "beyond its device"),
        (Piece::new(first, ByteCount(u64::MAX - 4095), 0, 1), "beyond its device"),
        (Piece::new(DeviceIndex(1), ByteCount(0), 0, 1), "no such device"),
        (Piece::new(first, ByteCount(0), 100_000, 1), "beyond its memory"),
        (Piece::new(first, ByteCount(0), u64::MAX, 1), "beyond its memory"),
        (Piece::new(first, ByteCount(0), 0, 9).window(0, 9), "window"),
    ];
    for (piece, rule) in rules {
        assert!(refused(piece).contains(rule), "{piece:?}: {}", refused(piece));
    }
    let pieces = vec![Piece::new(first, ByteCount(0), 0, 9).window(u32::MAX, 2)];
    let transfer = Transfer::Read { destination: Destination::buffer(9), pieces };
    assert!(reactor.submit(transfer, Urgency::Ahead, None, nothing()).is_err());
    let pieces = vec![Piece::new(first, ByteCount(0), 0, 9)];
    let transfer = Transfer::Verify { source: vec![0; 9].into(), pieces };
    assert!(reactor.submit(transfer, Urgency::Ahead, None, nothing()).is_err());
}

#[test]
fn options_that_cannot_work_are_refused_with_the_figures() {
    let start = |staging, chunk, depth| {
        let options = ReactorOptions { staging, chunk, depth, ..ReactorOptions::default() };
        Reactor::start(Box::new(SimDisks(disks(1))), options).map(drop).unwrap_err().to_string()
    };
    let (small, large) = (ByteCount::kib(4), ByteCount::kib(64));
    assert!(start(small, large, 1).contains("4 KiB of staging memory hold no chunk of 64 KiB"));
    assert!(start(large, ByteCount(1000), 1).contains("1000 B"));
    assert!(start(large, ByteCount::ZERO, 1).contains("0 B"));
    assert!(start(large, small, 0).contains("depth of 0"));
}

#[test]
fn metadata_longer_than_a_chunk_is_written_with_fua_and_survives_a_power_cut() {
    let disks = disks(1);
    let meta = bytes(100_000, 1);
    let reactor = start(&disks, 2);
    reactor.write_meta(DeviceIndex(0), ByteCount(8192), meta.clone(), true).unwrap();
    reactor.write_meta(DeviceIndex(0), ByteCount::mib(1), meta.clone(), false).unwrap();
    disks[0].cut_power(PowerCut::DropAll);
    drop(reactor);
    let reactor = start(&disks, 2);
    let read = |offset| reactor.read_meta(DeviceIndex(0), offset, meta.len()).unwrap();
    assert_eq!(read(ByteCount(8192)), meta);
    assert_eq!(read(ByteCount::mib(1)), vec![0; meta.len()], "neither FUA nor a flush");
    reactor.write_meta(DeviceIndex(0), ByteCount::mib(1), meta.clone(), false).unwrap();
    reactor.flush(&[DeviceIndex(0)]).unwrap();
    disks[0].cut_power(PowerCut::DropAll);
    drop(reactor);
    let reactor = start(&disks, 2);
    let read = |offset| reactor.read_meta(DeviceIndex(0), offset, meta.len()).unwrap();
    assert_eq!(read(ByteCount::mib(1)), meta);
}

#[test]
fn zeroed_and_deallocated_extents_read_as_zeroes_on_a_simulated_disk() {
    let disks = disks(1);
    let reactor = start(&disks, 2);
    write(&reactor, &[9; 16_384], &striped(16_384, 1, 0));
    reactor.write_zeroes(&[(DeviceIndex(0), Extent::new(0, 4096))]).unwrap().wait().unwrap();
    reactor.deallocate(&[(DeviceIndex(0), Extent::new(8192, 8192))]).unwrap().wait().unwrap();
    let expected = [vec![0; 4096], vec![9; 4096], vec![0; 8192]].concat();
    assert_eq!(disks[0].peek(0, 16_384), expected);
    assert!(reactor.deallocate(&[(DeviceIndex(0), Extent::new(100, 4096))]).is_err());
}

#[test]
fn closing_ends_what_was_submitted_and_takes_no_more() {
    let disks = disks(2);
    let reactor = start(&disks, 2);
    let tensor = bytes(1 << 20, 1);
    let transfer =
        Transfer::Write { source: tensor.clone().into(), pieces: striped(tensor.len(), 2, 0) };
    let ticket = reactor.submit(transfer, Urgency::Ahead, None, nothing()).unwrap();
    assert_eq!(reactor.close(), Ok(()));
    assert_eq!(ticket.poll(), Some(Ok(Done { bytes: 1 << 20, matched: true })));
    let stripe = CHUNK as usize;
    assert_eq!(disks[1].peek(0, stripe), tensor[stripe..2 * stripe]);
    ticket.cancel();
}

#[test]
fn a_drain_that_runs_out_of_time_fails_the_tickets_and_ends() {
    let disks = disks(1);
    let chunk = ByteCount(u64::from(CHUNK));
    let drain_timeout = Duration::from_millis(50);
    let options = ReactorOptions { staging: chunk, chunk, drain_timeout, ..Default::default() };
    let reactor = Reactor::start(Box::new(SimDisks(disks.clone())), options).unwrap();
    disks[0].hold();
    let transfer =
        Transfer::Write { source: vec![1; 1 << 20].into(), pieces: striped(1 << 20, 1, 0) };
    let ticket = reactor.submit(transfer, Urgency::Ahead, None, nothing()).unwrap();
    assert_eq!(reactor.close(), Ok(()), "the simulated disk heeds an abort");
    assert!(matches!(ticket.poll(), Some(Err(TransferError::Stopped { .. }))));
}

#[test]
fn a_reactor_dropped_inside_a_finish_ends_without_deadlock() {
    let reactor = std::sync::Arc::new(start(&disks(1), 1));
    let (go, gate) = mpsc::channel::<()>();
    let held = std::sync::Arc::clone(&reactor);
    let finish: Finish = Box::new(move |_| {
        gate.recv().unwrap();
        let blocked = held.flush(&[DeviceIndex(0)]);
        assert_eq!(blocked, Err(ControlError::Submit(SubmitError::WouldDeadlock)));
        drop(held);
    });
    let transfer = Transfer::Write { source: vec![1; 10].into(), pieces: striped(10, 1, 0) };
    let ticket = reactor.submit(transfer, Urgency::Ahead, None, finish).unwrap();
    drop(reactor);
    go.send(()).unwrap();
    assert_eq!(ticket.wait_timeout(SOON), Some(Ok(Done { bytes: 10, matched: true })));
}

#[test]
fn a_panic_in_a_finish_fails_every_ticket_instead_of_hanging_them() {
    let disks = disks(1);
    let reactor = start(&disks, 2);
    disks[0].hold();
    let submit = |finish: Finish| {
        let transfer = Transfer::Write { source: vec![1; 10].into(), pieces: striped(10, 1, 0) };
        reactor.submit(transfer, Urgency::Ahead, None, finish).unwrap()
    };
    let first = submit(Box::new(|_| panic!("a finish that panics, on purpose")));
    let second = submit(nothing());
    disks[0].release();
    for ticket in [&first, &second] {
        let ended = ticket.wait_timeout(SOON).expect("the ticket ends");
        // The second may have landed before the first; the first never can.
        assert!(matches!(ended, Err(TransferError::Stopped { .. })) || ended.is_ok());
    }
    until("the refusal of more", || {
        let transfer = Transfer::Write { source: Vec::new().into(), pieces: Vec::new() };
        reactor.submit(transfer, Urgency::Ahead, None, nothing()).is_err()
    });
}
