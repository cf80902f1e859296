//! A queue to a controller: sending commands, polling, and the ways to get commands back that do
//! not come by themselves.

use std::cell::Cell;
use std::ffi::c_void;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tidelog_spdk_sys as sys;

use super::command::SpdkCommand;
use super::controller::{Controller, DmaIsolation, Phase};
use super::environment::errno;
use super::flight::{CommandInFlight, completed};
use super::pair::Pair;
use super::peer::{CommandAddresses as MemoryReach, PageLists, SpdkPeers};
use super::timeout::TimeoutCounters;
use crate::memory::{Backing, DmaPool};
use crate::path::nvme::steps::{CommandStep, Limits};
use crate::path::{Action, Operation, OperationKind, PlacementHandle, Status};

/// Completions that are processed before the caller may send something new. Were there no limit, a
/// controller could have nothing to do until all that it has answered was seen to; with fewer, its
/// doorbells are rung too often.
const TAKEN_MAX: u32 = 16;
/// Number of times that a controller that was started again may refuse a queue pair before it is
/// given up.
const TRIES: u32 = 3;

/// A thread's queue to a controller.
pub(super) struct QueuePair {
    /// Queue pair; none exists between two connections, or while the controller is started again.
    pair: Option<Pair>,
    controller: Arc<Controller>,
    /// Number of commands that it takes at once.
    depth: u32,
    state: State,
    /// True if the pair has refused a command because it is not connected any more.
    disconnected: Cell<bool>,
    /// Attempts to have a pair again that may still fail.
    tries: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Working,
    /// The controller is stopped and started again, and a pair made anew.
    Returning,
    /// The controller has failed, and is being stopped, so that it lets go of what it has. Then
    /// this is lost.
    Leaving,
    /// The controller, or the connection to it, is gone for good.
    Lost,
    /// The queue is lost, and commands may still be on a controller that could not be stopped.
    Dead,
}

/// Result of a check for time-outs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimeoutCheck {
    /// All is as it was.
    Same,
    /// The controller no longer responds.
    Failed,
    /// The controller is being reset: for another namespace, or because its own queue has failed.
    Reset,
    /// The queue is dead from now on.
    Died,
}

/// Result of sending a command.
pub(super) enum Sent {
    Yes,
    /// The queue is full.
    Full,
    Refused(Status),
}

impl QueuePair {
    /// A queue that takes commands.
    pub(super) fn new(controller: Arc<Controller>, depth: u32) -> Result<Self, String> {
        let depth = depth.min(controller.queue_entries() - 1).max(1);
        let (state, disconnected) = (State::Returning, Cell::new(false));
        let mut queue = Self { pair: None, controller, depth, state, disconnected, tries: TRIES };
        while queue.state != State::Working {
            let phase = queue.controller.phase();
            if phase == Phase::Gone {
                // Perhaps whoever comes next finds it there.
                queue.controller.reset();
            }
            if phase != Phase::Up {
                return Err(format!("{} does not answer now; it is being reset", queue.name()));
            }
            queue.go_on_returning()?;
            std::thread::yield_now();
        }
        Ok(queue)
    }

    /// Goes a step on to where it takes commands again. An error is why it does not, for now.
    fn go_on_returning(&mut self) -> Result<(), String> {
        match self.controller.phase() {
            // What was in flight on a controller on the bus ends here.
            Phase::Stopped => self.pair = None,
            Phase::Stopping | Phase::Starting => {}
            Phase::Gone => {
                self.pair = None;
                self.state = State::Lost;
                return Err(format!("{} does not come back", self.name()));
            }
            Phase::Stuck => {
                self.give_up();
                return Err(format!("{} could not be stopped", self.name()));
            }
            Phase::Up => {
                let pair = match self.pair.take() {
                    Some(pair) => pair,
                    None => Pair::new(&self.controller, self.depth)?,
                };
                if self.pair.insert(pair).connect()? {
                    self.state = State::Working;
                    self.tries = TRIES;
                }
            }
        }
        Ok(())
    }

    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    pub(super) fn limits(&self) -> Limits {
        self.controller.facts().limits
    }

    /// Returns whether the device no longer responds.
    pub(super) fn is_lost(&self) -> bool {
        matches!(self.state, State::Lost | State::Dead)
    }

    /// Returns whether commands may still be on the controller, and will never be heard of.
    pub(super) fn is_dead(&self) -> bool {
        self.state == State::Dead
    }

    /// Returns whether something becomes of it without a command: it takes commands again, or is
    /// lost.
    pub(super) fn is_moving(&self) -> bool {
        matches!(self.state, State::Returning | State::Leaving)
    }

