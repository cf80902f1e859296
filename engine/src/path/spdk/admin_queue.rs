//! Reading and writing a controller beside a data path: superblocks, before there is one.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::SpdkPath;
use super::controller::Controller;
use crate::memory::{ALIGNMENT, DmaPool};
use crate::path::{Action, Completion, DataPath, Extent, Operation};
use crate::units::{ByteCount, DeviceIndex};

/// Moved at once.
const CHUNK: u64 = 1 << 20;
/// Longer than any command may take, with its abort and a reset.
const TIMEOUT: Duration = Duration::from_secs(180);

impl Controller {
    /// Reads on this thread, with a queue pair of its own.
    pub(crate) fn read(self: &Arc<Self>, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        AdminQueue::new(self)?.read(offset, length)
    }

    /// Writes whole blocks of 4 KiB, and what is shorter into such a block, and puts them on the
    /// medium.
    pub(crate) fn write(self: &Arc<Self>, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let unit = ALIGNMENT as u64;
        if !offset.is_multiple_of(unit) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let whole = bytes.len().next_multiple_of(ALIGNMENT);
        let mut content = bytes.to_vec();
        if whole > bytes.len() {
            let last = self.read(offset + (whole - ALIGNMENT) as u64, ALIGNMENT)?;
            content.extend_from_slice(&last[ALIGNMENT - (whole - bytes.len())..]);
        }
        let mut admin_queue = AdminQueue::new(self)?;
        for (part, at) in content.chunks(CHUNK as usize).zip((offset..).step_by(CHUNK as usize)) {
            let buffer = admin_queue.memory.take(part.len());
            let mut buffer = buffer.ok_or(io::ErrorKind::OutOfMemory)?;
            buffer[..part.len()].copy_from_slice(part);
            let extent = Extent::new(at, part.len() as u64);
            admin_queue.run(extent, Action::write(buffer, false))?;
        }
        admin_queue.run(Extent::NOTHING, Action::Flush).map(drop)
    }

    /// Gives the bytes back to the medium.
    pub(crate) fn deallocate(self: &Arc<Self>, offset: u64, length: u64) -> io::Result<()> {
        AdminQueue::new(self)?.run(Extent::new(offset, length), Action::Deallocate).map(drop)
    }
}

/// A queue pair of this thread for one command after the other. There must be no other on the
/// controller.
pub struct AdminQueue {
    path: SpdkPath,
    memory: DmaPool,
}

impl AdminQueue {
    /// Opens the queue pair.
    pub fn new(controller: &Arc<Controller>) -> io::Result<Self> {
        let mut path = SpdkPath::new(vec![Arc::clone(controller)], 1).map_err(io::Error::other)?;
        let memory = path.allocate(ByteCount(CHUNK), false).map_err(io::Error::other)?;
        Ok(Self { path, memory })
    }

    /// Reads bytes, wherever they begin and end.
    pub fn read(&mut self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let unit = ALIGNMENT as u64;
        let first = offset / unit * unit;
        let end = (offset + length as u64).next_multiple_of(unit);
        let mut bytes = Vec::with_capacity((end - first) as usize);
        for at in (first..end).step_by(CHUNK as usize) {
            let part = CHUNK.min(end - at);
            let buffer = self.memory.take(part as usize).ok_or(io::ErrorKind::OutOfMemory)?;
            let done = self.run(Extent::new(at, part), Action::read(buffer))?;
            let buffer = done.into_buffer();
            bytes.extend_from_slice(&buffer.as_deref().unwrap_or_default()[..part as usize]);
        }
        bytes.drain(..(offset - first) as usize);
        bytes.truncate(length);
        Ok(bytes)
    }

    fn run(&mut self, extent: Extent, action: Action) -> io::Result<Completion> {
        let operation = Operation::new(0, DeviceIndex(0), extent, action);
        self.path.submit(operation).map_err(|refused| io::Error::other(refused.reason))?;
        let deadline = Instant::now() + TIMEOUT;
        let mut completions = Vec::with_capacity(1);
        while self.path.poll(&mut completions) == 0 {
            if Instant::now() > deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.path.wait(Some(Duration::from_secs(1)))?;
        }
        let done = completions.pop().ok_or(io::ErrorKind::TimedOut)?;
        done.result.map_err(io::Error::other)?;
        Ok(done)
    }
}
