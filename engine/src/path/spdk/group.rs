//! The queue pairs of a path, polled together: over TCP a system call for all of them then tells which connections have
//! something to read. One that is read without being asked about answers mostly that there is nothing, and holds up
//! whoever is filling it.

use std::cell::RefCell;
use std::ffi::c_void;
use std::ptr::NonNull;

use tidelog_spdk_sys as sys;

/// The driver's poll group. It is destroyed after its queue pairs.
pub(super) struct Group {
    handle: NonNull<sys::spdk_nvme_poll_group>,
    /// Boxed: the driver keeps the address.
    lost: Box<Lost>,
}

/// The pairs that answered no more when they were last polled.
#[derive(Default)]
struct Lost(RefCell<Vec<*mut sys::spdk_nvme_qpair>>);

impl Group {
    pub(super) fn new() -> Result<Self, String> {
        let lost = Box::<Lost>::default();
        let context = (&raw const *lost).cast_mut().cast();
        // SAFETY: the context lives as long as the group is polled; without a table nothing is computed elsewhere.
        let handle = unsafe { sys::spdk_nvme_poll_group_create(context, std::ptr::null_mut()) };
        let handle = NonNull::new(handle).ok_or("SPDK makes no poll group")?;
        Ok(Self { handle, lost })
    }

    pub(super) fn handle(&self) -> *mut sys::spdk_nvme_poll_group {
        self.handle.as_ptr()
    }

    /// Takes in what was answered, and lets the controllers see what is new. Answers whether a pair is lost.
    pub(super) fn process(&self) -> bool {
        if self.poll() < 0 {
            // Which pair it was may be told only in the next round.
            self.poll();
        }
        !self.lost.0.borrow().is_empty()
    }

    /// Whether this pair answered no more when they were last polled.
    pub(super) fn has_lost(&self, pair: NonNull<sys::spdk_nvme_qpair>) -> bool {
        self.lost.0.borrow().contains(&pair.as_ptr())
    }

    fn poll(&self) -> i64 {
        self.lost.0.borrow_mut().clear();
        // SAFETY: the group and its pairs are this thread's.
        unsafe {
            sys::spdk_nvme_poll_group_process_completions(
                self.handle(),
                0,
                Some(disconnected as unsafe extern "C" fn(_, _)),
            )
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // SAFETY: nobody polls it any more. A group with pairs that were leaked stays; it says so, and that is all.
        unsafe { sys::spdk_nvme_poll_group_destroy(self.handle()) };
    }
}

/// SPDK calls this for each pair that is lost, whenever the group is polled.
unsafe extern "C" fn disconnected(pair: *mut sys::spdk_nvme_qpair, context: *mut c_void) {
    // SAFETY: the context is the group's, which is being polled.
    let Lost(lost) = unsafe { &*context.cast::<Lost>() };
    lost.borrow_mut().push(pair);
}
