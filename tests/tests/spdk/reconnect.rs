//! Controllers whose connection is lost, or who do not answer: they are connected anew, for reads
//! alone, and others go on meanwhile.

use std::path::Path;
use std::time::Duration;

use tidelog_engine::memory::{DmaBuffer, DmaPool, Memory};
use tidelog_engine::path::spdk::SpdkPath;
use tidelog_engine::path::{Action, DataPath, DeviceSpec, Extent, Refusal, Status};
use tidelog_engine::units::ByteCount;
use tidelog_tests::conformance::Failure;
use tidelog_tests::spdk::target::{Target, Transport};
use tidelog_tests::spdk::{collect, operation, path_to};

/// One row: what must be so, and what shows it on a target of this program.
type Row = (&'static str, fn(&Path) -> Result<String, Failure>);

/// Rows of this file.
pub(crate) const ROWS: [Row; 2] = [
    ("while one controller is connected anew another goes on", another_goes_on),
    ("a controller whose own queue has failed is connected anew, for reads", its_own_queue_fails),
];

const EXTENT: Extent = Extent::new(1 << 20, 16 << 10);
const BYTES: [u8; 2] = [0x31, 0x42];
/// Reads of the other device while the first one is connected anew.
const MEANWHILE: u64 = 500;
/// Several times as long as it takes to notice that a connection is gone.
const NOTICED: Duration = Duration::from_millis(500);

/// The target of the second device is stopped, and goes on only when enough was read from the
/// first.
fn another_goes_on(program: &Path) -> Result<String, Failure> {
    let targets = [
        Target::start(program, Transport::Tcp, 4096)?,
        Target::start(program, Transport::Tcp, 4096)?,
    ];
    let specs: Vec<DeviceSpec> = targets.iter().map(|it| it.controllers().remove(0)).collect();
    let (mut path, pool) = written(&specs)?;
    let timeouts = path.timeouts();

    targets[1].hang(true)?;
    let slow = operation(u64::MAX - 1, 1, EXTENT, Action::read(buffer(&pool, 0)?));
    path.submit(slow).map_err(|refused| refused.reason)?;
    let (mut meanwhile, mut failed) = (0, None);
    while meanwhile < MEANWHILE || failed.is_none() {
        let next = operation(meanwhile, 0, EXTENT, Action::read(buffer(&pool, 0)?));
        path.submit(next).map_err(|refused| refused.reason)?;
        let mut reads = 1;
        while reads > 0 {
            for done in collect(&mut path, 1)? {
                if done.tag == u64::MAX - 1 {
                    failed = done.result.err();
                    continue;
                }
                done.result?;
                reads -= 1;
            }
        }
        meanwhile += u64::from(timeouts.recalls() > 0);
    }
    if failed.is_none_or(|error| error.status != Status::Errno(libc::ETIMEDOUT)) {
        return Err(format!("the device that hangs answered {failed:?}").into());
    }

    targets[1].hang(false)?;
    read(&mut path, &pool, 1)?;
    writes_are_refused(&mut path, &pool, 1)?;
    write(&mut path, &pool, 0)??;
    drop(path);
    let (mut path, pool) = written(&specs)?;
    read(&mut path, &pool, 1)?;
    Ok(format!("{meanwhile} reads"))
}

/// The target ends while nobody asks it anything, so only the controller's own queue tells, and is
/// started again.
fn its_own_queue_fails(program: &Path) -> Result<String, Failure> {
    let mut target = Target::start(program, Transport::Tcp, 4096)?;
    let specs = target.controllers();
    let (mut path, pool) = written(&specs)?;
    target.kill()?;
    std::thread::sleep(NOTICED);
    target.restart()?;
    for device in [0, 1] {
        read(&mut path, &pool, device)?;
        writes_are_refused(&mut path, &pool, device)?;
        read(&mut path, &pool, device)?;
    }
    drop(path);
    // Opened anew both are written again.
    let (mut path, pool) = written(&specs)?;
    read(&mut path, &pool, 0)?;
    // One that does not come back is gone.
    target.kill()?;
    let late = submit(&mut path, 0, Action::read(buffer(&pool, 0)?))?;
    let gone = submit(&mut path, 0, Action::read(buffer(&pool, 0)?)).flatten();
    match (late, gone) {
        (Err(error), Err(later)) => Ok(format!("{error}; then {later}")),
        (late, gone) => Err(format!("without a target it answers {late:?}, then {gone:?}").into()),
    }
}

/// A path to these devices, on which the extent holds each device's byte.
fn written(specs: &[DeviceSpec]) -> Result<(SpdkPath, DmaPool), Failure> {
    let mut path = path_to(specs, 4)?;
    let pool = path.allocate(ByteCount::kib(256), false)?;
    path.register(&pool);
    for device in 0..specs.len() {
        write(&mut path, &pool, device as u8)??;
    }
    Ok((path, pool))
}

fn buffer(pool: &DmaPool, byte: u8) -> Result<DmaBuffer, Failure> {
    let mut buffer = pool.take(EXTENT.length.0 as usize).ok_or("no buffer")?;
    buffer.fill(byte);
    Ok(buffer)
}

/// Submits one operation on an idle path, and returns its result. An error of ours where it is not
/// taken.
fn submit(
    path: &mut SpdkPath,
    device: u8,
    action: Action,
) -> Result<Result<Option<DmaBuffer>, Failure>, Failure> {
    path.submit(operation(0, device, EXTENT, action)).map_err(|refused| refused.reason)?;
    let done = collect(path, 1)?.remove(0);
    Ok(done.result.map(|()| done.memory.and_then(Memory::into_host)).map_err(Into::into))
}

fn write(path: &mut SpdkPath, pool: &DmaPool, device: u8) -> Result<Result<(), Failure>, Failure> {
    let buffer = buffer(pool, BYTES[usize::from(device)])?;
    Ok(submit(path, device, Action::write(buffer, false))?.map(drop))
}

fn read(path: &mut SpdkPath, pool: &DmaPool, device: u8) -> Result<(), Failure> {
    let read = submit(path, device, Action::read(buffer(pool, 0)?))??;
    let bytes = read.ok_or("its buffer did not come back")?;
    let expected = BYTES[usize::from(device)];
    match bytes[..EXTENT.length.0 as usize].iter().find(|&&byte| byte != expected) {
        Some(byte) => Err(format!("device {device} has {byte:#04x}, not {expected:#04x}").into()),
        None => Ok(()),
    }
}

/// Checks that writes are refused, as earlier ones may be lost.
fn writes_are_refused(path: &mut SpdkPath, pool: &DmaPool, device: u8) -> Result<(), Failure> {
    let write = Action::write(buffer(pool, 0)?, true);
    for (extent, action) in [(EXTENT, write), (Extent::NOTHING, Action::Flush)] {
        let kind = action.kind();
        match path.submit(operation(0, device, extent, action)).map_err(|it| it.reason) {
            Err(Refusal::Latched(cause)) if !cause.status.is_removal() => {}
            other => return Err(format!("a {kind} after a lost connection: {other:?}").into()),
        }
    }
    Ok(())
}
