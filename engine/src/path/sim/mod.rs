//! Disks in memory: a data path whose every fault and delay is decided by a seed and by the test.
//!
//! A [`SimDisk`] is the medium and outlives the path, as a disk outlives a process: a test cuts its
//! power, opens it again, and finds what a real disk with a volatile cache could have kept. Time is
//! virtual: an operation takes a random number of ticks and the clock jumps to the next completion,
//! so a run takes no time but operations overlap and complete out of order. Only a disk that was
//! given a rate takes real time, beside the others: for what measures bandwidth.

mod disk;
mod media;
mod member;
mod peer;
#[cfg(test)]
mod tests;
mod trouble;

pub use disk::{Fault, PowerCut, SimCounters, SimDisk, SimProfile};
pub use trouble::SimSnapshot;

use std::cell::LazyCell;
use std::io;
use std::time::{Duration, Instant};

use super::choose::{OpenedPath, PathProvider};
use super::error::PathError;
use super::gate::Gate;
use super::kind::PathKind;
use super::operation::{Action, Completion, Operation, Refusal, Refused};
use super::window::Windowed;
use super::{
    Capabilities, DataPath, DeviceCapabilities, Feature, MemoryKinds, PeerReach, PeerUnreachable,
    Waker,
};
use crate::memory::peer::PeerRegion;
use crate::memory::{DmaPool, Memory};
use disk::{StartedOperation, Ticks};
use peer::SimPeers;

/// Opens simulated disks, in stripe order.
pub struct SimDisks(
    /// The disks.
    pub Vec<SimDisk>,
);

impl PathProvider for SimDisks {
    fn open(self: Box<Self>, depth: u32) -> Result<OpenedPath, PathError> {
        let path = Box::new(Windowed::new(Box::new(SimPath::new(self.0, depth)?)));
        Ok(OpenedPath { path, why_not: Vec::new() })
    }
}

/// A queue to simulated disks.
pub struct SimPath {
    disks: Vec<SimDisk>,
    capabilities: Capabilities,
    gate: Gate,
    /// Operations in flight, in the order it came: operations that are due together keep it.
    pending: Vec<Pending>,
    clock: Ticks,
    /// True if the caller has waited since it submitted something, and so had nothing else to do.
    idle: bool,
    waker: Waker,
    peers: SimPeers,
}

struct Pending {
    operation: Operation,
    started: StartedOperation,
}

impl SimPath {
    /// Powers the disks on and opens them, with room for `depth` operations per disk.
    pub fn new(disks: Vec<SimDisk>, depth: u32) -> Result<Self, PathError> {
        let waker = Waker::new().map_err(|source| PathError::System {
            kind: PathKind::Sim,
            what: "make an eventfd",
            source,
        })?;
        for disk in &disks {
            disk.attach(waker.clone());
        }
        let describe = |(index, disk): (usize, &SimDisk)| DeviceCapabilities {
            name: format!("sim{index}"),
            size: disk.size(),
            logical_block: disk.logical_block(),
            direct: true,
            volatile_cache: disk.has_volatile_cache(),
            deallocate: true,
            placement_handles: 0,
        };
        let capabilities = Capabilities {
            kind: PathKind::Sim,
            memory: MemoryKinds { peer: true, gpu: false },
            priorities: false,
            devices: disks.iter().enumerate().map(describe).collect(),
            depth: depth.saturating_mul(disks.len() as u32),
            registered_buffers: Feature::Off("simulated disks need none".into()),
            registered_files: Feature::Off("simulated disks need none".into()),
            notes: Vec::new(),
        };
        let gate = Gate::new(disks.len());
        let (pending, peers) = (Vec::new(), SimPeers::default());
        Ok(Self { disks, capabilities, gate, pending, clock: 0, idle: false, waker, peers })
    }

