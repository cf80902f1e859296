//! A process that commits until it dies, and what the next one must find then.

use std::collections::VecDeque;
use std::ops::Range;

use tidelog_engine::layout::{LifetimeClass, TensorId};
use tidelog_engine::memory::{Destination, Source};
use tidelog_engine::path::DeviceSpec;
use tidelog_engine::pool::inspect::{CheckReport, check};
use tidelog_engine::pool::{Commit, OpenOptions, Pool, PutOptions};
use tidelog_engine::schedule::Urgency;
use tidelog_engine::units::ByteCount;

use crate::sim::{Content, Random};

/// The reason why a pool is not as it must be, or could not be used.
pub type Failure = Box<dyn std::error::Error>;

/// Commits in flight.
const IN_FLIGHT: u64 = 3;
const TENSORS: u64 = 6;
/// The commit's own number, in every commit.
const NUMBER: TensorId = TensorId(1);

/// Bytes of the names of tensors that do nothing but fill the index.
const FILLER_NAME: usize = 1000;

/// Returns the options by which victims and their heirs open the pool.
pub fn open_options(buffered: bool) -> OpenOptions {
    OpenOptions {
        buffered,
        staging: ByteCount::mib(1),
        huge_pages: false,
        ..OpenOptions::default()
    }
}

/// Commits so many tensors that fill the index and nothing else, so that each checkpoint is long.
///
/// # Errors
/// Whatever goes wrong: nothing may.
pub fn fill_index(
    specs: &[DeviceSpec],
    options: &OpenOptions,
    fillers: u64,
) -> Result<(), Failure> {
    let pool = Pool::open(specs, options)?;
    let mut batch = pool.batch();
    for filler in 0..fillers {
        let name = format!("{filler:0>FILLER_NAME$}");
        batch.put(name.as_str(), Source::from(Vec::new()), PutOptions::default())?;
    }
    batch.commit()?;
    Ok(pool.close()?)
}

/// Commits durable tensors from number `first` on, with scratch writes beside it, and tells of each
/// commit that has returned until `told` has heard enough.
///
/// # Errors
/// Whatever goes wrong: nothing may.
pub fn commit(
    specs: &[DeviceSpec],
    options: &OpenOptions,
    first: u64,
    mut told: impl FnMut(u64) -> Result<bool, Failure>,
) -> Result<(), Failure> {
    let pool = Pool::open(specs, options)?;
    let mut in_flight: VecDeque<(u64, Commit)> = VecDeque::new();
    for commit in first.. {
        let mut batch = pool.batch();
        for (at, (id, content)) in tensors_of(commit).into_iter().enumerate() {
            let lifetime = LifetimeClass::ALL[at % LifetimeClass::ALL.len()];
            let options = PutOptions { lifetime, ..PutOptions::default() };
            batch.put(id, Source::from(content.bytes()), options.clone())?;
            let scratch = TensorId(1000 + u128::from(commit % 7));
            drop(pool.put(scratch, Source::from(vec![7; 30_000]), options)?);
        }
        let number = Source::from(commit.to_le_bytes().to_vec());
        batch.put(NUMBER, number, PutOptions::default())?;
        in_flight.push_back((commit, batch.start_commit()?));
        if in_flight.len() as u64 == IN_FLIGHT
            && let Some((oldest, returned)) = in_flight.pop_front()
        {
            returned.wait()?;
            if !told(oldest)? {
                break;
            }
        }
    }
    Ok(())
}

/// Checks a pool that a crash has left: that nothing is damaged.
///
/// # Errors
/// It says something else.
pub fn verdict(specs: &[DeviceSpec]) -> Result<CheckReport, Failure> {
    let report = check(specs, true, &mut |_| ())?;
    let damage: Vec<String> = report.damage.iter().map(ToString::to_string).collect();
    if damage.is_empty() {
        return Ok(report);
    }
    Err(format!("WRONG VERDICT: damage, where there was a crash alone: {}", damage.join("; "))
        .into())
}

/// The pool as the next process finds it: commit `returned` or one that was in flight, whole, so
/// many `fillers`, and nothing else. Returns which.
///
/// # Errors
/// Something is lost, torn or leaked.
pub fn verify(
    specs: &[DeviceSpec],
    options: &OpenOptions,
    returned: u64,
    fillers: u64,
) -> Result<u64, Failure> {
    let pool = Pool::open(specs, options)?;
    let durable = pool.durable_tensors()?.len() as u64;
    if durable != 1 + TENSORS + fillers {
        return Err(format!("LOST: {durable} tensors, not {}", 1 + TENSORS + fillers).into());
    }
    let number = read(&pool, NUMBER)?;
    let found = u64::from_le_bytes(number.try_into().map_err(|_| "the number is torn")?);
    if found < returned || found > returned + IN_FLIGHT {
        return Err(format!("LOST: commit {returned} had returned, {found} is there").into());
    }
    let mut live = 4096;
    for (id, content) in tensors_of(found) {
        if read(&pool, id)? != content.bytes() {
            return Err(format!("TORN: {id} is not that of commit {found}").into());
        }
        live += u64::from(content.length).div_ceil(4096) * 4096;
    }
    live *= u64::from(pool.description().copies.count());
    let space = pool.audit()?;
    if space.live.0 != live || space.reserved.0 != 0 {
        return Err(format!("LEAKED: {live} bytes should live: {space:?}").into());
    }
    pool.close()?;
    Ok(found)
}

/// A commit's tensors; their number and lengths change with it, so that space is freed all the
/// time.
fn tensors_of(commit: u64) -> Vec<(TensorId, Content)> {
    let mut random = Random::new(commit);
    (0..TENSORS)
        .map(|index| {
            let (length, salt) = (random.below(150_000) as u32, random.draw() as u32);
            (TensorId(u128::from(index) + 10), Content { length, salt })
        })
        .collect()
}

fn read(pool: &Pool, id: TensorId) -> Result<Vec<u8>, Failure> {
    let length = pool.length(id).ok_or_else(|| format!("LOST: {id} is not there"))?;
    read_range(pool, id, 0..length)
}

/// Returns a range of a tensor's bytes.
pub(crate) fn read_range(pool: &Pool, id: TensorId, range: Range<u64>) -> Result<Vec<u8>, Failure> {
    let memory = Destination::buffer((range.end - range.start) as usize);
    let ticket = pool.get(id, range, memory, Urgency::Urgent, None)?;
    ticket.wait()?;
    Ok(ticket.take_bytes().ok_or("a read that ended well has bytes")?)
}
