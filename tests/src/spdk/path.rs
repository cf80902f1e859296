//! Errors, time-outs and aborts of single commands, by SPDK's own error injection and on devices
//! that are slow; and memory that is not SPDK's.

use std::time::{Duration, Instant};

use tidelog_engine::memory::{Backing, DmaBuffer, DmaPool, Memory};
use tidelog_engine::path::checked::Checked;
use tidelog_engine::path::{
    Action, Completion, DataPath, DeviceError, DeviceSpec, Extent, Feature, OperationKind, Refusal,
    Status,
};
use tidelog_engine::units::{ByteCount, DeviceIndex};

use super::{COMMAND_TIMEOUT, Reach, Row, collect, operation, path_to};
use crate::conformance::{Failure, NOTHING_TO_DO};

/// Rows for every controller. The first one's first 16 MiB are lost.
pub const ON_EVERY_CONTROLLER: &[Row] = &[
    ("an error is that operation's, with its status", an_error_is_reported),
    ("flushes, zeroes and deallocations are commands, whose errors come back", each_is_a_command),
    ("zeroes and deallocations keep to their extent", they_keep_to_their_extent),
    ("what is aborted in a burst comes back once, aborted or right", an_aborted_burst_comes_back),
    ("memory of another pool is refused until it is registered", foreign_memory),
];

/// Rows for transports on which something gets a command back that the controller keeps: not over
/// vfio-user.
pub const WHERE_COMMANDS_COME_BACK: &[Row] =
    &[("what takes too long and is not aborted is ended by a reset", a_reset_ends)];

/// Rows for a controller on which the second read of a second is held, and an abort of it reaches
/// the controller.
pub const WHERE_READS_ARE_SLOW: &[Row] = &[("what is aborted ends as aborted", an_abort_ends)];

/// Rows for a controller on which reads take much longer than commands may, and an abort gets them
/// back.
pub const WHERE_READS_ARE_HELD: &[Row] = &[
    ("what is aborted ends as aborted", an_abort_ends),
    ("what takes too long is ended by an abort", a_time_out_aborts),
];

const BLOCK: u64 = 4096;
/// Errors that nobody gives by himself here.
const WRITE_FAULT: (u8, u8) = (2, 0x80);
const READ_ERROR: (u8, u8) = (2, 0x81);

fn submit(path: &mut dyn DataPath, extent: Extent, action: Action) -> Result<(), Refusal> {
    path.submit(operation(1, 0, extent, action)).map_err(|refused| refused.reason)
}

fn run(path: &mut dyn DataPath, extent: Extent, action: Action) -> Result<Completion, Failure> {
    submit(path, extent, action)?;
    collect(path, 1)?.pop().ok_or_else(|| "nothing came back".into())
}

/// The error that an operation must end with.
fn failed(path: &mut dyn DataPath, extent: Extent, action: Action) -> Result<DeviceError, Failure> {
    let kind = action.kind();
    let error = run(path, extent, action)?.result.err();
    error.ok_or_else(|| format!("the {kind} went well").into())
}

fn is(status: Status, (expected_type, expected): (u8, u8)) -> bool {
    matches!(status, Status::Nvme { code_type, code, .. } if (code_type, code) == (expected_type, expected))
}

fn filled(pool: &DmaPool, length: u64, byte: u8) -> Result<DmaBuffer, Failure> {
    let mut buffer = pool.take(length as usize).ok_or("no buffer")?;
    buffer.fill(byte);
    Ok(buffer)
}

/// The extent holds this byte all over.
fn write(path: &mut dyn DataPath, pool: &DmaPool, extent: Extent, byte: u8) -> Result<(), Failure> {
    let buffer = filled(pool, extent.length.0, byte)?;
    run(path, extent, Action::write(buffer, false))?.result?;
    Ok(())
}

fn read(path: &mut dyn DataPath, pool: &DmaPool, extent: Extent) -> Result<Vec<u8>, Failure> {
    let done = run(path, extent, Action::read(filled(pool, extent.length.0, 0xEE)?))?;
    done.result?;
    let buffer = done.into_buffer().ok_or("its buffer did not come back")?;
    Ok(buffer[..extent.length.0 as usize].to_vec())
}

fn expect(bytes: &[u8], byte: u8, what: &str) -> Result<(), Failure> {
    match bytes.iter().find(|&&found| found != byte) {
        Some(found) => Err(format!("{what}: {found:#04x} and not {byte:#04x}").into()),
        None => Ok(()),
    }
}

