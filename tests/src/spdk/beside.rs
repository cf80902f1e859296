//! Two controllers on the bus: one does not wait for the other.

use tidelog_engine::memory::DmaPool;
use tidelog_engine::path::{Action, DataPath, DeviceSpec, Extent, OperationKind, Status};
use tidelog_engine::units::{ByteCount, DeviceIndex};

use super::{COMMAND_TIMEOUT, Row, collect, operation, path_to};
use crate::conformance::Failure;

/// Rows for two controllers on the bus.
pub const OF_TWO: &[Row] = &[("while one controller is reset another goes on", another_goes_on)];

const EXTENT: Extent = Extent::new(1 << 20, 4096);
/// The devices, and the tag of what is in flight on the one that is reset, as no read has it.
const GOES_ON: u8 = 0;
const IS_RESET: u8 = 1;
const LOST: u64 = u64::MAX - 1;

fn read(pool: &DmaPool) -> Result<Action, Failure> {
    Ok(Action::read(pool.take(EXTENT.length.0 as usize).ok_or("no buffer")?))
}

/// A reset that kept the thread would end in the poll that began it: no read would come back
/// between its begin and the end of what it gets back.
fn another_goes_on(specs: &[DeviceSpec]) -> Result<String, Failure> {
    let mut path = path_to(&specs[..2], 4)?;
    let pool = path.allocate(ByteCount::kib(64), false)?;
    path.register(&pool);
    let timeouts = path.timeouts();
    // SPDK keeps the command itself, where no abort finds it.
    let held = Some(COMMAND_TIMEOUT * 8);
    path.inject(DeviceIndex(IS_RESET), OperationKind::Read, 1, (7, 0x77), held)?;
    let lost = operation(LOST, IS_RESET, EXTENT, read(&pool)?);
    path.submit(lost).map_err(|refused| refused.reason)?;
    let (mut all, mut meanwhile, mut failed) = (0_u64, 0_u64, None);
    while failed.is_none() {
        path.submit(operation(all, GOES_ON, EXTENT, read(&pool)?))
            .map_err(|refused| refused.reason)?;
        let mut is_out = true;
        while is_out {
            for done in collect(&mut path, 1)? {
                if done.tag == LOST {
                    failed = done.result.err();
                    failed.ok_or("what was held came back")?;
                } else {
                    done.result?;
                    is_out = false;
                }
            }
        }
        all += 1;
        meanwhile += u64::from(timeouts.recalls() > 0 && failed.is_none());
    }
    if failed.is_none_or(|error| error.status != Status::Errno(libc::ETIMEDOUT)) {
        return Err(format!("what was held ended as {failed:?}").into());
    }
    if timeouts.recalls() != 1 || meanwhile == 0 {
        return Err(format!("{meanwhile} of {all} reads during the reset, by {timeouts:?}").into());
    }
    // Both are there, and what happened to one is not held against the other.
    path.submit(operation(0, IS_RESET, EXTENT, read(&pool)?)).map_err(|refused| refused.reason)?;
    collect(&mut path, 1)?.remove(0).result?;
    let buffer = pool.take(EXTENT.length.0 as usize).ok_or("no buffer")?;
    let write = Action::write(buffer, false);
    path.submit(operation(0, GOES_ON, EXTENT, write)).map_err(|refused| refused.reason)?;
    collect(&mut path, 1)?.remove(0).result?;
    Ok(format!("{meanwhile} reads during the reset, {all} in all"))
}