    /// Returns whether what is in flight ends with a connection.
    pub(super) fn is_connection(&self) -> bool {
        matches!(self.controller.facts().reach, DmaIsolation::Connection { .. })
    }

    pub(super) fn name(&self) -> &str {
        &self.controller.facts().name
    }

    /// Returns whether the controller reads and writes memory itself.
    pub(super) fn is_on_the_bus(&self) -> bool {
        self.controller.facts().reach == DmaIsolation::Bus
    }

    pub(super) fn needs_registered_memory(&self) -> bool {
        self.controller.facts().reach != DmaIsolation::Connection { by_socket: true }
    }

    /// Sends one command of an operation that lies in its slot.
    pub(super) fn send(
        &self,
        operation: &mut Operation,
        step: CommandStep,
        flight: &CommandInFlight,
        peers: &SpdkPeers,
    ) -> Sent {
        let pair = match (&self.pair, self.state) {
            (_, State::Lost | State::Dead) => return Sent::Refused(Status::Errno(libc::ENODEV)),
            (Some(pair), State::Working) if self.controller.phase() == Phase::Up => pair.handle(),
            _ => return Sent::Full,
        };
        let namespace = self.controller.namespace();
        let (context, CommandStep { lba, blocks, skipped }) = (flight.context(), step);
        let skipped = skipped as usize * self.limits().block as usize;
        let callback = Some(completed as unsafe extern "C" fn(_, _));
        let placement = operation.placement;
        // SAFETY: the pair is this thread's and the namespace its controller's. The buffer is at
        // least as long as the extent that the step was cut from, and both it and the flight stay
        // where they are until the command has come back (see the path's impl). SPDK copies the
        // range to deallocate.
        let answer = unsafe {
            match &mut operation.action {
                Action::Read(memory) => match peers.way_to(memory) {
                    Some(MemoryReach::Translated) => {
                        let bytes = memory.address().add(skipped).cast::<c_void>();
                        sys::spdk_nvme_ns_cmd_read(
                            namespace, pair, bytes, lba, blocks, callback, context, 0,
                        )
                    }
                    Some(MemoryReach::Bus { lists, offset }) => {
                        let command = self.command(sys::SPDK_NVME_OPC_READ, step, false);
                        self.by_bus(pair, command, lists, offset, step, context)
                    }
                    None => -libc::EFAULT,
                },
                Action::Write { memory, fua } => match peers.way_to(memory) {
                    Some(MemoryReach::Translated) => {
                        let bytes = memory.address().add(skipped).cast::<c_void>();
                        self.write(pair, bytes, step, *fua, placement, context)
                    }
                    Some(MemoryReach::Bus { lists, offset }) => {
                        let mut command = self.command(sys::SPDK_NVME_OPC_WRITE, step, *fua);
                        if let Some(identifier) = self.placement_identifier(placement) {
                            command = command.placed(identifier);
                        }
                        self.by_bus(pair, command, lists, offset, step, context)
                    }
                    None => -libc::EFAULT,
                },
                Action::WriteZeroes if self.controller.facts().write_zeroes => {
                    sys::spdk_nvme_ns_cmd_write_zeroes(
                        namespace, pair, lba, blocks, callback, context, 0,
                    )
                }
                Action::WriteZeroes => -libc::EOPNOTSUPP,
                Action::Flush => sys::spdk_nvme_ns_cmd_flush(namespace, pair, callback, context),
                Action::Deallocate => {
                    let range = sys::spdk_nvme_dsm_range {
                        starting_lba: lba,
                        length: blocks,
                        ..Default::default()
                    };
                    sys::spdk_nvme_ns_cmd_dataset_management(
                        namespace,
                        pair,
                        sys::SPDK_NVME_DSM_ATTR_DEALLOCATE,
                        &raw const range,
                        1,
                        callback,
                        context,
                    )
                }
            }
        };
        match -answer {
            0 => Sent::Yes,
            libc::ENOMEM | libc::EAGAIN => Sent::Full,
            libc::ENXIO if self.is_connection() => {
                self.disconnected.set(true);
                Sent::Full
            }
            errno => Sent::Refused(Status::Errno(errno)),
        }
    }

