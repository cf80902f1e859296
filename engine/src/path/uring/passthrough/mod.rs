//! NVMe passthrough: commands of our own through `io_uring` to whole namespaces that the kernel
//! drives, past its block layer (`IORING_OP_URING_CMD` on the generic character device).
//!
//! Operations are cut at what the device and the kernel take at once. The kernel tries no command
//! of ours again; where the status lets it be, we do, as often and after the delay that the block
//! layer would. A reset of the controller, which the block layer hides, fails what was in flight.
//! The kernel's own time-outs end commands that take too long; before that no command can be had
//! back. Where every device has poll queues, and the kernel is new enough, completions are looked
//! for (IOPOLL) instead of interrupting.

mod flight;
mod retry;
mod target;

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use io_uring::{cqueue, opcode, squeue, types};

use self::flight::PassthroughInFlight;
use self::retry::Retries;
use self::target::CommandTarget;
use super::SubmissionThread;
use super::probe::{ProbedRing, RingRequirements, kernel_is_at_least};
use super::queue::OwnedRing;
use crate::memory::{ALIGNMENT, DmaPool};
use crate::path::device::Device;
use crate::path::error::PathError;
use crate::path::gate::Gate;
use crate::path::kind::PathKind;
use crate::path::nvme::steps::{CommandStep, Steps};
use crate::path::nvme::{NvmeCommand, Opcode, Range, outcome};
use crate::path::operation::{Action, Completion, Extent, Operation, Refusal, Refused};
use crate::path::shares::Shares;
use crate::path::slots::{Slots, conclude};
use crate::path::{Capabilities, DataPath, Feature, MemoryKinds, Waker};
use crate::units::{ByteCount, DeviceIndex};

/// `NVME_URING_CMD_IO` of `<linux/nvme_ioctl.h>`: `_IOWR('N', 0x80, struct nvme_uring_cmd)`.
const NVME_URING_CMD_IO: u32 = 0xC048_4E80;

const KIND: PathKind = PathKind::UringCmd;

/// The first kernel that polls for commands of every kind. Linux 6.1 was seen to crash under a load
/// of them.
const POLLS_SINCE: (u32, u32) = (6, 5);

/// One ring to whole namespaces.
pub struct PassthroughPath {
    queue: OwnedRing<squeue::Entry128, cqueue::Entry32>,
    targets: Vec<CommandTarget>,
    capabilities: Capabilities,
    gate: Gate,
    slots: Slots,
    /// Operations in flight, by slot.
    flights: Box<[PassthroughInFlight]>,
    /// Ranges that a slot's operation deallocates, which the kernel reads.
    ranges: Box<[Range]>,
    /// Slots whose operation has commands that were not sent yet.
    waiting: VecDeque<u32>,
    /// Slots whose operation failed and is to be retried.
    retries: Retries,
    /// Commands that the kernel has.
    commands: u32,
    /// Shares of the devices.
    shares: Shares,
    /// Bytes of a registered buffer.
    run: usize,
    /// True if completions are looked for.
    polled: bool,
}

impl PassthroughPath {
    /// Opens the namespaces that `devices` are, with room for `depth` operations over all of them.
    pub fn new(
        devices: &[Device],
        depth: u32,
        submission: Option<SubmissionThread>,
    ) -> Result<Self, PathError> {
        let unavailable = |reason| PathError::Unavailable { kind: KIND, reason };
        let targets: Vec<CommandTarget> = devices
            .iter()
            .map(CommandTarget::find)
            .collect::<Result<_, _>>()
            .map_err(unavailable)?;
        let queues = targets.iter().all(CommandTarget::has_poll_queues);
        let polled = queues && kernel_is_at_least(POLLS_SINCE);
        let operations = &[("uring_cmd", opcode::UringCmd80::CODE)];
        let ring = ProbedRing::with(
            depth,
            &RingRequirements { kind: KIND, operations, since: "5.19", polled, submission },
        )?;
        let (depth, note) = (ring.depth, ring.note());
        let queue = OwnedRing::new(ring.uring, KIND)?;
        let descriptors: Vec<_> = targets.iter().map(|target| target.file.as_raw_fd()).collect();
        let polling = if polled {
            "completions are looked for (IOPOLL)"
        } else if queues {
            "completions interrupt: this kernel may crash when NVMe commands are polled for; Linux 6.5 or newer does not"
        } else {
            "completions interrupt: a device has no poll queues (nvme.poll_queues=N gives it some)"
        };
        let capabilities = Capabilities {
            memory: MemoryKinds::HOST,
            priorities: false,
            kind: KIND,
            devices: targets.iter().zip(devices).map(|(it, of)| it.capabilities(of)).collect(),
            depth,
            registered_buffers: Feature::Off("no memory was registered yet".into()),
            registered_files: queue.register_files(&descriptors),
            notes: vec![note, polling.into()],
        };
        let shortest = targets.iter().map(|target| target.limits.bytes()).min().unwrap_or_default();
        let mut path = Self {
            // The waker's completion and others need room, too; the ring has twice its entries of
            // it.
            shares: Shares::new(queue.room() as usize / 2, targets.len()),
            queue,
            gate: Gate::to(devices),
            targets,
            capabilities,
            slots: Slots::new(depth),
            flights: (0..depth).map(|_| PassthroughInFlight::default()).collect(),
            ranges: vec![Range::default(); depth as usize].into(),
            waiting: VecDeque::with_capacity(depth as usize),
            retries: Retries::new(),
            commands: 0,
            run: 1 << shortest.max(ALIGNMENT as u64).ilog2(),
            polled,
        };
        path.try_registered_memory().map_err(unavailable)?;
        Ok(path)
    }

