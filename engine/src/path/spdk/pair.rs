//! A queue pair as the driver has it: made, connected, polled, freed, by one thread.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidelog_spdk_sys as sys;

use super::controller::{CONNECT, Controller};
use super::environment::errno;
use super::flight::CommandInFlight;
use super::group::PollGroup;
use super::log::{Said, without_capture};
use super::timeout::TimeoutCounters;
use crate::path::OperationKind;

/// Commands that SPDK keeps ready for each operation in flight: its own cuts at boundaries of the
/// medium, and what waits for room on the controller.
const REQUESTS_EACH: u32 = 8;

/// A queue pair of the thread that made it. Everything that is in flight on it ends when it is
/// dropped.
pub(super) struct Pair {
    handle: NonNull<sys::spdk_nvme_qpair>,
    /// Polls the pair, if it is a connection.
    group: Option<PollGroup>,
    controller: Arc<Controller>,
    /// Time by which it has to be connected.
    until: Instant,
    /// Log lines of SPDK about it.
    said: Said,
}

impl Pair {
    /// Makes a pair with room for `depth` commands, and begins to connect it.
    pub(super) fn new(controller: &Arc<Controller>, depth: u32) -> Result<Self, String> {
        let group = controller.is_remote().then(PollGroup::new).transpose()?;
        let mut options = sys::spdk_nvme_io_qpair_opts::default();
        let size = size_of::<sys::spdk_nvme_io_qpair_opts>();
        let mut said = Said::default();
        // SAFETY: the controller is attached; SPDK fills in, and reads, as much of the structure as
        // it is told.
        let create = |handle| unsafe {
            sys::spdk_nvme_ctrlr_get_default_io_qpair_opts(handle, &raw mut options, size);
            // A queue of so many entries holds one command less. More than the controller has is
            // refused by it.
            options.io_queue_size = options.io_queue_size.max(depth + 1);
            options.io_queue_size = options.io_queue_size.min(controller.queue_entries());
            options.io_queue_requests =
                options.io_queue_requests.max(depth.saturating_mul(REQUESTS_EACH));
            options.__bindgen_anon_1.delay_cmd_submit = true;
            // SPDK would wait for ever for a controller that does not answer, or refuses.
            options.create_only = true;
            options.async_mode = true;
            sys::spdk_nvme_ctrlr_alloc_io_qpair(handle, &raw const options, size)
        };
        let handle = said.capture(|| controller.alone(create));
        let handle = NonNull::new(handle).ok_or_else(|| {
            let name = &controller.facts().name;
            format!("{name} gives no queue pair; all may be in use{}", said.reason())
        })?;
        let (until, controller) = (Instant::now() + CONNECT, Arc::clone(controller));
        controller.gain_pair();
        let mut pair = Self { handle, group, controller, until, said };
        pair.begin()?;
        Ok(pair)
    }

    fn begin(&mut self) -> Result<(), String> {
        let (pair, group) = (self.handle.as_ptr(), self.group.as_ref().map(PollGroup::handle));
        // SAFETY: pair and group are this thread's. The pair leaves the group when it is freed.
        let connect = |controller| unsafe {
            match group.map_or(0, |group| sys::spdk_nvme_poll_group_add(group, pair)) {
                0 => sys::spdk_nvme_ctrlr_connect_io_qpair(controller, pair),
                failed => failed,
            }
        };
        match self.said.capture(|| self.controller.alone(connect)) {
            0 => Ok(()),
            answer => Err(self.refused(answer)),
        }
    }

    /// Goes on connecting it. Returns whether it is connected.
    pub(super) fn connect(&mut self) -> Result<bool, String> {
        let (pair, group) = (self.handle.as_ptr(), &self.group);
        let poll = |_| {
            group.as_ref().map(PollGroup::process);
            // SAFETY: the pair is this thread's. A refusal shows at the pair alone. One on the bus
            // processes what its controller's own queue has, which is locked.
            unsafe { sys::spdk_nvme_qpair_process_completions(pair, 0) }
        };
        let polled = self.said.capture(|| self.controller.alone(poll));
        if polled < 0 {
            return Err(self.refused(polled));
        }
        // SAFETY: the pair is this thread's.
        if unsafe { sys::spdk_nvme_qpair_is_connected(pair) } {
            return Ok(true);
        }
        if Instant::now() > self.until { Err(self.refused(-libc::ETIMEDOUT)) } else { Ok(false) }
    }

    fn refused(&self, answer: i32) -> String {
        let (name, why) = (&self.controller.facts().name, errno(answer));
        format!("{name} connects no queue pair: {why}{}", self.said.reason())
    }

    pub(super) fn handle(&self) -> *mut sys::spdk_nvme_qpair {
        self.handle.as_ptr()
    }

    /// Processes at most `at_most` completions, or all of a connection's group. Returns whether the
    /// controller is there.
    pub(super) fn poll(&self, at_most: u32) -> bool {
        match &self.group {
            Some(group) => !group.process(),
            // SAFETY: the pair is this thread's.
            None => unsafe {
                sys::spdk_nvme_qpair_process_completions(self.handle(), at_most) >= 0
            },
        }
    }

    /// Asks for the commands of a flight back, and counts in `timeouts` whether the controller did
    /// so.
    pub(super) fn abort(&self, flight: &CommandInFlight, timeouts: &Arc<TimeoutCounters>) {
        let context = Arc::into_raw(Arc::clone(timeouts));
        // SAFETY: the pair is this thread's; the flight's context is only compared, and ours is the
        // answer's own.
        let refused = self.controller.alone(|handle| unsafe {
            sys::spdk_nvme_ctrlr_cmd_abort_ext(
                handle,
                self.handle(),
                flight.context(),
                Some(aborted as unsafe extern "C" fn(_, _)),
                context.cast_mut().cast(),
            )
        });
        if refused != 0 {
            // SAFETY: there will be no answer, so nobody else takes it back.
            drop(unsafe { Arc::from_raw(context) });
        }
    }

    pub(super) fn inject(
        &self,
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
        let held_us = held.map_or(0, |held| held.as_micros() as u64);
        // SAFETY: the pair is this thread's and belongs to the controller.
        let answer = self.controller.alone(|handle| unsafe {
            sys::spdk_nvme_qpair_add_cmd_error_injection(
                handle,
                self.handle(),
                command,
                held.is_some(),
                held_us,
                count,
                code_type,
                code,
            )
        });
        if answer == 0 { Ok(()) } else { Err(errno(answer)) }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let pair = self.handle();
        // SAFETY: the pair is this thread's. What is in flight on it ends here, and the controller
        // cannot move its bytes any more: the connection is closed, or the controller was stopped
        // (see `Queue`).
        without_capture(|| {
            self.controller.alone(|_| unsafe { sys::spdk_nvme_ctrlr_free_io_qpair(pair) })
        });
        self.controller.lose_pair();
    }
}

/// SPDK calls this once it knows what became of an abort. The command itself comes back anyway, or
/// times out.
unsafe extern "C" fn aborted(context: *mut std::ffi::c_void, answer: *const sys::spdk_nvme_cpl) {
    /// Bit of a result: the command was not aborted (NVMe base specification, 5.1).
    const NOT_ABORTED: u32 = 1;
    // SAFETY: the context is one that `abort` has made, and each is answered once; the answer is
    // SPDK's, for the call.
    let (timeouts, answer) =
        unsafe { (Arc::from_raw(context.cast::<TimeoutCounters>()), &*answer) };
    if answer.cdw0 & NOT_ABORTED != 0 {
        timeouts.count_not_aborted();
    }
}
