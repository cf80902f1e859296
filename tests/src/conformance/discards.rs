//! Devices that fail every discard. A discard is advice, so nothing else may suffer from it.

use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::Source;
use tidelog_engine::pool::PutOptions;

use super::{Failure, Row, Stage};
use crate::sim::Content;
use crate::victim::read_range;

/// Rows for devices on which discards fail. They lose what they hold.
pub const WHERE_DISCARDS_FAIL: &[Row] =
    &[("a discard that fails is told, and the pool is written as before", it_is_only_advice)];

/// Limit of discards, more than the free segments that a pool of a few hundred MiB has.
const DISCARDS_MAX: u32 = 10_000;

fn it_is_only_advice(stage: &Stage) -> Result<String, Failure> {
    stage.format()?;
    // The housekeeper would be told, and not we.
    let pool = stage.open_alone()?;
    let mut discards = 0;
    let failed = loop {
        match pool.discard_once() {
            Err(failed) => break failed,
            Ok(Some(_)) if discards < DISCARDS_MAX => discards += 1,
            Ok(_) => return Err(format!("{discards} discards went well").into()),
        }
    };
    let kept = [0, 1].map(|salt| (TensorId(u128::from(salt)), Content { length: 300_000, salt }));
    let mut batch = pool.batch();
    for (id, content) in &kept {
        batch.put(*id, Source::from(content.bytes()), PutOptions::default())?;
    }
    batch.commit()?;
    pool.audit()?;
    pool.close()?;
    let pool = stage.open()?;
    for (id, content) in &kept {
        if read_range(&pool, *id, 0..u64::from(content.length))? != content.bytes() {
            return Err(format!("{id} has other bytes").into());
        }
    }
    pool.close()?;
    Ok(failed.to_string())
}
