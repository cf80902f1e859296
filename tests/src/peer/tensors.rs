//! Tensors that go through the log by peer DMA: put out of a GPU's memory, compared, overwritten,
//! and got into it again, also from a pool that was opened anew. The host's own memory is poisoned
//! before each step and looked at after it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::peer::PeerMemory;
use tidelog_engine::memory::{Destination, GpuMemory, Source};
use tidelog_engine::path::Feature;
use tidelog_engine::pool::{Pool, PutOptions};
use tidelog_engine::schedule::{Ticket, Urgency};
use tidelog_engine::units::ByteCount;

use super::stand_in::StandIn;
use super::{CHUNK, pattern};
use crate::conformance::Failure;

/// Bytes that tensors are put from; as many behind them are what they are got into.
const HALF: usize = 12 << 20;
/// The memory that the GPU needs: both, and a window.
pub const GPU_BYTES: u64 = 32 << 20;
/// Offset between a tensor's bytes and those that overwrite it.
const SHIFT: usize = 70_001;
/// Byte that fills memory into which no tensor was read.
const BEFORE: u8 = 0x5A;

/// A byte, around a block, around a stripe unit, several of them, and many.
const LENGTHS: [usize; 10] = [
    1,
    511,
    4096,
    4097,
    64 << 10,
    (64 << 10) + 1,
    300_001,
    1 << 20,
    (3 << 20) + 17,
    (6 << 20) + 4095,
];
const _: () = assert!(total() + SHIFT <= HALF);

const fn total() -> usize {
    let (mut sum, mut at) = (0, 0);
    while at < LENGTHS.len() {
        sum += LENGTHS[at];
        at += 1;
    }
    sum
}

/// The tensors, one behind the other: where each begins in its half, and its length.
fn places() -> impl Iterator<Item = (usize, usize)> {
    LENGTHS.iter().scan(0, |next, &length| {
        let start = *next;
        *next += length;
        Some((start, length))
    })
}

fn id(number: usize) -> TensorId {
    TensorId::from_name(&format!("tensor {number}"))
}

/// Fills the memory on the other side: memory to put tensors from, as the seed decides, and memory
/// to get them into.
///
/// # Errors
/// The file cannot be written.
pub fn fill(file: &Path, seed: u64) -> Result<String, Failure> {
    let file = File::options().write(true).create(true).truncate(true).open(file)?;
    let mut chunk = vec![BEFORE; CHUNK];
    for at in (HALF as u64..GPU_BYTES).step_by(CHUNK) {
        file.write_all_at(&chunk, at)?;
    }
    for at in (0..HALF as u64).step_by(CHUNK) {
        pattern(seed, at, &mut chunk);
        file.write_all_at(&chunk, at)?;
    }
    Ok(format!("{} of it", ByteCount(HALF as u64)))
}

/// Verifies the memory on the other side: what tensors were put from is as it was, and each was got
/// as what it was overwritten with.
///
/// # Errors
/// The first byte that is another.
pub fn verify(file: &Path, seed: u64) -> Result<String, Failure> {
    let file = File::open(file)?;
    let mut sources = vec![0; HALF];
    for (at, chunk) in (0..).step_by(CHUNK).zip(sources.chunks_mut(CHUNK)) {
        pattern(seed, at, chunk);
    }
    let mut found = vec![0; 2 * HALF];
    file.read_exact_at(&mut found, 0)?;
    let mut expected = sources.clone();
    expected.resize(2 * HALF, BEFORE);
    for (start, length) in places() {
        let overwritten = &sources[start + SHIFT..start + SHIFT + length];
        expected[HALF + start..HALF + start + length].copy_from_slice(overwritten);
    }
    match (0..2 * HALF).find(|&at| found[at] != expected[at]) {
        Some(at) => {
            let (found, expected) = (found[at], expected[at]);
            Err(format!("byte {at} is {found:#04x} and not {expected:#04x}").into())
        }
        None => Ok(format!("{} compared", ByteCount(2 * HALF as u64))),
    }
}

