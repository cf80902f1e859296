//! Options of a reactor, and errors of its methods.

use std::sync::Arc;
use std::time::Duration;

use super::transfer::TransferError;
use crate::memory::{ALIGNMENT, GpuError, GpuMemory, MemoryError};
use crate::path::PathError;
use crate::units::ByteCount;

/// The deepest queue per device.
const DEPTH_MAX: u32 = 1024;
/// The longest piece.
const CHUNK_MAX: ByteCount = ByteCount::gib(1);

/// Options of a reactor.
#[derive(Clone, Debug)]
pub struct ReactorOptions {
    /// Staging memory, in bytes: what may be between memory and devices at once. Rounded down to
    /// whole chunks; at least one.
    pub staging: ByteCount,
    /// Memory beside it for callers to take buffers of ([`Reactor::buffer`]), in bytes: devices
    /// read and write it themselves.
    ///
    /// [`Reactor::buffer`]: super::Reactor::buffer
    pub buffers: ByteCount,
    /// The longest piece, in bytes; a multiple of 4 KiB, the stripe unit of the pool.
    pub chunk: ByteCount,
    /// Operations in flight per device, at most.
    pub depth: u32,
    /// True to try huge pages.
    pub huge_pages: bool,
    /// Time for which stopping waits for operations in flight before it leaks the staging memory.
    pub drain_timeout: Duration,
    /// The GPU whose memory transfers may name.
    pub gpu: Option<Arc<dyn GpuMemory>>,
    /// True if the reactor moves only while somebody waits for a ticket or calls [`Reactor::step`]:
    /// for simulations, which then depend on nothing but their calls.
    ///
    /// [`Reactor::step`]: super::Reactor::step
    pub stepped: bool,
}

impl Default for ReactorOptions {
    fn default() -> Self {
        Self {
            staging: ByteCount::mib(8),
            buffers: ByteCount::ZERO,
            chunk: ByteCount::kib(256),
            depth: 32,
            huge_pages: true,
            drain_timeout: Duration::from_secs(30),
            gpu: None,
            stepped: false,
        }
    }
}

impl ReactorOptions {
    pub(super) fn check(&self) -> Result<(), StartError> {
        let &Self { staging, chunk, depth, .. } = self;
        if chunk.0 == 0 || !chunk.0.is_multiple_of(ALIGNMENT as u64) || chunk > CHUNK_MAX {
            return Err(StartError::Chunk(chunk));
        }
        if staging < chunk {
            return Err(StartError::Staging { staging, chunk });
        }
        if depth == 0 || depth > DEPTH_MAX {
            return Err(StartError::Depth(depth));
        }
        Ok(())
    }
}

/// A reactor could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The chunk is no multiple of 4 KiB, or beyond what one piece may hold.
    #[error("chunks of {0} do not work: take a multiple of 4 KiB, at most 1 GiB")]
    Chunk(ByteCount),
    /// No chunk fits into the staging memory.
    #[error("{staging} of staging memory hold no chunk of {chunk}; give it at least that much")]
    Staging {
        /// Size as given.
        staging: ByteCount,
        /// Needed size.
        chunk: ByteCount,
    },
    /// The depth is 0 or beyond what a queue can hold.
    #[error("a depth of {0} does not work: take 1 to {DEPTH_MAX}")]
    Depth(u32),
    /// The staging memory could not be had.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The data path could not be opened.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The GPU cannot be copied from and to.
    #[error("the GPU cannot be used: {0}")]
    Gpu(#[from] GpuError),
    /// The thread could not be started.
    #[error("cannot start the reactor's thread: {0}")]
    Thread(std::io::Error),
}

/// A transfer was not taken; nothing happened to it or to its memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// A piece breaks the rules.
    #[error("piece {piece} of the transfer is invalid: {reason}")]
    Invalid {
        /// Index of the piece.
        piece: usize,
        /// Description of the error.
        reason: &'static str,
    },
    /// The transfer names memory of a GPU, and there is none.
    #[error(
        "the pool was opened without a GPU, and the memory is one's: name the GPU when opening"
    )]
    NoGpu,
    /// The memory for what is to be read cannot be had.
    #[error(
        "{0} of memory for what is read cannot be allocated; read less at once, or into memory of your own"
    )]
    Memory(ByteCount),
    /// The reactor has stopped.
    #[error("the engine has stopped: {0}")]
    Stopped(String),
    /// The process was forked from the one that opened the pool.
    #[error("the pool belongs to the process that this one was forked from; open it here")]
    Forked,
    /// A `Finish` may not wait for the thread that it runs on.
    #[error("the reactor cannot wait for itself")]
    WouldDeadlock,
}

/// A blocking request did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// The transfer was not taken.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// The transfer failed.
    #[error(transparent)]
    Transfer(#[from] TransferError),
}

/// Stopping ran out of time; the staging memory is leaked, since devices may still use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{in_flight} operations never came back; their memory is leaked, not freed")]
pub struct DrainError {
    /// Number of operations.
    pub in_flight: usize,
}
