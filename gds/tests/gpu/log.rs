//! Tensors of the GPU through the log, by each data path that there is.

use std::sync::Arc;

use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::{Destination, DmaPool, GpuDestination, GpuMemory, GpuSource, Source};
use tidelog_engine::path::{Backend, DeviceSpec, PathChoice};
use tidelog_engine::pool::{FormatOptions, OpenOptions, Pool, PutOptions};
use tidelog_engine::schedule::{Ticket, Urgency};
use tidelog_engine::units::ByteCount;
use tidelog_gds::cuda::{DeviceMemory, Stream};
use tidelog_gds::cufile::Compat;
use tidelog_gds::{GdsBackend, GdsOptions, Gpu, StagedGpu};
use tidelog_tests::machine::{Directory, skip};

use super::{Cost, cost, driver, gpu, pattern};

#[test]
fn tensors_go_through_the_log_by_uring() {
    by_the_kernel("tensors_go_through_the_log_by_uring", PathChoice::Uring);
}

#[test]
fn tensors_go_through_the_log_by_posix() {
    by_the_kernel("tensors_go_through_the_log_by_posix", PathChoice::Posix);
}

#[test]
fn tensors_go_through_the_log_by_cufile() {
    by_cufile("tensors_go_through_the_log_by_cufile", Compat::Forbidden);
}

#[test]
fn tensors_go_through_the_log_by_cufile_in_compat_mode() {
    by_cufile("tensors_go_through_the_log_by_cufile_in_compat_mode", Compat::Named);
}

fn by_the_kernel(test: &str, path: PathChoice) {
    let Some(gpu) = gpu(test) else { return };
    through_the_log(test, &gpu, &OpenOptions { path, ..OpenOptions::default() });
}

fn by_cufile(test: &str, compat: Compat) {
    let Some(gpu) = gpu(test) else { return };
    let Some(_) = driver(test, &gpu, compat) else { return };
    let gds = GdsOptions { compat, ..GdsOptions::default() };
    let backend: Option<Arc<dyn Backend>> = Some(Arc::new(GdsBackend(gds)));
    through_the_log(test, &gpu, &OpenOptions { backend, ..OpenOptions::default() });
}

/// Tensors to a pool and back, with the GPU's own word on their checksums.
fn through_the_log(test: &str, gpu: &Arc<Gpu>, options: &OpenOptions) {
    const TENSORS: usize = 16;
    const BYTES: usize = 64 << 20;
    let directory = Directory::new("gpu-log").unwrap();
    let file = [DeviceSpec::new(directory.path().join("a"))];
    let size = Some(ByteCount((3 * TENSORS * BYTES) as u64));
    Pool::format(&file, &FormatOptions { device_size: size, ..FormatOptions::default() }).unwrap();
    let options = OpenOptions {
        staging: ByteCount::mib(64),
        gpu: Some(Arc::new(StagedGpu(Arc::clone(gpu)))),
        ..options.clone()
    };
    let pool = match Pool::open(&file, &options) {
        Ok(pool) => pool,
        // This machine has no such path, or its file system no O_DIRECT.
        Err(why) => return skip(test, &why.to_string()),
    };
    let bytes = pattern(BYTES);
    let mut memories: Vec<DeviceMemory> =
        (0..TENSORS).map(|_| DeviceMemory::new(gpu, BYTES).unwrap()).collect();
    let id = |number: usize| TensorId::from_name(&format!("tensor {number}"));
    let copied = cost(TENSORS * BYTES, || {
        for memory in &mut memories {
            memory.write(0, &bytes).unwrap();
        }
    });
    let written = cost(TENSORS * BYTES, || {
        let tickets: Vec<Ticket> = (0..TENSORS)
            .map(|number| {
                let base = memories[number].base().0;
                // SAFETY: the memory outlives the tickets, and nobody writes it meanwhile.
                let source = Source::Gpu(unsafe { GpuSource::new(base, BYTES, None) });
                pool.put(id(number), source, PutOptions::default()).unwrap()
            })
            .collect();
        for ticket in tickets {
            ticket.wait().unwrap();
        }
    });
    let blank = vec![0; BYTES];
    for memory in &mut memories {
        memory.write(0, &blank).unwrap();
    }
    let read = cost(TENSORS * BYTES, || {
        let tickets: Vec<Ticket> = (0..TENSORS)
            .map(|number| {
                let base = memories[number].base().0;
                // SAFETY: as above, and nobody reads it either.
                let destination = unsafe { GpuDestination::new(base, BYTES, None, None) };
                let destination = Destination::Gpu(destination);
                pool.get(id(number), 0..BYTES as u64, destination, Urgency::Urgent, None).unwrap()
            })
            .collect();
        for ticket in tickets {
            ticket.wait().unwrap();
        }
    });
    let mut found = vec![0; BYTES];
    for memory in &memories {
        memory.read(0, &mut found).unwrap();
        assert!(found == bytes, "other bytes came back to the GPU");
    }
    let verified = cost(TENSORS * BYTES, || {
        for (number, memory) in memories.iter().enumerate() {
            // SAFETY: as above.
            let source = Source::Gpu(unsafe { GpuSource::new(memory.base().0, BYTES, None) });
            assert!(pool.verify(id(number), source, None).unwrap().wait().unwrap().matched);
        }
    });
    let stats = pool.stats().unwrap().reactor;
    let gpu_stats = stats.gpu.unwrap();
    let (locked_out, locked_in) = plain_copies(gpu, &memories[0], TENSORS * BYTES);
    println!(
        "FACT the log by {}, reached {:?}, page-locked {:?}, checksums {:?}: \
         1 GiB from the GPU at {written}, to it at {read}, compared with its checksums at {verified}; \
         plain copies from page-locked memory {locked_in}, to it {locked_out}, \
         from pageable memory {copied}",
        stats.capabilities.kind, gpu_stats.reached, gpu_stats.page_locked, gpu_stats.checksums,
    );
}

/// The GPU's memory copied to page-locked memory and back, `bytes` each way: no SSD, no log, no
/// checksum.
pub(super) fn plain_copies(gpu: &Arc<Gpu>, memory: &DeviceMemory, bytes: usize) -> (Cost, Cost) {
    let stream = Stream::new(gpu).unwrap();
    let host = DmaPool::new(ByteCount(memory.len() as u64), true).unwrap();
    // What page-locks it, as for any staging memory.
    let locked = StagedGpu(Arc::clone(gpu)).open(1, &host).unwrap();
    assert_eq!(locked.why_unlocked, None, "ulimit -l bounds what may be locked");
    let (base, rounds) = (host.span().0, bytes / memory.len());
    let out = cost(bytes, || {
        for _ in 0..rounds {
            // SAFETY: both are as long, outlive the synchronisation, and nobody else touches them.
            unsafe { stream.copy_out(memory.base(), base, memory.len()) }.unwrap();
        }
        stream.synchronize().unwrap();
    });
    let into = cost(bytes, || {
        for _ in 0..rounds {
            // SAFETY: as above.
            unsafe { stream.copy_in(base, memory.base(), memory.len()) }.unwrap();
        }
        stream.synchronize().unwrap();
    });
    (out, into)
}
