//! One direction of the tier: jobs wait, urgent ones first, and a thread takes them through the
//! GPU's copies.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use tidelog_engine::schedule::{Notify, TransferError, TransferOutcome, Urgency};

use super::copies::{SLOTS, TierCopies};
use super::{HostTierError, Work};
use crate::cuda::CudaError;

/// Job whose end is told once: as stopped where it is dropped without having been ended.
struct Job {
    open: Option<(Work, Notify)>,
    number: u64,
}

/// Follows one job. Dropped, the job goes on.
#[derive(Debug)]
pub struct TierTicket {
    queue: Arc<Queue>,
    number: u64,
}

/// The jobs of one direction, and the thread that does them.
#[derive(Debug)]
pub(super) struct TierQueue {
    queue: Arc<Queue>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Queue {
    jobs: Mutex<Jobs>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Jobs {
    urgent: VecDeque<Job>,
    ahead: VecDeque<Job>,
    submitted: u64,
    /// Taken by the thread, and not ended.
    running: usize,
    closed: bool,
    /// The thread is gone: what runs will never be ended by it.
    abandoned: bool,
}

impl TierQueue {
    pub(super) fn start(name: &str, copies: TierCopies) -> Result<Self, HostTierError> {
        let queue = Arc::new(Queue::default());
        let worker = Worker { copies, running: VecDeque::new(), leaving: Leaving(queue.clone()) };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || worker.work());
        let thread = Some(thread.map_err(|error| HostTierError::Thread(error.to_string()))?);
        Ok(Self { queue, thread })
    }

    pub(super) fn submit(
        &self,
        work: Work,
        urgency: Urgency,
        notify: Notify,
    ) -> Result<TierTicket, HostTierError> {
        let mut jobs = self.queue.lock();
        if jobs.closed {
            return Err(HostTierError::Closed);
        }
        jobs.submitted += 1;
        let number = jobs.submitted;
        let job = Job { open: Some((work, notify)), number };
        match urgency {
            Urgency::Urgent => jobs.urgent.push_back(job),
            Urgency::Ahead | Urgency::Idle => jobs.ahead.push_back(job),
        }
        drop(jobs);
        self.queue.changed.notify_all();
        Ok(TierTicket { queue: Arc::clone(&self.queue), number })
    }

    /// Cancels what has not begun, refuses what comes, and waits for the rest.
    pub(super) fn close(&self) {
        self.queue.close();
        let mut jobs = self.queue.lock();
        while jobs.running > 0 && !jobs.abandoned {
            jobs = self.queue.changed.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for TierQueue {
    fn drop(&mut self) {
        self.close();
        if let Some(thread) = self.thread.take() {
            // Its panic was told by the jobs that it had.
            let _ = thread.join();
        }
    }
}

impl TierTicket {
    /// Ends the job as cancelled if it has not begun; one that has goes on to its end.
    pub fn cancel(&self) {
        let mut jobs = self.queue.lock();
        let job = jobs.withdraw(self.number);
        drop(jobs);
        if let Some(job) = job {
            job.end(|_| Err(TransferError::Cancelled));
        }
    }

    /// Has the job begin before all that are not urgent.
    pub fn expedite(&self) {
        let mut jobs = self.queue.lock();
        if let Some(at) = jobs.ahead.iter().position(|job| job.number == self.number)
            && let Some(job) = jobs.ahead.remove(at)
        {
            jobs.urgent.push_back(job);
        }
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Jobs> {
        // Nothing in between its changes panics, so none leaves the lists half changed.
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        let mut jobs = self.lock();
        jobs.closed = true;
        let mut waiting: Vec<Job> = jobs.urgent.drain(..).collect();
        waiting.extend(jobs.ahead.drain(..));
        drop(jobs);
        self.changed.notify_all();
        for job in waiting {
            job.end(|_| Err(TransferError::Cancelled));
        }
    }

    /// The next job to begin. Waits for one if it is told to; `None` then: there will be none.
    fn next(&self, wait: bool) -> Option<Job> {
        let mut jobs = self.lock();
        loop {
            let next = jobs.urgent.pop_front().or_else(|| jobs.ahead.pop_front());
            if next.is_some() {
                jobs.running += 1;
                return next;
            }
            if !wait || jobs.closed {
                return None;
            }
            jobs = self.changed.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn ended(&self) {
        self.lock().running -= 1;
        self.changed.notify_all();
    }
}

impl Jobs {
    fn withdraw(&mut self, number: u64) -> Option<Job> {
        [&mut self.urgent, &mut self.ahead].into_iter().find_map(|list| {
            let at = list.iter().position(|job| job.number == number)?;
            list.remove(at)
        })
    }
}

impl Job {
    /// Tells the job's end, when it has given up whatever it held of the tier.
    fn end(mut self, outcome: impl FnOnce(Work) -> TransferOutcome) {
        self.tell(outcome);
    }

    fn tell(&mut self, outcome: impl FnOnce(Work) -> TransferOutcome) {
        if let Some((work, (queue, tag))) = self.open.take() {
            queue.push(tag, outcome(work));
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let reason = "the host tier's thread ended".into();
        self.tell(|_| Err(TransferError::Stopped { reason }));
    }
}

impl std::fmt::Debug for Job {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Job({})", self.number)
    }
}

/// The thread's own. Fields drop in this order: copies wait for the GPU, then jobs are told, then
/// the line is.
struct Worker {
    copies: TierCopies,
    /// Begun, in the order in which they end, with their slots.
    running: VecDeque<(usize, Job)>,
    leaving: Leaving,
}

/// Closes the line when the thread ends, however it does.
struct Leaving(Arc<Queue>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.close();
        self.0.lock().abandoned = true;
        self.0.changed.notify_all();
    }
}

impl Worker {
    fn work(mut self) {
        // A failure shows in every job.
        let _ = self.copies.stay();
        let mut slot = 0;
        loop {
            while self.running.len() < SLOTS {
                let Some(job) = self.leaving.0.next(self.running.is_empty()) else { break };
                self.begin(slot, job);
                slot = (slot + 1) % SLOTS;
            }
            let Some((slot, job)) = self.running.pop_front() else { return };
            self.finish(slot, job);
        }
    }

    fn begin(&mut self, slot: usize, job: Job) {
        let Some((work, _)) = &job.open else { return };
        match self.copies.begin(slot, work) {
            Ok(()) => self.running.push_back((slot, job)),
            Err(error) => self.end(job, |_| Err(failed(error))),
        }
    }

    fn finish(&mut self, slot: usize, job: Job) {
        let finished = self.copies.finish(slot);
        self.end(job, |work| {
            let (sums, took) = finished.map_err(failed)?;
            work.conclude(sums, took)
        });
    }

    fn end(&self, job: Job, outcome: impl FnOnce(Work) -> TransferOutcome) {
        job.end(outcome);
        self.leaving.0.ended();
    }
}

fn failed(error: CudaError) -> TransferError {
    TransferError::HostMemory { reason: error.to_string() }
}
