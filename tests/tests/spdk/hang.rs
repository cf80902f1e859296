//! A target that hangs: what it was asked times out, and memory that it may still write is handed
//! out to nobody.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use tidelog_engine::memory::{DmaBuffer, DmaPool};
use tidelog_engine::path::{Action, Completion, DataPath, Extent, Status};
use tidelog_engine::units::ByteCount;
use tidelog_tests::conformance::Failure;
use tidelog_tests::spdk::target::{Target, Transport};
use tidelog_tests::spdk::{COMMAND_TIMEOUT, collect, operation, path_to};

const LENGTH: u64 = 16 << 10;
const POOL: u64 = 4 * LENGTH;
const READ: Extent = Extent::new(0, LENGTH);
const WRITTEN: Extent = Extent::new(1 << 20, LENGTH);
/// Byte of both extents, of the write to the second, and of memory that is unused.
const OLD: u8 = 0x31;
const NEW: u8 = 0x42;
const MINE: u8 = 0x77;
/// Time for a running target to do its work.
const AWAKE: Duration = Duration::from_secs(2);

/// Checks a hung target: over a connection, which is closed, the buffers come back; over vfio-user,
/// where nothing keeps the target from them, they are leaked.
pub(crate) fn a_target_hangs(program: &Path, transport: Transport) -> Result<String, Failure> {
    let target = Target::start(program, transport, 4096)?;
    let specs = target.controllers();
    // Not `Checked`, which wants every buffer back.
    let mut path = path_to(&specs[..1], 4)?;
    let timeouts = path.timeouts();
    let pool = path.allocate(ByteCount(POOL), false)?;
    path.register(&pool);
    write(&mut path, &pool, READ, OLD)?;
    write(&mut path, &pool, WRITTEN, OLD)?;

    target.hang(true)?;
    let begun = Instant::now();
    let actions = [
        (READ, Action::read(filled(&pool, MINE)?)),
        (WRITTEN, Action::write(filled(&pool, NEW)?, false)),
    ];
    for (tag, (extent, action)) in (0..).zip(actions) {
        path.submit(operation(tag, 0, extent, action)).map_err(|refused| refused.reason)?;
    }
    let done = collect(&mut path, 2)?;
    let took = begun.elapsed();
    for it in &done {
        let error = it.result.err().ok_or("it was answered by a target that hangs")?;
        if error.status != Status::Errno(libc::ETIMEDOUT) {
            return Err(format!("{error} after {took:?}").into());
        }
    }
    if took < 2 * COMMAND_TIMEOUT || timeouts.aborts() < 2 || timeouts.recalls() == 0 {
        return Err(format!("it took {took:?} to give up, by {timeouts:?}").into());
    }
    let back = done.iter().filter(|it| it.memory.is_some()).count();
    let expected = if transport == Transport::Tcp { 2 } else { 0 };
    if back != expected {
        return Err(format!("{back} of 2 buffers came back, and not {expected}").into());
    }
    drop(done);
    // Whatever is to be had is ours alone: the target's late answer changes none of it.
    let ours = take_all(&pool);
    let had = ours.len() as u64 * LENGTH;
    if had != POOL - (2 - expected as u64) * LENGTH {
        return Err(format!("{had} of {POOL} bytes can be had again").into());
    }
    if path.submit(operation(3, 0, Extent::NOTHING, Action::Flush)).is_ok() {
        let late = collect(&mut path, 1)?.remove(0).result;
        if !late.is_err_and(|error| error.status.is_removal()) {
            return Err(format!("a flush of what hangs answers {late:?}").into());
        }
    }

    target.hang(false)?;
    let until = Instant::now() + AWAKE;
    let mut late = Vec::new();
    while Instant::now() < until {
        path.poll(&mut late);
        std::thread::sleep(Duration::from_millis(10));
    }
    if !late.is_empty() {
        return Err(format!("{late:?} came twice").into());
    }
    if ours.iter().any(|buffer| buffer.iter().any(|&byte| byte != MINE)) {
        return Err("the target wrote memory that was handed out again".into());
    }
    // The path goes, and what it leaked stays.
    drop(ours);
    drop(path);
    if take_all(&pool).len() as u64 * LENGTH != had {
        return Err("what was leaked came back when the path was dropped".into());
    }
    let file = File::open(target.files()[0].path())?;
    let mut bytes = vec![0; LENGTH as usize];
    file.read_exact_at(&mut bytes, READ.offset.0)?;
    let kept = bytes.iter().all(|&byte| byte == OLD);
    file.read_exact_at(&mut bytes, WRITTEN.offset.0)?;
    let written = bytes.iter().all(|&byte| byte == NEW);
    if !kept || !written && bytes.iter().any(|&byte| byte != OLD) {
        return Err("the medium has other bytes".into());
    }
    Ok(format!(
        "timed out after {:.1} s; {} of {POOL} bytes stay away; the late write {}",
        took.as_secs_f64(),
        POOL - had,
        if written { "was done" } else { "was not done" },
    ))
}

fn filled(pool: &DmaPool, byte: u8) -> Result<DmaBuffer, Failure> {
    let mut buffer = pool.take(LENGTH as usize).ok_or("no buffer")?;
    buffer.fill(byte);
    Ok(buffer)
}

fn take_all(pool: &DmaPool) -> Vec<DmaBuffer> {
    let take = || filled(pool, MINE).ok();
    std::iter::from_fn(take).collect()
}

fn write(path: &mut dyn DataPath, pool: &DmaPool, extent: Extent, byte: u8) -> Result<(), Failure> {
    let action = Action::write(filled(pool, byte)?, false);
    path.submit(operation(0, 0, extent, action)).map_err(|refused| refused.reason)?;
    let done: Completion = collect(path, 1)?.remove(0);
    Ok(done.result?)
}
