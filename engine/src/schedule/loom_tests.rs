//! The ticket protocol in every order that threads could run it, by loom: the real tickets,
//! mailboxes, queues and reactor thread, over a simulated disk that only the reactor's thread
//! touches.
//!
//! Loom's clock stands still: whoever would wait for ever is found as a deadlock.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use loom::cell::UnsafeCell;
use loom::sync::mpsc;
use loom::thread::{self, JoinHandle};

use super::active::{Active, Job, Order};
use super::completion::{CompletionQueue, Notify};
use super::finish::Finish;
use super::first_end::EndListener;
use super::idle::LastUse;
use super::mailbox::{Abandon, Mailbox, ReactorMessage};
use super::options::{ReactorOptions, SubmitError};
use super::subject::Subject;
use super::ticket::{Ticket, TicketMemory, TicketShared};
use super::transfer::{Done, Piece, TransferError, TransferOutcome, Urgency};
use super::worker::{Staging, Worker};
use crate::memory::{Destination, Source};
use crate::path::Waker;
use crate::path::sim::{SimDisk, SimDisks};
use crate::units::{ByteCount, DeviceIndex};

const BYTES: usize = 100;
const TAG: u64 = 7;

/// A bound, not a proof: without one, a model with a reactor's thread had not ended after two
/// minutes.
const SOME: Option<usize> = Some(3);

/// Runs the model in every order, or in every one with at most `preemptions` preemptions, and says
/// how many there were.
fn explore(preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let orders = Arc::new(AtomicUsize::new(0));
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = 20_000;
    let counted = Arc::clone(&orders);
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        model();
    });
    let orders = orders.load(Ordering::Relaxed);
    println!("{orders} orders");
    assert!(orders > 1, "the threads never met");
}

/// A reactor's thread with its mailbox.
struct Running {
    mailbox: Arc<Mailbox>,
    thread: JoinHandle<usize>,
}

impl Running {
    fn start(stepped: bool) -> Self {
        let options = ReactorOptions {
            staging: ByteCount::kib(4),
            chunk: ByteCount::kib(4),
            depth: 1,
            huge_pages: false,
            stepped,
            ..ReactorOptions::default()
        };
        let (sender, receiver) = mpsc::channel();
        let thread = thread::spawn(move || {
            let disks = SimDisks(vec![SimDisk::new(ByteCount::mib(1))]);
            let staging = Staging { threads: 1, memory: None };
            let of_all = (staging, Arc::new(LastUse::new()));
            let (worker, started) = Worker::open(Box::new(disks), options, of_all).unwrap();
            sender.send(started.mailbox).unwrap();
            worker.run()
        });
        Self { mailbox: receiver.recv().unwrap(), thread }
    }

    fn close(self) {
        self.mailbox.close("it was closed");
        assert_eq!(self.thread.join().unwrap(), 0, "every operation came back");
    }
}

/// A transfer as its submitter sees it.
struct Submitted {
    ticket: Result<Ticket, SubmitError>,
    told: Arc<AtomicUsize>,
    queue: CompletionQueue,
    memory: Arc<[u8]>,
}

/// Submits, as `Reactor::submit` does, a write of two pieces.
fn submit(mailbox: &Arc<Mailbox>) -> Submitted {
    let memory: Arc<[u8]> = vec![3; 2 * BYTES].into();
    let source = Source::Shared(Arc::clone(&memory));
    submit_job(mailbox, Job::Write { source: Some(source), fua: false }, memory)
}

fn submit_job(mailbox: &Arc<Mailbox>, job: Job, memory: Arc<[u8]>) -> Submitted {
    let (told, queue) = (Arc::new(AtomicUsize::new(0)), CompletionQueue::new());
    let count = Arc::clone(&told);
    let finish = Finish::new(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
    });
    let notify: Option<Notify> = Some((queue.clone(), TAG));
    let piece = |index: u64| {
        let (offset, length) = (ByteCount(index * 4096), BYTES as u32);
        Piece::new(DeviceIndex(0), offset, index * BYTES as u64, length)
    };
    let (subject, urgency) = (Subject::default(), Urgency::Ahead);
    let order = Order { job, subject, urgency, finish, notify };
    let mut active = Box::new(Active::spare());
    let shared = active.begin(1, order, (0..2).map(piece).collect());
    let ticket = mailbox
        .begin(active)
        .inspect(|()| mailbox.wake())
        .map(|()| Ticket::new(shared, Arc::clone(mailbox)));
    Submitted { ticket, told, queue, memory }
}