/// A new path to the first controller works: what was written to the extent before is there.
fn is_reopened(specs: &[DeviceSpec], extent: Extent, byte: u8) -> Result<(), Failure> {
    let mut path = path_to(&specs[..1], 4)?;
    let pool = path.allocate(ByteCount::kib(64), false)?;
    path.register(&pool);
    expect(&read(&mut path, &pool, extent)?, byte, "when it was opened again")?;
    write(&mut path, &pool, extent, byte ^ 0xFF)?;
    expect(&read(&mut path, &pool, extent)?, byte ^ 0xFF, "written when it was opened again")
}

fn an_error_is_reported(specs: &[DeviceSpec]) -> Result<String, Failure> {
    let mut path = path_to(&specs[..1], 4)?;
    let pool = path.allocate(ByteCount::kib(64), false)?;
    path.register(&pool);
    path.inject(DeviceIndex(0), OperationKind::Read, 1, READ_ERROR, None)?;
    path.inject(DeviceIndex(0), OperationKind::Write, 1, WRITE_FAULT, None)?;
    let mut path = Checked::new(Box::new(path));
    let extent = Extent::new(BLOCK, BLOCK);
    let error = failed(&mut path, extent, Action::read(filled(&pool, BLOCK, 0)?))?;
    if !is(error.status, READ_ERROR) {
        return Err(format!("another status: {error}").into());
    }
    read(&mut path, &pool, extent)?;
    let write = || Ok::<_, Failure>(Action::write(filled(&pool, BLOCK, 0)?, true));
    let cause = failed(&mut path, extent, write()?)?;
    if !is(cause.status, WRITE_FAULT) {
        return Err(format!("another status: {cause}").into());
    }
    read(&mut path, &pool, extent)?;
    refuses_writes(&mut path, extent, write()?, cause)?;
    Ok(error.to_string())
}

fn refuses_writes(
    path: &mut dyn DataPath,
    extent: Extent,
    write: Action,
    cause: DeviceError,
) -> Result<(), Failure> {
    match submit(path, extent, write) {
        Err(Refusal::Latched(latched)) if latched == cause => Ok(()),
        Err(other) => Err(format!("after {cause} a write is refused as {other}").into()),
        Ok(()) => Err(format!("after {cause} a write is taken").into()),
    }
}

/// Errors are injected into responses of the controller, so one that comes back was a command that
/// it had.
fn each_is_a_command(specs: &[DeviceSpec]) -> Result<String, Failure> {
    let extent = Extent::new(BLOCK, 2 * BLOCK);
    let kinds = [
        (Extent::NOTHING, Action::Flush),
        (extent, Action::WriteZeroes),
        (extent, Action::Deallocate),
    ];
    let mut said = Vec::new();
    for (extent, action) in kinds {
        let kind = action.kind();
        let mut path = path_to(&specs[..1], 4)?;
        let pool = path.allocate(ByteCount::kib(64), false)?;
        path.register(&pool);
        let again = match action {
            Action::Flush => Action::Flush,
            Action::WriteZeroes => Action::WriteZeroes,
            _ => Action::Deallocate,
        };
        run(&mut path, extent, again)?.result?;
        path.inject(DeviceIndex(0), kind, 1, WRITE_FAULT, None)?;
        let mut path = Checked::new(Box::new(path));
        let error = failed(&mut path, extent, action)?;
        if error.kind != kind || !is(error.status, WRITE_FAULT) {
            return Err(format!("another error: {error}").into());
        }
        let (first, buffer) = (Extent::new(0, BLOCK), filled(&pool, BLOCK, 0)?);
        let write = Action::write(buffer, false);
        if kind == OperationKind::Deallocate {
            // It was advice: nothing that counts on the device has changed.
            run(&mut path, first, write)?.result?;
        } else {
            refuses_writes(&mut path, first, write, error)?;
        }
        said.push(kind.to_string());
    }
    Ok(said.join(", "))
}

fn they_keep_to_their_extent(specs: &[DeviceSpec]) -> Result<String, Failure> {
    let mut path = Checked::new(Box::new(path_to(&specs[..1], 4)?));
    let pool = path.allocate(ByteCount::kib(64), false)?;
    path.register(&pool);
    let (whole, middle) = (Extent::new(0, 4 * BLOCK), Extent::new(BLOCK, 2 * BLOCK));
    write(&mut path, &pool, whole, 9)?;
    let done = run(&mut path, middle, Action::WriteZeroes)?;
    done.result?;
    let bytes = read(&mut path, &pool, whole)?;
    let expected =
        [[9; BLOCK as usize], [0; BLOCK as usize], [0; BLOCK as usize], [9; BLOCK as usize]];
    if bytes != expected.concat() {
        return Err("other bytes were zeroed".into());
    }
    write(&mut path, &pool, whole, 7)?;
    run(&mut path, middle, Action::Deallocate)?.result?;
    let bytes = read(&mut path, &pool, whole)?;
    let (before, after) = (&bytes[..BLOCK as usize], &bytes[3 * BLOCK as usize..]);
    expect(before, 7, "before what was deallocated")?;
    expect(after, 7, "behind what was deallocated")?;
    Ok(format!("{} of {}", middle.length, whole.length))
}

