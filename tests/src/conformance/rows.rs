//! The rows. Each begins with a pool that the one before has left closed.

use std::time::Duration;

use tidelog_engine::layout::{LifetimeClass, TensorId};
use tidelog_engine::memory::Source;
use tidelog_engine::path::Feature;
use tidelog_engine::pool::inspect::check;
use tidelog_engine::pool::{Pool, PutOptions};

use super::{Failure, NOTHING_TO_DO, Row, STRIPE_UNIT, Stage};
use crate::load::{Ledger, Load, LoadOptions};
use crate::sim::Content;
use crate::victim::read_range;

/// Rows in order.
pub const ROWS: &[Row] = &[
    ("the path that was asked for runs", the_path_runs),
    ("a share that is held is refused", a_held_share_is_refused),
    ("tensors of every length come back, whole and in ranges", every_length_comes_back),
    ("committed tensors are there after reopening, scratch ones are not", commits_stay),
    ("another path reads what this one wrote, and the other way round", another_path_reads_it),
    ("a load of reads, writes and commits is answered right", a_load_is_answered_right),
    ("free segments are given back to the device", free_segments_are_discarded),
    ("check and scrub find nothing wrong", nothing_is_wrong),
];

/// Writes of the load.
const LOAD: u64 = 400;
/// Time limit for a load's writes on a machine that others use too.
const TIMEOUT: Duration = Duration::from_secs(60);

fn the_path_runs(stage: &Stage) -> Result<String, Failure> {
    stage.format()?;
    let pool = stage.open()?;
    let found = pool.stats()?.reactor.capabilities;
    pool.close()?;
    if let Some(device) = found.devices.iter().find(|device| !device.direct) {
        return Err(format!("{} is read and written through the page cache", device.name).into());
    }
    let feature = |feature: &Feature| match feature {
        Feature::On => "on".to_owned(),
        Feature::Off(why) => format!("off ({why})"),
    };
    let blocks: Vec<String> =
        found.devices.iter().map(|device| device.logical_block.to_string()).collect();
    let volatile = found.devices.iter().filter(|device| device.volatile_cache).count();
    Ok(format!(
        "{}, blocks of {} bytes, {volatile} of {} caches volatile, registered buffers {}, files {}",
        found.kind,
        blocks.join(" and "),
        found.devices.len(),
        feature(&found.registered_buffers),
        feature(&found.registered_files),
    ))
}

fn a_held_share_is_refused(stage: &Stage) -> Result<String, Failure> {
    let pool = stage.open()?;
    let second = stage.open();
    pool.close()?;
    match second {
        Ok(_) => Err("it was opened twice".into()),
        Err(why) => Ok(why.to_string()),
    }
}

/// Lengths around everything that is cut somewhere: sectors, blocks, stripe units, rounds of the
/// stripe.
fn lengths() -> Vec<u32> {
    let unit = STRIPE_UNIT.0 as u32;
    let edges = [512, 4096, unit, 2 * unit, 16 * unit, 40 * unit + 4096];
    let around = edges.iter().flat_map(|edge| [edge - 1, *edge, edge + 1]);
    std::iter::once(1).chain(around).collect()
}

fn every_length_comes_back(stage: &Stage) -> Result<String, Failure> {
    let pool = stage.open()?;
    let mut bytes = 0;
    for (salt, length) in lengths().into_iter().enumerate() {
        let (id, content) = (TensorId(1000 + salt as u128), Content { length, salt: salt as u32 });
        let lifetime = LifetimeClass::ALL[salt % LifetimeClass::ALL.len()];
        let options = PutOptions { lifetime, ..PutOptions::default() };
        pool.put(id, Source::from(content.bytes()), options)?.wait()?;
        let whole = content.bytes();
        let length = u64::from(length);
        let ranges =
            [0..length, 0..1, length - 1..length, length / 3..length / 3 + length.div_ceil(2)];
        for range in ranges {
            let found = read_range(&pool, id, range.clone())?;
            if found != whole[range.start as usize..range.end as usize] {
                return Err(format!("{id}: bytes {range:?} of {length} are others").into());
            }
            bytes += found.len();
        }
    }
    pool.audit()?;
    pool.close()?;
    Ok(format!("{} tensors, {bytes} bytes compared", lengths().len()))
}

/// The durable tensors of [`commits_stay`].
fn durable() -> impl Iterator<Item = (TensorId, Content)> {
    (0..40)
        .map(|salt| (TensorId(2000 + u128::from(salt)), Content { length: 1 + salt * 7001, salt }))
}

