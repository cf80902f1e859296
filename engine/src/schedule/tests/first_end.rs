//! Waiting for the first of several transfers, and hearing of ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

#[derive(Default)]
struct Count(AtomicUsize);

impl EndListener for Count {
    fn ended(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Count {
    fn told(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

fn on(reactor: &Reactor, device: u8) -> Ticket {
    read_ticket(reactor, 4096, &[Piece::new(DeviceIndex(device), ByteCount(0), 0, 4096)])
}

#[test]
fn the_first_that_ends_is_found_and_the_others_go_on() {
    let disks = disks(3);
    let reactor = start(&disks, 8);
    disks.iter().for_each(SimDisk::hold);
    let tickets: Vec<Ticket> = (0..3).map(|device| on(&reactor, device)).collect();
    let list: Vec<&Ticket> = tickets.iter().collect();
    assert_eq!(Ticket::wait_any(&list, Duration::ZERO), None);
    assert_eq!(Ticket::wait_any(&list, Duration::from_millis(20)), None);
    let begun = Instant::now();
    let found = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| Ticket::wait_any(&list, SOON));
        std::thread::sleep(Duration::from_millis(20));
        disks[1].release();
        waiter.join().unwrap()
    });
    assert_eq!(found, Some(1));
    assert!(begun.elapsed() < SOON, "woken, not timed out");
    assert!(tickets[0].poll().is_none() && tickets[2].poll().is_none());
    // What has ended is found at once, and of several the first.
    disks[0].release();
    tickets[0].wait().unwrap();
    assert_eq!(Ticket::wait_any(&list, Duration::MAX), Some(0));
    disks[2].release();
    assert_eq!(Ticket::wait_any(&[&tickets[2]], Duration::MAX), Some(0));
    assert_eq!(Ticket::wait_any(&[], Duration::MAX), None);
    assert_eq!(reactor.close(), Ok(()));
}

#[test]
fn a_listener_hears_of_each_end_once_and_one_that_is_gone_is_forgotten() {
    let disks = disks(1);
    let reactor = start(&disks, 8);
    let (kept, gone) = (Arc::new(Count::default()), Arc::new(Count::default()));
    disks[0].hold();
    let ticket = on(&reactor, 0);
    ticket.listen(&kept);
    ticket.listen(&gone);
    drop(gone);
    for _ in 0..1000 {
        ticket.listen(&Arc::new(Count::default()));
    }
    assert_eq!(kept.told(), 0);
    disks[0].release();
    ticket.wait().unwrap();
    until("the listener is told", || kept.told() == 1);
    // Of an end that has come it hears at once; of a failure, too.
    ticket.listen(&kept);
    assert_eq!(kept.told(), 2);
    fail_reads(&disks[0], 2, Fault::Errno(5));
    let failed = on(&reactor, 0);
    failed.listen(&kept);
    assert!(failed.wait().is_err());
    until("the listener is told of a failure", || kept.told() == 3);
    assert_eq!(reactor.close(), Ok(()));
    assert_eq!(kept.told(), 3);
}
