//! Guarantees for foreign memory and for children of fork, through the reactor that uses it.

use std::time::Duration;

use super::*;
use crate::path::sim::{SimDisk, SimDisks};
use crate::schedule::{
    CompletionQueue, Finish, Piece, Reactor, ReactorOptions, SubmitError, Ticket, Transfer,
    TransferError, Urgency,
};
use crate::units::{ByteCount, DeviceIndex};

const LENGTH: usize = 1 << 20;
const SOON: Duration = Duration::from_secs(600);

fn start(disk: &SimDisk) -> Reactor {
    let (staging, chunk) = (ByteCount::kib(128), ByteCount::kib(64));
    let options = ReactorOptions { staging, chunk, ..ReactorOptions::default() };
    Reactor::start(Box::new(SimDisks(vec![disk.clone()])), options).unwrap()
}

fn pieces() -> Vec<Piece> {
    let chunk = 64 << 10;
    let piece = |start: usize| {
        Piece::new(DeviceIndex(0), ByteCount(start as u64), start as u64, chunk as u32)
    };
    (0..LENGTH).step_by(chunk).map(piece).collect()
}

fn submit(reactor: &Reactor, transfer: Transfer, queue: Option<&CompletionQueue>) -> Ticket {
    let notify = queue.map(|queue| (queue.clone(), 1));
    reactor.submit(transfer, Urgency::Urgent, notify, Finish::nothing()).unwrap()
}

#[test]
fn foreign_memory_goes_out_and_comes_back() {
    let disk = SimDisk::new(ByteCount::mib(2));
    let reactor = start(&disk);
    let origin: Vec<u8> = (0..LENGTH).map(|index| (index * 7 / 5) as u8).collect();
    let mut target = vec![0; LENGTH];
    // SAFETY: `origin` outlives the wait below and is not written.
    let source = unsafe { ForeignSource::new(origin.as_ptr(), LENGTH) }.into();
    let ticket = submit(&reactor, Transfer::Write { source, pieces: pieces() }, None);
    ticket.wait().unwrap();
    assert!(ticket.released());
    // SAFETY: `target` outlives the wait below and is not touched until then.
    let destination = unsafe { ForeignDestination::new(target.as_mut_ptr(), LENGTH) }.into();
    let ticket = submit(&reactor, Transfer::Read { destination, pieces: pieces() }, None);
    ticket.wait().unwrap();
    assert!(ticket.released());
    assert_eq!(ticket.take_bytes(), None, "foreign memory is not the ticket's to give");
    assert!(origin == target);
}

#[test]
fn foreign_memory_may_change_as_soon_as_a_ticket_reports_release() {
    let disk = SimDisk::new(ByteCount::mib(2));
    let reactor = start(&disk);
    let queue = CompletionQueue::new();
    for round in 1..20_u8 {
        let mut origin = vec![round; LENGTH];
        // SAFETY: `origin` is not written before the ticket reports release, and outlives that.
        let source = unsafe { ForeignSource::new(origin.as_ptr(), LENGTH) }.into();
        let ticket = submit(&reactor, Transfer::Write { source, pieces: pieces() }, Some(&queue));
        while !ticket.released() {
            std::thread::yield_now();
        }
        origin.fill(0xEE);
        drop((ticket, origin));
        queue.wait_pop(SOON).expect("a dropped ticket's transfer ends").1.unwrap();
        assert!(disk.peek(0, LENGTH).iter().all(|&byte| byte == round), "round {round}");
    }
}

#[test]
fn a_child_of_fork_is_told_so_and_harms_nothing() {
    let disk = SimDisk::new(ByteCount::mib(2));
    let reactor = start(&disk);
    disk.hold();
    let source = Source::from(vec![1; LENGTH]);
    let ticket = submit(&reactor, Transfer::Write { source, pieces: pieces() }, None);
    // SAFETY: the child calls nothing that takes a lock which another thread of the parent may have
    // held (that is what is tested, too), and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let source = Source::from(Vec::new());
        let transfer = Transfer::Write { source, pieces: Vec::new() };
        let refused = reactor.submit(transfer, Urgency::Urgent, None, Finish::nothing());
        let told = ticket.wait() == Err(TransferError::Forked)
            && ticket.poll() == Some(Err(TransferError::Forked))
            && refused.is_err_and(|error| error == SubmitError::Forked);
        ticket.cancel();
        drop((reactor, ticket));
        // SAFETY: ends the process without running anything of the parent's.
        unsafe { libc::_exit(i32::from(!told)) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child and writes one integer.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child's handles answered otherwise");
    disk.release();
    assert_eq!(ticket.wait_timeout(SOON).unwrap().unwrap().bytes, LENGTH as u64);
}