    /// Adds a note on the path, if there is one.
    pub(in crate::path) fn note(&mut self, note: Option<String>) {
        self.capabilities.notes.extend(note);
    }

    /// Finds out whether the kernel takes a part of a registered buffer: reads a page into the
    /// first of two. Kernels older than 6.1 know none in these commands, and some newer ones insist
    /// on whole buffers.
    fn try_registered_memory(&mut self) -> Result<(), String> {
        let pool =
            DmaPool::new(ByteCount(2 * ALIGNMENT as u64), false).map_err(|it| it.to_string())?;
        if let off @ Feature::Off(_) = self.queue.register(&pool, 2 * ALIGNMENT) {
            self.capabilities.registered_buffers = off;
            return Ok(());
        }
        let buffer = pool.take(ALIGNMENT).ok_or("its memory is in use")?;
        let (device, extent) = (DeviceIndex(0), Extent::new(0, ALIGNMENT as u64));
        let read = Operation::new(0, device, extent, Action::read(buffer));
        self.submit(read).map_err(|refused| refused.reason.to_string())?;
        let mut completions = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(60);
        if self.drain(deadline, &mut completions) > 0 {
            return Err("a first read was not answered".into());
        }
        self.queue.unregister();
        let failed = completions.pop().and_then(|it| it.result.err()).map(|error| error.status);
        if let Some(status) = failed {
            self.run = 0;
            let why = format!("the kernel takes no part of registered memory ({status})");
            self.capabilities.registered_buffers = Feature::Off(why);
        }
        Ok(())
    }

    /// Sends what can be sent of a slot's operation; keeps in mind what is left.
    fn send(&mut self, slot: u32) {
        let Some(device) = self.slots.get(slot).map(|it| it.device) else { return };
        while let Some(step) = self.next(slot) {
            if self.shares.left_for(device) == 0 || self.send_one(slot, step).is_err() {
                self.waiting.push_back(slot);
                return;
            }
            self.flights[slot as usize].sent(step);
            self.commands += 1;
            self.shares.take(device);
        }
    }

    /// The next command of a slot's operation, if it can be sent now.
    fn next(&self, slot: u32) -> Option<CommandStep> {
        let flight = &self.flights[slot as usize];
        // There is memory for one range.
        let one_by_one = matches!(self.slots.get(slot)?.action, Action::Deallocate);
        if one_by_one && flight.is_out() { None } else { flight.unsent() }
    }

