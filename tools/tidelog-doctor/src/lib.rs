//! Which data paths work on this machine, proven by a round trip, and exactly why the others do not.
//!
//! Reads what the kernel shows ([`facts`]), tries every path on a scratch area that it was given and on nothing else
//! ([`trial`], [`paths`]), says it on one page ([`page`]), and hands devices between the kernel and user space with
//! `tidelog-format`'s refusals ([`bind`]).

pub mod bind;
pub mod cli;
pub mod facts;
pub mod gpus;
pub mod outcome;
pub mod page;
pub mod paths;
pub mod trial;
pub mod wear;
