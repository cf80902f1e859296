//! The functions and types of an installed SPDK that Tidelog's engine uses, as they are: no policy.
//!
//! Made by bindgen from the headers that `pkg-config` finds when the feature `native` is on; empty
//! otherwise. The layouts of all structures are asserted when this compiles. What a function does,
//! and from which threads it may be called, is in SPDK's headers.

#[cfg(feature = "native")]
#[allow(
    unsafe_code,
    missing_docs,
    unreachable_pub,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    dead_code,
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::pedantic,
    clippy::undocumented_unsafe_blocks,
    rustdoc::all
)]
mod bindings {
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}

#[cfg(feature = "native")]
pub use bindings::*;

/// The version of the SPDK that this was built against, such as `24.09`.
#[cfg(feature = "native")]
pub const VERSION: &str = env!("TIDELOG_SPDK_VERSION");