    /// Writes, by a placement handle where one is named.
    ///
    /// # Safety
    /// As for [`Self::send`]: the bytes stay, and are the command's alone, until it has come back.
    unsafe fn write(
        &self,
        pair: *mut sys::spdk_nvme_qpair,
        bytes: *mut c_void,
        step: CommandStep,
        fua: bool,
        placement: Option<PlacementHandle>,
        context: *mut c_void,
    ) -> i32 {
        let namespace = self.controller.namespace();
        let callback = Some(completed as unsafe extern "C" fn(_, _));
        let Some(identifier) = self.placement_identifier(placement) else {
            let CommandStep { lba, blocks, .. } = step;
            let flags = if fua { sys::SPDK_NVME_IO_FLAGS_FORCE_UNIT_ACCESS } else { 0 };
            // SAFETY: by the contract.
            return unsafe {
                sys::spdk_nvme_ns_cmd_write(
                    namespace, pair, bytes, lba, blocks, callback, context, flags,
                )
            };
        };
        let mut command = self.command(sys::SPDK_NVME_OPC_WRITE, step, fua).placed(identifier);
        // SAFETY: by the contract. SPDK copies the command, and translates the bytes.
        unsafe {
            sys::spdk_nvme_ctrlr_cmd_io_raw(
                self.controller.handle(),
                pair,
                command.as_mut_ptr(),
                bytes,
                step.blocks * self.limits().block,
                callback,
                context,
            )
        }
    }

    /// Reads or writes device memory, from `start` of its region on, for which SPDK has no
    /// translation.
    ///
    /// # Safety
    /// As for [`Self::send`]: the buffer stays, and is the command's alone, until it has come back.
    unsafe fn by_bus(
        &self,
        pair: *mut sys::spdk_nvme_qpair,
        command: SpdkCommand,
        lists: &PageLists,
        start: usize,
        step: CommandStep,
        context: *mut c_void,
    ) -> i32 {
        let block = self.limits().block as usize;
        let offset = start + step.skipped as usize * block;
        let Some(fields) = lists.fields(offset, step.blocks as usize * block) else {
            return -libc::EFAULT;
        };
        let mut command = command.pages(fields);
        // SAFETY: the command names pages of the buffer only, which lies within its region; the
        // rest is by the contract. SPDK copies the command.
        unsafe {
            sys::spdk_nvme_ctrlr_io_cmd_raw_no_payload_build(
                self.controller.handle(),
                pair,
                command.as_mut_ptr(),
                Some(completed as unsafe extern "C" fn(_, _)),
                context,
            )
        }
    }

    fn command(&self, opcode: u32, step: CommandStep, fua: bool) -> SpdkCommand {
        // SAFETY: the namespace is the controller's.
        let namespace = unsafe { sys::spdk_nvme_ns_get_id(self.controller.namespace()) };
        SpdkCommand::new(opcode, namespace, step, fua)
    }

    /// Returns the placement identifier of a write for a placement handle.
    fn placement_identifier(&self, handle: Option<PlacementHandle>) -> Option<u16> {
        self.controller.facts().placement.get(usize::from(handle?.0)).copied()
    }

    /// Processes what was answered.
    pub(super) fn process(&mut self) -> TimeoutCheck {
        match (&self.pair, self.state) {
            (_, State::Lost | State::Dead) => return TimeoutCheck::Same,
            (Some(pair), State::Working) => {
                if self.controller.phase() != Phase::Up {
                    return if self.is_connection() {
                        TimeoutCheck::Failed
                    } else {
                        TimeoutCheck::Reset
                    };
                }
                let is_there = !self.disconnected.get() && pair.poll(TAKEN_MAX);
                return if is_there { TimeoutCheck::Same } else { TimeoutCheck::Failed };
            }
            _ => {}
        }
        if self.state == State::Leaving && self.controller.phase() != Phase::Stopping {
            return self.leave();
        }
        match self.go_on_returning() {
            Ok(()) => TimeoutCheck::Same,
            Err(_) if self.is_dead() => TimeoutCheck::Died,
            Err(_) if self.is_lost() => TimeoutCheck::Same,
            // The controller is there, and takes no pair: it is gone again.
            Err(_) if self.tries > 0 => {
                self.tries -= 1;
                self.recall();
                TimeoutCheck::Same
            }
            Err(_) => {
                self.state = State::Lost;
                TimeoutCheck::Same
            }
        }
    }

    /// Ends what is in flight on a controller that was stopped.
    fn leave(&mut self) -> TimeoutCheck {
        if self.controller.phase() == Phase::Stuck {
            self.give_up();
            return TimeoutCheck::Died;
        }
        self.pair = None;
        self.state = State::Lost;
        TimeoutCheck::Same
    }

