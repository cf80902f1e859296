//! cuFile: from GPU memory to the SSD and back.
//!
//! What its own documents say and what follows here: its calls are not ordered with CUDA's streams,
//! so whoever submits waits first; it is unsafe across `fork` once open, so a child lets go of
//! nothing; registering is slow and the GPU's BAR is finite, so files are registered once per
//! device and memory once per region; a batch holds at most as many entries as the driver says, and
//! never more than 128.
#![allow(unsafe_code)]

mod batch;
mod driver;
mod error;
mod facts;
mod library;
mod log;
mod registered;
pub(crate) mod sys;

pub(crate) use batch::{BatchSubmitError, CuFileBatch, CuFileTransfer};
pub use driver::{Compat, Driver, DriverOpenError};
pub use error::{CUFILE, CuFileError, name_of};
pub use facts::{DriverInfo, Mode};
pub use library::{CuFileLibrary, NoLibrary};
pub use log::keep_log;
pub(crate) use registered::{RegisteredFile, RegisteredMemory};
