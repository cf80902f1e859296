//! Tests on a real GPU, with the real cuFile. Each test says what it lacks where there is none.
//! `tests/hardware/gpu.sh` runs them; what they print is for its table.
#![allow(unsafe_code)]
#![allow(clippy::cast_precision_loss, reason = "rates for people")]
#![allow(clippy::items_after_statements, reason = "sizes stand in the test that they are of")]

#[path = "../common/mod.rs"]
mod common;

mod checksum;
mod copies;
mod cufile;
mod gdr;
mod log;
mod mapped;
mod tier;

use std::sync::Arc;

use common::cost::{Cost, cost};
use tidelog_gds::Gpu;
use tidelog_gds::cuda::gpu_count;
use tidelog_gds::cufile::{Compat, CuFileLibrary, Driver, DriverOpenError};
use tidelog_tests::machine::skip;

fn gpu(test: &str) -> Option<Arc<Gpu>> {
    let found = gpu_count().and_then(|_| Gpu::open(0));
    found.map_err(|why| skip(test, &why.to_string())).ok()
}

/// cuFile, open. Where it is not there, or knows no direct way here, that is said; any other
/// failure to open on a GPU is what these tests are to find.
fn driver(test: &str, gpu: &Gpu, compat: Compat) -> Option<Arc<Driver>> {
    let library = CuFileLibrary::open(None).map_err(|why| skip(test, &why.to_string())).ok()?;
    match Driver::open(gpu, library, compat) {
        Ok(driver) => Some(driver),
        Err(why @ (DriverOpenError::NotDirect { .. } | DriverOpenError::CompatAllowed { .. })) => {
            skip(test, &why.to_string());
            None
        }
        Err(why) => panic!("{why}"),
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 / 7 + at / 4093) as u8).collect()
}
