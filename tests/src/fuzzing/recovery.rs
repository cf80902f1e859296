//! Opening a pool whose metadata somebody else wrote: it is refused, or everything the engine
//! promises holds of it.

use arbitrary::Unstructured;
use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::{Destination, Source};
use tidelog_engine::path::sim::{SimDisk, SimProfile};
use tidelog_engine::pool::{OpenOptions, Pool, PutOptions};
use tidelog_engine::schedule::Urgency;
use tidelog_engine::units::ByteCount;

use super::corrupt_device::CorruptDevice;

/// The tensor that the target itself commits.
const NAME: &str = "after";
const BYTES: usize = 9000;

pub(super) fn run(bytes: &[u8]) {
    let mut words = Unstructured::new(bytes);
    let Ok(pool) = CorruptDevice::of(&mut words) else { return };
    let size = ByteCount(pool.geometry.device_bytes);
    let profile = SimProfile { latency_ticks_max: 1, ..SimProfile::default() };
    let devices = 0..pool.geometry.devices;
    let disks: Vec<_> = devices.map(|_| SimDisk::with_profile(size, profile)).collect();
    for patch in &pool.patches {
        disks[patch.device].overwrite(patch.offset, &patch.bytes);
    }
    for share in 0..pool.geometry.shares {
        use_share(&disks, share, !pool.lies_in_wait());
    }
}

fn open(disks: &[SimDisk], share: u32) -> Result<Pool, String> {
    let options = OpenOptions {
        share,
        staging: ByteCount::kib(128),
        huge_pages: false,
        stepped: true,
        ..OpenOptions::default()
    };
    Pool::open(disks, &options).map_err(|error| error.to_string())
}

/// Checks that a share that opens at all can be audited, read, written, committed to, and (unless
/// it is mined) opened again.
fn use_share(disks: &[SimDisk], share: u32, opens_again: bool) {
    let Ok(pool) = open(disks, share) else { return };
    pool.audit().expect("what was opened keeps the log's rules");
    let tensors = pool.durable_tensors().expect("the pool is open");
    for (id, _) in &tensors {
        read(&pool, *id);
    }
    let scratch = TensorId(77);
    let put = pool.put(scratch, Source::from(vec![3; BYTES]), PutOptions::default());
    let written = put.is_ok_and(|ticket| ticket.wait().is_ok());
    if written {
        assert_eq!(read(&pool, scratch).as_deref(), Some(&[3; BYTES][..]));
    }
    let committed = commit(&pool);
    pool.audit().expect("after a commit the rules hold");
    pool.close().expect("nothing hinders closing");

    let pool = match open(disks, share) {
        Ok(pool) => pool,
        Err(why) => return assert!(!opens_again, "what could be opened cannot be again: {why}"),
    };
    pool.audit().expect("and keeps the rules");
    if !opens_again {
        return;
    }
    let id = TensorId::from_name(NAME);
    if committed {
        assert_eq!(read(&pool, id).as_deref(), Some(&[9; BYTES][..]));
    }
    let others = |found: Vec<(TensorId, Option<String>)>| {
        found.into_iter().filter(|(other, _)| *other != id).collect::<Vec<_>>()
    };
    let found = pool.durable_tensors().expect("the pool is open");
    assert_eq!(others(found), others(tensors), "nothing else has changed");
}

/// Returns whether the tensor could be committed: there may be no room, or another tensor in its
/// place.
fn commit(pool: &Pool) -> bool {
    let mut batch = pool.batch();
    let put = batch.put(NAME, Source::from(vec![9; BYTES]), PutOptions::default());
    put.is_ok() && batch.commit().is_ok()
}

/// A tensor's bytes, unless the medium has others than were written.
fn read(pool: &Pool, id: TensorId) -> Option<Vec<u8>> {
    let length = pool.length(id).expect("it was listed");
    let destination = Destination::buffer(length as usize);
    let ticket = pool
        .get(id, 0..length, destination, Urgency::Urgent, None)
        .expect("a whole tensor can be asked for");
    ticket.wait().ok()?;
    Some(ticket.take_bytes().unwrap_or_default())
}
