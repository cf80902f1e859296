//! Poll groups: how a connection's queue pair is polled: through a poll group of its own, in which
//! it reads its socket only when there is something to read. By itself it reads again and again,
//! and holds up whoever is filling the socket.

use std::cell::Cell;
use std::ptr::NonNull;

use tidelog_spdk_sys as sys;

/// The driver's poll group, for one pair. Who polls no more hears of no command again.
pub(super) struct PollGroup {
    handle: NonNull<sys::spdk_nvme_poll_group>,
    /// True if the pair no longer responds. Boxed: the driver keeps the address.
    lost: Box<Cell<bool>>,
}

impl PollGroup {
    pub(super) fn new() -> Result<Self, String> {
        let lost = Box::<Cell<bool>>::default();
        let context = lost.as_ptr().cast();
        // SAFETY: the context lives as long as the group is polled; without a table nothing is
        // computed elsewhere.
        let handle = unsafe { sys::spdk_nvme_poll_group_create(context, std::ptr::null_mut()) };
        let handle = NonNull::new(handle).ok_or("SPDK makes no poll group")?;
        Ok(Self { handle, lost })
    }

    pub(super) fn handle(&self) -> *mut sys::spdk_nvme_poll_group {
        self.handle.as_ptr()
    }

    /// Processes what was answered, and lets the controller see what is new. Returns whether the
    /// pair is lost.
    pub(super) fn process(&self) -> bool {
        // SAFETY: the group and its pair are this thread's.
        let answer = unsafe {
            sys::spdk_nvme_poll_group_process_completions(
                self.handle(),
                0,
                Some(disconnected as unsafe extern "C" fn(_, _)),
            )
        };
        answer < 0 || self.lost.get()
    }
}

impl Drop for PollGroup {
    fn drop(&mut self) {
        // SAFETY: nobody polls it any more. A group whose pair was leaked stays as well: then this
        // does nothing.
        unsafe { sys::spdk_nvme_poll_group_destroy(self.handle()) };
    }
}

/// SPDK calls this while it polls a group whose pair is lost.
unsafe extern "C" fn disconnected(_: *mut sys::spdk_nvme_qpair, lost: *mut std::ffi::c_void) {
    // SAFETY: the context is the group's flag, which only this thread uses.
    unsafe { lost.cast::<bool>().write(true) };
}