    /// The pending operation that completes next, and when, unless all are held or not done yet.
    fn next(&self) -> Option<(Ticks, usize)> {
        let now = LazyCell::new(Instant::now);
        let is_ready = |it: &Pending| it.started.ready.is_none_or(|ready| ready <= *now);
        let of_disk = |(disk, device): (&SimDisk, u8)| {
            let fault_state = disk.fault_state(self.clock);
            let pending = self.pending.iter().enumerate();
            let of_disk = |it: &Pending| it.operation.device.0 == device && is_ready(it);
            let pending = pending.filter(|(_, it)| of_disk(it));
            pending
                .filter_map(move |(index, it)| Some((fault_state.due(&it.started)?, index)))
                .min()
        };
        self.disks.iter().zip(0..).filter_map(of_disk).min()
    }
}

// SAFETY: a pending operation owns its buffer until `poll` completes it, and no device exists that
// could touch it besides; success is claimed only after `SimDisk::finish` moved every byte.
unsafe impl DataPath for SimPath {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn register(&mut self, _region: &DmaPool) {}

    fn unregister(&mut self) -> bool {
        true
    }

    fn register_peer(&mut self, region: &PeerRegion) -> Result<PeerReach, PeerUnreachable> {
        self.peers.register(region);
        Ok(PeerReach::BusAddresses)
    }

    fn submit(&mut self, operation: Operation) -> Result<(), Refused> {
        if self.pending.len() >= self.capabilities.depth as usize {
            return Err(Refused { reason: Refusal::Full, operation });
        }
        if let Err(reason) = self.gate.admit(&self.capabilities, &operation) {
            return Err(Refused { reason, operation });
        }
        if let Some(Memory::Peer(buffer)) = operation.action.memory()
            && !self.peers.reach(buffer)
        {
            let reason = Refusal::Invalid("the other device's memory was not registered");
            return Err(Refused { reason, operation });
        }
        let of_peer;
        let length = operation.extent.length.0 as usize;
        let data = match &operation.action {
            Action::Write { memory: Memory::Host(buffer), .. } => &buffer[..length],
            Action::Write { memory: Memory::Peer(buffer), .. } => {
                of_peer = peer::read(buffer, length);
                &of_peer
            }
            _ => &[],
        };
        let disk = &self.disks[usize::from(operation.device.0)];
        let started = disk.start(operation.action.kind(), operation.extent, data, self.clock);
        self.pending.push(Pending { operation, started });
        self.idle = false;
        Ok(())
    }

    fn ring(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> usize {
        let Some((due, index)) = self.next() else { return 0 };
        let device = self.pending[index].operation.device;
        // Time passes at once, but past a stall only where there is nothing else to do.
        if !self.idle && self.disks[usize::from(device.0)].is_stalled() {
            return 0;
        }
        let Pending { mut operation, started } = self.pending.remove(index);
        let disk = &self.disks[usize::from(operation.device.0)];
        self.clock = self.clock.max(due);
        let moved = disk.finish(&started, &mut operation);
        let completion = super::slots::complete(operation, moved);
        if let Err(error) = completion.result {
            self.gate.judge(error);
        }
        completions.push(completion);
        1
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.idle = true;
        // With something in flight virtual time passes at once; only an idle (or held) path sleeps.
        let now = Instant::now();
        if self.next().is_some() {
            return Ok(());
        }
        // What was done before that is held.
        let ready = self.pending.iter().filter_map(|it| it.started.ready);
        let ready = ready.filter_map(|it| it.checked_duration_since(now)).min();
        let ready = ready.map(|time| time.max(Duration::from_nanos(1)));
        self.waker.sleep(timeout.into_iter().chain(ready).min()).map(|_| ())
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn abort(&mut self, tag: u64) {
        for pending in self.pending.iter_mut().filter(|pending| pending.operation.tag == tag) {
            pending.started.abort();
        }
    }

    fn in_flight(&self) -> usize {
        self.pending.len()
    }

    fn abort_all(&mut self) {
        self.pending.iter_mut().for_each(|pending| pending.started.abort());
    }
}

impl Drop for SimPath {
    fn drop(&mut self) {
        // What was in flight when the process went may or may not have reached the medium: the
        // disks keep it as writes that were never flushed.
        for pending in self.pending.drain(..) {
            let disk = &self.disks[usize::from(pending.operation.device.0)];
            disk.abandon(&pending.started);
        }
    }
}