impl Submitted {
    /// Checks that all listeners were notified of the one end, once; nothing holds the memory any
    /// more.
    fn check_told_once(&self) -> TransferOutcome {
        assert_eq!(self.told.load(Ordering::Relaxed), 1, "told once");
        let (tag, outcome) = self.queue.try_pop().expect("the queue was told");
        assert_eq!(tag, TAG);
        assert!(self.queue.try_pop().is_none() && self.queue.is_empty(), "and told once");
        assert_eq!(Arc::strong_count(&self.memory), 1, "the memory is the caller's again");
        outcome
    }
}

fn done() -> TransferOutcome {
    Ok(Done { bytes: 2 * BYTES as u64, matched: true, waited: Duration::ZERO, healed: 0 })
}

#[test]
fn loom_an_end_reaches_all_who_wait_before_while_and_after_it_comes() {
    explore(None, || {
        let mailbox = Arc::new(Mailbox::new(Waker::new().unwrap(), false));
        let shared = Arc::new(TicketShared::new(1));
        let ticket = Ticket::new(Arc::clone(&shared), mailbox);
        let clone = ticket.clone();
        let waiter = thread::spawn(move || clone.wait());
        let reactor = thread::spawn(move || {
            shared.release();
            shared.finish(done(), Some(TicketMemory::Bytes(vec![5])));
        });
        if let Some(early) = ticket.poll() {
            assert_eq!(early, done());
            assert!(ticket.released(), "what has ended touches no memory");
        }
        assert_eq!(ticket.wait(), done());
        assert_eq!(ticket.poll(), Some(done()), "an end stays");
        assert_eq!(waiter.join().unwrap(), done());
        assert_eq!(ticket.take_bytes(), Some(vec![5]));
        assert_eq!(ticket.take_bytes(), None, "bytes are taken once");
        reactor.join().unwrap();
    });
}

#[test]
fn loom_the_first_of_two_wakes_whoever_waits_for_either() {
    explore(SOME, || {
        let mailbox = Arc::new(Mailbox::new(Waker::new().unwrap(), false));
        let shared = [1, 2].map(|id| Arc::new(TicketShared::new(id)));
        let tickets = shared.each_ref().map(|it| Ticket::new(Arc::clone(it), Arc::clone(&mailbox)));
        let reactors = shared.map(|shared| {
            thread::spawn(move || {
                shared.release();
                shared.finish(done(), None);
            })
        });
        let found = Ticket::wait_any(&[&tickets[0], &tickets[1]], Duration::MAX).unwrap();
        assert_eq!(tickets[found].poll(), Some(done()));
        for reactor in reactors {
            reactor.join().unwrap();
        }
    });
}