    /// Asks for the commands of a flight back, and counts in `timeouts` whether the controller did
    /// so.
    pub(super) fn abort(&self, flight: &CommandInFlight, timeouts: &Arc<TimeoutCounters>) {
        // Over vfio-user SPDK looks for the commands through a function that this transport does
        // not have: it would call address 0.
        if self.controller.facts().reach != DmaIsolation::Process
            && self.state == State::Working
            && let Some(pair) = &self.pair
        {
            pair.abort(flight, timeouts);
        }
    }

    /// Makes a controller that does not answer let go of the commands that are outstanding: now,
    /// where they are a connection's, else once it was stopped. A last resort. Then it takes
    /// commands again.
    pub(super) fn recall(&mut self) {
        match self.controller.facts().reach {
            DmaIsolation::Bus => {}
            // With its connection closed nothing arrives any more.
            DmaIsolation::Connection { .. } => self.pair = None,
            DmaIsolation::Process => return self.give_up(),
        }
        self.disconnected.set(false);
        self.state = State::Returning;
        self.controller.reset();
    }

    /// The controller has failed, or is not there any more. It may have something that is in
    /// flight.
    pub(super) fn lose(&mut self, is_any_out: bool) {
        if !is_any_out {
            self.state = State::Lost;
            return;
        }
        self.recall();
        if self.state == State::Returning {
            self.state = State::Leaving;
        }
    }

    /// Gives up outstanding commands, which will never complete.
    pub(super) fn give_up(&mut self) {
        self.state = State::Dead;
        self.controller.give_up();
        // The controller may still use the pair, which goes with it if it is detached.
        std::mem::forget(self.pair.take());
        std::mem::forget(Arc::clone(&self.controller));
    }

    /// Leaves the queue pair to the driver for good.
    pub(super) fn leak(self) {
        self.controller.give_up();
        std::mem::forget(self);
    }

    pub(super) fn inject(
        &self,
        kind: OperationKind,
        count: u32,
        status: (u8, u8),
        held: Option<Duration>,
    ) -> io::Result<()> {
        let pair = self.pair.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        pair.inject(kind, count, status, held)
    }
}

/// Makes memory known to the controllers of these queues. A success that SPDK reports may still
/// leave an IOMMU without it, so its translation is looked at as well; and it may be of memory that
/// another process cannot map.
pub(super) fn register(base: *mut u8, length: usize, queues: &[QueuePair]) -> Result<(), String> {
    if !queues.iter().any(QueuePair::needs_registered_memory) {
        return Ok(());
    }
    // The process could not map it, as there is no file behind it.
    if queues.iter().any(|queue| queue.controller.facts().reach == DmaIsolation::Process) {
        return Err("another process has the controller, and maps SPDK's own memory alone; take it from the path instead".into());
    }
    // SAFETY: the memory is mapped, and stays so until it was unregistered: the path keeps the
    // pool.
    let answer = unsafe { sys::spdk_mem_register(base.cast(), length) };
    if answer != 0 {
        return Err(format!(
            "SPDK refuses the memory ({}); take it from the path instead",
            errno(answer)
        ));
    }
    let untranslated = (0..length).step_by(crate::memory::ALIGNMENT).any(|page| {
        let at = base.wrapping_add(page).cast();
        // SAFETY: the address is only looked up.
        let found = unsafe { sys::spdk_vtophys(at, std::ptr::null_mut()) };
        found == i64::from(sys::SPDK_VTOPHYS_ERROR).cast_unsigned()
    });
    if untranslated {
        unregister((base, length));
        return Err("the controllers have no address for the memory; without an IOMMU it must lie on huge pages".into());
    }
    Ok(())
}

/// Registers a pool, which must stay where it is as long as controllers reach it.
pub(super) fn register_pool(region: &DmaPool, queues: &[QueuePair]) -> Result<(), String> {
    // SAFETY: it only looks at what was found when the environment was started.
    let translated = unsafe { sys::spdk_iommu_is_enabled() };
    // The kernel moves other pages whenever it likes, huge ones that it made by itself, too.
    if queues.iter().any(QueuePair::is_on_the_bus)
        && !translated
        && region.backing() != Backing::HugeTlb
    {
        let backing = region.backing();
        return Err(format!(
            "without an IOMMU it must lie on huge pages, and it lies on {backing}"
        ));
    }
    let (base, length) = region.span();
    register(base, length, queues)
}

/// Takes the registration back.
pub(super) fn unregister((base, length): (*mut u8, usize)) {
    // SAFETY: it was registered like this, and nothing is in flight in it.
    unsafe { sys::spdk_mem_unregister(base.cast(), length) };
}
