//! Memory of callers that devices read and write themselves.

use super::*;
use crate::memory::DmaBuffer;

const LENGTH: usize = 3 * CHUNK as usize + 5000;

/// A reactor whose staging ring is a single chunk, with room for two tensors in buffers of callers.
fn start(disks: &[SimDisk]) -> Reactor {
    let chunk = ByteCount(u64::from(CHUNK));
    let buffers = ByteCount::kib(256);
    let options = ReactorOptions { staging: chunk, chunk, buffers, ..ReactorOptions::default() };
    let watched = CheckedProvider(Box::new(SimDisks(disks.to_vec())));
    Reactor::start(Box::new(watched), options).unwrap()
}

fn filled(reactor: &Reactor, seed: u8) -> DmaBuffer {
    let mut buffer = reactor.buffer(LENGTH).expect("there is room");
    buffer.fill(0xEE);
    buffer[..LENGTH].copy_from_slice(&bytes(LENGTH, seed));
    buffer
}

fn submit_write(reactor: &Reactor, buffer: DmaBuffer, finish: Finish) -> Ticket {
    let source = Source::Dma { buffer, length: LENGTH };
    let transfer = Transfer::Write { source, pieces: striped(LENGTH, disk_count(reactor), 0) };
    reactor.submit(transfer, Urgency::Ahead, None, finish).unwrap()
}

fn submit_read(reactor: &Reactor, pieces: &[Piece]) -> Ticket {
    let buffer = reactor.buffer(LENGTH).expect("there is room");
    let destination = Destination::Dma { buffer, length: LENGTH };
    let transfer = Transfer::Read { destination, pieces: pieces.to_vec() };
    reactor.submit(transfer, Urgency::Urgent, None, nothing()).unwrap()
}

fn disk_count(reactor: &Reactor) -> usize {
    reactor.capabilities().devices.len()
}

/// Every piece with the checksum that its bytes have.
fn expecting(tensor: &[u8], pieces: Vec<Piece>) -> Vec<Piece> {
    let parts = tensor.chunks(CHUNK as usize);
    pieces
        .into_iter()
        .zip(parts)
        .map(|(piece, part)| piece.expecting(crc32c::crc32c(part)))
        .collect()
}

#[test]
fn devices_read_and_write_a_callers_buffer_themselves_and_it_comes_back() {
    let disks = disks(2);
    let reactor = start(&disks);
    let buffer = filled(&reactor, 1);
    let address = buffer.as_ptr();
    let tensor = bytes(LENGTH, 1);
    disks.iter().for_each(SimDisk::hold);
    let (tell, told) = mpsc::channel();
    let finish =
        Finish::new(move |result| tell.send(result.outcome.unwrap().checksums.to_vec()).unwrap());
    let ticket = submit_write(&reactor, buffer, finish);
    // Four pieces at once, where the staging ring has room for one.
    until("all pieces on the disks", || disks.iter().map(SimDisk::in_flight).sum::<usize>() == 4);
    assert!(!ticket.released(), "devices may still read it");
    assert!(ticket.take_buffer().is_none());
    disks.iter().for_each(SimDisk::release);
    assert_eq!(ticket.wait().unwrap().bytes, LENGTH as u64);
    assert!(ticket.released());
    let pieces = expecting(&tensor, striped(LENGTH, 2, 0));
    let sums = told.recv().unwrap();
    assert!(sums.iter().map(|sum| Some(*sum)).eq(pieces.iter().map(|piece| piece.checksum)));
    let back = ticket.take_buffer().expect("the buffer comes back");
    assert_eq!((back.as_ptr(), &back[..LENGTH]), (address, &tensor[..]));
    assert!(ticket.take_buffer().is_none(), "once");
    // The last piece lies on the second disk, padded with zeroes.
    assert_eq!(disks[1].peek(u64::from(CHUNK) + 5000, 3192), vec![0; 3192]);

    let ticket = submit_read(&reactor, &pieces);
    assert_eq!(ticket.wait().unwrap().bytes, LENGTH as u64);
    assert_eq!(ticket.take_bytes(), None, "they are in the buffer");
    assert_eq!(ticket.take_buffer().unwrap()[..LENGTH], tensor);
    assert_eq!(read(&reactor, LENGTH, &pieces).unwrap(), tensor, "others read the same");
}

#[test]
fn a_buffer_whose_read_was_cancelled_comes_back_only_when_the_devices_are_done() {
    let disks = disks(1);
    let reactor = start(&disks);
    let pieces = write(&reactor, &bytes(LENGTH, 2), &striped(LENGTH, 1, 0));
    disks[0].hold();
    let ticket = submit_read(&reactor, &pieces);
    until("the reads in flight", || disks[0].in_flight() == 4);
    ticket.cancel();
    assert_eq!(ticket.wait_timeout(Duration::from_millis(20)), None, "the device still writes");
    assert!(!ticket.released());
    disks[0].release();
    assert_eq!(ticket.wait(), Err(TransferError::Cancelled));
    assert!(ticket.released());
    assert!(ticket.take_buffer().unwrap().len() >= LENGTH, "whole, whatever it holds");
}