#[test]
fn loom_a_listener_is_told_once_however_late_it_comes() {
    struct Told(AtomicUsize);
    impl EndListener for Told {
        fn ended(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    explore(None, || {
        let mailbox = Arc::new(Mailbox::new(Waker::new().unwrap(), false));
        let shared = Arc::new(TicketShared::new(1));
        let ticket = Ticket::new(Arc::clone(&shared), mailbox);
        let told = Arc::new(Told(AtomicUsize::new(0)));
        let reactor = thread::spawn(move || {
            shared.release();
            shared.finish(done(), None);
        });
        ticket.listen(&told);
        reactor.join().unwrap();
        assert_eq!(told.0.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn loom_released_memory_is_the_callers_at_once() {
    explore(None, || {
        let mailbox = Arc::new(Mailbox::new(Waker::new().unwrap(), false));
        let shared = Arc::new(TicketShared::new(1));
        let ticket = Ticket::new(Arc::clone(&shared), mailbox);
        // Loom notices accesses that nothing orders; what is there does not matter.
        let memory = Arc::new(UnsafeCell::new(()));
        let source = Arc::clone(&memory);
        let reactor = thread::spawn(move || {
            source.with(|_| ());
            shared.release();
        });
        if ticket.released() {
            memory.with_mut(|_| ());
        }
        reactor.join().unwrap();
    });
}

#[test]
fn loom_whoever_waits_for_the_release_is_woken_by_it_and_needs_no_end() {
    explore(None, || {
        let mailbox = Arc::new(Mailbox::new(Waker::new().unwrap(), false));
        let shared = Arc::new(TicketShared::new(1));
        let ticket = Ticket::new(Arc::clone(&shared), mailbox);
        let memory = Arc::new(UnsafeCell::new(()));
        let source = Arc::clone(&memory);
        let reactor = thread::spawn(move || {
            source.with(|_| ());
            shared.release();
        });
        assert_eq!(ticket.wait_released(), Ok(()));
        memory.with_mut(|_| ());
        reactor.join().unwrap();
    });
}

#[test]
fn loom_each_entry_of_a_queue_goes_to_one_of_those_who_wait() {
    explore(None, || {
        let queue = CompletionQueue::new();
        let takers = [queue.clone(), queue.clone()]
            .map(|queue| thread::spawn(move || queue.wait_pop(Duration::MAX).unwrap().0));
        queue.push(1, done());
        queue.push(2, done());
        let mut taken = takers.map(|taker| taker.join().unwrap());
        taken.sort_unstable();
        assert_eq!(taken, [1, 2]);
        assert!(queue.is_empty() && queue.try_pop().is_none());
    });
}

#[test]
fn loom_a_transfer_is_told_of_once_and_its_memory_is_free() {
    explore(SOME, || {
        let running = Running::start(false);
        let submitted = submit(&running.mailbox);
        let ticket = submitted.ticket.as_ref().unwrap();
        if ticket.released() {
            assert_eq!(Arc::strong_count(&submitted.memory), 1, "released, yet held");
        }
        assert_eq!(ticket.wait(), done());
        // The queue may be told a moment after the ticket.
        running.close();
        assert_eq!(submitted.check_told_once(), done());
    });
}

#[test]
fn loom_a_dropped_ticket_loses_nothing_even_if_the_reactor_is_closed_at_once() {
    explore(SOME, || {
        let running = Running::start(false);
        let mut submitted = submit(&running.mailbox);
        submitted.ticket = Err(SubmitError::Forked); // the ticket is dropped
        running.close();
        assert_eq!(submitted.check_told_once(), done());
    });
}

#[test]
fn loom_a_read_is_cancelled_or_not_and_ends_once() {
    explore(SOME, || {
        let running = Running::start(false);
        let destination = Some(Destination::Owned(vec![0; 2 * BYTES]));
        let submitted = submit_job(&running.mailbox, Job::Read { destination }, vec![].into());
        let ticket = submitted.ticket.as_ref().unwrap();
        ticket.cancel();
        let outcome = ticket.wait();
        assert!([done(), Err(TransferError::Cancelled)].contains(&outcome), "{outcome:?}");
        assert_eq!(ticket.take_bytes().is_some(), outcome.is_ok());
        running.close();
        assert_eq!(submitted.check_told_once(), outcome);
    });
}

#[test]
fn loom_a_submission_beside_a_close_is_refused_or_carried_out() {
    explore(SOME, || {
        let running = Running::start(false);
        let mailbox = Arc::clone(&running.mailbox);
        let submitter = thread::spawn(move || submit(&mailbox));
        running.close();
        let submitted = submitter.join().unwrap();
        match &submitted.ticket {
            Ok(ticket) => {
                let outcome = ticket.poll().expect("a closed reactor has ended everything");
                let stopped = matches!(outcome, Err(TransferError::Stopped { .. }));
                assert!(stopped || outcome == done(), "{outcome:?}");
                assert_eq!(submitted.check_told_once(), outcome);
            }
            Err(_) => {
                assert_eq!(submitted.told.load(Ordering::Relaxed), 0, "it never was");
                assert!(submitted.queue.is_empty());
                assert_eq!(Arc::strong_count(&submitted.memory), 1);
            }
        }
    });
}

#[test]
fn loom_what_a_dying_thread_never_saw_ends_as_stopped() {
    explore(None, || {
        let mailbox = Arc::new(Mailbox::new(Waker::new().unwrap(), false));
        let abandon = Abandon::new(&mailbox);
        let dying = thread::spawn(move || drop(abandon));
        let submitted = submit(&mailbox);
        mailbox.send(ReactorMessage::Cancel(1));
        if let Ok(ticket) = &submitted.ticket {
            assert!(matches!(ticket.wait(), Err(TransferError::Stopped { .. })));
            dying.join().unwrap();
            assert!(submitted.check_told_once().is_err());
        } else {
            dying.join().unwrap();
            assert_eq!(submitted.told.load(Ordering::Relaxed), 0);
        }
    });
}

#[test]
fn loom_a_stepped_reactor_hands_the_turn_back_even_while_it_is_closed() {
    explore(SOME, || {
        let running = Running::start(true);
        let submitted = submit(&running.mailbox);
        let mailbox = Arc::clone(&running.mailbox);
        let closer = thread::spawn(move || mailbox.close("it was closed"));
        let outcome = submitted.ticket.as_ref().unwrap().wait();
        let stopped = matches!(outcome, Err(TransferError::Stopped { .. }));
        assert!(stopped || outcome == done(), "{outcome:?}");
        closer.join().unwrap();
        running.close();
        assert_eq!(submitted.check_told_once(), done(), "closing ends what was submitted");
    });
}
