//! A controller is stopped and started again, step by step on the admin thread: a reset of one
//! on the bus, a new connection of one that is reached by a connection. Whoever uses it goes on
//! with others meanwhile.

use std::time::{Duration, Instant};

use tidelog_spdk_sys as sys;

use super::admin_thread::AttachedController;
use super::attach::reach_of;
use super::controller::{DmaIsolation, Phase, Shared, command_timeout};
use super::identity::NamespaceIdentity;
use super::log::without_capture;

/// Pause between two attempts to connect it.
const PAUSE: Duration = Duration::from_millis(500);

/// A reset that is under way.
pub(super) struct Reset {
    step: Step,
    /// Time until which it is retried, counted from the first attempt.
    until: Option<Instant>,
}

#[derive(Clone, Copy)]
enum Step {
    /// The controller is stopped from this time on.
    Stop(Instant),
    Stopping,
    Start,
    Starting,
}

impl Reset {
    pub(super) fn new() -> Self {
        Self { step: Step::Stop(Instant::now()), until: None }
    }

    /// Makes a reset with one attempt.
    pub(super) fn once() -> Self {
        Self { until: Some(Instant::now()), ..Self::new() }
    }

    /// Returns whether a step can be made now, or soon.
    pub(super) fn is_moving(&self, shared: &Shared) -> bool {
        match self.step {
            Step::Stop(begin) => Instant::now() >= begin,
            Step::Start => !shared.has_pairs(),
            Step::Stopping | Step::Starting => true,
        }
    }

    /// Goes a step on. Returns whether that was not the last one.
    pub(super) fn goes(&mut self, attached: &AttachedController) -> bool {
        let shared = &attached.shared;
        if shared.is_dead() {
            // What was given up is never used again.
            return false;
        }
        let on_the_bus = reach_of(attached.transport.trtype) == DmaIsolation::Bus;
        let next = match self.step {
            Step::Stop(begin) if Instant::now() < begin => Ok(self.step),
            Step::Stop(_) => stop(shared),
            Step::Stopping => stopping(shared, on_the_bus),
            Step::Start if shared.has_pairs() => Ok(self.step),
            Step::Start => {
                self.until.get_or_insert_with(|| Instant::now() + command_timeout());
                Ok(start(shared))
            }
            Step::Starting => match starting(attached) {
                Ok(phase) => Err(phase),
                Err(Failed::NotYet) => Ok(self.step),
                Err(Failed::ThisTime) if !on_the_bus && self.until > Some(Instant::now()) => {
                    shared.enter(Phase::Stopping);
                    Ok(Step::Stop(Instant::now() + PAUSE))
                }
                Err(Failed::ThisTime) => Err(Phase::Gone),
            },
        };
        match next {
            Ok(step) => self.step = step,
            Err(phase) => shared.enter(phase),
        }
        next.is_ok()
    }

    /// Ends the reset: the controller is to be detached.
    pub(super) fn end(self, shared: &Shared) {
        if !matches!(self.step, Step::Starting) {
            return;
        }
        // SAFETY: the controller is attached, and this thread starts it. One that has failed is not
        // started, which is said by the next step.
        without_capture(|| unsafe {
            sys::spdk_nvme_ctrlr_fail(shared.handle());
            while sys::spdk_nvme_ctrlr_reconnect_poll_async(shared.handle()) == -libc::EAGAIN {
                std::thread::yield_now();
            }
        });
        shared.enter(Phase::Gone);
    }
}

/// Begins to stop it.
fn stop(shared: &Shared) -> Result<Step, Phase> {
    let stop = |handle| {
        // SAFETY: the controller is attached. Queue pairs stay, and are freed by their threads once
        // it was stopped.
        without_capture(|| unsafe { sys::spdk_nvme_ctrlr_disconnect(handle) })
    };
    match shared.alone_now(stop) {
        // Somebody uses it now.
        None => Ok(Step::Stop(Instant::now())),
        Some(0) => Ok(Step::Stopping),
        // It is not there any more.
        Some(code) if code == -libc::ENXIO => Err(Phase::Gone),
        Some(_) => Err(Phase::Stuck),
    }
}

/// Waits until it does nothing any more.
fn stopping(shared: &Shared, on_the_bus: bool) -> Result<Step, Phase> {
    // SAFETY: the controller is attached.
    let poll = |handle| {
        without_capture(|| unsafe { sys::spdk_nvme_ctrlr_process_admin_completions(handle) })
    };
    if shared.alone_now(poll) != Some(-libc::ENXIO) {
        return Ok(Step::Stopping);
    }
    if on_the_bus {
        // SAFETY: the controller is attached, and has registers.
        let status = unsafe { sys::spdk_nvme_ctrlr_get_regs_csts(shared.handle()) };
        // SAFETY: all of the register's fields are numbers.
        let (all, ready) = unsafe { (status.raw, status.bits.rdy()) };
        if all == u32::MAX {
            // It is not there any more.
            return Err(Phase::Gone);
        }
        if ready != 0 {
            return Err(Phase::Stuck);
        }
    }
    shared.enter(Phase::Stopped);
    Ok(Step::Start)
}

/// Begins to start it. From here on SPDK holds its lock.
fn start(shared: &Shared) -> Step {
    let start = |handle| {
        shared.enter(Phase::Starting);
        // SAFETY: the controller was stopped, and no queue pair is left.
        without_capture(|| unsafe { sys::spdk_nvme_ctrlr_reconnect_async(handle) });
    };
    shared.alone_now(start).map_or(Step::Start, |()| Step::Starting)
}

enum Failed {
    NotYet,
    ThisTime,
}

/// Waits until it is there again. Returns in which phase that leaves it.
fn starting(attached: &AttachedController) -> Result<Phase, Failed> {
    let handle = attached.shared.handle();
    // SAFETY: it is this thread that starts the controller.
    match without_capture(|| unsafe { sys::spdk_nvme_ctrlr_reconnect_poll_async(handle) }) {
        0 if attached.is_as_it_was() => Ok(Phase::Up),
        // Something else responds in its place.
        0 => Ok(Phase::Gone),
        code if code == -libc::EAGAIN => Err(Failed::NotYet),
        _ => Err(Failed::ThisTime),
    }
}

impl AttachedController {
    /// Returns whether the namespaces that are open are those that they were.
    fn is_as_it_was(&self) -> bool {
        self.open.iter().all(|open| {
            let number = open.name.namespace();
            let controller = self.shared.pointer();
            // SAFETY: the controller is attached; one that has no such namespace any more has freed
            // it.
            let is_there =
                unsafe { sys::spdk_nvme_ctrlr_is_active_ns(controller.as_ptr(), number) };
            // SAFETY: as above.
            let found = unsafe { sys::spdk_nvme_ctrlr_get_ns(controller.as_ptr(), number) };
            is_there
                && found == open.namespace.0.as_ptr()
                && NamespaceIdentity::of(controller, open.namespace.0, &self.transport, number)
                    .name()
                    == open.identity
        })
    }
}
