//! State of an operation while its commands are on the controller.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ffi::c_void;

use tidelog_spdk_sys as sys;

use crate::path::Status;
use crate::path::nvme::steps::{CommandStep, Steps};

/// Stage of aborting an operation that takes too long, or was to be aborted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AbortStage {
    #[default]
    None,
    /// The caller wants it back.
    Asked,
    /// The operation timed out and was aborted.
    TimedOut,
}

/// One slot's operation. Commands carry its address, so it never moves.
pub(super) struct CommandInFlight {
    pub(super) slot: u32,
    /// Commands that the controller has.
    pub(super) outstanding: Cell<u32>,
    /// Commands still to be sent.
    pub(super) unsent: Cell<Steps>,
    /// True if the command in flight waits for room to send them.
    pub(super) waiting: Cell<bool>,
    pub(super) failure: Cell<Option<Status>>,
    pub(super) abort_stage: Cell<AbortStage>,
    /// The last look over all flights before it began.
    pub(super) since: Cell<u32>,
    /// True if the controller has heard of it.
    was_sent: Cell<bool>,
    abandoned: Cell<bool>,
    board: *const Board,
}

/// Flights whose commands have all come back.
struct Board(RefCell<VecDeque<u32>>);

/// A flight for every slot. Nothing is allocated after `new`.
pub(super) struct CommandsInFlight {
    flights: Box<[CommandInFlight]>,
    board: Box<Board>,
}

impl CommandsInFlight {
    pub(super) fn new(depth: u32) -> Self {
        let board = Box::new(Board(RefCell::new(VecDeque::with_capacity(2 * depth as usize))));
        let flight = |slot| CommandInFlight {
            slot,
            outstanding: Cell::new(0),
            unsent: Cell::default(),
            waiting: Cell::new(false),
            failure: Cell::new(None),
            abort_stage: Cell::default(),
            since: Cell::new(0),
            was_sent: Cell::new(false),
            abandoned: Cell::new(false),
            board: &raw const *board,
        };
        Self { flights: (0..depth).map(flight).collect(), board }
    }

    pub(super) fn get(&self, slot: u32) -> &CommandInFlight {
        &self.flights[slot as usize]
    }

    /// The first one whose commands have all come back.
    pub(super) fn take_completed(&self) -> Option<u32> {
        self.board.0.borrow_mut().pop_front()
    }

    pub(super) fn has_completed(&self) -> bool {
        !self.board.0.borrow().is_empty()
    }
}

impl CommandInFlight {
    /// Begins anew with these commands, after `looks` checks of all flights.
    pub(super) fn begin(&self, steps: Steps, looks: u32) {
        self.outstanding.set(0);
        self.unsent.set(steps);
        self.waiting.set(false);
        self.failure.set(None);
        self.abort_stage.set(AbortStage::None);
        self.since.set(looks);
        self.was_sent.set(false);
        self.abandoned.set(false);
    }

    /// Notes that the next of its commands was sent.
    pub(super) fn sent(&self, step: CommandStep) {
        self.unsent.set(self.unsent.get().after(step));
        self.was_sent.set(true);
    }

    pub(super) fn was_sent(&self) -> bool {
        self.was_sent.get()
    }

    /// Ends sending: nothing is left to be sent. So it ends with the last command that is out, or
    /// now.
    pub(super) fn leave_waiting(&self) {
        self.waiting.set(false);
        if !self.is_out() {
            self.complete();
        }
    }

    /// Returns whether the controller has commands of it.
    pub(super) fn is_out(&self) -> bool {
        self.outstanding.get() > 0
    }

    /// Ends the operation without its commands, which will never be heard of.
    pub(super) fn abandon(&self) {
        self.outstanding.set(0);
        self.abandoned.set(true);
        self.complete();
    }

    pub(super) fn was_abandoned(&self) -> bool {
        self.abandoned.get()
    }

    /// Returns the context that the commands carry.
    pub(super) fn context(&self) -> *mut c_void {
        (&raw const *self).cast_mut().cast()
    }

    /// The first failure is the one that counts, and nothing more is sent.
    pub(super) fn fail(&self, status: Status) {
        self.unsent.set(Steps::default());
        if self.failure.get().is_none() {
            self.failure.set(Some(status));
        }
    }

    /// Says that every command is back.
    pub(super) fn complete(&self) {
        // SAFETY: the board is boxed beside the flights and lives as long.
        unsafe { &*self.board }.0.borrow_mut().push_back(self.slot);
    }
}

/// SPDK calls this for each command, on the thread that polls the queue pair.
pub(super) unsafe extern "C" fn completed(context: *mut c_void, answer: *const sys::spdk_nvme_cpl) {
    // SAFETY: the context is a flight's (`Flight::context`), which outlives its commands: flights
    // with commands outstanding are leaked, never freed. The answer is SPDK's, for the call. No
    // reference to the flight is unique.
    let (flight, answer) = unsafe { (&*context.cast::<CommandInFlight>(), &*answer) };
    if let Some(status) = status_of(answer) {
        flight.fail(status);
    }
    flight.outstanding.set(flight.outstanding.get() - 1);
    if flight.outstanding.get() == 0 && !flight.waiting.get() {
        flight.complete();
    }
}

/// The status of a command that failed.
pub(super) fn status_of(answer: &sys::spdk_nvme_cpl) -> Option<Status> {
    // SAFETY: both sides of the union are the same 16 bits.
    let bits = unsafe { answer.__bindgen_anon_1.status_raw };
    // Phase in bit 0, then the status code, its type, and at the end do-not-retry (NVMe base,
    // 4.2.3).
    let (code, code_type) = ((bits >> 1) as u8, (bits >> 9) as u8 & 7);
    let do_not_retry = bits >> 15 != 0;
    (code != 0 || code_type != 0).then_some(Status::Nvme { code_type, code, do_not_retry })
}
