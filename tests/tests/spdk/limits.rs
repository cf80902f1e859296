//! A controller that limits the blocks that one command zeroes or deallocates.

use tidelog_engine::memory::{DmaBuffer, DmaPool, Memory};
use tidelog_engine::path::{Action, DataPath, DeviceSpec, Extent};
use tidelog_engine::units::ByteCount;
use tidelog_tests::conformance::Failure;
use tidelog_tests::spdk::target::{DEALLOCATE_MAX, ZEROES_MAX};
use tidelog_tests::spdk::{collect, operation, path_to};

/// Several commands of each kind, and a part of one.
const ZEROED: Extent = Extent::new(1 << 20, 5 * ZEROES_MAX + 4096);
const DEALLOCATED: Extent = Extent::new(4 << 20, 2 * DEALLOCATE_MAX + 4096);

/// The target refuses a command that zeroes more, and leaves the rest of one that deallocates more
/// as it is.
pub(crate) fn what_is_zeroed_and_deallocated_is_cut(
    specs: &[DeviceSpec],
) -> Result<String, Failure> {
    let mut path = path_to(&specs[..1], 4)?;
    let pool = path.allocate(ByteCount::mib(8), false)?;
    path.register(&pool);
    for (extent, action) in [(ZEROED, Action::WriteZeroes), (DEALLOCATED, Action::Deallocate)] {
        let kind = action.kind();
        let buffer = filled(&pool, extent)?;
        run(&mut path, extent, Action::write(buffer, false))?;
        run(&mut path, extent, action)?;
        let read = run(&mut path, extent, Action::read(filled(&pool, extent)?))?;
        let bytes = read.ok_or("its buffer did not come back")?;
        let bytes = &bytes[..extent.length.0 as usize];
        if let Some(at) = bytes.iter().position(|&byte| byte != 0) {
            return Err(format!("{kind} of {} left byte {at} as it was", extent.length).into());
        }
    }
    Ok(format!("{} and {}", ZEROED.length, DEALLOCATED.length))
}

fn filled(pool: &DmaPool, extent: Extent) -> Result<DmaBuffer, Failure> {
    let mut buffer = pool.take(extent.length.0 as usize).ok_or("no buffer")?;
    buffer.fill(0x5A);
    Ok(buffer)
}

fn run(
    path: &mut dyn DataPath,
    extent: Extent,
    action: Action,
) -> Result<Option<DmaBuffer>, Failure> {
    path.submit(operation(1, 0, extent, action)).map_err(|refused| refused.reason)?;
    let done = collect(path, 1)?.remove(0);
    done.result?;
    Ok(done.memory.and_then(Memory::into_host))
}
