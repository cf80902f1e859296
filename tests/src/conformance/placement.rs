//! Flexible Data Placement: what each lane of the log writes goes to its own placement handle on
//! each device, by what the devices say themselves; and that they count what is written to them.

use std::fmt::Write;

use tidelog_engine::layout::{Copies, LifetimeClass, TensorId};
use tidelog_engine::log::{Durability, Lane};
use tidelog_engine::memory::Source;
use tidelog_engine::path::Endurance;
use tidelog_engine::pool::{Pool, PutOptions};
use tidelog_engine::units::ByteCount;

use super::{Failure, Row, STRIPE_UNIT, Stage};

/// Rows for devices that place data by handles. They lose what they hold.
pub const PLACEMENT_ROWS: &[Row] = &[
    ("each lane writes by its own placement handle on each device", lanes_keep_apart),
    ("devices count what is written to them", devices_count_what_is_written),
];

/// Bytes of a tensor on each device.
const ON_EACH: u64 = 8 * STRIPE_UNIT.0;

/// Writes a tensor by every lane and looks where it went.
fn lanes_keep_apart(stage: &Stage) -> Result<String, Failure> {
    stage.format()?;
    let pool = stage.open_alone()?;
    let devices = stage.specs.len();
    let table = pool.stats()?.lanes;
    let mut handles = Vec::new();
    for row in &table {
        let handle = row.placement.ok_or("a lane has no placement handle")?;
        if handles.contains(&handle) {
            return Err(format!("two lanes write by handle {}", handle.0).into());
        }
        handles.push(handle);
    }
    let mut said = String::new();
    for (row, handle) in table.iter().zip(&handles) {
        let before = remaining(&pool, devices)?;
        put(&pool, row.lane, devices as u64 * ON_EACH)?;
        let after = remaining(&pool, devices)?;
        for (device, (before, after)) in before.iter().zip(&after).enumerate() {
            for (number, (before, after)) in before.iter().zip(after).enumerate() {
                let metadata = number == 0 && row.lane.durability == Durability::Durable;
                let expected = if number == usize::from(handle.0) { ON_EACH } else { 0 };
                let found =
                    before.checked_sub(*after).ok_or("a reclaim unit was full: use larger ones")?;
                if found != expected && !metadata {
                    return Err(format!(
                        "{:?}: {} went to handle {number} of device {device}, not {}",
                        row.lane,
                        ByteCount(found),
                        ByteCount(expected)
                    )
                    .into());
                }
            }
        }
        write!(said, "{:?} {:?}: handle {}; ", row.lane.durability, row.lane.class, handle.0)?;
    }
    let counted: Vec<ByteCount> = pool.stats()?.lanes.iter().map(|row| row.written).collect();
    if counted != vec![ByteCount(devices as u64 * ON_EACH); table.len()] {
        return Err(format!("the table of lanes has {counted:?}").into());
    }
    pool.close()?;
    Ok(format!("{said}{} on each of {devices} devices", ByteCount(ON_EACH)))
}

fn devices_count_what_is_written(stage: &Stage) -> Result<String, Failure> {
    const BYTES: u64 = 32 << 20;
    /// SMART counts thousands of blocks of 512 bytes, begun ones too.
    const UNIT: u64 = 512_000;
    let pool = stage.open_alone()?;
    let on_each = BYTES / stage.specs.len() as u64;
    let before = endurance(&pool)?;
    put(
        &pool,
        Lane { durability: Durability::Scratch, class: LifetimeClass::Step, copies: Copies::One },
        BYTES,
    )?;
    let (after, ours) = (endurance(&pool)?, pool.stats()?.reactor.devices);
    pool.close()?;
    let mut said = Vec::new();
    for ((before, after), ours) in before.iter().zip(&after).zip(&ours) {
        let smart = after.written.0 - before.written.0;
        if smart.abs_diff(on_each) > UNIT {
            return Err(
                format!("{} by SMART, {} by us", ByteCount(smart), ours.bytes_written).into()
            );
        }
        let mut line = format!("{} by SMART", ByteCount(smart));
        if let (Some(before), Some(after)) = (&before.fdp, &after.fdp) {
            let fdp = after.host_written.0 - before.host_written.0;
            if fdp != on_each {
                return Err(format!("{fdp} bytes by the FDP statistics").into());
            }
            write!(line, ", {} by FDP", ByteCount(fdp))?;
        }
        said.push(line);
    }
    Ok(said.join("; "))
}

fn endurance(pool: &Pool) -> Result<Vec<Endurance>, Failure> {
    Ok(pool.endurance()?.into_iter().collect::<Result<_, _>>()?)
}

/// Returns the bytes that each handle of each device may still write to its reclaim unit.
fn remaining(pool: &Pool, devices: usize) -> Result<Vec<Vec<u64>>, Failure> {
    let of =
        |it: Endurance| it.fdp.map(|fdp| fdp.handles.iter().map(|it| it.remaining.0).collect());
    let found: Option<Vec<_>> = endurance(pool)?.into_iter().map(of).collect();
    found.filter(|it| it.len() == devices).ok_or_else(|| "a device has no placement handles".into())
}

fn put(pool: &Pool, Lane { durability, class, .. }: Lane, bytes: u64) -> Result<(), Failure> {
    let source = Source::from(vec![0x5C; bytes as usize]);
    let id = TensorId(1 + durability as u128 * 16 + class as u128);
    let options = PutOptions { lifetime: class, ..PutOptions::default() };
    match durability {
        Durability::Scratch => {
            pool.put(id, source, options)?.wait()?;
        }
        Durability::Durable => {
            let mut batch = pool.batch();
            batch.put(id, source, options)?;
            batch.commit()?;
        }
    }
    Ok(())
}
