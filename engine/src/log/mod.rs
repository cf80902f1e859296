//! The tensor log: where a tensor goes, what lives, what a commit changes, and what a crash leaves.
//!
//! Everything here is plain state and bytes; the `pool` room brings it together with devices and threads.

#[cfg(test)]
pub(crate) mod random;
mod space;
mod stripe;

pub use space::{Durability, Full, Lane, Space, SpaceUse};
pub use stripe::{Placement, StripeMap};
