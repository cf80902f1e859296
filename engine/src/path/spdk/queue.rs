//! A queue pair: sending commands, polling, and the ways to get commands back that do not come by themselves.

use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidelog_spdk_sys as sys;

use super::command::Command;
use super::controller::{CONNECT, Controller, Reach};
use super::environment::errno;
use super::flight::{Flight, completed};
use super::group::Group;
use super::log::{Said, unheard};
use super::peer::{PageLists, Peers, Reach as MemoryReach};
use crate::memory::{Backing, DmaPool};
use crate::path::nvme::steps::{Limits, Step};
use crate::path::{Action, Operation, OperationKind, PlacementHandle, Status};

/// Commands that SPDK keeps ready for each operation in flight: its own cuts at boundaries of the medium, and what
/// waits for room on the controller.
const REQUESTS_EACH: u32 = 8;
/// Answers that are taken in before the caller may send something new. Were there no limit, a controller could have nothing to do
/// until all that it has answered was seen to; with fewer, its doorbells are rung too often.
const TAKEN_MAX: u32 = 16;
/// Without a limit.
const ALL: u32 = 0;

/// A queue pair of the thread that made it.
pub(super) struct Queue {
    pair: NonNull<sys::spdk_nvme_qpair>,
    /// Polls the pair, if it is a connection.
    group: Option<Group>,
    controller: Arc<Controller>,
    /// As many commands as it takes at once.
    depth: u32,
    state: State,
    /// Kinds of commands for which errors were injected.
    injected: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Working,
    /// The controller, or the connection to it, is gone; commands that were outstanding come back by draining it.
    Lost,
    /// As lost, and commands may still be on a controller that could not be stopped.
    Dead,
}

/// What sending a command came to.
pub(super) enum Sent {
    Yes,
    /// There is no room now.
    Full,
    Refused(Status),
}

impl Queue {
    pub(super) fn new(controller: Arc<Controller>, depth: u32) -> Result<Self, String> {
        let connects = matches!(controller.facts().reach, Reach::Connection { .. });
        let group = connects.then(Group::new).transpose()?;
        let depth = depth.min(controller.queue_entries() - 1).max(1);
        let mut options = sys::spdk_nvme_io_qpair_opts::default();
        let size = size_of::<sys::spdk_nvme_io_qpair_opts>();
        let mut said = Said::default();
        // SAFETY: the controller is attached; SPDK fills in, and reads, as much of the structure as it is told.
        let create = |handle| unsafe {
            sys::spdk_nvme_ctrlr_get_default_io_qpair_opts(handle, &raw mut options, size);
            // A queue of so many entries holds one command less. More than the controller has is refused by it.
            options.io_queue_size = options.io_queue_size.max(depth + 1);
            options.io_queue_size = options.io_queue_size.min(controller.queue_entries());
            options.io_queue_requests =
                options.io_queue_requests.max(depth.saturating_mul(REQUESTS_EACH));
            options.__bindgen_anon_1.delay_cmd_submit = true;
            // It is connected when it is in its group, where SPDK would wait for ever for one that is refused.
            options.create_only = connects;
            options.async_mode = connects;
            sys::spdk_nvme_ctrlr_alloc_io_qpair(handle, &raw const options, size)
        };
        let pair = said.hear(|| controller.alone(create));
        let pair = NonNull::new(pair).ok_or_else(|| {
            let name = &controller.facts().name;
            format!("{name} gives no queue pair; all may be in use{}", said.reason())
        })?;
        let (state, injected) = (State::Working, Vec::new());
        let queue = Self { pair, group, controller, depth, state, injected };
        if let Some(group) = &queue.group {
            said.hear(|| queue.connect(group)).map_err(|why| why + &said.reason())?;
        }
        Ok(queue)
    }