/// SPDK holds the command itself, where no abort finds it: a reset ends it, or the end of the
/// connection.
fn a_reset_ends(specs: &[DeviceSpec]) -> Result<String, Failure> {
    let extent = Extent::new(0, BLOCK);
    let mut path = path_to(&specs[..1], 4)?;
    let pool = path.allocate(ByteCount::kib(64), false)?;
    path.register(&pool);
    write(&mut path, &pool, extent, 0x3C)?;
    // Held for longer than the abort and the reset take, with an answer that no device gives.
    let held = Some(COMMAND_TIMEOUT * 8);
    let timeouts = path.timeouts();
    path.inject(DeviceIndex(0), OperationKind::Read, 1, (7, 0x77), held)?;
    let begun = Instant::now();
    let error = failed(&mut path, extent, Action::read(filled(&pool, BLOCK, 0)?))?;
    let took = begun.elapsed();
    if error.status != Status::Errno(libc::ETIMEDOUT) {
        return Err(format!("{error} after {took:?}").into());
    }
    if took < 2 * COMMAND_TIMEOUT || timeouts.recalls() != 1 {
        return Err(format!("it ended after {took:?}, by {timeouts:?}, so by no reset").into());
    }
    // A controller on the bus was reset, a connection is made anew.
    let then = run(&mut path, extent, Action::read(filled(&pool, BLOCK, 0)?))?;
    then.result?;
    let read = then.memory.and_then(Memory::into_host).ok_or("its buffer did not come back")?;
    expect(&read[..], 0x3C, "after the reset")?;
    drop(path);
    is_reopened(specs, extent, 0x3C)?;
    Ok(format!("after {:.1} s, and it goes on; opened anew it works", took.as_secs_f64()))
}

/// A read that is still out after a moment, on a device where a second one is slow.
fn begin_slow_read(path: &mut dyn DataPath, pool: &DmaPool) -> Result<Instant, Failure> {
    let first = Action::read(filled(pool, BLOCK, 0)?);
    submit(path, Extent::new(0, BLOCK), first)?;
    let begun = Instant::now();
    let mut done = Vec::new();
    while begun.elapsed() < Duration::from_millis(100) {
        path.poll(&mut done);
    }
    match done.pop() {
        // There was none before it.
        Some(first) => first.result?,
        None => return Ok(begun),
    }
    submit(path, Extent::new(0, BLOCK), Action::read(filled(pool, BLOCK, 0)?))?;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(100) {
        if path.poll(&mut done) > 0 {
            return Err("no read is slow here".into());
        }
    }
    Ok(begun)
}

fn an_abort_ends(specs: &[DeviceSpec]) -> Result<String, Failure> {
    let path = path_to(&specs[..1], 4)?;
    let timeouts = path.timeouts();
    let mut path = Checked::new(Box::new(path));
    let pool = path.allocate(ByteCount::kib(64), false)?;
    path.register(&pool);
    let begun = begin_slow_read(&mut path, &pool)?;
    path.abort(1);
    let error = match collect(&mut path, 1)?.remove(0).result {
        Ok(()) if timeouts.not_aborted() > 0 => {
            return Ok(format!("{NOTHING_TO_DO}the controller answers that it aborted nothing"));
        }
        Ok(()) => return Err("the read went well".into()),
        Err(error) => error,
    };
    let took = begun.elapsed();
    if error.status != Status::Errno(libc::ECANCELED) || timeouts.recalls() != 0 {
        return Err(format!("{error} after {took:?}, by {timeouts:?}").into());
    }
    Ok(format!("after {:.1} s: {error}", took.as_secs_f64()))
}

