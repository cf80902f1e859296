//! Raw SSDs as one striped tensor log.
//!
//! Read the rooms from the bottom up: [`units`] are the words, [`library`] is what errors of other
//! libraries name, [`memory`] is where bytes may lie, [`path`] is how they reach a device,
//! [`schedule`] keeps a device busy without drowning it, [`layout`] is what stands on the media,
//! [`log`] decides where a tensor goes, [`pool`] is the public face.

pub mod layout;
pub mod library;
pub mod log;
pub mod memory;
pub mod path;
pub mod pool;
pub mod schedule;
mod sync;
pub mod units;