    fn connect(&self, group: &Group) -> Result<(), String> {
        let (pair, handle) = (self.pair.as_ptr(), group.handle());
        // SAFETY: pair and group are this thread's. The pair leaves the group when it is freed.
        let mut answer = self.controller.alone(|controller| unsafe {
            match sys::spdk_nvme_poll_group_add(handle, pair) {
                0 => sys::spdk_nvme_ctrlr_connect_io_qpair(controller, pair),
                failed => failed,
            }
        });
        let until = Instant::now() + CONNECT;
        while answer == 0 {
            group.process();
            // SAFETY: as above. A refusal shows at the pair alone.
            let (connected, polled) = unsafe {
                (
                    sys::spdk_nvme_poll_group_all_connected(handle),
                    sys::spdk_nvme_qpair_process_completions(pair, 0),
                )
            };
            answer = match connected {
                0 => return Ok(()),
                connecting if connecting != -libc::EAGAIN => connecting,
                _ if Instant::now() > until => -libc::ETIMEDOUT,
                _ => polled.min(0),
            };
            std::thread::yield_now();
        }
        Err(format!("{} connects no queue pair: {}", self.name(), errno(answer)))
    }

    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    pub(super) fn limits(&self) -> Limits {
        self.controller.facts().limits
    }

    /// Whether the device answers no more.
    pub(super) fn is_lost(&self) -> bool {
        self.state != State::Working
    }

    /// Whether commands may still be on the controller, and will never be heard of.
    pub(super) fn is_dead(&self) -> bool {
        self.state == State::Dead
    }

    pub(super) fn name(&self) -> &str {
        &self.controller.facts().name
    }

    /// Whether the controller reads and writes memory itself.
    pub(super) fn is_on_the_bus(&self) -> bool {
        self.controller.facts().reach == Reach::Bus
    }

    pub(super) fn needs_registered_memory(&self) -> bool {
        self.controller.facts().reach != Reach::Connection { by_socket: true }
    }

