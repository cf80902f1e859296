//! One command and its answer, waited for: what is asked of a controller now and then, beside input
//! and output. The controller is locked for each step, not for the whole: others abort commands and
//! reset it meanwhile.

use std::cell::{Cell, UnsafeCell};
use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tidelog_spdk_sys as sys;

use super::command::SpdkCommand;
use super::controller::Controller;
use super::environment::{Environment, errno};
use super::flight::status_of;
use super::log::without_capture;
use crate::memory::DmaPool;
use crate::path::Status;
use crate::path::nvme::wear::{ALL_NAMESPACES, HANDLES_BYTES, RECLAIM_UNIT_HANDLE_STATUS};
use crate::path::nvme::{BlockCommandFacts, IDENTIFY_BYTES, IDENTIFY_CONTROLLER_BLOCKS};
use crate::units::ByteCount;

/// A controller that does not answer so long is not waited for.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The longest log page that is asked for here.
const PAGE_MAX: usize = 512;

/// A command that is waited for. Where no answer comes its memory stays, as one may come later.
struct Exchange(NonNull<CommandResponse>);

/// Response of a command, into which the driver writes on whatever thread polls. Only by pointers:
/// both sides have it at once.
struct CommandResponse {
    /// True while the response is the driver's.
    outstanding: AtomicBool,
    status: Cell<Option<Status>>,
    page: UnsafeCell<[u8; PAGE_MAX]>,
}

impl Exchange {
    fn new() -> Self {
        let answer = Box::new(CommandResponse {
            outstanding: AtomicBool::new(false),
            status: Cell::new(None),
            page: UnsafeCell::new([0; PAGE_MAX]),
        });
        Self(NonNull::from(Box::leak(answer)))
    }

    fn answer(&self) -> &CommandResponse {
        // SAFETY: it is freed with this, and no reference to it is unique.
        unsafe { self.0.as_ref() }
    }

    fn page(&self) -> *mut c_void {
        self.answer().page.get().cast()
    }

    /// Sends the command with the context that `answered` is called with, and polls until it was.
    /// What polling fails with is the error then; that no answer came in time is
    /// [`TimedOut`](io::ErrorKind::TimedOut).
    fn run(
        &self,
        send: impl FnOnce(*mut c_void) -> i32,
        mut poll: impl FnMut() -> i32,
    ) -> io::Result<()> {
        let answer = self.answer();
        answer.outstanding.store(true, Ordering::Relaxed);
        let refused = send(self.0.as_ptr().cast());
        if refused != 0 {
            answer.outstanding.store(false, Ordering::Relaxed);
            return Err(errno(refused));
        }
        let begun = Instant::now();
        while self.is_outstanding() {
            let polled = poll();
            if polled < 0 && self.is_outstanding() {
                return Err(errno(polled));
            }
            if begun.elapsed() > TIMEOUT {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::yield_now();
        }
        answer.status.get().map_or(Ok(()), |status| Err(io::Error::other(status.to_string())))
    }

    /// Returns whether the driver may still answer.
    fn is_outstanding(&self) -> bool {
        self.answer().outstanding.load(Ordering::Acquire)
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if !self.is_outstanding() {
            // SAFETY: it was boxed, and the driver does not have it any more.
            drop(unsafe { Box::from_raw(self.0.as_ptr()) });
        }
    }
}

/// SPDK calls this with the answer.
unsafe extern "C" fn answered(context: *mut c_void, answer: *const sys::spdk_nvme_cpl) {
    // SAFETY: the context is an exchange's, which stays while no answer came, and of which only
    // this is used meanwhile; the answer is SPDK's, for the call.
    let (exchange, answer) = unsafe { (&*context.cast::<CommandResponse>(), &*answer) };
    exchange.status.set(status_of(answer));
    exchange.outstanding.store(false, Ordering::Release);
}

impl Controller {
    /// The first bytes of a log page: `N` of them. `specific` goes with its number, for pages of an
    /// endurance group.
    pub(super) fn log_page<const N: usize>(
        &self,
        number: u8,
        specific: u16,
    ) -> io::Result<[u8; N]> {
        const { assert!(N <= PAGE_MAX) };
        let exchange = Exchange::new();
        // SAFETY: the controller is attached and its own queue is locked; the page and the context
        // are the exchange's, which outlives the command.
        let send = |handle, context| unsafe {
            sys::spdk_nvme_ctrlr_cmd_get_log_page_ext(
                handle,
                number,
                ALL_NAMESPACES,
                exchange.page(),
                N as u32,
                0,
                0,
                u32::from(specific) << 16,
                0,
                Some(answered as unsafe extern "C" fn(_, _)),
                context,
            )
        };
        // SAFETY: as above. The admin thread polls as well, and may be the one that takes the
        // answer in.
        let poll = |handle| unsafe { sys::spdk_nvme_ctrlr_process_admin_completions(handle) };
        exchange.run(|context| self.alone(|handle| send(handle, context)), || self.alone(poll))?;
        // SAFETY: the answer came, so nobody writes the page any more.
        let page = unsafe { &*exchange.answer().page.get() };
        let mut bytes = [0; N];
        bytes.copy_from_slice(&page[..N]);
        Ok(bytes)
    }

    /// Returns the controller's limits of the commands for blocks; no limits where it is too old to
    /// be asked.
    pub(super) fn block_commands(&self) -> BlockCommandFacts {
        let data = self.identify(IDENTIFY_CONTROLLER_BLOCKS);
        data.map_or_else(|_| BlockCommandFacts::default(), |data| BlockCommandFacts::read(&data))
    }

