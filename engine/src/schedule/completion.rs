//! A queue of ended transfers that one thread drains, and a flag that says cheaply whether it must.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::ticket::FOREVER;
use super::transfer::TransferOutcome;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard};

/// Queue that is notified of a transfer's end, and the tag of the notice.
pub type Notify = (CompletionQueue, u64);

/// Ended transfers, in the order of their end. Clones are handles of the same queue.
#[derive(Clone, Debug, Default)]
pub struct CompletionQueue(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// True if the time of each end is kept.
    timed: bool,
    /// Number of entries, read without the lock.
    attention: AtomicU32,
    entries: Mutex<Entries>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct Entries {
    /// Entries: the time of each end if that is kept, its tag, and its result.
    queue: VecDeque<(Option<Instant>, u64, TransferOutcome)>,
    /// Threads that sleep until an entry comes. Where there is none, waking one would still cost a
    /// system call.
    sleepers: u32,
}

impl CompletionQueue {
    /// An empty queue.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty queue that keeps the time of each end ([`Self::oldest_end`]), which costs a look at
    /// the clock.
    pub fn timed() -> Self {
        Self(Arc::new(Inner { timed: true, ..Inner::default() }))
    }

    /// Takes the oldest entry: the tag it was submitted with, and how it ended.
    pub fn try_pop(&self) -> Option<(u64, TransferOutcome)> {
        if self.0.attention.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.pop(&mut self.entries())
    }

    /// Takes the oldest entry, waiting up to `timeout` for one to come.
    pub fn wait_pop(&self, timeout: Duration) -> Option<(u64, TransferOutcome)> {
        let mut deadline = None;
        let mut entries = self.entries();
        loop {
            if let Some(entry) = self.pop(&mut entries) {
                return Some(entry);
            }
            let now = Instant::now();
            let left = deadline.get_or_insert(now + timeout.min(FOREVER)).duration_since(now);
            if left.is_zero() {
                return None;
            }
            entries.sleepers += 1;
            let woken = self.0.arrived.wait_timeout(entries, left);
            entries = woken.unwrap_or_else(PoisonError::into_inner).0;
            entries.sleepers -= 1;
        }
    }

    /// Returns the time at which the transfer ended whose entry is taken next, in a queue that
    /// keeps it ([`Self::timed`]). It may be looked at long after.
    pub fn oldest_end(&self) -> Option<Instant> {
        if self.is_empty() {
            return None;
        }
        self.entries().queue.front()?.0
    }

    /// Returns the number of waiting entries.
    pub fn len(&self) -> usize {
        self.0.attention.load(Ordering::Acquire) as usize
    }

    /// Returns whether none waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The address of a 32-bit number that is not 0 while entries wait. It is valid, and may be
    /// read (atomically) by any thread, while a handle of the queue lives.
    #[cfg(not(loom))]
    pub fn attention_address(&self) -> *const u32 {
        self.0.attention.as_ptr()
    }

    /// Tells of the end of what was begun under `tag`: a transfer of the reactor's, or of others
    /// who let this queue tell.
    pub fn push(&self, tag: u64, outcome: TransferOutcome) {
        let ended = self.0.timed.then(Instant::now);
        let mut entries = self.entries();
        entries.queue.push_back((ended, tag, outcome));
        self.0.attention.store(entries.queue.len() as u32, Ordering::Release);
        let sleepers = entries.sleepers;
        drop(entries);
        if sleepers > 0 {
            self.0.arrived.notify_one();
        }
    }

    fn pop(&self, entries: &mut Entries) -> Option<(u64, TransferOutcome)> {
        let (_, tag, outcome) = entries.queue.pop_front()?;
        self.0.attention.store(entries.queue.len() as u32, Ordering::Release);
        Some((tag, outcome))
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        // The deque is whole between any two statements, so a panic elsewhere cannot spoil it.
        self.0.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::transfer::Done;
    use super::*;

    #[test]
    fn attention_is_raised_exactly_while_entries_wait() {
        let queue = CompletionQueue::new();
        let flag = queue.0.attention.as_ptr();
        assert_eq!(queue.attention_address(), flag.cast_const());
        queue.push(4, Ok(Done { bytes: 1, matched: true, waited: Duration::ZERO, healed: 0 }));
        queue
            .clone()
            .push(5, Ok(Done { bytes: 2, matched: true, waited: Duration::ZERO, healed: 0 }));
        assert_eq!(queue.0.attention.load(Ordering::Relaxed), 2);
        assert_eq!(queue.try_pop().unwrap().0, 4);
        assert_eq!(queue.wait_pop(Duration::ZERO).unwrap().0, 5);
        assert_eq!(queue.0.attention.load(Ordering::Relaxed), 0);
        assert!(queue.try_pop().is_none() && queue.wait_pop(Duration::from_millis(1)).is_none());
    }

    #[test]
    fn a_timed_queue_alone_keeps_when_the_oldest_ended() {
        let done = || Ok(Done { bytes: 0, matched: true, waited: Duration::ZERO, healed: 0 });
        let (queue, timed) = (CompletionQueue::new(), CompletionQueue::timed());
        let before = Instant::now();
        for queue in [&queue, &timed] {
            assert_eq!(queue.oldest_end(), None);
            (0..2).for_each(|tag| queue.push(tag, done()));
        }
        let (first, now) = (timed.oldest_end().unwrap(), Instant::now());
        assert!(before <= first && first <= now);
        assert_eq!(timed.try_pop().unwrap().0, 0);
        assert!(timed.oldest_end().unwrap() >= first);
        assert_eq!(queue.oldest_end(), None);
    }

    #[test]
    fn a_waiter_is_woken_by_an_entry() {
        let queue = CompletionQueue::new();
        let waiter = queue.clone();
        let thread = std::thread::spawn(move || waiter.wait_pop(Duration::MAX));
        queue.push(9, Ok(Done { bytes: 0, matched: true, waited: Duration::ZERO, healed: 0 }));
        assert_eq!(thread.join().unwrap().unwrap().0, 9);
    }
}
