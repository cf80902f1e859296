//! State of the admin thread: the controllers that are attached, and those on their way in and out.
//! It waits for none of them, so that one that is slow to answer keeps no other from being looked
//! after.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use tidelog_spdk_sys as sys;

use super::attach::{Arrival, AttachResult, AttachStep, describe, reach_of, registers};
use super::controller::{AttachError, DmaIsolation, NamespaceHandle, Phase, Shared};
use super::environment::Task;
use super::host::Host;
use super::log::without_capture;
use super::reset::Reset;
use super::sigbus::Registers;
use crate::path::device::ControllerName;

/// Interval at which the controllers are polled. Nothing that they have to say by themselves is
/// urgent, and a thread that wakes more often takes its time from those that have work.
const ROUND: Duration = Duration::from_millis(100);
/// Interval while a controller is attached or detached, which takes many small steps.
const STEP: Duration = Duration::from_micros(100);
/// Interval at which removals are looked for.
const SCAN: Duration = Duration::from_millis(200);

pub(super) struct AdminThread {
    pub(super) attached: Vec<AttachedController>,
    arriving: Vec<Arrival>,
    leaving: Vec<Departure>,
    looked: Instant,
    scanned: Instant,
}

/// A controller in the admin thread's care.
pub(super) struct AttachedController {
    pub(super) shared: Arc<Shared>,
    pub(super) transport: sys::spdk_nvme_transport_id,
    /// Host as which it was attached.
    host: Host,
    /// The namespaces that this process has open.
    pub(super) open: Vec<Open>,
    /// Reset in progress: the controller is stopped and started again.
    reset: Option<Reset>,
    /// Registers on the bus.
    registers: Option<Registers>,
}

/// A namespace that is open.
pub(super) struct Open {
    /// Name of the controller, as all callers use it.
    pub(super) name: ControllerName,
    pub(super) identity: String,
    pub(super) namespace: NamespaceHandle,
}

/// A controller that is being detached, and what is to be done then: somebody waits.
struct Departure {
    context: *mut sys::spdk_nvme_detach_ctx,
    left: Option<Box<dyn FnOnce() + Send>>,
    /// Registers by which it is told to shut down.
    _registers: Option<Registers>,
}

