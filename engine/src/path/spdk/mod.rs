//! Without the kernel: SPDK's NVMe driver on whole controllers, by PCI address (vfio-pci, uio) or over a fabric.
//!
//! A reactor has one queue pair on each of its controllers, polls it, and lets submissions be seen in batches.
//! Operations are cut at what the controller takes at once. A command that takes too long is aborted; if that does
//! not bring it back the controller is reset (one on the bus) or disconnected (one over a fabric), and the command
//! fails as timed out. A controller that is gone fails everything in flight as removed, and refuses the rest.
//!
//! Buffers come out of the environment's memory ([`SpdkPath::allocate`](DataPath::allocate)), which every
//! controller can reach; other pools must be registered.

mod aside;
mod command;
mod controller;
mod ending;
mod endurance;
mod environment;
mod exchange;
mod flight;
mod group;
mod peer;
mod queue;

pub use aside::Aside;
pub use controller::{AttachError, Controller};
pub use environment::{EnvironmentError, EnvironmentOptions, Pages, configure};

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidelog_spdk_sys as sys;

use self::controller::command_timeout;
use self::ending::Polled;
use self::environment::Environment;
use self::flight::{Flights, Impatience};
use self::peer::{BY_BUS_MAX, Peers, Way};
use self::queue::{Queue, Sent};
use super::choose::{Opened, PathError, PathKind, PathProvider};
use super::gate::Gate;
use super::nvme::steps::Steps;
use super::operation::{Action, Completion, DeviceError, Operation, Refusal, Refused, Status};
use super::slots::Slots;
use super::window::Windowed;
use super::{
    Capabilities, DataPath, DeviceCapabilities, Feature, PeerReach, PeerUnreachable, Waker,
};
use crate::memory::peer::PeerRegion;
use crate::memory::{DmaPool, MemoryError};
use crate::units::{ByteCount, DeviceIndex};

/// Controllers, in stripe order.
pub struct SpdkControllers(
    /// The controllers.
    pub Vec<Arc<Controller>>,
);

impl PathProvider for SpdkControllers {
    fn open(self: Box<Self>, depth: u32) -> Result<Opened, PathError> {
        let path = Box::new(Windowed::new(Box::new(SpdkPath::new(self.0, depth)?)));
        Ok(Opened { path, why_not: Vec::new() })
    }
}

/// A queue pair on each of a few controllers.
pub struct SpdkPath {
    queues: Vec<Queue>,
    capabilities: Capabilities,
    gate: Gate,
    slots: Slots,
    flights: Flights,
    /// Slots whose operation waits for room in its queue pair.
    waiting: Vec<u32>,
    /// Pools that are reachable by every controller: where they lie, and those that we must unregister.
    reachable: Vec<(usize, usize)>,
    registered: Vec<DmaPool>,
    /// Memory of other devices.
    peers: Peers,
    waker: Waker,
    timeout: Duration,
    /// When operations were last looked over for ones that take too long.
    looked: Instant,
    polled: Polled,
}

/// After so many empty polls the clock is looked at, and other threads of this core have their turn; after so long it
/// sleeps.
const SPINS: u32 = 64;
const SPIN_TIME: Duration = Duration::from_millis(10);
/// The shortest sleep that there is.
const NAP: Duration = Duration::from_millis(1);
/// How often operations are looked over.
const LOOK: Duration = Duration::from_millis(100);

impl SpdkPath {
    /// Opens a queue pair on each controller, for this thread, with room for `depth` operations on each.
    pub fn new(controllers: Vec<Arc<Controller>>, depth: u32) -> Result<Self, PathError> {
        let kind = PathKind::Spdk;
        let unavailable = |reason: String| PathError::Unavailable { kind, reason };
        let environment = Environment::get().map_err(|error| unavailable(error.to_string()))?;
        let waker = Waker::new().map_err(|source| PathError::System {
            kind,
            what: "make an eventfd",
            source,
        })?;
        let polled = Polled::new(&waker);
        let devices = controllers.iter().map(|it| DeviceCapabilities::of_controller(it)).collect();
        let queues = controllers
            .into_iter()
            .map(|controller| Queue::new(controller, depth).map_err(unavailable))
            .collect::<Result<Vec<_>, _>>()?;
        let depth = depth.saturating_mul(queues.len() as u32);
        let capabilities = Capabilities {
            kind,
            devices,
            depth,
            registered_buffers: Feature::Off("no memory was registered yet".into()),
            registered_files: Feature::On,
            notes: vec![environment.describe()],
        };
        Ok(Self {
            gate: Gate::new(queues.len()),
            slots: Slots::new(depth),
            flights: Flights::new(depth),
            waiting: Vec::with_capacity(depth as usize),
            reachable: Vec::new(),
            registered: Vec::new(),
            peers: Peers::new(),
            waker,
            timeout: command_timeout(),
            looked: Instant::now(),
            polled,
            queues,
            capabilities,
        })
    }

