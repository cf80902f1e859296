//! A scrub finds what has rotted, says where, and disturbs nothing.

use super::*;
use crate::log::Placement;
use crate::path::OperationKind;
use crate::path::sim::Fault;

fn placements(pool: &Pool, id: u128) -> Vec<Placement> {
    let version = pool.current(TensorId(id)).unwrap();
    pool.0.stripes.placements(&version.entry.runs, version.entry.length).collect()
}

#[test]
fn a_scrub_names_every_bad_unit_and_only_that_tensor_is_lost() {
    let disks = disks(2, ByteCount::mib(4));
    let pool = open(&disks);
    let content = bytes(1, 200_000);
    put(&pool, 1, &content);
    let mut batch = pool.batch();
    batch.put("layer.0", Source::from(content.clone()), PutOptions::default()).unwrap();
    batch.commit().unwrap();
    put(&pool, 3, &[]);
    let named = TensorId::from_name("layer.0");
    let whole = pool.scrub().unwrap();
    assert_eq!((whole.tensors, whole.bytes.0, whole.damaged.len()), (3, 400_000, 0));

    let pieces = placements(&pool, named.0);
    let rotten = [pieces[1], pieces[4], *pieces.last().unwrap()];
    for piece in rotten {
        let last_byte = piece.device_offset + u64::from(piece.length) - 1;
        disks[usize::from(piece.device)].rot(last_byte, 1);
    }
    let report = pool.scrub().unwrap();
    let [damaged] = &report.damaged[..] else { panic!("{report:?}") };
    assert_eq!((damaged.id, damaged.name.as_deref()), (named, Some("layer.0")));
    for (bad, piece) in damaged.bad.iter().zip(rotten) {
        assert_eq!((bad.device.0, bad.offset.0), (piece.device, piece.device_offset));
        assert_eq!(bad.path, format!("sim{}", piece.device));
        let end = piece.tensor_offset + u64::from(piece.length);
        assert_eq!(
            (bad.tensor.clone(), bad.length.0),
            (piece.tensor_offset..end, piece.length.into())
        );
    }
    assert_eq!(damaged.bad.len(), rotten.len());
    // The same of one tensor, and what was found is among the figures.
    assert_eq!(&pool.scrub_tensor("layer.0").unwrap(), damaged);
    assert!(pool.scrub_tensor(TensorId(1)).unwrap().bad.is_empty());
    assert!(matches!(pool.scrub_tensor("layer.1"), Err(ScrubError::Unknown(_))));
    let found = pool.stats().unwrap().scrubbed;
    assert_eq!((found.tensors, found.damaged.len()), (3 + 3 + 2, 1));
    // What is whole of it can still be read, and so can the others.
    assert_eq!(get_range(&pool, named.0, 0..1000), content[..1000]);
    assert_eq!(get(&pool, 1).unwrap(), content);
    space(&pool);
}

#[test]
fn damage_behind_the_end_of_a_tensor_is_nobodys() {
    let disks = disks(1, ByteCount::mib(4));
    let pool = open(&disks);
    put(&pool, 1, &[7; 100]);
    disks[0].rot(placements(&pool, 1)[0].device_offset + 100, 1);
    assert!(pool.scrub().unwrap().damaged.is_empty());
}

#[test]
fn a_flip_on_the_way_is_no_damage_and_a_failing_read_is() {
    let disks = disks(2, ByteCount::mib(4));
    let pool = open(&disks);
    put(&pool, 1, &bytes(1, 16 << 10));
    put(&pool, 2, &bytes(2, 16 << 10));
    let device = usize::from(placements(&pool, 1)[0].device);
    disks[device].plan_fault(OperationKind::Read, 0, Fault::Corrupt);
    assert!(pool.scrub().unwrap().damaged.is_empty());
    // As often as it may be tried.
    for nth in 0..8 {
        disks[device].plan_fault(OperationKind::Read, nth, Fault::Errno(5));
    }
    let report = pool.scrub().unwrap();
    assert_eq!(report.damaged.len(), 1);
    assert_eq!((report.tensors, report.damaged[0].id), (2, TensorId(1)));
}

#[test]
fn a_pass_goes_on_over_what_is_deleted_and_ends() {
    let pool = open(&disks(2, ByteCount::mib(4)));
    for id in 0..4 {
        put(&pool, id, &bytes(1, 5000));
    }
    let mut pass = pool.scrub_steps().unwrap();
    assert_eq!(pass.step().unwrap().unwrap().id, TensorId(0));
    pool.delete(TensorId(1)).unwrap();
    put(&pool, 9, &[1]);
    assert_eq!(pass.step().unwrap().unwrap().id, TensorId(2));
    assert_eq!(pass.step().unwrap().unwrap().id, TensorId(3));
    assert_eq!(pass.step().unwrap(), None);
    pool.close().unwrap();
    assert!(matches!(pool.scrub(), Err(ScrubError::Unusable(Unusable::Closed))));
}