    fn send_one(&mut self, slot: u32, step: CommandStep) -> io::Result<()> {
        let Some(operation) = self.slots.get_mut(slot) else { return Ok(()) };
        let device = operation.device;
        let target = &self.targets[usize::from(device.0)];
        let (namespace, block) = (target.number, target.limits.block);
        let (skipped, bytes) = (step.skipped as usize * block as usize, step.blocks * block);
        let placement = target.placement_identifier(operation.placement);
        let mut fixed = None;
        let mut with_part = |opcode, start: *mut u8| {
            let part = start.wrapping_add(skipped);
            fixed = self.queue.registered().holding(part, bytes as usize);
            NvmeCommand::of_blocks(opcode, namespace, step).with_data(part as u64, bytes)
        };
        let command = match &mut operation.action {
            Action::Read(memory) => with_part(Opcode::Read, memory.address()),
            Action::Write { memory, fua } => {
                with_part(Opcode::Write, memory.address()).forced(*fua).placed(placement)
            }
            Action::WriteZeroes => NvmeCommand::of_blocks(Opcode::WriteZeroes, namespace, step),
            Action::Flush => NvmeCommand::plain(Opcode::Flush, namespace),
            Action::Deallocate => {
                let range = &mut self.ranges[slot as usize];
                *range = step.into();
                NvmeCommand::deallocate(namespace, &raw const *range)
            }
        };
        let mut bytes = [0; 80];
        bytes[..size_of::<NvmeCommand>()].copy_from_slice(bytemuck::bytes_of(&command));
        let entry = if self.capabilities.registered_files == Feature::On {
            opcode::UringCmd80::new(types::Fixed(device.0.into()), NVME_URING_CMD_IO)
        } else {
            opcode::UringCmd80::new(types::Fd(target.file.as_raw_fd()), NVME_URING_CMD_IO)
        };
        let entry = entry.cmd(bytes).buf_index(fixed).build().user_data(slot.into());
        // SAFETY: the part lies within the operation's buffer, which is in its slot until all of
        // its commands have completed (see the impl's comment). So is the slot's range, which
        // nothing else writes meanwhile: an operation that deallocates has one command out at a
        // time.
        unsafe { self.queue.push(&entry) }
    }

    /// Processes completions of commands; the operation comes back with its last one.
    fn process_completions(&mut self, completions: &mut Vec<Completion>) {
        let Self {
            queue, flights, slots, gate, commands, shares, waiting, retries, targets, ..
        } = self;
        queue.reap(|slot, answer| {
            let slot = slot as u32;
            let flight = &mut flights[slot as usize];
            let device = slots.get(slot).map_or(DeviceIndex(0), |operation| operation.device);
            *commands -= 1;
            shares.release(device);
            let device = usize::from(device.0);
            let delay = || targets[device].retry_delay(answer);
            flight.landed(outcome(answer).map_err(|status| (status, delay())));
            if flight.is_out() {
                return;
            }
            if flight.failure().is_some_and(|status| retries.allow(status, flight.tried())) {
                retries.keep(slot, flight.delay());
                return;
            }
            if flight.unsent().is_some() {
                waiting.push_back(slot);
                return;
            }
            let Some(operation) = slots.take(slot) else { return };
            completions.push(end(operation, flight, &targets[device], gate));
        });
    }

    /// Sends again what failed and is due, unless its device was shut meanwhile or nobody wants to
    /// wait.
    fn retry(&mut self, completions: &mut Vec<Completion>) {
        while let Some(slot) = self.retries.next_due() {
            let Some(operation) = self.slots.get(slot) else { continue };
            let (device, kind) = (operation.device, operation.action.kind());
            let flight = self.flights[slot as usize];
            let wanted = flight.failure().is_some_and(|it| self.retries.allow(it, flight.tried()));
            if wanted && self.gate.unlatched(device, kind).is_ok() {
                self.flights[slot as usize] = flight.again(self.steps(operation));
                self.send(slot);
            } else if let Some(operation) = self.slots.take(slot) {
                let target = &self.targets[usize::from(device.0)];
                completions.push(end(operation, &flight, target, &self.gate));
            }
        }
    }

    /// The commands of an operation.
    fn steps(&self, operation: &Operation) -> Steps {
        let limits = self.targets[usize::from(operation.device.0)].limits;
        let (offset, length) = (operation.extent.offset.0, operation.extent.length.0);
        match operation.action {
            Action::Read(_) | Action::Write { .. } => limits.transfer(offset, length),
            Action::WriteZeroes => limits.zeroes(offset, length),
            Action::Deallocate => limits.deallocate(offset, length),
            Action::Flush => Steps::flush(),
        }
    }

    /// Stops retries of these operations: neither what waits for that, nor what is still out.
    fn give_up(&mut self, tag: Option<u64>) {
        give_up(&self.slots, &mut self.flights, &mut self.retries, tag);
    }
}

fn give_up(
    slots: &Slots,
    flights: &mut [PassthroughInFlight],
    retries: &mut Retries,
    tag: Option<u64>,
) {
    let slots: Vec<u32> = slots.find(tag).collect();
    for &slot in &slots {
        flights[slot as usize].give_up();
    }
    retries.expire(|slot| slots.contains(&slot));
}