/// Takes tensors through the pools that `open` opens for a GPU of this memory, the same one each
/// time, which was empty.
///
/// # Errors
/// The pool does not reach the GPU, a tensor comes back as something else, or a byte of it was in
/// the host's memory.
pub fn through_the_log(
    memory: Box<dyn PeerMemory>,
    open: &dyn Fn(Arc<dyn GpuMemory>) -> Result<Pool, Failure>,
) -> Result<String, Failure> {
    let gpu = Arc::new(StandIn::new(memory, 2 * HALF));
    let open = || -> Result<Pool, Failure> {
        let pool = open(Arc::clone(&gpu) as Arc<dyn GpuMemory>)?;
        match pool.stats()?.reactor.gpu.map(|gpu| gpu.reached) {
            Some(Feature::On) => Ok(pool),
            Some(Feature::Off(why)) => Err(format!("the GPU is not reached: {why}").into()),
            None => Err("the pool has no GPU".into()),
        }
    };
    let pool = open()?;
    scratch(&gpu, &pool)?;
    for version in [0, SHIFT] {
        overwrite(&gpu, &pool, version)?;
        come_back(&gpu, &pool, version)?;
    }
    pool.close()?;
    drop(pool);
    let pool = open()?;
    come_back(&gpu, &pool, SHIFT)?;
    agree_with_the_host(&gpu, &pool, SHIFT)?;
    pool.close()?;
    Ok(format!(
        "{} tensors of {} put, compared, overwritten, and there again when the pool was opened anew; no byte of the host's \
         memory touched",
        LENGTHS.len(),
        ByteCount(total() as u64)
    ))
}

/// Runs one step, in which the host's memory must stay as it is.
fn past_the_host(
    gpu: &StandIn,
    what: &str,
    step: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let before = gpu.to_host();
    gpu.poison();
    step().map_err(|error| format!("{what}: {error}"))?;
    match (gpu.touched(), gpu.to_host() - before) {
        (0, 0) => Ok(()),
        (touched, copied) => Err(format!(
            "{what}: {touched} bytes of the host's memory were touched, {copied} copied to it or from it"
        )
        .into()),
    }
}

/// A tensor that need not survive, whose way has nothing to do with metadata.
fn scratch(gpu: &StandIn, pool: &Pool) -> Result<(), Failure> {
    let (length, scratch) = (300_001, TensorId::from_name("scratch"));
    past_the_host(gpu, "a scratch tensor", || {
        let source = Source::Gpu(gpu.source(SHIFT, length));
        pool.put(scratch, source, PutOptions::default())?.wait()?;
        let destination = Destination::Gpu(gpu.destination(HALF, length));
        let got = pool.get(scratch, 0..length as u64, destination, Urgency::Urgent, None)?;
        got.wait()?;
        Ok(())
    })?;
    if gpu.bytes(HALF, length) != gpu.bytes(SHIFT, length) {
        return Err("a scratch tensor came back as something else".into());
    }
    gpu.fill(HALF, length, BEFORE);
    pool.delete(scratch)?;
    Ok(())
}

/// Puts all tensors, each from `shift` bytes behind its place, and commits them.
fn overwrite(gpu: &StandIn, pool: &Pool, shift: usize) -> Result<(), Failure> {
    let mut batch = pool.batch();
    past_the_host(gpu, "puts", || {
        let put = |(number, (start, length)): (usize, (usize, usize))| {
            let source = Source::Gpu(gpu.source(start + shift, length));
            batch.put(id(number), source, PutOptions::default())
        };
        let tickets = places().enumerate().map(put).collect::<Result<Vec<Ticket>, _>>()?;
        tickets.iter().try_for_each(|ticket| ticket.wait().map(drop))?;
        Ok(())
    })?;
    batch.commit()?;
    Ok(())
}

/// Gets all tensors, all at once, and compares them: here, and by the log's checksums.
fn come_back(gpu: &StandIn, pool: &Pool, shift: usize) -> Result<(), Failure> {
    gpu.fill(HALF, HALF, BEFORE);
    past_the_host(gpu, "gets", || {
        let get = |(number, (start, length)): (usize, (usize, usize))| {
            let destination = Destination::Gpu(gpu.destination(HALF + start, length));
            pool.get(id(number), 0..length as u64, destination, Urgency::Urgent, None)
        };
        let tickets = places().enumerate().map(get).collect::<Result<Vec<Ticket>, _>>()?;
        tickets.iter().try_for_each(|ticket| ticket.wait().map(drop))?;
        Ok(())
    })?;
    for (number, (start, length)) in places().enumerate() {
        if gpu.bytes(HALF + start, length) != gpu.bytes(start + shift, length) {
            return Err(format!("tensor {number} came back as something else").into());
        }
        let verify = |offset| -> Result<bool, Failure> {
            let source = Source::Gpu(gpu.source(offset, length));
            Ok(pool.verify(id(number), source, None)?.wait()?.matched)
        };
        if !verify(HALF + start)? {
            return Err(format!("tensor {number} does not match the log's checksums").into());
        }
        if length > 4096 && verify(start + shift + 1)? {
            return Err(format!("other bytes match the checksums of tensor {number}").into());
        }
    }
    Ok(())
}