#[test]
fn a_flipped_bit_is_read_again_into_the_same_buffer() {
    let disks = disks(1);
    let reactor = start(&disks);
    let tensor = bytes(LENGTH, 3);
    let pieces = write(&reactor, &tensor, &striped(LENGTH, 1, 0));
    fail_reads(&disks[0], 1, Fault::Corrupt);
    let ticket = submit_read(&reactor, &pieces);
    ticket.wait().unwrap();
    assert_eq!(ticket.take_buffer().unwrap()[..LENGTH], tensor);
    assert_eq!(reactor.stats().devices[0].checksum_retries, 1);
    // What is rotten fails, and the buffer comes back all the same.
    let rotten = vec![pieces[0].expecting(1), pieces[1], pieces[2], pieces[3]];
    let ticket = submit_read(&reactor, &rotten);
    assert!(matches!(ticket.wait(), Err(TransferError::Checksum { .. })));
    assert!(ticket.take_buffer().is_some());
}

#[test]
fn a_buffer_whose_write_failed_or_was_refused_comes_back() {
    let disks = disks(1);
    let reactor = start(&disks);
    disks[0].plan_fault(OperationKind::Write, 1, Fault::Errno(libc::EIO));
    for expected in ["failed", "refused"] {
        let ticket = submit_write(&reactor, filled(&reactor, 4), nothing());
        let error = ticket.wait().expect_err(expected);
        let latched = matches!(error, TransferError::Latched { .. });
        assert_eq!(latched, expected == "refused", "{error}");
        assert_eq!(ticket.take_buffer().unwrap()[..LENGTH], bytes(LENGTH, 4));
    }
    // Tickets that nobody asks give theirs back to the pool, whether they go before the end or
    // after it.
    drop(submit_write(&reactor, filled(&reactor, 4), nothing()));
    until("all memory free", || reactor.buffer(256 << 10).is_some());
    let ticket = submit_write(&reactor, filled(&reactor, 4), nothing());
    let clone = ticket.clone();
    ticket.wait().unwrap_err();
    drop(ticket);
    assert!(reactor.buffer(256 << 10).is_none(), "a ticket could still take it");
    drop(clone);
    assert!(reactor.buffer(256 << 10).is_some());
}

#[test]
fn a_part_of_a_tensor_that_is_no_whole_blocks_is_copied_and_the_buffer_comes_back() {
    let disks = disks(1);
    let reactor = start(&disks);
    let tensor = bytes(LENGTH, 5);
    let pieces = write(&reactor, &tensor, &striped(LENGTH, 1, 0));
    let buffer = reactor.buffer(100).unwrap();
    let destination = Destination::Dma { buffer, length: 100 };
    let transfer = Transfer::Read { destination, pieces: vec![pieces[0].window(50, 100)] };
    let ticket = reactor.submit(transfer, Urgency::Urgent, None, nothing()).unwrap();
    ticket.wait().unwrap();
    assert_eq!(ticket.take_buffer().unwrap()[..100], tensor[50..150]);
    // Apart in memory, so that the pieces' last blocks would overlap.
    let mut buffer = reactor.buffer(4096).unwrap();
    buffer[..100].fill(7);
    let apart = |at: u64| Piece::new(DeviceIndex(0), ByteCount(at * 4096), at * 50, 50);
    let source = Source::Dma { buffer, length: 100 };
    let transfer = Transfer::Write { source, pieces: vec![apart(0), apart(1)] };
    let ticket = reactor.submit(transfer, Urgency::Ahead, None, nothing()).unwrap();
    ticket.wait().unwrap();
    assert_eq!(disks[0].peek(4096, 60), [[7; 50].to_vec(), vec![0; 10]].concat());
    assert_eq!(ticket.take_buffer().unwrap()[..100], [7; 100]);
}

#[test]
fn a_length_beyond_the_buffer_is_refused_before_anything_happens() {
    let reactor = start(&disks(1));
    let source = Source::Dma { buffer: reactor.buffer(4096).unwrap(), length: 8192 };
    let transfer = Transfer::Write { source, pieces: striped(8192, 1, 0) };
    let refused = reactor.submit(transfer, Urgency::Ahead, None, nothing()).err();
    assert!(matches!(refused, Some(SubmitError::Invalid { .. })), "{refused:?}");
}

#[test]
fn a_buffer_on_a_disk_that_hangs_is_not_handed_out_again() {
    let disks = disks(1);
    let (chunk, buffers) = (ByteCount(u64::from(CHUNK)), ByteCount::kib(256));
    let drain_timeout = Duration::from_millis(10);
    let options =
        ReactorOptions { staging: chunk, chunk, buffers, drain_timeout, ..Default::default() };
    let reactor = Reactor::start(Box::new(SimDisks(disks.clone())), options).unwrap();
    let buffer = filled(&reactor, 6);
    disks[0].hang();
    let ticket = submit_write(&reactor, buffer, nothing());
    until("all pieces on the disk", || disks[0].in_flight() == 4);
    assert_eq!(reactor.close(), Err(DrainError { in_flight: 4 }));
    assert!(matches!(ticket.wait(), Err(TransferError::Stopped { .. })));
    assert!(ticket.take_buffer().is_none(), "a device may yet read it");
}
