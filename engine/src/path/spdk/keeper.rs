//! What the keeper's thread owns: the controllers that are attached, and those on their way in and out. It waits for none
//! of them, so that one that is slow to answer keeps no other from being looked after.

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use tidelog_spdk_sys as sys;

use super::attach::{Answer, Arrival, Step, describe};
use super::controller::{AttachError, Shared};
use super::environment::Task;
use crate::path::device::ControllerName;

/// How often the controllers are looked after. Nothing that they have to say by themselves is urgent, and a thread that wakes
/// more often takes its time from those that have work.
const ROUND: Duration = Duration::from_millis(100);
/// The same while one of them comes or goes, which takes many small steps.
const STEP: Duration = Duration::from_micros(100);
/// How often removals are looked for.
const SCAN: Duration = Duration::from_millis(200);

pub(super) struct Keeper {
    pub(super) attached: Vec<Attached>,
    arriving: Vec<Arrival>,
    leaving: Vec<Departure>,
    looked: Instant,
    scanned: Instant,
}

/// A controller in the keeper's care.
pub(super) struct Attached {
    pub(super) shared: Arc<Shared>,
    pub(super) transport: sys::spdk_nvme_transport_id,
    /// What it was called, and what its namespace is called by everybody.
    pub(super) name: ControllerName,
    pub(super) identity: String,
    /// Whether its own queue has failed: a controller that was reset since is one that is to be opened anew.
    pub(super) failed: Cell<bool>,
}

/// A controller that is being detached, and what is to be done then: somebody waits.
struct Departure {
    context: *mut sys::spdk_nvme_detach_ctx,
    left: Option<Box<dyn FnOnce() + Send>>,
}

impl Keeper {
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
            let is_moving = !self.arriving.is_empty() || !self.leaving.is_empty();
            let task = if is_moving {
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

    /// Attaches a controller, and answers when that is done.
    pub(super) fn attach(&mut self, name: ControllerName, answer: &SyncSender<Answer>) {
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

    /// Why a controller is not attached once more.
    fn why_not(&self, arrival: &Arrival) -> Option<AttachError> {
        let is_it = |it: &&Attached| is_same(&it.transport, &arrival.transport);
        if let Some(attached) = self.attached.iter().find(is_it) {
            let dead = attached.shared.is_dead();
            return Some(if dead { AttachError::Dead } else { AttachError::Held });
        }
        let comes = self.arriving.iter().any(|it| is_same(&it.transport, &arrival.transport));
        comes.then_some(AttachError::Held)
    }

    /// Takes in a controller that is there, unless it is none for us.
    fn welcome(&mut self, arrival: Arrival, handle: NonNull<sys::spdk_nvme_ctrlr>) {
        let Arrival { name, transport, answer, .. } = arrival;
        let facts = describe(&name, handle, &transport).and_then(|facts| {
            match self.attached.iter().find(|it| it.identity == facts.identity) {
                Some(twin) => Err(AttachError::Twin(twin.name.to_string())),
                None => Ok(facts),
            }
        });
        let result = match facts {
            // Whoever asked waits for it.
            Err(why) => {
                return self.leave_one(handle.as_ptr(), move || drop(answer.send(Err(why))));
            }
            Ok(facts) => {
                let (shared, failed) = (Arc::new(Shared::new(handle)), Cell::new(false));
                let (identity, kept) = (facts.identity.clone(), Arc::clone(&shared));
                self.attached.push(Attached { shared: kept, transport, name, identity, failed });
                Ok((facts, shared))
            }
        };
        let _ = answer.send(result);
    }

    /// Detaches a controller, and answers when that is done.
    pub(super) fn detach(&mut self, handle: usize, answer: SyncSender<()>) {
        let is_it = |it: &Attached| it.shared.handle() as usize == handle;
        // Whoever asked waits for it.
        let left = move || answer.send(()).unwrap_or_default();
        match self.attached.iter().position(is_it) {
            Some(at) => {
                let attached = self.attached.swap_remove(at);
                self.leave_one(attached.shared.handle(), left);
            }
            None => left(),
        }
    }

    fn leave_one(
        &mut self,
        handle: *mut sys::spdk_nvme_ctrlr,
        left: impl FnOnce() + Send + 'static,
    ) {
        let mut context = std::ptr::null_mut();
        // SAFETY: the controller is attached, nobody uses it any more, and no queue pair is left.
        unsafe { sys::spdk_nvme_detach_async(handle, &raw mut context) };
        self.leaving.push(Departure { context, left: Some(Box::new(left)) });
    }

    /// Takes those that come and go a step on.
    fn move_on(&mut self) {
        for arrival in std::mem::take(&mut self.arriving) {
            match arrival.step() {
                Step::Comes(arrival) => self.arriving.push(arrival),
                Step::Came(arrival, handle) => self.welcome(arrival, handle),
                // Whoever asked waits for it.
                Step::Failed(arrival, why) => drop(arrival.answer.send(Err(why))),
            }
        }
        self.leaving.retain_mut(Departure::goes);
    }

    /// Takes in what the controllers' own queues have, and whether one is gone.
    fn look_after(&mut self) {
        self.looked = Instant::now();
        for attached in &self.attached {
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
    /// Goes a step on. Answers whether that was not the last one.
    fn goes(&mut self) -> bool {
        // SAFETY: the context is SPDK's until this answers something else. There is none where nothing is to be waited for.
        let goes = unsafe { sys::spdk_nvme_detach_poll_async(self.context) } == -libc::EAGAIN;
        if !goes && let Some(left) = self.left.take() {
            left();
        }
        goes
    }
}

/// Whether two transport ids name one controller.
fn is_same(one: &sys::spdk_nvme_transport_id, other: &sys::spdk_nvme_transport_id) -> bool {
    // SAFETY: both were filled in by SPDK.
    unsafe { sys::spdk_nvme_transport_id_compare(&raw const *one, &raw const *other) == 0 }
}

impl Attached {
    /// Takes in what the controller's own queue has; keeps a connection alive.
    fn process_admin(&self) {
        let answer = self.shared.alone_now(|handle| {
            if self.failed.get() {
                return 0;
            }
            // SAFETY: the controller is attached. A failure shows at its queue pairs as well.
            unsafe { sys::spdk_nvme_ctrlr_process_admin_completions(handle) }
        });
        if answer.is_some_and(|answer| answer < 0) {
            self.failed.set(true);
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