fn a_time_out_aborts(specs: &[DeviceSpec]) -> Result<String, Failure> {
    let path = path_to(&specs[..1], 4)?;
    let timeouts = path.timeouts();
    let mut path = Checked::new(Box::new(path));
    let pool = path.allocate(ByteCount::kib(64), false)?;
    path.register(&pool);
    let begun = begin_slow_read(&mut path, &pool)?;
    let error = collect(&mut path, 1)?.remove(0).result.err().ok_or("the read went well")?;
    let took = begun.elapsed();
    if error.status != Status::Errno(libc::ETIMEDOUT) {
        return Err(format!("{error} after {took:?}").into());
    }
    if took < COMMAND_TIMEOUT || timeouts.aborts() != 1 || timeouts.recalls() != 0 {
        return Err(format!("it ended after {took:?}, by {timeouts:?}, so not by an abort").into());
    }
    // Nothing was reset, so the same queue goes on.
    let write = Action::write(filled(&pool, BLOCK, 1)?, false);
    run(&mut path, Extent::new(BLOCK, BLOCK), write)?.result?;
    Ok(format!("after {:.1} s, and it goes on", took.as_secs_f64()))
}

fn an_aborted_burst_comes_back(specs: &[DeviceSpec]) -> Result<String, Failure> {
    const LENGTH: u64 = 512 << 10;
    let mut path = Checked::new(Box::new(path_to(&specs[..1], 8)?));
    let pool = path.allocate(ByteCount::mib(4), false)?;
    path.register(&pool);
    let extent = |tag: u64| Extent::new(tag << 20, LENGTH);
    for tag in 0..8 {
        write(&mut path, &pool, extent(tag), tag as u8 + 1)?;
    }
    for tag in 0..8 {
        let buffer = filled(&pool, LENGTH, 0xEE)?;
        let read = operation(tag, 0, extent(tag), Action::read(buffer));
        path.submit(read).map_err(|refused| refused.reason)?;
    }
    path.ring()?;
    path.abort_all();
    let (mut aborted, mut tags) = (0, Vec::new());
    for done in collect(&mut path, 8)? {
        let tag = done.tag;
        tags.push(tag);
        match done.result {
            Ok(()) => {
                let buffer = done.into_buffer().ok_or("its buffer did not come back")?;
                expect(&buffer[..LENGTH as usize], tag as u8 + 1, "what was not aborted")?;
            }
            Err(error) if error.status.is_aborted() => aborted += 1,
            Err(other) => return Err(other.into()),
        }
    }
    tags.sort_unstable();
    if tags != (0..8).collect::<Vec<_>>() {
        return Err(format!("{tags:?} came back").into());
    }
    // No abort gets to the controller there.
    if Reach::of(&specs[0]) == Reach::Process && aborted > 0 {
        return Err(format!("{aborted} were aborted over vfio-user").into());
    }
    Ok(format!("{aborted} of 8 aborted in time, {} right", 8 - aborted))
}

fn foreign_memory(specs: &[DeviceSpec]) -> Result<String, Failure> {
    let reach = Reach::of(&specs[0]);
    let mut said = Vec::new();
    for huge in [false, true] {
        let pool = DmaPool::new(ByteCount::mib(2), huge)?;
        if huge && pool.backing() != Backing::HugeTlb {
            continue;
        }
        let mut path = path_to(&specs[..1], 4)?;
        let own = path.allocate(ByteCount::kib(64), false)?;
        path.register(&own);
        let extent = Extent::new(BLOCK, 4 * BLOCK);
        write(&mut path, &own, extent, 0x11)?;
        let refused = submit(&mut path, extent, Action::read(filled(&pool, extent.length.0, 0)?));
        match (reach, refused) {
            (Reach::Connection, Ok(())) => {
                let done = collect(&mut path, 1)?.remove(0);
                done.result?;
                let buffer = done.into_buffer().ok_or("no buffer")?;
                expect(&buffer[..extent.length.0 as usize], 0x11, "read")?;
            }
            (Reach::Bus | Reach::Process, Err(Refusal::Invalid(_))) => {}
            (_, other) => return Err(format!("memory that was not registered: {other:?}").into()),
        }
        path.register(&pool);
        let registered = path.capabilities().registered_buffers.clone();
        let must = reach.takes_memory(&specs[0], huge);
        match registered {
            Feature::On if must => {
                expect(&read(&mut path, &pool, extent)?, 0x11, "read into registered memory")?;
                write(&mut path, &pool, extent, 0x22)?;
                expect(&read(&mut path, &own, extent)?, 0x22, "written out of registered memory")?;
                said.push(format!("{} on {}: registered", pool.size(), pool.backing()));
            }
            Feature::Off(why) if !must => {
                let read = Action::read(filled(&pool, extent.length.0, 0)?);
                if !matches!(submit(&mut path, extent, read), Err(Refusal::Invalid(_))) {
                    return Err(format!("not registered ({why}), and taken").into());
                }
                said.push(format!("{} on {}: {why}", pool.size(), pool.backing()));
            }
            other => return Err(format!("{} on {}: {other:?}", pool.size(), pool.backing()).into()),
        }
    }
    Ok(said.join("; "))
}
