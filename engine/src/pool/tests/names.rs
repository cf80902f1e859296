//! Tests of the names of tensors in errors: those that their callers use.

use std::fmt::Display;

use super::*;
use crate::path::OperationKind;
use crate::path::sim::Fault;

const SCRATCH: &str = "layer.0.activation";
const DURABLE: &str = "layer.0.weight";
const NOBODY: &str = "layer.9.weight";

/// The error's text has the name, and no id that was made of a name.
fn names<T, E: Display>(answer: Result<T, E>, name: &str) {
    let Err(error) = answer else { panic!("no error about {name}") };
    let text = error.to_string();
    assert!(text.contains(&format!("{name:?}")), "{text:?} does not name {name:?}");
    for known in [SCRATCH, DURABLE, NOBODY] {
        let id = TensorId::from_name(known).to_string();
        assert!(!text.contains(&id), "{text:?} has the id of {known:?}");
    }
}

fn source(length: usize) -> Source {
    Source::from(bytes(1, length))
}

/// A pool with a tensor of each durability.
fn pool_of_two(disks: &[SimDisk]) -> Pool {
    let pool = open(disks);
    pool.put(SCRATCH, source(100_000), PutOptions::default()).unwrap().wait().unwrap();
    let mut batch = pool.batch();
    batch.put(DURABLE, source(100_000), PutOptions::default()).unwrap();
    batch.commit().unwrap();
    pool
}

#[test]
fn what_is_refused_is_refused_by_the_tensors_name() {
    let pool = pool_of_two(&disks(2, ByteCount::mib(4)));
    let get = |key: &str, range: Range<u64>, memory| {
        pool.get(key, range, Destination::buffer(memory), Urgency::Urgent, None)
    };
    let options = PutOptions::default;
    names(get(NOBODY, 0..1, 1), NOBODY);
    names(pool.verify(NOBODY, source(1), None), NOBODY);
    names(pool.delete(NOBODY), NOBODY);
    names(pool.batch().delete(NOBODY), NOBODY);
    names(pool.batch().delete(SCRATCH), SCRATCH);
    names(pool.put(NOBODY, source(16 << 20), options()), NOBODY);
    names(pool.batch().put(NOBODY, source(16 << 20), options()), NOBODY);
    names(pool.put(DURABLE, source(1), options()), DURABLE);
    names(pool.delete(DURABLE), DURABLE);
    for name in [SCRATCH, DURABLE] {
        names(get(name, 0..200_000, 200_000), name);
        names(get(name, 0..10, 9), name);
        names(pool.verify(name, source(1), None), name);
        // Whoever has only the id hears the name by which it was put.
        let id = TensorId::from_name(name);
        let wrong = Destination::buffer(3);
        names(pool.get(id, 0..2, wrong, Urgency::Urgent, None), name);
        names(pool.verify(id, source(1), None), name);
        names(pool.batch().put(id, source(16 << 20), options()), name);
    }
    names(pool.put(TensorId::from_name(DURABLE), source(1), options()), DURABLE);
    names(pool.delete(TensorId::from_name(DURABLE)), DURABLE);
    names(pool.batch().delete(TensorId::from_name(SCRATCH)), SCRATCH);
}

#[test]
fn what_a_device_fails_is_told_by_the_tensors_name() {
    let disks = disks(2, ByteCount::mib(4));
    let pool = pool_of_two(&disks);
    for name in [SCRATCH, DURABLE] {
        let version = pool.current(TensorId::from_name(name)).unwrap();
        let entry = &version.entry;
        let piece = pool.0.stripes.placements(&entry.runs, entry.length).next().unwrap();
        disks[usize::from(piece.device)].rot(piece.device_offset + 9, 1);
        let memory = Destination::buffer(10);
        let read = pool.get(TensorId::from_name(name), 0..10, memory, Urgency::Urgent, None);
        names(read.unwrap().wait(), name);
    }
    let damaged = pool.scrub().unwrap().damaged;
    let mut found: Vec<_> = damaged.iter().map(|it| it.name.as_deref().unwrap()).collect();
    found.sort_unstable();
    assert_eq!(found, [SCRATCH, DURABLE]);

    disks[0].plan_fault(OperationKind::Write, 0, Fault::Errno(5));
    let put = pool.put(SCRATCH, source(100_000), PutOptions::default()).unwrap();
    names(put.wait(), SCRATCH);
    let mut batch = pool.batch();
    batch.put(DURABLE, source(100_000), PutOptions::default()).unwrap();
    let committed = batch.commit();
    assert!(matches!(committed, Err(CommitError::Write { .. })));
    names(committed, DURABLE);
}
