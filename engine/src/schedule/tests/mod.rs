//! Guarantees of the reactor, on simulated disks whose every fault is chosen.

mod control;
mod dma;
mod first_end;
mod order;
mod stall;

use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::*;
use crate::memory::{Destination, Source};
use crate::path::checked::CheckedProvider;
use crate::path::sim::{Fault, PowerCut, SimDisk, SimDisks, SimProfile};
use crate::path::{Extent, OperationKind, Status};
use crate::units::{ByteCount, DeviceIndex};

const CHUNK: u32 = 32 << 10;
const DISK: ByteCount = ByteCount::mib(8);
/// Time far longer than anything here takes, far shorter than a hung test is worth.
const SOON: Duration = Duration::from_secs(600);

fn disks(count: u64) -> Vec<SimDisk> {
    let disk = |seed| SimDisk::with_profile(DISK, SimProfile { seed, ..SimProfile::default() });
    (0..count).map(disk).collect()
}

fn start(disks: &[SimDisk], chunks: u64) -> Reactor {
    let chunk = ByteCount(u64::from(CHUNK));
    let staging = ByteCount(chunk.0 * chunks);
    let options = ReactorOptions { staging, chunk, ..ReactorOptions::default() };
    let watched = CheckedProvider(Box::new(SimDisks(disks.to_vec())));
    Reactor::start(Box::new(watched), options).unwrap()
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

/// Fails the next `times` reads of the disk.
fn fail_reads(disk: &SimDisk, times: u32, fault: Fault) {
    for _ in 0..times {
        disk.plan_fault(OperationKind::Read, 0, fault);
    }
}

fn nothing() -> Finish {
    Finish::nothing()
}

fn write(reactor: &Reactor, bytes: &[u8], pieces: &[Piece]) -> Vec<Piece> {
    let (tell, told) = mpsc::channel();
    let finish =
        Finish::new(move |result| tell.send(result.outcome.unwrap().checksums.to_vec()).unwrap());
    let (source, pieces) = (Source::from(bytes.to_vec()), pieces.to_vec());
    let transfer = Transfer::Write { source, pieces: pieces.clone() };
    let ticket = reactor.submit(transfer, Urgency::Ahead, None, finish).unwrap();
    assert_eq!(ticket.wait().unwrap().bytes, bytes.len() as u64);
    let sums = told.recv().unwrap();
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
fn no_kind_of_failure_eats_a_staging_buffer() {
    let disks = disks(1);
    let reactor = start(&disks, 2);
    let tensor = bytes(2 * CHUNK as usize, 4);
    let pieces = write(&reactor, &tensor, &striped(tensor.len(), 1, 0));
    for round in 0..10 {
        disks[0].rot(u64::from(CHUNK) + 5, 1);
        assert!(read(&reactor, tensor.len(), &pieces).is_err(), "round {round}");
        disks[0].rot(u64::from(CHUNK) + 5, 0);
        fail_reads(&disks[0], 4, Fault::Errno(libc::EIO));
        assert!(read(&reactor, tensor.len(), &pieces).is_err(), "round {round}");
        disks[0].clear_faults();
        disks[0].plan_fault(OperationKind::Read, 0, Fault::Corrupt);
        fail_reads(&disks[0], 4, Fault::Errno(libc::EIO));
        assert!(read(&reactor, tensor.len(), &pieces).is_err(), "round {round}");
        disks[0].clear_faults();
    }
    assert_eq!(read(&reactor, tensor.len(), &pieces).unwrap(), tensor);
    disks[0].plan_fault(OperationKind::Write, 0, Fault::Errno(libc::EIO));
    for _ in 0..10 {
        let transfer = Transfer::Write { source: tensor.clone().into(), pieces: pieces.clone() };
        let ticket = reactor.submit(transfer, Urgency::Ahead, None, nothing()).unwrap();
        assert!(ticket.wait_timeout(SOON).expect("a latched write ends").is_err());
    }
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
        fail_reads(&disks[0], 2, fault);
        let failed = read(&reactor, tensor.len(), &pieces).unwrap_err();
        let TransferError::Device { error, .. } = failed else { panic!("{failed}") };
        assert_eq!((error.kind, error.extent), (OperationKind::Read, Extent::new(8192, 12_288)));
        assert_eq!(read(&reactor, tensor.len(), &pieces).unwrap(), tensor);
    }
    assert_eq!(reactor.stats().devices[0].errors, 4);
}

#[test]
fn a_read_that_fails_once_is_tried_again_unless_the_device_is_gone() {
    let disks = disks(1);
    let reactor = start(&disks, 2);
    let tensor = bytes(10_000, 6);
    let pieces = write(&reactor, &tensor, &striped(tensor.len(), 1, 8192));
    for fault in [Fault::Errno(libc::EIO), Fault::Short(4096)] {
        fail_reads(&disks[0], 1, fault);
        assert_eq!(read(&reactor, tensor.len(), &pieces).unwrap(), tensor);
    }
    assert_eq!(reactor.stats().devices[0].errors, 2, "it is counted all the same");
    fail_reads(&disks[0], 1, Fault::Errno(libc::EINVAL));
    assert!(read(&reactor, tensor.len(), &pieces).is_err(), "that would not change");
    fail_reads(&disks[0], 1, Fault::Errno(libc::ENODEV));
    assert!(read(&reactor, tensor.len(), &pieces).is_err());
}

#[test]
fn a_failed_write_latches_its_device_against_writes_and_not_against_reads() {
    let disks = disks(2);
    let reactor = start(&disks, 4);
    let tensor = bytes(CHUNK as usize * 2, 7);
    let good = write(&reactor, &tensor, &striped(tensor.len(), 2, 0));
    disks[1].plan_fault(OperationKind::Write, 0, Fault::Errno(libc::EIO));
    let attempt = |offset| {
        let pieces = striped(tensor.len(), 2, offset);
        let transfer = Transfer::Write { source: tensor.clone().into(), pieces };
        reactor.submit(transfer, Urgency::Ahead, None, nothing()).unwrap().wait().unwrap_err()
    };
    let first = attempt(1 << 20);
    let TransferError::Device { error, .. } = &first else { panic!("{first}") };
    assert_eq!((error.device, error.status), (DeviceIndex(1), Status::Errno(libc::EIO)));
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
    disks[0].remove_device();
    let failed = ticket.wait_timeout(SOON).unwrap().unwrap_err();
    assert_eq!(failed.device(), Some(DeviceIndex(0)), "{failed}");
    let refused = read(&reactor, tensor.len(), &pieces).unwrap_err();
    assert!(matches!(refused, TransferError::Latched { .. }), "{refused}");
    assert_eq!(reactor.close(), Ok(()));
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
    assert_eq!(
        ticket.wait(),
        Ok(Done { bytes: 0, matched: true, waited: Duration::ZERO, healed: 0 })
    );
    assert_eq!(read(&reactor, 0, &[]), Ok(Vec::new()));
}
