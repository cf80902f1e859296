//! Control over the reactor thread's moves: itself, or in a simulation whoever waits for it.
//!
//! A stepped reactor takes turns with its callers, one of them at a time, so that a run depends on
//! nothing but what the callers do: the same calls, the same interleaving, the same bytes.

use std::sync::{Arc, PoisonError};

use super::ticket::TicketShared;
use crate::sync::{Condvar, Mutex, MutexGuard};

/// Passed between the reactor thread and the thread that steps it.
#[derive(Default)]
pub(super) struct StepToken {
    turn: Mutex<Turn>,
    passed: Condvar,
}

#[derive(Default)]
enum Turn {
    /// The reactor rests.
    #[default]
    Resting,
    /// The thread rests, and nothing moved when it handed the token back.
    Idle,
    /// The reactor goes round its loop this many times, or until a transfer has ended.
    Running { rounds: u64, until: Option<Arc<TicketShared>> },
    /// The reactor goes on by itself: it is being closed, or its thread has ended.
    Released,
}

impl StepToken {
    /// Lets the reactor go round `rounds` times at most, until `until` has ended or nothing moves
    /// any more. Returns whether something still moved at the end.
    pub(super) fn grant(&self, rounds: u64, until: Option<Arc<TicketShared>>) -> bool {
        let mut turn = self.turn();
        if rounds == 0 || matches!(*turn, Turn::Released) {
            return false;
        }
        *turn = Turn::Running { rounds, until };
        self.pass(turn);
        let mut turn = self.turn();
        while matches!(*turn, Turn::Running { .. }) {
            turn = self.passed.wait(turn).unwrap_or_else(PoisonError::into_inner);
        }
        matches!(*turn, Turn::Resting)
    }

    /// The reactor thread waits for its turn. `false`: turns are over, it goes on by itself.
    pub(super) fn await_turn(&self) -> bool {
        let mut turn = self.turn();
        while matches!(*turn, Turn::Resting | Turn::Idle) {
            turn = self.passed.wait(turn).unwrap_or_else(PoisonError::into_inner);
        }
        matches!(*turn, Turn::Running { .. })
    }

    /// The reactor thread went round once; `moved` says whether anything happened.
    pub(super) fn went_round(&self, moved: bool) {
        let mut turn = self.turn();
        let Turn::Running { rounds, until } = &mut *turn else { return };
        *rounds -= 1;
        let over = *rounds == 0 || until.as_ref().is_some_and(|ticket| ticket.is_ready());
        if moved && !over {
            return;
        }
        *turn = if moved || over { Turn::Resting } else { Turn::Idle };
        self.pass(turn);
    }

    /// Ends taking turns.
    pub(super) fn release(&self) {
        let mut turn = self.turn();
        *turn = Turn::Released;
        self.pass(turn);
    }

    /// The lock goes first: a thread that wakes while it is held only goes to sleep again.
    fn pass(&self, turn: MutexGuard<'_, Turn>) {
        drop(turn);
        self.passed.notify_all();
    }

    fn turn(&self) -> MutexGuard<'_, Turn> {
        // Assigned whole, so a panic elsewhere cannot leave it half done.
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
