//! Keeps devices busy without drowning them: transfers in, pieces out, urgent first.
//!
//! A [`Reactor`] is one thread that owns a data path and a ring of staging buffers. A [`Transfer`]
//! is cut into [`Piece`]s, each within one stripe unit of one device; the reactor copies, checksums
//! and issues them one by one, so memory of any size streams through a ring of fixed size, and an
//! urgent transfer overtakes one that was asked for ahead of time at the next piece, and pieces for
//! other devices pass one that is full or slow, which never takes all of that memory. A [`Ticket`]
//! follows a transfer; a [`CompletionQueue`] collects the ends of many.
//!
//! ```
//! use tidelog_engine::memory::Source;
//! use tidelog_engine::path::sim::{SimDisk, SimDisks};
//! use tidelog_engine::schedule::{Finish, Piece, Reactor, ReactorOptions, Transfer, Urgency};
//! use tidelog_engine::units::{ByteCount, DeviceIndex};
//!
//! let disks = SimDisks(vec![SimDisk::new(ByteCount::mib(1))]);
//! let reactor = Reactor::start(Box::new(disks), ReactorOptions::default())?;
//! let pieces = vec![Piece::new(DeviceIndex(0), ByteCount::kib(8), 0, 5)];
//! let source = Source::from(b"tides".to_vec());
//! let write = Transfer::Write { source, pieces };
//! let ticket = reactor.submit(write, Urgency::Ahead, None, Finish::nothing())?;
//! assert_eq!(ticket.wait()?.bytes, 5);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod active;
mod chunks;
mod completion;
mod finish;
mod first_end;
mod flights;
mod idle;
mod in_progress;
mod latencies;
#[cfg(all(test, loom))]
mod loom_tests;
mod mailbox;
mod options;
mod pace;
mod parts;
mod queues;
mod reactor;
mod stats;
mod subject;
mod submitter;
mod ticket;
mod transfer;
mod worker;

#[cfg(all(test, not(loom)))]
mod tests;

pub use completion::{CompletionQueue, Notify};
pub use finish::Finish;
pub use first_end::EndListener;
pub use latencies::{DeviceLatencies, Latency};
pub use options::{ControlError, DrainError, ReactorOptions, StartError, SubmitError};
pub use reactor::Reactor;
pub use stats::{DeviceStats, GpuStats, ReactorStats};
pub use subject::{About, Subject};
pub(crate) use submitter::Submitter;
pub(crate) use ticket::Promise;
pub use ticket::Ticket;
pub use transfer::{
    Done, Mirror, Piece, Transfer, TransferDone, TransferError, TransferOutcome, TransferResult,
    Urgency, WantedRange,
};
