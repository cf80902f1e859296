//! On a real GPU, with the real cuFile. Each test says what it lacks where there is none.
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
mod tier;

use std::sync::Arc;

use common::cost::{Cost, cost};
use tidelog_gds::Gpu;
use tidelog_gds::cuda::gpu_count;
use tidelog_gds::cufile::{Compat, CuFileLibrary, Driver};
use tidelog_tests::machine::skip;

fn gpu(test: &str) -> Option<Arc<Gpu>> {
    let found = gpu_count().and_then(|_| Gpu::open(0));
    found.map_err(|why| skip(test, &why.to_string())).ok()
}

fn driver(test: &str, compat: Compat) -> Option<Arc<Driver>> {
    let library = CuFileLibrary::open(None).map_err(|why| why.to_string());
    let driver =
        library.and_then(|library| Driver::open(library, compat).map_err(|why| why.to_string()));
    driver.map_err(|why| skip(test, &why)).ok()
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 / 7 + at / 4093) as u8).collect()
}
