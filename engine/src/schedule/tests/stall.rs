//! A device that does not answer holds up what needs it, and nothing else.

use super::*;

/// Bytes for one device, one chunk after the other.
fn on(device: u8, length: usize, offset: u64) -> Vec<Piece> {
    let pieces = striped(length, 1, offset);
    pieces.into_iter().map(|piece| Piece { device: DeviceIndex(device), ..piece }).collect()
}

fn write_ahead(reactor: &Reactor, length: usize, pieces: Vec<Piece>) -> Ticket {
    let transfer = Transfer::Write { source: Source::from(bytes(length, 5)), pieces };
    reactor.submit(transfer, Urgency::Ahead, None, nothing()).unwrap()
}

#[test]
fn writes_and_reads_of_other_devices_pass_one_that_does_not_answer() {
    let disks = disks(3);
    let reactor = start(&disks, 16);
    let small = bytes(4096, 9);
    let kept = write(&reactor, &small, &on(1, 4096, 7 << 20));
    disks[0].hold();
    // More than there are chunks, and more than a device is given at once.
    let both = write_ahead(&reactor, 4 << 20, striped(4 << 20, 2, 0));
    let stuck = write_ahead(&reactor, 2 << 20, on(0, 2 << 20, 4 << 20));
    let urgent = read_ticket(&reactor, 4096, &on(0, 4096, 0));
    for turn in 0..4 {
        let offset = (3 << 20) + (turn << 20);
        let passes = write_ahead(&reactor, 1 << 20, on(2, 1 << 20, offset % (6 << 20)));
        passes.wait_timeout(SOON).expect("another device's writes go on").unwrap();
        assert_eq!(read(&reactor, 4096, &kept).unwrap(), small, "so do urgent reads");
    }
    let other = disks[1].clone();
    // Half of the pieces of the transfer that needs both, and the one that is kept.
    until("the other half of a striped write", || other.counters().writes == 64 + 1);
    let waiting = [both, stuck, urgent];
    assert!(waiting.iter().all(|ticket| ticket.poll().is_none()));
    disks[0].release();
    for ticket in waiting {
        ticket.wait_timeout(SOON).expect("it goes on, too").unwrap();
    }
    assert_eq!(reactor.close(), Ok(()));
}

#[test]
fn what_takes_all_room_on_one_device_urgently_leaves_the_others_theirs() {
    let disks = disks(2);
    let reactor = start(&disks, 8);
    disks[0].hold();
    let urgent: Vec<Ticket> =
        (0..32).map(|turn| read_ticket(&reactor, 4096, &on(0, 4096, turn << 16))).collect();
    write_ahead(&reactor, 2 << 20, on(1, 2 << 20, 0)).wait_timeout(SOON).unwrap().unwrap();
    disks[0].release();
    for ticket in urgent {
        ticket.wait_timeout(SOON).expect("it goes on, too").unwrap();
    }
}

#[test]
fn in_virtual_time_the_others_are_done_before_a_stall_is_over() {
    let disks = disks(3);
    let chunk = ByteCount(u64::from(CHUNK));
    let staging = ByteCount(chunk.0 * 12);
    let options = ReactorOptions { staging, chunk, stepped: true, ..ReactorOptions::default() };
    let watched = CheckedProvider(Box::new(SimDisks(disks.clone())));
    let reactor = Reactor::start(Box::new(watched), options).unwrap();
    // The longest operation takes 64 ticks; some 300 of them are done meanwhile.
    disks[1].stall(100_000);
    let stalled = write_ahead(&reactor, 6 << 20, striped(6 << 20, 3, 0));
    for turn in 0..8 {
        for device in [0, 2] {
            let offset = (2 << 20) + (turn << 19);
            let pieces = on(device, 1 << 19, offset);
            write_ahead(&reactor, 1 << 19, pieces.clone()).wait().unwrap();
            read_ticket(&reactor, 1 << 19, &pieces).wait().unwrap();
            assert!(disks[1].is_stalled() && stalled.poll().is_none(), "{turn}");
        }
    }
    stalled.wait().unwrap();
    assert!(!disks[1].is_stalled());
}
