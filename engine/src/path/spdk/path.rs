//! The data path itself: operations into slots, slots onto queue pairs, responses into completions.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::controller::{AttachError, Controller, Joined, command_timeout};
use super::ending::Polled;
use super::environment::Environment;
use super::flight::{AbortStage, CommandsInFlight};
use super::peer::{BY_BUS_MAX, CommandAddresses, SpdkPeers};
use super::queue::{self, QueuePair, Sent, TimeoutCheck};
use super::timeout::{TimeoutCounters, TimeoutScan};
use super::waiting::WaitingSlots;
use crate::memory::peer::PeerRegion;
use crate::memory::{DmaPool, MemoryError, MemoryKind};
use crate::path::gate::Gate;
use crate::path::nvme::steps::Steps;
use crate::path::operation::{
    Action, Completion, DeviceError, Operation, OperationKind, Refusal, Refused, Status,
};
use crate::path::shares::Shares;
use crate::path::slots::Slots;
use crate::path::{
    Capabilities, DataPath, DeviceCapabilities, Feature, MemoryKinds, PeerReach, PeerUnreachable,
    Waker,
};
use crate::path::{PathError, PathKind};
use crate::units::{ByteCount, DeviceIndex};

/// A queue pair on each of a few controllers.
pub struct SpdkPath {
    pub(super) queues: Vec<QueuePair>,
    capabilities: Capabilities,
    pub(super) gate: Gate,
    pub(super) slots: Slots,
    /// Shares of the devices.
    shares: Shares,
    pub(super) flights: CommandsInFlight,
    /// Slots whose operation waits for room in its queue pair.
    pub(super) waiting: WaitingSlots,
    /// Pools that are reachable by every controller: where they lie, and those that we must
    /// unregister.
    reachable: Vec<(usize, usize)>,
    registered: Vec<DmaPool>,
    /// Memory of other devices.
    peers: SpdkPeers,
    waker: Waker,
    pub(super) timeout: Duration,
    pub(super) looks: TimeoutScan,
    pub(super) timeouts: Arc<TimeoutCounters>,
    polled: Polled,
    /// The device that is polled next.
    turn: usize,
    /// Guards that keep the controllers from other pools.
    joined: Vec<Joined>,
}

/// Number of empty polls after which the clock is looked at, and other threads of this core have
/// their turn; after so long it sleeps.
const SPINS: u32 = 64;
const SPIN_TIME: Duration = Duration::from_millis(10);
/// The shortest sleep that there is.
const NAP: Duration = Duration::from_millis(1);

