//! Current GPU of a thread: borrowed for a call and given back, for the framework beside us counts
//! on its own.

use std::marker::PhantomData;

use cudarc::driver::{result, sys};

use super::{CudaError, Gpu};

/// A thread that has entered a GPU's context. When this goes the thread is in the one that it came
/// from, or in none.
#[derive(Debug)]
pub struct Entered<'a> {
    /// Previous context of the thread, if it was another.
    before: Option<sys::CUcontext>,
    /// Previous capture mode of the thread.
    mode: sys::CUstreamCaptureMode,
    /// The context stays open, and this on its thread.
    _gpu: PhantomData<(&'a Gpu, *const ())>,
}

impl<'a> Entered<'a> {
    pub(super) fn new(gpu: &'a Gpu) -> Result<Self, CudaError> {
        let before = result::ctx::get_current()
            .map_err(CudaError::of("tell which context a thread is in"))?
            .unwrap_or(std::ptr::null_mut());
        let before = (before != gpu.context).then_some(before);
        if before.is_some() {
            set(gpu.context)?;
        }
        let mode = exchange_capture_mode(RELAXED);
        Ok(Self { before, mode, _gpu: PhantomData })
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        exchange_capture_mode(self.mode);
        if let Some(before) = self.before {
            // A failure means that the context is gone, and then there is nothing to go back to.
            let _ = set(before);
        }
    }
}

/// Puts the calling thread into a context, or by null into none.
pub(super) fn set(context: sys::CUcontext) -> Result<(), CudaError> {
    // SAFETY: the context is a GPU's, which keeps it, or what the thread was in a moment ago.
    unsafe { result::ctx::set_current(context) }.map_err(CudaError::of("enter the GPU's context"))
}

/// Puts the calling thread into a GPU's context for good, whatever graphs others capture.
pub(super) fn stay(context: sys::CUcontext) -> Result<(), CudaError> {
    exchange_capture_mode(RELAXED);
    set(context)
}

const RELAXED: sys::CUstreamCaptureMode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;

/// Sets what the calling thread may do while a graph is captured, by whatever thread; returns what
/// it was. By default a look at an event, or an allocation, fails and spoils the capture: of ours
/// no graph depends on one.
fn exchange_capture_mode(mut mode: sys::CUstreamCaptureMode) -> sys::CUstreamCaptureMode {
    // SAFETY: it replaces the one value that it is given. It refuses none of its own values.
    let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
    mode
}
