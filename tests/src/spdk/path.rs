//! Errors, time-outs and aborts of single commands, by SPDK's own error injection.

use std::time::Instant;

use tidelog_engine::memory::DmaPool;
use tidelog_engine::path::checked::Checked;
use tidelog_engine::path::spdk::SpdkPath;
use tidelog_engine::path::{
    Action, Completion, DataPath, DeviceSpec, Extent, OperationKind, Refusal, Status,
};
use tidelog_engine::units::{ByteCount, DeviceIndex};

use super::{COMMAND_TIMEOUT, Row, collect, operation, path_to};
use crate::conformance::Failure;

/// What is so on every controller. The first one's bytes from 4 KiB on are lost.
pub const ON_EVERY_CONTROLLER: &[Row] = &[
    ("an error is that operation's, with its status", an_error_is_reported),
    ("what is aborted comes back", an_abort_ends),
    ("memory of another pool is refused or works", foreign_memory),
];

/// What is so where something gets a command back that the controller keeps: not over vfio-user.
pub const WHERE_COMMANDS_COME_BACK: &[Row] =
    &[("what takes too long times out and comes back", a_time_out_ends)];

const BLOCK: u64 = 4096;

fn an_error_is_reported(specs: &[DeviceSpec]) -> Result<String, Failure> {
    const WRITE_FAULT: (u8, u8) = (2, 0x80);
    const READ_ERROR: (u8, u8) = (2, 0x81);
    let mut path = path_to(&specs[..1], 4)?;
    let pool = path.allocate(ByteCount::kib(64), false)?;
    path.register(&pool);
    let buffer = || pool.take(BLOCK as usize).ok_or("no buffer");
    path.inject(DeviceIndex(0), OperationKind::Read, 1, READ_ERROR, None)?;
    path.inject(DeviceIndex(0), OperationKind::Write, 1, WRITE_FAULT, None)?;
    let mut path = Checked::new(Box::new(path));
    let extent = Extent::new(BLOCK, BLOCK);
    let mut run = |action: Action| -> Result<Completion, Failure> {
        path.submit(operation(1, 0, extent, action)).map_err(|refused| refused.reason)?;
        collect(&mut path, 1)?.pop().ok_or_else(|| "nothing came back".into())
    };
    let failed = run(Action::Read(buffer()?))?.result.err().ok_or("the read went well")?;
    let said = failed.to_string();
    if !matches!(failed.status, Status::Nvme { code_type: 2, code: 0x81, .. }) {
        return Err(format!("another status: {said}").into());
    }
    run(Action::Read(buffer()?))?.result?;
    let write = || Ok::<_, Failure>(Action::Write { buffer: buffer()?, fua: true });
    let failed = run(write()?)?.result.err().ok_or("the write went well")?;
    if !matches!(failed.status, Status::Nvme { code_type: 2, code: 0x80, .. }) {
        return Err(format!("another status: {failed}").into());
    }
    run(Action::Read(buffer()?))?.result?;
    let refused = path.submit(operation(2, 0, extent, write()?)).err().ok_or("not latched")?;
    match refused.reason {
        Refusal::Latched(cause) if cause == failed => Ok(said),
        other => Err(format!("refused as {other}").into()),
    }
}

fn a_time_out_ends(specs: &[DeviceSpec]) -> Result<String, Failure> {
    let mut path = path_to(&specs[..1], 4)?;
    let pool = path.allocate(ByteCount::kib(64), false)?;
    path.register(&pool);
    // Held back by SPDK for longer than the abort and the reset take, with an answer that no device gives.
    let held = Some(COMMAND_TIMEOUT * 8);
    path.inject(DeviceIndex(0), OperationKind::Read, 1, (7, 0x77), held)?;
    let buffer = pool.take(BLOCK as usize).ok_or("no buffer")?;
    let begun = Instant::now();
    let read = operation(1, 0, Extent::new(0, BLOCK), Action::Read(buffer));
    path.submit(read).map_err(|refused| refused.reason)?;
    let done = collect(&mut path, 1)?.pop().ok_or("nothing came back")?;
    let took = begun.elapsed();
    match done.result {
        Err(error) if error.status == Status::Errno(libc::ETIMEDOUT) => {
            Ok(format!("after {:.1} s", took.as_secs_f64()))
        }
        other => Err(format!("{other:?} after {took:?}").into()),
    }
}

fn an_abort_ends(specs: &[DeviceSpec]) -> Result<String, Failure> {
    let mut path = path_to(&specs[..1], 8)?;
    let pool = path.allocate(ByteCount::mib(4), false)?;
    path.register(&pool);
    for tag in 0..8 {
        let buffer = pool.take(512 << 10).ok_or("no buffer")?;
        let extent = Extent::new(tag << 20, 512 << 10);
        let read = operation(tag, 0, extent, Action::Read(buffer));
        path.submit(read).map_err(|refused| refused.reason)?;
    }
    path.ring()?;
    path.abort_all();
    let done = collect(&mut path, 8)?;
    let wrong =
        done.iter().find_map(|it| it.result.err().filter(|error| !error.status.is_aborted()));
    if let Some(wrong) = wrong {
        return Err(wrong.to_string().into());
    }
    let aborted = done.iter().filter(|it| it.result.is_err()).count();
    Ok(format!("{aborted} of 8 were aborted in time"))
}

fn foreign_memory(specs: &[DeviceSpec]) -> Result<String, Failure> {
    let mut path = path_to(&specs[..1], 4)?;
    let pool = DmaPool::new(ByteCount::mib(2), false)?;
    let submit = |path: &mut SpdkPath| {
        let buffer = pool.take(BLOCK as usize).ok_or("no buffer")?;
        let taken = path.submit(operation(1, 0, Extent::new(0, BLOCK), Action::Read(buffer)));
        Ok::<_, Failure>(taken.map_err(|refused| refused.reason))
    };
    match submit(&mut path)? {
        Ok(()) => collect(&mut path, 1)?
            .remove(0)
            .result
            .map(|()| "it works".to_owned())
            .map_err(Into::into),
        Err(reason @ Refusal::Invalid(_)) => Ok(reason.to_string()),
        Err(other) => Err(other.into()),
    }
}
