//! Lives of a pool with two copies in which a device is lost: at a random step, with commits, seals
//! and reclamation under way. The pool goes on without it, is compared with a model, refuses the
//! device when it comes back, gets a new one in its place while processes are killed, and then
//! loses another one. Pools of one copy and of two get devices, and give some up, while processes
//! are killed.

mod life;
mod model;
mod reshape;

pub use life::{LossFigures, live};
pub use reshape::{ReshapeFigures, ReshapeKills};