/// The completion of an operation whose commands are all back.
fn end(
    operation: Operation,
    flight: &PassthroughInFlight,
    target: &CommandTarget,
    gate: &Gate,
) -> Completion {
    let moved = operation.extent.length.0 as u32;
    let outcome = flight.failure().map_or(Ok(moved), |status| Err(target.meant(status)));
    let completion = conclude(operation, outcome);
    if let Err(error) = completion.result {
        gate.judge(error);
    }
    completion
}

// SAFETY: an accepted operation stays in its slot, with its buffer, until the completion of each of
// its commands was seen, which is the kernel's word that it is done with the memory; `drop` leaks
// what is left. A command moves all of its bytes or fails, and success is claimed only when every
// one of them succeeded.
unsafe impl DataPath for PassthroughPath {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn register(&mut self, region: &DmaPool) {
        if self.run > 0 {
            self.capabilities.registered_buffers = self.queue.register(region, self.run);
        }
    }

    fn unregister(&mut self) -> bool {
        self.queue.unregister()
    }

    fn submit(&mut self, operation: Operation) -> Result<(), Refused> {
        if let Err(reason) = self.gate.admit(&self.capabilities, &operation) {
            return Err(Refused { reason, operation });
        }
        if self.slots.is_full() {
            return Err(Refused { reason: Refusal::Full, operation });
        }
        let steps = self.steps(&operation);
        let (slot, _) = self.slots.keep(operation);
        self.flights[slot as usize] = PassthroughInFlight::of(steps);
        self.send(slot);
        Ok(())
    }

    fn ring(&mut self) -> io::Result<()> {
        self.queue.ring()
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> usize {
        let before = completions.len();
        if self.polled && self.commands > 0 {
            // A path that is dead says so when it is rung.
            let _ = self.queue.look();
        }
        self.process_completions(completions);
        self.retry(completions);
        for _ in 0..self.waiting.len() {
            if let Some(slot) = self.waiting.pop_front() {
                self.send(slot);
            }
        }
        completions.len() - before
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = self.retries.poll_timeout(timeout);
        if self.polled {
            self.queue.spin(timeout, self.commands > 0)
        } else {
            self.queue.wait(timeout)
        }
    }

    fn waker(&self) -> Waker {
        self.queue.waker()
    }

    fn abort(&mut self, tag: u64) {
        // The kernel gives no such command back; it ends by itself.
        self.give_up(Some(tag));
    }

    fn in_flight(&self) -> usize {
        self.slots.in_flight()
    }

    fn abort_all(&mut self) {
        self.give_up(None);
    }
}

impl Drop for PassthroughPath {
    fn drop(&mut self) {
        // Closing the ring does not wait for what is on a device; it may still read ranges, too.
        if self.commands > 0 {
            std::mem::forget(std::mem::take(&mut self.ranges));
        }
        self.slots.leak();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::tests::Directory;
    use crate::path::{KernelDevices, OpenMode, PathChoice, PathProvider, Status};

    /// A controller that responds late finds nobody who would retry.
    #[test]
    fn what_is_to_be_aborted_is_not_tried_again_when_it_comes_back() {
        let again = Status::Nvme { code_type: 0, code: 6, do_not_retry: false };
        for (tag, given_up) in [(None, [true, true]), (Some(8), [false, true])] {
            let (mut slots, mut retries) = (Slots::new(2), Retries::new());
            let mut flights = [PassthroughInFlight::default(); 2];
            for tag in [7, 8] {
                let (device, action) = (DeviceIndex(0), Action::Flush);
                let extent = Extent::NOTHING;
                let (slot, _) = slots.keep(Operation::new(tag, device, extent, action));
                let flight = &mut flights[slot as usize];
                *flight = PassthroughInFlight::of(Steps::flush());
                flight.sent(flight.unsent().unwrap());
            }
            give_up(&slots, &mut flights, &mut retries, tag);
            for (flight, given_up) in flights.iter_mut().zip(given_up) {
                flight.landed(Err((again, Duration::ZERO)));
                assert_eq!(retries.allow(again, flight.tried()), !given_up, "{tag:?}");
            }
        }
    }

    #[test]
    fn what_is_no_namespace_is_refused_by_name() {
        let directory = Directory::new();
        let spec = directory.spec("file");
        let device = Device::create(&spec, ByteCount::mib(1), false, OpenMode::default()).unwrap();
        let provider = KernelDevices::new(vec![device], PathChoice::UringCmd);
        let Err(error) = Box::new(provider).open(4) else { panic!("a file was opened as one") };
        let text = error.to_string();
        assert!(text.contains("the uring-cmd data path does not work here"), "{text}");
        assert!(text.contains(&format!("{spec} is a regular file")), "{text}");
    }
}
