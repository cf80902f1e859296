//! Makes, looks at, checks, repairs and wipes Tidelog pools, and refuses the wrong device.
//!
//! The engine does the work. What is here is what a tool adds to it: naming devices so that no
//! mistake can lose data ([`tidelog_device_safety`]), and saying what was found to people and to
//! programs ([`command`]).

pub mod cli;
pub mod command;
pub mod outcome;