    /// Lets the next `count` commands of one kind fail, or never be answered before `held` has passed: SPDK's own
    /// error injection, for tests of what is above.
    pub fn inject(
        &mut self,
        device: DeviceIndex,
        kind: super::OperationKind,
        count: u32,
        (code_type, code): (u8, u8),
        held: Option<Duration>,
    ) -> io::Result<()> {
        let queue = self.queues.get_mut(usize::from(device.0));
        let queue = queue.ok_or(io::ErrorKind::NotFound)?;
        queue.inject(kind, count, (code_type, code), held)
    }

    /// Sends what can be sent of a slot's operation.
    fn send(&mut self, slot: u32) {
        let Some(operation) = self.slots.get_mut(slot) else { return };
        let flight = self.flights.get(slot);
        let queue = &self.queues[usize::from(operation.device.0)];
        let was_waiting = flight.waiting.replace(true);
        while let Some(step) = flight.unsent.get().peek() {
            // Counted before: SPDK may answer from within the call.
            flight.outstanding.set(flight.outstanding.get() + 1);
            let sent = queue.send(operation, step, flight, &self.peers);
            if matches!(sent, Sent::Yes) {
                flight.unsent.set(flight.unsent.get().after(step));
                continue;
            }
            flight.outstanding.set(flight.outstanding.get() - 1);
            match sent {
                Sent::Full => {
                    if !was_waiting {
                        self.waiting.push(slot);
                    }
                    return;
                }
                Sent::Refused(status) => flight.fail(status),
                Sent::Yes => {}
            }
        }
        flight.waiting.set(false);
        if was_waiting {
            self.waiting.retain(|&other| other != slot);
        }
        if flight.outstanding.get() == 0 {
            flight.land();
        }
    }

    /// Takes in what the controllers have answered, and lets them see what is new.
    fn process(&mut self) {
        self.polled.go_on();
        for device in 0..self.queues.len() {
            if self.queues[device].process() {
                self.recall(device);
            }
        }
        for at in (0..self.waiting.len()).rev() {
            let slot = self.waiting[at];
            self.send(slot);
        }
    }

    /// Aborts what takes too long; if that was of no use, resets the controller. Looks only now and then.
    fn look_over(&mut self) {
        if self.looked.elapsed() < LOOK {
            return;
        }
        self.looked = Instant::now();
        let slots: Vec<u32> = self.slots.find(None).collect();
        for slot in slots {
            let flight = self.flights.get(slot);
            let age = flight.since.get().elapsed();
            if age < self.timeout {
                continue;
            }
            let Some(operation) = self.slots.get_mut(slot) else { continue };
            let device = usize::from(operation.device.0);
            if flight.impatience.get() < Impatience::TimedOut {
                flight.impatience.set(Impatience::TimedOut);
                self.abort_slot(slot);
            } else if age >= self.timeout.saturating_mul(2) {
                // Everything that was in flight on it comes back, so this is enough for now.
                self.queues[device].recall();
                return self.abandon_if_dead(device);
            }
        }
    }

    /// Gets back what is in flight on a device that was just lost.
    fn recall(&mut self, device: usize) {
        if self.slots_of(device).iter().any(|&slot| self.flights.get(slot).is_out()) {
            self.queues[device].recall();
        }
        self.abandon_if_dead(device);
    }

    /// Ends what is in flight on a controller that could not be stopped. It may still write the buffers, which are
    /// therefore leaked.
    fn abandon_if_dead(&mut self, device: usize) {
        if !self.queues[device].is_dead() {
            return;
        }
        for slot in self.slots_of(device) {
            let flight = self.flights.get(slot);
            flight.fail(Status::Errno(libc::ENODEV));
            if flight.is_out() {
                flight.abandon();
            }
        }
    }

    fn slots_of(&mut self, device: usize) -> Vec<u32> {
        let slots: Vec<u32> = self.slots.find(None).collect();
        let mut of = |slot: &u32| {
            let operation = self.slots.get_mut(*slot);
            operation.is_some_and(|it| usize::from(it.device.0) == device)
        };
        slots.into_iter().filter(|slot| of(slot)).collect()
    }

