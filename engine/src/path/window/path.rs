//! A data path whose devices reach other devices' memory, made to reach a GPU's: by way of a window
//! there.
//!
//! Operations of a GPU's memory are taken through the window, and are peer DMA for the path inside;
//! all other operations are that path's as they are. No byte of the GPU's comes to the host.

use std::io;
use std::time::Duration;

use super::{
    TransferPlace, TransferStatus, Window, WindowCompletion, WindowRequest, WindowTransfer,
};
use crate::memory::peer::{PeerBuffer, PeerRegion};
use crate::memory::{
    DmaPool, GpuError, GpuMemory, GpuSlice, Memory, MemoryError, OpenedWindow, WindowSize,
};
use crate::path::gate::Gate;
use crate::path::operation::{Action, Completion, Extent, Operation, Refusal, Refused, Status};
use crate::path::slots::{Slots, conclude};
use crate::path::{Capabilities, DataPath, Feature, PathError, PeerReach, PeerUnreachable, Waker};
use crate::units::ByteCount;

/// Tags from here on are ours, for the transfers that the path inside gets: the rest is the slot.
const OURS: u64 = 1 << 63;
/// Time that a thread sleeps between two polls while it waits for the GPU alone: copies wake
/// nobody.
const NAP: Duration = Duration::from_micros(20);
/// Number of polls without a sleep, for copies that are about to end.
const LOOKS: u32 = 50;

/// A path that does peer DMA, with a window to a GPU once it was told of one.
pub struct Windowed<P: DataPath + ?Sized> {
    /// Goes before the path, which keeps the window's memory for what is on its way.
    open: Option<Open>,
    gate: Gate,
    /// The path's, and that operations may name the GPU's memory.
    capabilities: Capabilities,
    /// Operations of the GPU's memory.
    slots: Slots,
    /// Looks in a row in which nothing happened.
    looks: u32,
    path: Box<P>,
}

/// The window, and which of its chunks are here.
struct Open {
    window: Window,
    region: PeerRegion,
    /// Each chunk, unless the path inside has it.
    chunks: Vec<Option<PeerBuffer>>,
    /// Transfers that the path inside has.
    in_flight: usize,
    ready: Vec<WindowTransfer>,
}

impl<P: DataPath + ?Sized> Windowed<P> {
    /// A path that has nothing in flight, and a window as soon as it is to reach a GPU.
    pub fn new(path: Box<P>) -> Self {
        let capabilities = path.capabilities().clone();
        let (gate, slots) = (Gate::new(capabilities.devices.len()), Slots::new(capabilities.depth));
        Self { open: None, gate, capabilities, slots, looks: 0, path }
    }

    /// Takes a window's requests as far as they go now.
    fn advance(&mut self) {
        if let Some(open) = &mut self.open
            && !open.window.is_idle()
        {
            open.window.advance();
            open.give(&self.slots, &mut *self.path);
        }
    }

    /// Takes up what the path can do once something was registered.
    fn refresh(&mut self) {
        self.capabilities = self.path.capabilities().clone();
        self.capabilities.memory.gpu = self.open.is_some();
    }

    fn submit_of_gpu(&mut self, operation: Operation, memory: GpuSlice) -> Result<(), Refused> {
        if let Err(reason) = self.gate.admit(&self.capabilities, &operation) {
            return Err(Refused { reason, operation });
        }
        let Some(open) = &mut self.open else {
            let reason = Refusal::Invalid("there is no window to that GPU's memory");
            return Err(Refused { reason, operation });
        };
        let (slot, operation) = self.slots.keep(operation);
        let request = WindowRequest::of(slot, operation, memory);
        // SAFETY: the gate has seen that the extent lies on the device and holds the memory, which
        // stays until the completion (`GpuSlice::new`), and that comes after the answer.
        let taken = unsafe { open.window.submit(request) };
        let Err(reason) = taken else { return Ok(()) };
        self.slots.take(slot).map_or(Ok(()), |operation| Err(Refused { reason, operation }))
    }

    /// The completion of the operation that an answer is about.
    fn complete(&mut self, answer: WindowCompletion) -> Option<Completion> {
        let operation = self.slots.take(answer.tag as u32)?;
        let length = operation.extent.length.0 as u32;
        let mut completion = conclude(operation, answer.result.map(|()| length));
        match completion.result {
            Ok(()) => completion.checksum = answer.checksum,
            Err(error) if answer.by_device => self.gate.judge(error),
            Err(_) => {}
        }
        Some(completion)
    }

