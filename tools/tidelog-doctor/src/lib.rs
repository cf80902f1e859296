//! Data paths that work on this machine, proven by a round trip, and exactly why the others do not.
//!
//! Reads what the kernel shows ([`facts`], [`gpus`], [`devices`], [`latency`]), tries every path
//! from the host's memory and each GPU's on a scratch area that it was given and on nothing else
//! ([`ways`], [`trial`], [`paths`]), says what to type where one does not work ([`next`]), puts it
//! on one page ([`page`]), and hands devices between the kernel and user space with
//! `tidelog-format`'s refusals ([`bind`]).

pub mod bind;
pub mod cli;
pub mod devices;
pub mod facts;
pub mod gpus;
pub mod latency;
pub mod next;
pub mod outcome;
pub mod page;
pub mod paths;
pub mod trial;
pub mod ways;
pub mod wear;
