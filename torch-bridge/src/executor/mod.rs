//! The executor: carries out what the residency machine decides.
//!
//! One thread drives a session at op boundaries. The machine returns actions for every event: those
//! that move bytes become puts, gets and verifications of the engine or of host memory, those that
//! free or allocate become requests to the caller, who owns the memory. What has completed is
//! processed at the next boundary.
//!
//! Each room owns its state: [`ops`] the op that runs, [`transfers`] what is under way,
//! [`planning`] the plans, [`history`] what happened, [`storages`] what storages are called,
//! [`parts`] which of them the machine has in parts, [`write_budget`] what was written a day. No
//! room changes another, but that `parts` tells the machine of parts. [`dispatch`] holds them
//! beside the machine and says in which order they learn of an event; [`session`] is that behind a
//! lock.

mod copies;
mod dispatch;
mod files;
mod history;
mod ops;
mod parts;
mod planning;
mod report;
mod session;
mod stats;
mod step_rate;
mod storages;
mod transfer;
mod transfers;
mod write_budget;

pub(crate) use dispatch::Readiness;
pub(crate) use history::ToldSpan;
pub(crate) use ops::OpCall;
pub(crate) use parts::PART_NUMBERS;
pub(crate) use planning::PlannerPolicy;
pub(crate) use session::{Session, SessionConfig};
pub(crate) use storages::{STORAGES_MAX, StorageBirth};
