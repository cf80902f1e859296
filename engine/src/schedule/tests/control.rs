//! Starting, refusing, metadata, and stopping.

use super::*;
use crate::memory::DmaPool;
use crate::path::{
    Capabilities, Completion, DataPath, DeviceError, OpenedPath, Operation, PathError,
    PathProvider, Refused, Waker,
};

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
fn staging_memory_is_given_back_while_nothing_moves_and_there_when_something_does() {
    let (disks, chunks) = (disks(1), 64);
    let reactor = start(&disks, chunks);
    let meta = bytes(CHUNK as usize * chunks as usize, 3);
    for _ in 0..3 {
        reactor.write_meta(DeviceIndex(0), ByteCount::ZERO, meta.clone(), true).unwrap();
        let full = reactor.memory.resident_bytes();
        assert!(full >= meta.len() as u64 / 2, "{full} bytes are in use");
        assert!(reactor.release_staging() && reactor.release_staging());
        assert_eq!(reactor.memory.resident_bytes(), 0);
        let read = reactor.read_meta(DeviceIndex(0), ByteCount::ZERO, meta.len()).unwrap();
        assert_eq!(read, meta);
    }
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
    assert_eq!(
        ticket.poll(),
        Some(Ok(Done { bytes: 1 << 20, matched: true, waited: Duration::ZERO, healed: 0 }))
    );
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
fn a_device_that_never_lets_go_is_counted_and_does_not_hold_up_the_close() {
    let disks = disks(1);
    let chunk = ByteCount(u64::from(CHUNK));
    let drain_timeout = Duration::from_millis(10);
    let options = ReactorOptions { staging: chunk, chunk, drain_timeout, ..Default::default() };
    let reactor = Reactor::start(Box::new(SimDisks(disks.clone())), options).unwrap();
    disks[0].hang();
    let transfer = Transfer::Write { source: vec![1; 10].into(), pieces: striped(10, 1, 0) };
    let ticket = reactor.submit(transfer, Urgency::Ahead, None, nothing()).unwrap();
    assert_eq!(reactor.close(), Err(DrainError { in_flight: 1 }));
    let ended = ticket.poll().unwrap().unwrap_err();
    assert!(ticket.released() && matches!(ended, TransferError::Stopped { .. }), "{ended}");
}

#[test]
fn a_reactor_dropped_inside_a_finish_ends_without_deadlock() {
    let reactor = std::sync::Arc::new(start(&disks(1), 1));
    let (go, gate) = mpsc::channel::<()>();
    let held = std::sync::Arc::clone(&reactor);
    let finish = Finish::new(move |_| {
        gate.recv().unwrap();
        let blocked = held.flush(&[DeviceIndex(0)]);
        assert_eq!(blocked, Err(ControlError::Submit(SubmitError::WouldDeadlock)));
        drop(held);
    });
    let transfer = Transfer::Write { source: vec![1; 10].into(), pieces: striped(10, 1, 0) };
    let ticket = reactor.submit(transfer, Urgency::Ahead, None, finish).unwrap();
    drop(reactor);
    go.send(()).unwrap();
    assert_eq!(
        ticket.wait_timeout(SOON),
        Some(Ok(Done { bytes: 10, matched: true, waited: Duration::ZERO, healed: 0 }))
    );
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
    let first = submit(Finish::new(|_| panic!("a finish that panics, on purpose")));
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
    // What was in flight then nobody has heard of.
    assert!(reactor.close().is_err());
}

/// Disks whose every write is left to a device that does not answer any more: the path leaks its
/// buffer.
struct Leaking(SimDisks);

struct LeakingPath(Box<dyn DataPath>);

impl PathProvider for Leaking {
    fn open(self: Box<Self>, depth: u32) -> Result<OpenedPath, PathError> {
        let OpenedPath { path, why_not } = Box::new(self.0).open(depth)?;
        Ok(OpenedPath { path: Box::new(LeakingPath(path)), why_not })
    }
}

// SAFETY: every operation goes to the path inside; a buffer that is not given back is leaked.
#[allow(unsafe_code)]
unsafe impl DataPath for LeakingPath {
    fn capabilities(&self) -> &Capabilities {
        self.0.capabilities()
    }

    fn register(&mut self, region: &DmaPool) {
        self.0.register(region);
    }

    fn submit(&mut self, operation: Operation) -> Result<(), Refused> {
        self.0.submit(operation)
    }

    fn ring(&mut self) -> std::io::Result<()> {
        self.0.ring()
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> usize {
        let before = completions.len();
        let count = self.0.poll(completions);
        for completion in &mut completions[before..] {
            std::mem::forget(completion.memory.take());
            completion.result = Err(DeviceError {
                device: DeviceIndex(0),
                kind: OperationKind::Write,
                extent: Extent::NOTHING,
                status: Status::Errno(libc::ENODEV),
            });
        }
        count
    }

    fn wait(&mut self, timeout: Option<Duration>) -> std::io::Result<()> {
        self.0.wait(timeout)
    }

    fn waker(&self) -> Waker {
        self.0.waker()
    }

    fn abort(&mut self, tag: u64) {
        self.0.abort(tag);
    }

    fn in_flight(&self) -> usize {
        self.0.in_flight()
    }

    fn abort_all(&mut self) {
        self.0.abort_all();
    }
}

#[test]
fn transfers_end_when_all_staging_memory_was_left_to_a_device() {
    let chunk = ByteCount(u64::from(CHUNK));
    for chunks in [1, 8] {
        let options =
            ReactorOptions { staging: ByteCount(chunk.0 * chunks), chunk, ..Default::default() };
        let reactor = Reactor::start(Box::new(Leaking(SimDisks(disks(1)))), options).unwrap();
        let tickets: Vec<Ticket> = (0..40)
            .map(|_| {
                let source = Source::from(bytes(CHUNK as usize, 1));
                let pieces = striped(CHUNK as usize, 1, 0);
                let transfer = Transfer::Write { source, pieces };
                reactor.submit(transfer, Urgency::Ahead, None, nothing()).unwrap()
            })
            .collect();
        let ends: Vec<TransferError> = tickets
            .iter()
            .map(|ticket| ticket.wait_timeout(SOON).expect("it ends").unwrap_err())
            .collect();
        let stopped = ends.iter().filter(|it| matches!(it, TransferError::Stopped { .. })).count();
        assert_eq!(stopped as u64, 40 - chunks, "a chunk was lost with each of the others");
    }
}

#[test]
fn callers_memory_that_was_left_to_a_device_is_no_staging_memory() {
    let chunk = ByteCount(u64::from(CHUNK));
    let buffers = ByteCount(4 * chunk.0);
    let options = ReactorOptions { staging: chunk, chunk, buffers, ..Default::default() };
    let reactor = Reactor::start(Box::new(Leaking(SimDisks(disks(1)))), options).unwrap();
    let length = buffers.0 as usize;
    let source = Source::Dma { buffer: reactor.buffer(length).unwrap(), length };
    let transfer = Transfer::Write { source, pieces: striped(length, 1, 0) };
    let ticket = reactor.submit(transfer, Urgency::Ahead, None, nothing()).unwrap();
    ticket.wait_timeout(SOON).expect("it ends").unwrap_err();
    assert!(ticket.take_buffer().is_none(), "a device may yet read it");
    let source = Source::from(bytes(CHUNK as usize, 1));
    let transfer = Transfer::Write { source, pieces: striped(CHUNK as usize, 1, 0) };
    let ticket = reactor.submit(transfer, Urgency::Ahead, None, nothing()).unwrap();
    let error = ticket.wait_timeout(SOON).expect("it ends").unwrap_err();
    assert!(!matches!(error, TransferError::Stopped { .. }), "{error}");
}
