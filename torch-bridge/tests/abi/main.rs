//! The C ABI, called as Rust may call it: by good callers and bad ones.
#![allow(unsafe_code)]

mod arguments;
mod callbacks;
mod drift;
mod errors;
mod memory;
mod nested;
mod parts;
mod pools;
mod session;
mod tickets;
mod training;
mod write_budget;