    fn is_copying(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.window.is_copying())
    }
}

impl Open {
    /// A window in a GPU's memory that the devices of `path` reach.
    fn new<P: DataPath + ?Sized>(
        gpu: &dyn GpuMemory,
        size: WindowSize,
        path: &mut P,
    ) -> Result<Self, GpuError> {
        let OpenedWindow { memory, base, copies } = gpu.open_window(size)?;
        let region = PeerRegion::new(memory);
        path.register_peer(&region).map_err(|error| GpuError(error.to_string()))?;
        let mut chunks: Vec<Option<PeerBuffer>> = Vec::new();
        chunks.resize_with(size.chunks as usize, || None);
        for _ in 0..size.chunks {
            let too_small = || GpuError("the GPU's window is smaller than was asked for".into());
            let chunk = region.take(size.chunk as usize).ok_or_else(too_small)?;
            let place = chunk.offset() / size.chunk as usize;
            *chunks.get_mut(place).ok_or_else(too_small)? = Some(chunk);
        }
        let Capabilities { devices, depth, .. } = path.capabilities();
        let window = Window::new(copies, base, size, (devices.len(), *depth));
        Ok(Self { window, region, chunks, in_flight: 0, ready: Vec::new() })
    }

    /// Gives the transfers that are ready to the path, as many as it takes.
    fn give<P: DataPath + ?Sized>(&mut self, slots: &Slots, path: &mut P) {
        let mut ready = std::mem::take(&mut self.ready);
        self.window.ready(&mut ready);
        for transfer in &ready {
            let TransferPlace::Chunk(chunk) = transfer.place else { continue };
            let (Some(of), Some(buffer)) =
                (slots.get(transfer.tag as u32), self.chunks[chunk as usize].take())
            else {
                continue;
            };
            let operation = Operation {
                tag: OURS | u64::from(transfer.slot),
                device: transfer.device,
                extent: Extent::new(transfer.offset, transfer.length.into()),
                action: match of.action {
                    Action::Write { fua, .. } => Action::write(buffer, fua),
                    _ => Action::read(buffer),
                },
                placement: of.placement,
                priority: of.priority,
            };
            let told = match path.submit(operation) {
                Ok(()) => TransferStatus::Taken,
                Err(Refused { reason, operation }) => {
                    self.chunks[chunk as usize] = chunk_of(operation.action.into_memory());
                    match reason {
                        // What its device has in flight makes room.
                        Refusal::Full => continue,
                        Refusal::Latched(cause) => TransferStatus::Failed(cause.status),
                        Refusal::Invalid(_) => TransferStatus::Failed(Status::Errno(libc::EINVAL)),
                    }
                }
            };
            self.in_flight += usize::from(matches!(told, TransferStatus::Taken));
            self.window.tell(transfer.slot, told);
        }
        self.ready = ready;
    }

    /// Takes a transfer back.
    fn take_back(&mut self, completion: Completion) {
        let slot = (completion.tag & !OURS) as u32;
        let Some(WindowTransfer { place: TransferPlace::Chunk(chunk), length, .. }) =
            self.window.transfer(slot)
        else {
            return;
        };
        self.in_flight -= 1;
        self.chunks[chunk as usize] = chunk_of(completion.memory);
        let told = match completion.result {
            Ok(()) => TransferStatus::Moved(length),
            Err(error) if self.chunks[chunk as usize].is_some() => {
                TransferStatus::Failed(error.status)
            }
            Err(error) => TransferStatus::Lost(error.status),
        };
        self.window.tell(slot, told);
    }
}

/// The chunk that came back, if it did.
fn chunk_of(memory: Option<Memory>) -> Option<PeerBuffer> {
    memory.and_then(Memory::into_peer)
}

// SAFETY: an operation of a GPU's memory lies in its slot until the window has answered it, which
// says that neither the GPU nor, as only chunks go to the path inside, any device touches that
// memory. Chunks are owned buffers of that path while it has them; those that it keeps are never
// used again. All other operations are that path's, unchanged.
unsafe impl<P: DataPath + ?Sized> DataPath for Windowed<P> {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn allocate(&mut self, bytes: ByteCount, huge_pages: bool) -> Result<DmaPool, MemoryError> {
        self.path.allocate(bytes, huge_pages)
    }

