//! Order of transfers, and effects of cancelling, expediting and dropping a ticket.

use super::*;

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
        Finish::new(move |_| order.send((name, disk.counters().writes)).unwrap())
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
        let finish = Finish::new(move |_| order.send(name).unwrap());
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
    assert_eq!(
        ticket.poll(),
        Some(Ok(Done { bytes: 10, matched: true, waited: Duration::ZERO, healed: 0 }))
    );
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
    let finish = Finish::new(move |_| {
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

/// Round by round, so that it is cancelled in each state that it goes through: on its device, read
/// and not yet checked, checked in part.
#[test]
fn a_read_cancelled_in_whatever_state_ends_once_and_leaves_nothing_behind() {
    const LENGTH: usize = 24 * CHUNK as usize;
    let disks = disks(2);
    let chunk = ByteCount(u64::from(CHUNK));
    let options = ReactorOptions {
        staging: ByteCount(chunk.0 * 24),
        chunk,
        stepped: true,
        ..ReactorOptions::default()
    };
    let reactor = Reactor::start(Box::new(SimDisks(disks)), options).unwrap();
    let tensor = bytes(LENGTH, 3);
    let pieces = write(&reactor, &tensor, &striped(LENGTH, 2, 0));
    let mut ended_as = (0, 0);
    for rounds in 0.. {
        let ticket = read_ticket(&reactor, LENGTH, &pieces);
        for _ in 0..rounds {
            reactor.step(1);
        }
        let was_over = ticket.poll().is_some();
        ticket.cancel();
        match ticket.wait() {
            Err(TransferError::Cancelled) => ended_as.0 += 1,
            Ok(done) => {
                assert_eq!(done.bytes, LENGTH as u64);
                ended_as.1 += 1;
            }
            Err(other) => panic!("after {rounds} rounds: {other}"),
        }
        assert!(ticket.released());
        assert_eq!(read(&reactor, LENGTH, &pieces).unwrap(), tensor, "after {rounds} rounds");
        if was_over {
            break;
        }
    }
    assert!(ended_as.0 > 3 && ended_as.1 > 0, "cancelled and too late: {ended_as:?}");
    // Closed with pieces unchecked: it ends all the same.
    let left = read_ticket(&reactor, LENGTH, &pieces);
    reactor.step(2);
    assert_eq!(reactor.close(), Ok(()));
    assert_eq!(left.wait().unwrap().bytes, LENGTH as u64);
}

#[test]
fn what_is_read_once_more_waits_for_room_where_others_have_taken_it() {
    let disk = disks(1);
    let chunk = ByteCount(u64::from(CHUNK));
    let options = ReactorOptions {
        staging: ByteCount(chunk.0 * 8),
        chunk,
        depth: 1,
        stepped: true,
        ..ReactorOptions::default()
    };
    let reactor = Reactor::start(Box::new(SimDisks(disk.clone())), options).unwrap();
    let tensor = bytes(6 * CHUNK as usize, 4);
    let pieces = write(&reactor, &tensor, &striped(tensor.len(), 1, 0));
    for at in 0..6 {
        disk[0].plan_fault(OperationKind::Read, at, Fault::Corrupt);
        let tickets: Vec<_> =
            (0..3).map(|_| read_ticket(&reactor, tensor.len(), &pieces)).collect();
        for ticket in tickets {
            ticket.wait().unwrap();
            assert_eq!(ticket.take_bytes().unwrap(), tensor);
        }
    }
    assert_eq!(reactor.close(), Ok(()));
}

/// A round ends with the kernel being told, which costs a small write more than its copy does.
#[test]
fn small_writes_are_begun_together_and_long_ones_one_by_one() {
    for (length, rounds) in [(4096, [8, 12]), (CHUNK as usize, [1, 2])] {
        let disks = disks(1);
        let chunk = ByteCount(u64::from(CHUNK));
        let staging = ByteCount(chunk.0 * 32);
        let options = ReactorOptions { staging, chunk, stepped: true, ..ReactorOptions::default() };
        let reactor = Reactor::start(Box::new(SimDisks(disks.clone())), options).unwrap();
        disks[0].hold();
        for turn in 0..12 {
            let pieces = striped(length, 1, turn << 16);
            let transfer = Transfer::Write { source: Source::from(bytes(length, 3)), pieces };
            reactor.submit(transfer, Urgency::Ahead, None, nothing()).unwrap();
        }
        let begun = [(); 2].map(|()| {
            reactor.step(1);
            disks[0].in_flight()
        });
        assert_eq!(begun, rounds, "writes of {length} bytes");
        disks[0].release();
        assert_eq!(reactor.close(), Ok(()));
    }
}
