//! A storm: many threads with many operations in flight each, on one pool. Every byte that is read
//! is compared with what was put, every ticket has to end once, and the queue that hears of it,
//! too.

mod thread;

use std::time::Duration;

use tidelog_engine::pool::Pool;

use thread::Thread;

/// Time after which an operation counts as lost: far longer than any does.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Options of a storm.
#[derive(Clone, Copy, Debug)]
pub struct StormOptions {
    /// Threads, each with tensors of its own.
    pub threads: u64,
    /// Operations of all threads together.
    pub operations: u64,
    /// Operations that each thread has in flight at most.
    pub in_flight: usize,
    /// Decides what is done.
    pub seed: u64,
}

/// Figures of a storm that was right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StormFigures {
    /// Puts that ended well.
    pub puts: u64,
    /// Gets that ended well.
    pub gets: u64,
    /// Memory compared with checksums, right and wrong memory.
    pub verifications: u64,
    /// Deletions, of what was there and what was not.
    pub deletions: u64,
    /// Puts and gets that were cancelled in time.
    pub cancelled: u64,
    /// Bytes that were read and compared.
    pub bytes_compared: u64,
}

impl StormFigures {
    /// Returns the number of operations.
    pub fn operations(&self) -> u64 {
        self.puts + self.gets + self.verifications + self.deletions + self.cancelled
    }

    fn add(&mut self, other: Self) {
        self.puts += other.puts;
        self.gets += other.gets;
        self.verifications += other.verifications;
        self.deletions += other.deletions;
        self.cancelled += other.cancelled;
        self.bytes_compared += other.bytes_compared;
    }
}

/// Lets the storm go over a pool that nobody else uses, and looks at everything once more when it
/// is over.
///
/// # Errors
/// The first wrong byte, wrong answer or ticket that did not end.
pub fn storm(pool: &Pool, options: StormOptions) -> Result<StormFigures, String> {
    let StormOptions { threads, operations, .. } = options;
    let share = |thread: u64| operations / threads + u64::from(thread < operations % threads);
    let ended: Vec<Result<StormFigures, String>> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|index| {
                scope.spawn(move || Thread::new(pool.clone(), index, options).run(share(index)))
            })
            .collect();
        let joined = handles.into_iter().map(|handle| {
            handle.join().unwrap_or_else(|_| Err("a thread of the storm panicked".into()))
        });
        joined.collect()
    });
    let mut figures = StormFigures::default();
    for of_thread in ended {
        figures.add(of_thread?);
    }
    if figures.operations() != operations {
        return Err(format!("{} of {operations} operations ended", figures.operations()));
    }
    pool.audit()?;
    Ok(figures)
}