    /// Sends one command of an operation that lies in its slot.
    pub(super) fn send(
        &self,
        operation: &mut Operation,
        step: Step,
        flight: &Flight,
        peers: &Peers,
    ) -> Sent {
        if self.is_lost() {
            return Sent::Refused(Status::Errno(libc::ENODEV));
        }
        let (namespace, pair) = (self.controller.namespace(), self.pair.as_ptr());
        let (context, Step { lba, blocks, skipped }) = (flight.context(), step);
        let skipped = skipped as usize * self.limits().block as usize;
        let callback = Some(completed as unsafe extern "C" fn(_, _));
        let placement = operation.placement;
        // SAFETY: the pair is this thread's and the namespace its controller's. The buffer is at least as long as
        // the extent that the step was cut from, and both it and the flight stay where they are until the command
        // has come back (see the path's impl). SPDK copies the range to deallocate.
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
                        self.by_bus(command, lists, offset, step, context)
                    }
                    None => -libc::EFAULT,
                },
                Action::Write { memory, fua } => match peers.way_to(memory) {
                    Some(MemoryReach::Translated) => {
                        let bytes = memory.address().add(skipped).cast::<c_void>();
                        self.write(bytes, step, *fua, placement, context)
                    }
                    Some(MemoryReach::Bus { lists, offset }) => {
                        let mut command = self.command(sys::SPDK_NVME_OPC_WRITE, step, *fua);
                        if let Some(identifier) = self.placement_identifier(placement) {
                            command = command.placed(identifier);
                        }
                        self.by_bus(command, lists, offset, step, context)
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
            errno => Sent::Refused(Status::Errno(errno)),
        }
    }

    /// Writes, by a placement handle where one is named.
    ///
    /// # Safety
    /// As for [`Self::send`]: the bytes stay, and are the command's alone, until it has come back.
    unsafe fn write(
        &self,
        bytes: *mut c_void,
        step: Step,
        fua: bool,
        placement: Option<PlacementHandle>,
        context: *mut c_void,
    ) -> i32 {
        let (namespace, pair) = (self.controller.namespace(), self.pair.as_ptr());
        let callback = Some(completed as unsafe extern "C" fn(_, _));
        let Some(identifier) = self.placement_identifier(placement) else {
            let Step { lba, blocks, .. } = step;
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

    /// Reads or writes device memory, from `start` of its region on, for which SPDK has no translation.
    ///
    /// # Safety
    /// As for [`Self::send`]: the buffer stays, and is the command's alone, until it has come back.
    unsafe fn by_bus(
        &self,
        command: Command,
        lists: &PageLists,
        start: usize,
        step: Step,
        context: *mut c_void,
    ) -> i32 {
        let block = self.limits().block as usize;
        let offset = start + step.skipped as usize * block;
        let Some(fields) = lists.fields(offset, step.blocks as usize * block) else {
            return -libc::EFAULT;
        };
        let mut command = command.pages(fields);
        // SAFETY: the command names pages of the buffer only, which lies within its region; the rest is by the
        // contract. SPDK copies the command.
        unsafe {
            sys::spdk_nvme_ctrlr_io_cmd_raw_no_payload_build(
                self.controller.handle(),
                self.pair.as_ptr(),
                command.as_mut_ptr(),
                Some(completed as unsafe extern "C" fn(_, _)),
                context,
            )
        }
    }

    fn command(&self, opcode: u32, step: Step, fua: bool) -> Command {
        // SAFETY: the namespace is the controller's.
        let namespace = unsafe { sys::spdk_nvme_ns_get_id(self.controller.namespace()) };
        Command::new(opcode, namespace, step, fua)
    }

    /// What a write carries to name a placement handle.
    fn placement_identifier(&self, handle: Option<PlacementHandle>) -> Option<u16> {
        self.controller.facts().placement.get(usize::from(handle?.0)).copied()
    }

    /// Takes in what was answered. Answers whether the device was just lost.
    pub(super) fn process(&mut self) -> bool {
        if self.is_lost() || self.poll(TAKEN_MAX) {
            return false;
        }
        self.state = State::Lost;
        true
    }

    /// Takes in what SPDK ends of itself on a queue pair that is lost. One that is dead is never polled again: its
    /// flights were abandoned.
    pub(super) fn drain(&self) {
        if !self.is_dead() {
            unheard(|| self.poll(ALL));
        }
    }

    /// Takes in so many answers, or all of a connection's group. Answers whether the controller is there.
    fn poll(&self, at_most: u32) -> bool {
        match &self.group {
            Some(group) => !group.process(),
            // SAFETY: the pair is this thread's.
            None => unsafe {
                sys::spdk_nvme_qpair_process_completions(self.pair.as_ptr(), at_most) >= 0
            },
        }
    }

    /// Asks for the commands of a flight back.
    pub(super) fn abort(&self, flight: &Flight) {
        if self.controller.facts().reach == Reach::Process {
            // SPDK looks for the commands through a function that its vfio-user transport does not have: it would
            // call address 0.
            return;
        }
        let pair = self.pair.as_ptr();
        // SAFETY: the pair is this thread's; the context is only compared. That the abort was done interests nobody:
        // the command itself comes back, or times out.
        self.controller.alone(|handle| unsafe {
            sys::spdk_nvme_ctrlr_cmd_abort_ext(
                handle,
                pair,
                flight.context(),
                Some(ignored as unsafe extern "C" fn(_, _)),
                std::ptr::null_mut(),
            )
        });
    }

    /// Makes a controller that does not answer let go of the commands that are outstanding. A last resort, which takes
    /// its time.
    pub(super) fn recall(&mut self) {
        match self.controller.facts().reach {
            Reach::Bus if self.reset() => {}
            Reach::Connection { .. } => {
                // SAFETY: the pair is this thread's. With its connection closed nothing arrives any more.
                unheard(|| unsafe { sys::spdk_nvme_ctrlr_disconnect_io_qpair(self.pair.as_ptr()) });
                self.state = State::Lost;
            }
            Reach::Bus | Reach::Process => self.give_up(),
        }
    }

    /// What is outstanding will never be heard of.
    pub(super) fn give_up(&mut self) {
        self.state = State::Dead;
        self.controller.give_up();
    }

    /// Leaves it to the driver for good.
    pub(super) fn leak(self) {
        self.controller.give_up();
        std::mem::forget(self);
    }

    /// Resets the controller, so that it lets go of everything.
    fn reset(&self) -> bool {
        let pair = self.pair.as_ptr();
        // SAFETY: nobody else uses the controller meanwhile: its own queue is locked, and whoever has another queue pair
        // (`Controller::reclaim_unit_handles`) uses it under the same lock, and finds it lost afterwards. What was in
        // flight comes back when the pair is polled again.
        self.controller.alone(|handle| unsafe {
            sys::spdk_nvme_ctrlr_reset(handle) == 0
                && sys::spdk_nvme_qpair_process_completions(pair, 0) >= 0
        })
    }

    pub(super) fn inject(
        &mut self,
        kind: OperationKind,
        count: u32,
        (code_type, code): (u8, u8),
        held: Option<Duration>,
    ) -> io::Result<()> {
        let command = match kind {
            OperationKind::Read => sys::SPDK_NVME_OPC_READ,
            OperationKind::Write => sys::SPDK_NVME_OPC_WRITE,
            OperationKind::WriteZeroes => sys::SPDK_NVME_OPC_WRITE_ZEROES,
            OperationKind::Flush => sys::SPDK_NVME_OPC_FLUSH,
            OperationKind::Deallocate => sys::SPDK_NVME_OPC_DATASET_MANAGEMENT,
        } as u8;
        let pair = self.pair.as_ptr();
        let held_us = held.map_or(0, |held| held.as_micros() as u64);
        // SAFETY: the pair is this thread's and belongs to the controller.
        let answer = self.controller.alone(|handle| unsafe {
            sys::spdk_nvme_qpair_add_cmd_error_injection(
                handle,
                pair,
                command,
                held.is_some(),
                held_us,
                count,
                code_type,
                code,
            )
        });
        self.injected.push(command);
        if answer == 0 { Ok(()) } else { Err(errno(answer)) }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.is_dead() {
            // The controller may still use the pair, which goes with it if it is detached.
            return std::mem::forget(Arc::clone(&self.controller));
        }
        let pair = self.pair.as_ptr();
        // SAFETY: the pair is this thread's, and nothing is in flight on it (see the path's drop).
        let free = |handle| unsafe {
            for &command in &self.injected {
                sys::spdk_nvme_qpair_remove_cmd_error_injection(handle, pair, command);
            }
            sys::spdk_nvme_ctrlr_free_io_qpair(pair)
        };
        unheard(|| self.controller.alone(free));
    }
}

unsafe extern "C" fn ignored(_: *mut c_void, _: *const sys::spdk_nvme_cpl) {}

/// Makes memory known to the controllers of these queues. A success that SPDK reports may still leave an IOMMU
/// without it, so its translation is looked at as well; and it may be of memory that another process cannot map.
pub(super) fn register(base: *mut u8, length: usize, queues: &[Queue]) -> Result<(), String> {
    if !queues.iter().any(Queue::needs_registered_memory) {
        return Ok(());
    }
    // The process could not map it, as there is no file behind it.
    if queues.iter().any(|queue| queue.controller.facts().reach == Reach::Process) {
        return Err("another process has the controller, and maps SPDK's own memory alone; take it from the path instead".into());
    }
    // SAFETY: the memory is mapped, and stays so until it was unregistered: the path keeps the pool.
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

/// The same of a pool, which must stay where it is as long as controllers reach it.
pub(super) fn register_pool(region: &DmaPool, queues: &[Queue]) -> Result<(), String> {
    // SAFETY: it only looks at what was found when the environment was started.
    let translated = unsafe { sys::spdk_iommu_is_enabled() };
    // The kernel moves other pages whenever it likes, huge ones that it made by itself, too.
    if queues.iter().any(Queue::is_on_the_bus)
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