    fn abort_slot(&mut self, slot: u32) {
        let Some(operation) = self.slots.get_mut(slot) else { return };
        let flight = self.flights.get(slot);
        flight.impatience.set(flight.impatience.get().max(Impatience::Asked));
        // What was not sent need not be.
        if flight.unsent.get().peek().is_some() {
            flight.fail(Status::Errno(libc::ECANCELED));
        }
        self.queues[usize::from(operation.device.0)].abort(flight);
        if flight.waiting.get() {
            self.send(slot);
        }
    }

    /// The completion of a slot whose commands are all back.
    fn complete(&mut self, slot: u32) -> Option<Completion> {
        let flight = self.flights.get(slot);
        let Operation { tag, device, extent, action, .. } = self.slots.take(slot)?;
        let kind = action.kind();
        let queue = &self.queues[usize::from(device.0)];
        let status = flight.failure.get().map(|status| match flight.impatience.get() {
            // Whatever it was answered then, it was late.
            Impatience::TimedOut => Status::Errno(libc::ETIMEDOUT),
            _ if status.is_ended_by_driver() && queue.is_lost() => Status::Errno(libc::ENODEV),
            Impatience::Asked if status.is_ended_by_driver() => Status::Errno(libc::ECANCELED),
            _ => status,
        });
        let result = status.map_or(Ok(()), |status| {
            let error = DeviceError { device, kind, extent, status };
            self.gate.judge(error);
            Err(error)
        });
        let (mut buffer, mut peer) = action.into_buffers();
        if flight.was_abandoned() {
            std::mem::forget((buffer.take(), peer.take()));
        }
        Some(Completion { tag, buffer, peer, checksum: None, result })
    }

    /// Whether every controller can reach the operation's buffer.
    fn can_reach(&self, operation: &mut Operation) -> bool {
        let needed = self.queues[usize::from(operation.device.0)].needs_registered_memory();
        let buffer = match &mut operation.action {
            Action::Read(buffer) | Action::Write { buffer, .. } => buffer,
            Action::ReadToPeer(buffer) | Action::WriteFromPeer { buffer, .. } => {
                return self.peers.way_to(buffer).is_some();
            }
            Action::ReadToGpu(_)
            | Action::WriteFromGpu { .. }
            | Action::WriteZeroes
            | Action::Flush
            | Action::Deallocate => return true,
        };
        let (start, length) = (buffer.address() as usize, buffer.len());
        let holds = |&(base, size): &(usize, usize)| start >= base && start + length <= base + size;
        !needed || self.reachable.iter().any(holds)
    }

    fn steps(&self, operation: &Operation) -> Steps {
        let limits = self.queues[usize::from(operation.device.0)].limits();
        let (offset, length) = (operation.extent.offset.0, operation.extent.length.0);
        match operation.action {
            Action::Read(_)
            | Action::Write { .. }
            | Action::ReadToGpu(_)
            | Action::WriteFromGpu { .. } => limits.transfer(offset, length),
            Action::ReadToPeer(ref buffer) | Action::WriteFromPeer { ref buffer, .. } => {
                let limits = match self.peers.way_to(buffer) {
                    Some(Way::Bus(_)) => limits.at_most(BY_BUS_MAX.0),
                    _ => limits,
                };
                limits.transfer(offset, length)
            }
            Action::WriteZeroes => limits.zeroes(offset, length),
            Action::Deallocate => limits.deallocate(offset, length),
            Action::Flush => Steps::flush(),
        }
    }
}

// SAFETY: an accepted operation stays in its slot, with its buffer, until SPDK has answered its last command; `drop`
// leaks what is left, and the queue pairs with it. Success is claimed only when every command that the extent was cut
// into succeeded, and an NVMe command that succeeds has moved everything.
unsafe impl DataPath for SpdkPath {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn allocate(&mut self, bytes: ByteCount, _huge_pages: bool) -> Result<DmaPool, MemoryError> {
        let pool = Environment::get()
            .map_err(|error| MemoryError::Map { bytes, source: io::Error::other(error) })?
            .allocate(bytes)?;
        let (base, length) = pool.span();
        self.reachable.push((base as usize, length));
        Ok(pool)
    }

    fn register(&mut self, region: &DmaPool) {
        let (base, length) = region.span();
        let known = self.reachable.contains(&(base as usize, length));
        if known {
            self.capabilities.registered_buffers = Feature::On;
            return;
        }
        self.capabilities.registered_buffers = match queue::register_pool(region, &self.queues) {
            Ok(()) => {
                self.reachable.push((base as usize, length));
                self.registered.push(region.clone());
                Feature::On
            }
            Err(why) => Feature::Off(why),
        };
    }