/// Checks that the host reads the same bytes, with checksums of its own.
fn agree_with_the_host(gpu: &StandIn, pool: &Pool, shift: usize) -> Result<(), Failure> {
    for (number, (start, length)) in places().enumerate() {
        let destination = Destination::buffer(length);
        let ticket = pool.get(id(number), 0..length as u64, destination, Urgency::Urgent, None)?;
        ticket.wait()?;
        if ticket.take_bytes() != Some(gpu.bytes(start + shift, length)) {
            return Err(format!("the host reads tensor {number} as something else").into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tidelog_engine::path::sim::{SimDisk, SimProfile};
    use tidelog_engine::pool::{FormatOptions, OpenOptions};

    use super::*;
    use crate::machine::Directory;
    use crate::peer::FileMemory;

    /// Two simulated disks, each with latencies of its own, and how a pool on them is opened for a
    /// GPU.
    fn disks(seed: u64) -> [SimDisk; 2] {
        let disk = |seed| {
            SimDisk::with_profile(ByteCount::mib(64), SimProfile { seed, ..SimProfile::default() })
        };
        let disks = [disk(seed), disk(seed + 1)];
        let format = FormatOptions {
            stripe_unit: ByteCount::kib(64),
            segment_size: Some(ByteCount::mib(1)),
            ..FormatOptions::default()
        };
        Pool::format(&disks, &format).unwrap();
        disks
    }

    #[test]
    fn tensors_go_through_the_log_by_peer_dma_and_the_other_side_sees_every_byte() {
        for (seed, staging) in
            [(1, ByteCount::mib(4)), (7, ByteCount::kib(64)), (9, ByteCount::kib(192))]
        {
            let directory = Directory::new("peer-log").unwrap();
            let file = directory.path().join("memory");
            fill(&file, seed).unwrap();
            let disks = disks(seed);
            let open = |gpu| {
                let gpu = Some(gpu);
                let options = OpenOptions { staging, gpu, ..OpenOptions::default() };
                Ok(Pool::open(&disks, &options)?)
            };
            let memory = Box::new(FileMemory::map(&file).unwrap());
            through_the_log(memory, &open).unwrap();
            verify(&file, seed).unwrap();
        }
    }

    #[test]
    fn the_other_side_notices_a_single_byte() {
        let directory = Directory::new("peer-byte").unwrap();
        let file = directory.path().join("memory");
        fill(&file, 3).unwrap();
        let error = verify(&file, 3).unwrap_err().to_string();
        assert!(error.starts_with("byte 12582912 is 0x5a"), "{error}");
    }

    #[test]
    fn a_window_that_does_not_fit_is_told_and_the_host_s_memory_is_seen_to_be_touched() {
        let directory = Directory::new("peer-staged").unwrap();
        let file = directory.path().join("memory");
        fill(&file, 3).unwrap();
        let (memory, disks) = (FileMemory::map(&file).unwrap(), disks(3));
        let gpu = Arc::new(StandIn::new(Box::new(memory), 2 * HALF));
        let staging = ByteCount::mib(16);
        let for_it = Some(Arc::clone(&gpu) as Arc<dyn GpuMemory>);
        let options = OpenOptions { staging, gpu: for_it, ..OpenOptions::default() };
        let pool = Pool::open(&disks, &options).unwrap();
        let Some(Feature::Off(why)) = pool.stats().unwrap().reactor.gpu.map(|gpu| gpu.reached)
        else {
            panic!("there is no room for the window")
        };
        assert!(why.contains("a window of 16777216 bytes in 8388608"), "{why}");
        let told = scratch(&gpu, &pool).unwrap_err().to_string();
        assert!(told.contains("600002 copied to it or from it"), "{told}");
    }
}
