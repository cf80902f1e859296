//! Lives of a pool with two copies in which a device is lost: at a random step, with commits, seals
//! and reclamation under way. The pool goes on without it, is compared with a model, refuses the
//! device when it comes back, gets a new one in its place while processes are killed, and then
//! loses another one.

mod life;
mod model;

pub use life::{LossFigures, live};