impl SpdkPath {
    /// Opens a queue pair on each controller, for this thread, with room for `depth` operations on
    /// each.
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
        let mut notes = vec![environment.describe()];
        notes.extend(controllers.iter().flat_map(|it| it.facts().notes.clone()));
        let queues = controllers
            .into_iter()
            .map(|controller| QueuePair::new(controller, depth).map_err(unavailable))
            .collect::<Result<Vec<_>, _>>()?;
        let asked = depth;
        let depth = queues.iter().map(QueuePair::depth).min().unwrap_or(asked);
        for queue in queues.iter().filter(|queue| queue.depth() < asked) {
            let (name, depth) = (queue.name(), queue.depth());
            notes.push(format!(
                "{name} takes {depth} commands at once, not {asked}: its queues have {} entries",
                depth + 1
            ));
        }
        let depth = depth.saturating_mul(queues.len() as u32);
        let capabilities = Capabilities {
            memory: MemoryKinds { peer: true, gpu: false },
            priorities: false,
            kind,
            devices,
            depth,
            registered_buffers: Feature::Off("no memory was registered yet".into()),
            registered_files: Feature::On,
            notes,
        };
        Ok(Self {
            gate: Gate::new(queues.len()),
            slots: Slots::new(depth),
            shares: Shares::new(depth as usize, queues.len()),
            flights: CommandsInFlight::new(depth),
            waiting: WaitingSlots::new(queues.len(), depth),
            reachable: Vec::new(),
            registered: Vec::new(),
            peers: SpdkPeers::new(),
            waker,
            timeout: command_timeout(),
            looks: TimeoutScan::new(),
            timeouts: Arc::default(),
            polled,
            turn: 0,
            joined: Vec::new(),
            queues,
            capabilities,
        })
    }

    /// Opens the path for a pool, which has the controllers alone: those that its devices are
    /// namespaces of.
    pub(super) fn of_pool(
        controllers: Vec<Arc<Controller>>,
        depth: u32,
    ) -> Result<Self, PathError> {
        static PATHS: AtomicU64 = AtomicU64::new(0);
        let number = PATHS.fetch_add(1, Ordering::Relaxed);
        let joined: Option<Vec<Joined>> = controllers.iter().map(|it| it.join(number)).collect();
        let joined = joined.ok_or_else(|| {
            let reason = AttachError::OtherPool.to_string();
            PathError::Unavailable { kind: PathKind::Spdk, reason }
        })?;
        let mut path = Self::new(controllers, depth)?;
        path.joined = joined;
        Ok(path)
    }

    /// Returns the counters of aborts and resets.
    pub fn timeouts(&self) -> Arc<TimeoutCounters> {
        Arc::clone(&self.timeouts)
    }

    /// Lets the next `count` commands of one kind fail, or never be answered before `held` has
    /// passed: SPDK's own error injection, for tests of what is above.
    pub fn inject(
        &self,
        device: DeviceIndex,
        kind: OperationKind,
        count: u32,
        (code_type, code): (u8, u8),
        held: Option<Duration>,
    ) -> io::Result<()> {
        let queue = self.queues.get(usize::from(device.0));
        let queue = queue.ok_or(io::ErrorKind::NotFound)?;
        queue.inject(kind, count, (code_type, code), held)
    }

    /// Sends a new operation, behind those that wait already.
    fn start(&mut self, slot: u32, device: usize) {
        if !self.waiting.is_empty(device) || !self.send(slot) {
            self.flights.get(slot).waiting.set(true);
            self.waiting.join(device, slot);
        }
    }

    /// Sends what there is room for. Returns whether nothing is left to be sent.
    fn send(&mut self, slot: u32) -> bool {
        let Some(operation) = self.slots.get_mut(slot) else { return true };
        let flight = self.flights.get(slot);
        let queue = &self.queues[usize::from(operation.device.0)];
        // SPDK may answer from within the call, and must not take that for the end.
        flight.waiting.set(true);
        while let Some(step) = flight.unsent.get().peek() {
            flight.outstanding.set(flight.outstanding.get() + 1);
            let sent = queue.send(operation, step, flight, &self.peers);
            if matches!(sent, Sent::Yes) {
                flight.sent(step);
                continue;
            }
            flight.outstanding.set(flight.outstanding.get() - 1);
            match sent {
                Sent::Full => return false,
                Sent::Refused(status) => flight.fail(status),
                Sent::Yes => {}
            }
        }
        flight.leave_waiting();
        true
    }

    /// Processes what one controller has answered, and lets it see what is new.
    fn process(&mut self, device: usize) {
        match self.queues[device].process() {
            TimeoutCheck::Same => {}
            looked => self.timeout(device, looked),
        }
        while let Some(slot) = self.waiting.first(device)
            && self.send(slot)
        {
            self.waiting.leave_first(device);
        }
    }

    /// Polls one controller after the other, from where it ended last, until something has landed.
    /// The others go on with what they have while that is seen to: processed together, all would
    /// wait for new work together.
    fn process_until_landed(&mut self) {
        self.polled.go_on();
        for _ in 0..self.queues.len() {
            if self.flights.has_completed() {
                return;
            }
            self.process(self.turn);
            self.turn += 1;
            if self.turn == self.queues.len() {
                self.turn = 0;
            }
        }
    }

    /// The completion of a slot whose commands are all back.
    fn complete(&mut self, slot: u32) -> Option<Completion> {
        let flight = self.flights.get(slot);
        let Operation { tag, device, extent, action, .. } = self.slots.take(slot)?;
        self.shares.release(device);
        let kind = action.kind();
        let queue = &self.queues[usize::from(device.0)];
        let result = flight.failure.get().map_or(Ok(()), |status| {
            let status = match flight.abort_stage.get() {
                // Whatever it was answered then, it was late.
                AbortStage::TimedOut => Status::Errno(libc::ETIMEDOUT),
                _ if status.is_ended_by_driver() && queue.is_lost() => Status::Errno(libc::ENODEV),
                AbortStage::None
                    if status.is_ended_by_driver()
                        && queue.is_moving()
                        && queue.is_connection() =>
                {
                    Status::Errno(libc::ECONNRESET)
                }
                AbortStage::Asked if status.is_ended_by_driver() => Status::Errno(libc::ECANCELED),
                _ => status,
            };
            let error = DeviceError { device, kind, extent, status };
            // What was aborted before the device heard of it has changed nothing there.
            if flight.was_sent() || !status.is_aborted() {
                self.gate.judge(error);
            }
            Err(error)
        });
        let mut memory = action.into_memory();
        if flight.was_abandoned() {
            std::mem::forget(memory.take());
        }
        Some(Completion { tag, memory, checksum: None, result })
    }

    /// Returns whether every controller can reach the operation's buffer.
    fn can_reach(&self, operation: &Operation) -> bool {
        let needed = self.queues[usize::from(operation.device.0)].needs_registered_memory();
        let Some(memory) = operation.action.memory() else { return true };
        let (kind, start, length) = memory.span();
        if kind != MemoryKind::Host {
            return self.peers.way_to(memory).is_some();
        }
        let holds = |&(base, size): &(usize, usize)| start >= base && start + length <= base + size;
        !needed || self.reachable.iter().any(holds)
    }

    /// Returns whether nothing is in flight, and no device is to come back.
    fn is_idle(&self) -> bool {
        self.slots.in_flight() == 0 && !self.queues.iter().any(QueuePair::is_moving)
    }

    fn steps(&self, operation: &Operation) -> Steps {
        let limits = self.queues[usize::from(operation.device.0)].limits();
        let (offset, length) = (operation.extent.offset.0, operation.extent.length.0);
        match &operation.action {
            Action::Read(memory) | Action::Write { memory, .. } => {
                let limits = match self.peers.way_to(memory) {
                    Some(CommandAddresses::Bus { .. }) => limits.at_most(BY_BUS_MAX.0),
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

// SAFETY: an accepted operation stays in its slot, with its buffer, until SPDK has answered its
// last command; `drop` leaks what is left, and the queue pairs with it. Success is claimed only
// when every command that the extent was cut into succeeded, and an NVMe command that succeeds has
// moved everything.
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

    fn submit(&mut self, operation: Operation) -> Result<(), Refused> {
        if let Err(reason) = self.gate.admit(&self.capabilities, &operation) {
            return Err(Refused { reason, operation });
        }
        if !self.can_reach(&operation) {
            let reason = Refusal::Invalid(
                "the controller cannot reach the buffer: its memory was not registered",
            );
            return Err(Refused { reason, operation });
        }
        if self.shares.left_for(operation.device) == 0 {
            return Err(Refused { reason: Refusal::Full, operation });
        }
        let (steps, device) = (self.steps(&operation), usize::from(operation.device.0));
        self.shares.take(operation.device);
        let (slot, _) = self.slots.keep(operation);
        self.flights.get(slot).begin(steps, self.looks.count());
        self.start(slot, device);
        Ok(())
    }

    fn ring(&mut self) -> io::Result<()> {
        // Submissions are seen when the queue pair is next polled.
        self.polled.go_on();
        for device in 0..self.queues.len() {
            self.process(device);
        }
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> usize {
        if self.is_idle() {
            return 0;
        }
        // What has landed while it was waited for is enough for now.
        self.process_until_landed();
        self.look_over();
        let before = completions.len();
        while let Some(slot) = self.flights.take_completed() {
            if let Some(completion) = self.complete(slot) {
                completions.push(completion);
            }
        }
        completions.len() - before
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.polled.go_on();
        if self.is_idle() {
            return self.waker.sleep(timeout).map(drop);
        }
        // Read when there was nothing for some time: mostly there is something soon.
        let mut begun = None;
        let mut spins = 0_u32;
        loop {
            self.process_until_landed();
            if self.flights.has_completed() || self.waker.was_woken() || self.is_idle() {
                return Ok(());
            }
            spins += 1;
            if spins < SPINS {
                continue;
            }
            // Only now: a hypervisor may take each pause for a lock's, and stop the guest.
            std::hint::spin_loop();
            self.look_over();
            let waited = begun.get_or_insert_with(Instant::now).elapsed();
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
        if self.slots.in_flight() == 0 && !self.queues.iter().any(QueuePair::is_dead) {
            for pool in &self.registered {
                queue::unregister(pool.span());
            }
            self.peers.unregister();
            return;
        }
        // A controller may still write the buffers, and SPDK will still call back: all of it stays.
        self.slots.leak();
        std::mem::forget(std::mem::replace(&mut self.flights, CommandsInFlight::new(0)));
        self.queues.drain(..).for_each(QueuePair::leak);
        self.registered.drain(..).for_each(std::mem::forget);
        std::mem::forget(std::mem::replace(&mut self.peers, SpdkPeers::new()));
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