    fn register(&mut self, region: &DmaPool) {
        self.path.register(region);
        self.refresh();
    }

    fn unregister(&mut self) -> bool {
        self.open.is_none() && self.path.unregister()
    }

    fn register_peer(&mut self, region: &PeerRegion) -> Result<PeerReach, PeerUnreachable> {
        self.path.register_peer(region)
    }

    fn reach_gpu(&mut self, gpu: &dyn GpuMemory, size: WindowSize) -> Result<Feature, PathError> {
        if self.open.is_some() {
            return Ok(Feature::Off("the data path reaches a GPU already".into()));
        }
        match Open::new(gpu, size, &mut *self.path) {
            Ok(open) => self.open = Some(open),
            Err(GpuError(why)) => return Ok(Feature::Off(why)),
        }
        self.refresh();
        Ok(Feature::On)
    }

    fn submit(&mut self, operation: Operation) -> Result<(), Refused> {
        if operation.tag >= OURS {
            let reason = Refusal::Invalid("tags from 2^63 on are the path's own");
            return Err(Refused { reason, operation });
        }
        if self.in_flight() >= self.capabilities().depth as usize {
            return Err(Refused { reason: Refusal::Full, operation });
        }
        match operation.action.memory() {
            Some(&Memory::Gpu(memory)) => self.submit_of_gpu(operation, memory),
            _ => self.path.submit(operation),
        }
    }

    fn ring(&mut self) -> io::Result<()> {
        self.advance();
        self.path.ring()
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> usize {
        let before = completions.len();
        self.path.poll(completions);
        let mut at = before;
        while at < completions.len() {
            if completions[at].tag < OURS {
                // A device that failed is closed to the GPU's memory as well. Whether one that was
                // to abort has is for the path inside to say.
                if let Err(error) = completions[at].result
                    && !error.status.is_aborted()
                {
                    self.gate.judge(error);
                }
                at += 1;
            } else {
                let transfer = completions.swap_remove(at);
                if let Some(open) = &mut self.open {
                    open.take_back(transfer);
                }
            }
        }
        self.advance();
        while let Some(answer) = self.open.as_mut().and_then(|open| open.window.next_answer()) {
            completions.extend(self.complete(answer));
        }
        if completions.len() > before {
            self.looks = 0;
        }
        completions.len() - before
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.advance();
        if self.open.as_ref().is_some_and(|open| open.window.has_completions()) {
            return Ok(());
        }
        if !self.is_copying() {
            return self.path.wait(timeout);
        }
        // The devices have a look in, and the waker; the caller polls, and comes again.
        self.path.wait(Some(Duration::ZERO))?;
        self.looks = self.looks.saturating_add(1);
        if self.looks < LOOKS || timeout.is_some_and(|timeout| timeout < NAP) {
            std::hint::spin_loop();
        } else {
            std::thread::sleep(NAP);
        }
        Ok(())
    }

    fn waker(&self) -> Waker {
        self.path.waker()
    }

    fn abort(&mut self, tag: u64) {
        let slots: Vec<u32> = self.slots.find(Some(tag)).collect();
        if slots.is_empty() && tag < OURS {
            return self.path.abort(tag);
        }
        let Some(open) = &mut self.open else { return };
        for slot in slots {
            let in_flight: Vec<u32> = open.window.requests_on_devices(Some(slot.into())).collect();
            for transfer in in_flight {
                self.path.abort(OURS | u64::from(transfer));
            }
            open.window.abort(Some(slot.into()));
        }
    }

    fn in_flight(&self) -> usize {
        let transfers = self.open.as_ref().map_or(0, |open| open.in_flight);
        self.path.in_flight() - transfers + self.slots.in_flight()
    }

    fn abort_all(&mut self) {
        self.path.abort_all();
        self.open.iter_mut().for_each(|open| open.window.abort(None));
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // Chunks that devices have are kept by the path inside, and the memory with them. Where the
        // GPU may still copy, the memory stays for good.
        if !self.window.stop() {
            std::mem::forget(self.region.clone());
        }
    }
}