    fn identify(&self, what: u32) -> io::Result<[u8; IDENTIFY_BYTES]> {
        let memory = Environment::get().map_err(io::Error::other)?;
        let memory: DmaPool =
            memory.allocate(ByteCount(IDENTIFY_BYTES as u64)).map_err(io::Error::other)?;
        let mut buffer = memory.take(IDENTIFY_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
        let mut command = SpdkCommand::identify(what);
        // SAFETY: the controller is attached and its own queue is locked; buffer and context
        // outlive the command, which SPDK copies.
        let mut send = |handle, context| unsafe {
            sys::spdk_nvme_ctrlr_cmd_admin_raw(
                handle,
                command.as_mut_ptr(),
                buffer.address().cast(),
                IDENTIFY_BYTES as u32,
                Some(answered as unsafe extern "C" fn(_, _)),
                context,
            )
        };
        // SAFETY: as above. The admin thread polls as well, and may be the one that takes the
        // answer in.
        let poll = |handle| unsafe { sys::spdk_nvme_ctrlr_process_admin_completions(handle) };
        let exchange = Exchange::new();
        let outcome = without_capture(|| {
            exchange.run(|context| self.alone(|handle| send(handle, context)), || self.alone(poll))
        });
        if exchange.is_outstanding() {
            // The controller may still write the buffer.
            std::mem::forget(buffer);
            return Err(io::ErrorKind::TimedOut.into());
        }
        outcome?;
        let mut data = [0; IDENTIFY_BYTES];
        data.copy_from_slice(&buffer[..IDENTIFY_BYTES]);
        Ok(data)
    }

    /// Returns the status of the namespace's reclaim unit handles, as the controller writes it.
    pub(super) fn reclaim_unit_handles(&self) -> io::Result<Vec<u8>> {
        let memory = Environment::get().map_err(io::Error::other)?;
        let memory: DmaPool =
            memory.allocate(ByteCount(HANDLES_BYTES as u64)).map_err(io::Error::other)?;
        let mut buffer = memory.take(HANDLES_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: the controller is attached; the default options are meant by null.
        let pair = self.alone(|handle| unsafe {
            sys::spdk_nvme_ctrlr_alloc_io_qpair(handle, std::ptr::null(), 0)
        });
        let pair = NonNull::new(pair).ok_or_else(|| io::Error::other("no queue pair is left"))?;
        let pair = pair.as_ptr();
        // SAFETY: the pair is this thread's, and a reset is kept away; buffer and context outlive
        // the command.
        let mut send = |context| unsafe {
            sys::spdk_nvme_ns_cmd_io_mgmt_recv(
                self.namespace(),
                pair,
                buffer.address().cast(),
                HANDLES_BYTES as u32,
                RECLAIM_UNIT_HANDLE_STATUS,
                0,
                Some(answered as unsafe extern "C" fn(_, _)),
                context,
            )
        };
        // SAFETY: as above.
        let poll = || unsafe { sys::spdk_nvme_qpair_process_completions(pair, 0) };
        let exchange = Exchange::new();
        let outcome =
            exchange.run(|context| self.alone(|_| send(context)), || self.alone(|_| poll()));
        if outcome.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::TimedOut) {
            // The controller may still write the buffer, and answer on the pair.
            std::mem::forget(buffer);
            return Err(io::ErrorKind::TimedOut.into());
        }
        // SAFETY: the pair is ours. Nothing is in flight on it, unless it was lost: then SPDK ends
        // that here.
        self.alone(|_| unsafe { sys::spdk_nvme_ctrlr_free_io_qpair(pair) });
        outcome.map(|()| buffer.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs an exchange that is answered, with this status field, when it is polled for the third
    /// time.
    fn answered_late(status: u16) -> io::Result<()> {
        let (context, polls) = (Cell::new(std::ptr::null_mut()), Cell::new(0));
        let mut completion = sys::spdk_nvme_cpl::default();
        completion.__bindgen_anon_1.status_raw = status;
        let send = |given| {
            context.set(given);
            0
        };
        let poll = || {
            polls.set(polls.get() + 1);
            if polls.get() == 3 {
                // SAFETY: the context was given with the command, which is answered once.
                unsafe { answered(context.get(), &raw const completion) };
            }
            0
        };
        Exchange::new().run(send, poll)
    }

    #[test]
    fn an_answer_ends_the_wait_for_it() {
        answered_late(0).unwrap();
        let refused = answered_late(1 << 1).unwrap_err();
        assert_ne!(refused.kind(), io::ErrorKind::TimedOut, "{refused}");
    }

    #[test]
    fn what_polling_fails_with_is_the_error() {
        let exchange = Exchange::new();
        let lost = exchange.run(|_| 0, || -libc::ENXIO).unwrap_err();
        assert_eq!(lost.raw_os_error(), Some(libc::ENXIO));
        assert!(exchange.is_outstanding(), "the driver still has it");
        let completion = sys::spdk_nvme_cpl::default();
        // SAFETY: the context was given with the command, which is answered once: so the driver
        // ends it.
        unsafe { answered(exchange.0.as_ptr().cast(), &raw const completion) };
    }

    #[test]
    fn what_is_not_sent_is_not_waited_for() {
        let refused = Exchange::new().run(|_| -libc::ENOMEM, || unreachable!("it is polled"));
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::ENOMEM));
    }
}