impl AdminThread {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self {
            attached: Vec::new(),
            arriving: Vec::new(),
            leaving: Vec::new(),
            looked: now,
            scanned: now,
        }
    }

    pub(super) fn run(mut self, tasks: &Receiver<Task>) {
        loop {
            let task = if self.is_moving() {
                tasks.recv_timeout(STEP)
            } else if self.attached.is_empty() {
                tasks.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                tasks.recv_timeout(ROUND)
            };
            match task {
                Ok(task) => task(&mut self),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.move_on();
            if self.looked.elapsed() >= ROUND {
                self.look_after();
            }
        }
    }

    fn is_moving(&self) -> bool {
        let is_reset = |it: &AttachedController| {
            it.reset.as_ref().is_some_and(|reset| reset.is_moving(&it.shared))
        };
        !self.arriving.is_empty() || !self.leaving.is_empty() || self.attached.iter().any(is_reset)
    }

    /// Stops a controller, and starts it again, unless that is under way.
    pub(super) fn reset(&mut self, handle: usize, reset: Reset) {
        let is_it = |it: &&mut AttachedController| it.shared.handle() as usize == handle;
        if let Some(attached) = self.attached.iter_mut().find(is_it) {
            attached.reset.get_or_insert(reset);
        }
    }

    /// Attaches a controller, and returns when that is done.
    pub(super) fn attach(&mut self, name: ControllerName, answer: &SyncSender<AttachResult>) {
        let refused = match Arrival::new(name, answer.clone()) {
            Ok(arrival) => match self.why_not(&arrival) {
                None => return self.arriving.push(arrival),
                Some(why) => why,
            },
            Err(why) => why,
        };
        // Whoever asked waits for it.
        let _ = answer.send(Err(refused));
    }

    /// Returns the reason why a controller is not attached once more.
    fn why_not(&self, arrival: &Arrival) -> Option<AttachError> {
        let number = arrival.name.namespace();
        if let Some(attached) = self.attached_beside(arrival) {
            return match &attached.shared {
                shared if shared.is_dead() => Some(AttachError::Dead),
                _ if attached.open.iter().any(|it| it.name.namespace() == number) => {
                    Some(AttachError::Held)
                }
                shared if shared.is_of_a_pool() => Some(AttachError::OtherPool),
                _ => None,
            };
        }
        let is_it = |it: &Arrival| {
            it.name.namespace() == number && arrival.is_beside(&it.transport, &it.host)
        };
        self.arriving.iter().any(is_it).then_some(AttachError::Held)
    }

    /// The controller that it is to be a namespace of, if that is attached.
    fn attached_beside(&self, arrival: &Arrival) -> Option<&AttachedController> {
        self.attached.iter().find(|it| arrival.is_beside(&it.transport, &it.host))
    }

    /// Processes a controller that is there, unless it is none for us.
    fn welcome(&mut self, arrival: Arrival, handle: NonNull<sys::spdk_nvme_ctrlr>) {
        let registers = registers(handle, &arrival.transport);
        let shared = Arc::new(Shared::new(handle));
        let Arrival { name, transport, answer, host, .. } = arrival;
        let (kept, open, reset) = (Arc::clone(&shared), Vec::new(), None);
        self.attached.push(AttachedController {
            shared: kept,
            transport,
            host,
            open,
            reset,
            registers,
        });
        let result = self.open(self.attached.len() - 1, name);
        // Whoever asked waits for it.
        let answered = move || drop(answer.send(result));
        self.leave_if_unused(self.attached.len() - 1, answered);
    }

    /// Opens one more namespace of a controller that is attached.
    fn open_beside(&mut self, arrival: Arrival) {
        let refused = self.why_not(&arrival);
        let is_it = |it: &AttachedController| arrival.is_beside(&it.transport, &it.host);
        let result = match (refused, self.attached.iter().position(is_it)) {
            (None, Some(at)) => self.open(at, arrival.name),
            (refused, _) => Err(refused.unwrap_or(AttachError::Held)),
        };
        // Whoever asked waits for it.
        let _ = arrival.answer.send(result);
    }

    fn open(&mut self, at: usize, name: ControllerName) -> AttachResult {
        let attached = &self.attached[at];
        let facts = describe(&name, attached.shared.pointer(), &attached.transport)?;
        let mut open = self.attached.iter().flat_map(|it| &it.open);
        if let Some(twin) = open.find(|it| it.identity == facts.identity) {
            return Err(AttachError::Twin(twin.name.to_string()));
        }
        let shared = Arc::clone(&attached.shared);
        let (identity, namespace) = (facts.identity.clone(), facts.namespace);
        self.attached[at].open.push(Open { name, identity, namespace });
        Ok((facts, shared))
    }

    /// Closes a namespace, and detaches its controller if that was the last one. Returns when that
    /// is done.
    pub(super) fn detach(&mut self, handle: usize, identity: &str, answer: SyncSender<()>) {
        let is_it = |it: &AttachedController| it.shared.handle() as usize == handle;
        // Whoever asked waits for it.
        let left = move || answer.send(()).unwrap_or_default();
        match self.attached.iter().position(is_it) {
            Some(at) => {
                self.attached[at].open.retain(|it| it.identity != identity);
                self.leave_if_unused(at, left);
            }
            None => left(),
        }
    }

    fn leave_if_unused(&mut self, at: usize, left: impl FnOnce() + Send + 'static) {
        if !self.attached[at].open.is_empty() {
            return left();
        }
        let AttachedController { shared, registers, reset, .. } = self.attached.swap_remove(at);
        if let Some(reset) = reset {
            reset.end(&shared);
        }
        let mut context = std::ptr::null_mut();
        // SAFETY: the controller is attached, nobody uses it any more, and no queue pair is left.
        without_capture(|| unsafe {
            sys::spdk_nvme_detach_async(shared.handle(), &raw mut context)
        });
        let left: Option<Box<dyn FnOnce() + Send>> = Some(Box::new(left));
        self.leaving.push(Departure { context, left, _registers: registers });
    }

    /// Takes those that come and go a step on.
    fn move_on(&mut self) {
        for arrival in std::mem::take(&mut self.arriving) {
            if self.attached_beside(&arrival).is_some() {
                self.open_beside(arrival);
                continue;
            }
            if self.arriving.iter().any(|it| arrival.is_beside(&it.transport, &it.host)) {
                // Another namespace of a controller that is on its way.
                self.arriving.push(arrival);
                continue;
            }
            match arrival.step() {
                AttachStep::Comes(arrival) => self.arriving.push(arrival),
                AttachStep::Came(arrival, handle) => self.welcome(arrival, handle),
                // Whoever asked waits for it.
                AttachStep::Failed(arrival, why) => drop(arrival.answer.send(Err(why))),
            }
        }
        self.leaving.retain_mut(Departure::goes);
        for attached in &mut self.attached {
            if let Some(mut reset) = attached.reset.take()
                && reset.goes(attached)
            {
                attached.reset = Some(reset);
            }
        }
    }

    /// Processes what the controllers' own queues have, and whether one is gone.
    fn look_after(&mut self) {
        self.looked = Instant::now();
        for attached in &mut self.attached {
            attached.process_admin();
        }
        if self.scanned.elapsed() >= SCAN {
            self.scanned = Instant::now();
            for attached in &self.attached {
                attached.scan();
            }
        }
    }

    /// Lets all of them be: the process ends.
    pub(super) fn leave(&mut self) {
        self.attached.clear();
        std::mem::forget(std::mem::take(&mut self.arriving));
        std::mem::forget(std::mem::take(&mut self.leaving));
    }
}