fn commits_stay(stage: &Stage) -> Result<String, Failure> {
    let pool = stage.open()?;
    for tensors in durable().collect::<Vec<_>>().chunks(8) {
        let mut batch = pool.batch();
        for (id, content) in tensors {
            batch.put(*id, Source::from(content.bytes()), PutOptions::default())?;
        }
        batch.commit()?;
    }
    let scratch = TensorId(3000);
    pool.put(scratch, Source::from(vec![1; 1000]), PutOptions::default())?.wait()?;
    pool.close()?;
    let pool = stage.open()?;
    if pool.contains(scratch) {
        return Err("a scratch tensor outlived its process".into());
    }
    let found = expect_durable(&pool)?;
    pool.audit()?;
    pool.close()?;
    Ok(found)
}

fn another_path_reads_it(stage: &Stage) -> Result<String, Failure> {
    let Some(pool) = stage.open_by_another()? else {
        return Ok(format!("{NOTHING_TO_DO}no other path reaches these devices now"));
    };
    let other = pool.stats()?.reactor.capabilities.kind;
    let found = expect_durable(&pool)?;
    let (id, content) = (TensorId(2999), Content { length: 300_000, salt: 2999 });
    let mut batch = pool.batch();
    batch.put(id, Source::from(content.bytes()), PutOptions::default())?;
    batch.commit()?;
    pool.close()?;
    let pool = stage.open()?;
    if read_range(&pool, id, 0..u64::from(content.length))? != content.bytes() {
        return Err(format!("what {other} wrote has other bytes").into());
    }
    pool.close()?;
    Ok(format!("{other}: {found}, and one back"))
}

/// Checks that the rows' data is there, whichever path they went by.
///
/// # Errors
/// The pool cannot be opened, or has other tensors.
pub fn find(stage: &Stage) -> Result<String, Failure> {
    let pool = stage.open()?;
    let found = expect_durable(&pool)?;
    pool.audit()?;
    pool.close()?;
    Ok(found)
}

fn expect_durable(pool: &Pool) -> Result<String, Failure> {
    for (id, content) in durable() {
        if read_range(pool, id, 0..u64::from(content.length))? != content.bytes() {
            return Err(format!("{id} has other bytes").into());
        }
    }
    Ok(format!("{} tensors", durable().count()))
}

fn a_load_is_answered_right(stage: &Stage) -> Result<String, Failure> {
    let pool = stage.open()?;
    let ledger = Ledger::new(LoadOptions { longest: 400_000, ..LoadOptions::default() });
    let load = Load::start(&pool, &ledger);
    load.run(LOAD, TIMEOUT);
    load.stop();
    if let Some(failure) = ledger.record().failures().first() {
        return Err(failure.to_string().into());
    }
    let (writes, reads) = (ledger.record().writes(), ledger.record().reads());
    if writes < LOAD || reads == 0 {
        return Err(format!("{writes} writes and {reads} reads in {TIMEOUT:?}").into());
    }
    ledger.verify_scratch(&pool)?;
    pool.audit()?;
    pool.close()?;
    let pool = stage.open()?;
    ledger.verify_durable(&pool, |_, _| false)?;
    pool.audit()?;
    pool.close()?;
    Ok(format!("{} writes, {} reads", ledger.record().writes(), ledger.record().reads()))
}

fn free_segments_are_discarded(stage: &Stage) -> Result<String, Failure> {
    const FREED: u64 = 4 << 20;
    // The housekeeper would do it as well, and before us.
    let pool = stage.open_alone()?;
    let devices = pool.stats()?.reactor.capabilities.devices;
    if let Some(device) = devices.iter().find(|device| !device.deallocate) {
        pool.close()?;
        return Ok(format!("{NOTHING_TO_DO}{} cannot deallocate", device.name));
    }
    let mut segments = 0;
    let discard_all = |segments: &mut u64| -> Result<(), Failure> {
        while pool.discard_once()?.is_some() {
            *segments += 1;
        }
        Ok(())
    };
    discard_all(&mut segments)?;
    // The devices know of all that is free; so what is freed now is what they are told of.
    let scratch = TensorId(3001);
    pool.put(scratch, Source::from(vec![1; FREED as usize]), PutOptions::default())?.wait()?;
    pool.delete(scratch)?;
    let mut freed = 0;
    discard_all(&mut freed)?;
    if freed == 0 {
        return Err("no segment of what was deleted was given back".into());
    }
    segments += freed;
    let kept = expect_durable(&pool)?;
    pool.close()?;
    Ok(format!("{segments} segments; {kept} kept"))
}

fn nothing_is_wrong(stage: &Stage) -> Result<String, Failure> {
    let pool = stage.open()?;
    let scrubbed = pool.scrub()?;
    pool.close()?;
    if let Some(damaged) = scrubbed.damaged.first() {
        return Err(format!("scrub: {damaged:?}").into());
    }
    let report = check(&stage.specs, false, &mut |_| ())?;
    match report.damage.first() {
        Some(damage) => Err(damage.to_string().into()),
        None => Ok(format!("{} tensors, {}", report.tensors, report.bytes)),
    }
}
