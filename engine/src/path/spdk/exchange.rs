//! One command and its answer, waited for: what is asked of a controller now and then, beside input and output.

use std::cell::{Cell, UnsafeCell};
use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use tidelog_spdk_sys as sys;

use super::controller::Controller;
use super::environment::{Environment, errno};
use super::flight::status_of;
use crate::memory::DmaPool;
use crate::path::Status;
use crate::path::nvme::wear::{ALL_NAMESPACES, HANDLES_BYTES, RECLAIM_UNIT_HANDLE_STATUS};
use crate::units::ByteCount;

/// A controller that does not answer so long is not waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest log page that is asked for here.
const PAGE_MAX: usize = 512;

/// What the driver is given to answer into. It is leaked where no answer came in time: one may come later.
struct Exchange {
    answered: Cell<Option<Result<(), Status>>>,
    page: UnsafeCell<[u8; PAGE_MAX]>,
}

impl Exchange {
    fn new() -> Box<Self> {
        Box::new(Self { answered: Cell::new(None), page: UnsafeCell::new([0; PAGE_MAX]) })
    }

    fn context(&self) -> *mut c_void {
        (&raw const *self).cast_mut().cast()
    }

    /// Polls until the answer is there.
    fn finish(self: Box<Self>, mut poll: impl FnMut() -> i32) -> io::Result<Box<Self>> {
        let begun = Instant::now();
        loop {
            if let Some(answer) = self.answered.get() {
                return match answer {
                    Ok(()) => Ok(self),
                    Err(status) => Err(io::Error::other(status.to_string())),
                };
            }
            if poll() < 0 || begun.elapsed() > PATIENCE {
                std::mem::forget(self);
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::yield_now();
        }
    }
}

/// SPDK calls this with the answer.
unsafe extern "C" fn answered(context: *mut c_void, answer: *const sys::spdk_nvme_cpl) {
    // SAFETY: the context is an exchange, which is leaked rather than freed while no answer came; the answer is SPDK's,
    // for the call.
    let (exchange, answer) = unsafe { (&*context.cast::<Exchange>(), &*answer) };
    exchange.answered.set(Some(status_of(answer).map_or(Ok(()), Err)));
}

impl Controller {
    /// The first bytes of a log page: `N` of them. `specific` goes with its number, for pages of an endurance group.
    pub(super) fn log_page<const N: usize>(
        &self,
        number: u8,
        specific: u16,
    ) -> io::Result<[u8; N]> {
        const { assert!(N <= PAGE_MAX) };
        let exchange = Exchange::new();
        self.alone(|handle| {
            // SAFETY: the controller is attached and its own queue is locked; the page and the context are the
            // exchange's, which outlives the command.
            let sent = unsafe {
                sys::spdk_nvme_ctrlr_cmd_get_log_page_ext(
                    handle,
                    number,
                    ALL_NAMESPACES,
                    exchange.page.get().cast(),
                    N as u32,
                    0,
                    0,
                    u32::from(specific) << 16,
                    0,
                    Some(answered as unsafe extern "C" fn(_, _)),
                    exchange.context(),
                )
            };
            if sent != 0 {
                return Err(errno(sent));
            }
            // SAFETY: as above.
            let exchange = exchange
                .finish(|| unsafe { sys::spdk_nvme_ctrlr_process_admin_completions(handle) })?;
            // SAFETY: the answer came, so nobody writes the page any more.
            let page = unsafe { &*exchange.page.get() };
            let mut bytes = [0; N];
            bytes.copy_from_slice(&page[..N]);
            Ok(bytes)
        })
    }

    /// What the namespace says of its reclaim unit handles, as the controller writes it.
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
        let exchange = Exchange::new();
        // SAFETY: the pair is this thread's; buffer and context outlive the command.
        let sent = unsafe {
            sys::spdk_nvme_ns_cmd_io_mgmt_recv(
                self.namespace(),
                pair,
                buffer.address().cast(),
                HANDLES_BYTES as u32,
                RECLAIM_UNIT_HANDLE_STATUS,
                0,
                Some(answered as unsafe extern "C" fn(_, _)),
                exchange.context(),
            )
        };
        let outcome = if sent == 0 {
            // SAFETY: as above.
            exchange.finish(|| unsafe { sys::spdk_nvme_qpair_process_completions(pair, 0) })
        } else {
            Err(errno(sent))
        };
        if outcome.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::TimedOut) {
            // The controller may still write the buffer, and answer on the pair.
            std::mem::forget(buffer);
            return Err(io::ErrorKind::TimedOut.into());
        }
        // SAFETY: nothing is in flight on the pair, which is ours.
        self.alone(|_| unsafe { sys::spdk_nvme_ctrlr_free_io_qpair(pair) });
        outcome.map(|_| buffer.to_vec())
    }
}
