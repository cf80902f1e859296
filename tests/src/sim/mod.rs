//! Seeded simulation: the real engine on simulated disks, with faults and power cuts, against a
//! model.
//!
//! A seed gives a [`Script`]; a [`Runner`] executes it on a stepped pool, one thread moving at a
//! time, and compares every answer with the [`Model`]. Nothing but the script decides what happens,
//! so a seed and a commit replay any failure, and [`shrink`] can leave out acts one by one.

mod commits;
mod coverage;
mod harm;
mod model;
mod runner;
mod script;
mod sealing;
mod shrink;
mod trouble;

pub use coverage::{Coverage, FaultSeen, Under};
pub use harm::{Harm, HarmedCopies, How, Part};
pub use model::{Content, Model, Sealed, Seals};
pub use runner::{Figures, Runner, Violation, run};
pub use script::{Act, Cut, OneTimeFault, Script};
pub use shrink::shrink;
pub use tidelog_random::Random;