impl Departure {
    /// Goes a step on. Returns whether that was not the last one.
    fn goes(&mut self) -> bool {
        // SAFETY: the context is SPDK's until this returns something else. There is none where
        // nothing is to be waited for.
        let goes = without_capture(|| unsafe { sys::spdk_nvme_detach_poll_async(self.context) })
            == -libc::EAGAIN;
        if !goes && let Some(left) = self.left.take() {
            left();
        }
        goes
    }
}

impl AttachedController {
    /// Processes what the controller's own queue has; keeps a connection alive, or makes it anew.
    fn process_admin(&mut self) {
        if self.shared.phase() != Phase::Up {
            return;
        }
        // SAFETY: the controller is attached. A failure shows at its queue pairs as well.
        let process = |handle| unsafe { sys::spdk_nvme_ctrlr_process_admin_completions(handle) };
        let answer = self.shared.alone_now(|handle| without_capture(|| process(handle)));
        if answer.is_none_or(|answer| answer >= 0) {
            return;
        }
        match reach_of(self.transport.trtype) {
            // Whoever waits for its completions has it reset.
            DmaIsolation::Bus => {}
            DmaIsolation::Connection { .. } => {
                self.shared.enter(Phase::Stopping);
                self.reset = Some(Reset::new());
            }
            DmaIsolation::Process => self.shared.enter(Phase::Gone),
        }
    }

    /// Lets SPDK notice whether it was unplugged.
    fn scan(&self) {
        if self.transport.trtype != sys::SPDK_NVME_TRANSPORT_PCIE {
            return;
        }
        // SAFETY: a transport id that SPDK has filled in.
        unsafe { sys::spdk_nvme_scan_attached(&raw const self.transport) };
    }
}