    fn register_peer(&mut self, region: &PeerRegion) -> Result<PeerReach, PeerUnreachable> {
        self.peers.register(region, &self.queues)
    }

    fn submit(&mut self, mut operation: Operation) -> Result<(), Refused> {
        if let Err(reason) = self.gate.admit(&self.capabilities, &operation) {
            return Err(Refused { reason, operation });
        }
        if !self.can_reach(&mut operation) {
            let reason = Refusal::Invalid(
                "the controller cannot reach the buffer: its memory was not registered",
            );
            return Err(Refused { reason, operation });
        }
        if self.slots.is_full() {
            return Err(Refused { reason: Refusal::Full, operation });
        }
        let steps = self.steps(&operation);
        let (slot, _) = self.slots.keep(operation);
        self.flights.get(slot).begin(steps);
        self.send(slot);
        Ok(())
    }

    fn ring(&mut self) -> io::Result<()> {
        // Submissions are seen when the queue pair is next polled.
        self.process();
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> usize {
        if self.slots.in_flight() == 0 {
            return 0;
        }
        // What has landed while it was waited for is enough for now.
        if !self.flights.has_landed() {
            self.process();
        }
        self.look_over();
        let before = completions.len();
        while let Some(slot) = self.flights.take_landed() {
            completions.extend(self.complete(slot));
        }
        completions.len() - before
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.polled.go_on();
        if self.slots.in_flight() == 0 {
            return self.waker.sleep(timeout).map(drop);
        }
        let begun = Instant::now();
        let mut spins = 0_u32;
        loop {
            self.process();
            if self.flights.has_landed() || self.waker.was_woken() {
                return Ok(());
            }
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
                continue;
            }
            self.look_over();
            let waited = begun.elapsed();
            if timeout.is_some_and(|timeout| waited >= timeout) {
                return Ok(());
            }
            if waited >= SPIN_TIME {
                self.waker.sleep(Some(NAP))?;
            } else {
                std::thread::yield_now();
                spins = 0;
            }
        }
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn abort(&mut self, tag: u64) {
        let slots: Vec<u32> = self.slots.find(Some(tag)).collect();
        for slot in slots {
            self.abort_slot(slot);
        }
    }

    fn in_flight(&self) -> usize {
        self.slots.in_flight()
    }

    fn abort_all(&mut self) {
        let slots: Vec<u32> = self.slots.find(None).collect();
        for slot in slots {
            self.abort_slot(slot);
        }
    }
}

impl Drop for SpdkPath {
    fn drop(&mut self) {
        if self.slots.in_flight() == 0 && !self.queues.iter().any(Queue::is_dead) {
            for pool in &self.registered {
                queue::unregister(pool.span());
            }
            self.peers.unregister();
            return;
        }
        // A controller may still write the buffers, and SPDK will still call back: all of it stays.
        self.slots.leak();
        std::mem::forget(std::mem::replace(&mut self.flights, Flights::new(0)));
        self.queues.drain(..).for_each(std::mem::forget);
        self.registered.drain(..).for_each(std::mem::forget);
        std::mem::forget(std::mem::replace(&mut self.peers, Peers::new()));
    }
}

impl DeviceCapabilities {
    fn of_controller(controller: &Controller) -> Self {
        let facts = controller.facts();
        Self {
            name: facts.name.clone(),
            size: facts.size,
            logical_block: facts.limits.block,
            direct: true,
            volatile_cache: facts.volatile_cache,
            deallocate: facts.deallocate,
            placement_handles: facts.placement.len() as u16,
        }
    }
}

impl Status {
    /// Whether the driver itself ended the command: because it was to, or because its queue is gone.
    fn is_ended_by_driver(self) -> bool {
        const GENERIC: u8 = sys::SPDK_NVME_SCT_GENERIC as u8;
        const BY_REQUEST: u8 = sys::SPDK_NVME_SC_ABORTED_BY_REQUEST as u8;
        const QUEUE_GONE: u8 = sys::SPDK_NVME_SC_ABORTED_SQ_DELETION as u8;
        const PATH: u8 = sys::SPDK_NVME_SCT_PATH as u8;
        match self {
            Self::Nvme { code_type: GENERIC, code: BY_REQUEST | QUEUE_GONE, .. } => true,
            Self::Nvme { code_type, .. } => code_type == PATH,
            Self::Errno(errno) => errno == libc::ECANCELED || self.is_removal(),
            Self::Short { .. } | Self::Library { .. } => false,
        }
    }
}
