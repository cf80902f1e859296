//! The index without devices: who may be read when, and whose space is kept.

use super::*;
use crate::layout::Change;
use crate::layout::{BLOCK_BYTES, Copies, Geometry, LifetimeClass, ShareArea, SlotArea};
use crate::log::change_log::LogPlace;
use crate::log::space::{Lane, Wanted};
use crate::log::stripe::StripeMap;
use crate::units::DeviceSet;

const ID: TensorId = TensorId(7);

fn contents(segments: u32) -> Contents {
    let slot =
        SlotArea { checkpoint_offset: 0, checkpoint_bytes: 1 << 20, log_offset: 0, log_bytes: 0 };
    let area = ShareArea { first_segment: 0, segments, slots: [slot; 2] };
    let format = crate::layout::BlockFormat::Checked;
    let (stripes, only) = (stripes(), None);
    let (missing, absent) = (DeviceSet::default(), DeviceSet::default());
    let metadata = DeviceSet::from_bits(1);
    let place =
        LogPlace { pool: 1, share: 0, area, stripes, format, metadata, only, missing, absent };
    let room = IndexRoom::new(&place, [Vec::new(), Vec::new()], true);
    Contents::recovered(Space::new(&area, 4), room, RecoveredIndex::default())
}

/// One device, segments of 4 blocks.
fn stripes() -> StripeMap {
    let geometry = Geometry {
        devices: 1,
        device_bytes: 1 << 30,
        stripe_unit: 4 * BLOCK_BYTES,
        segment_bytes: 4 * BLOCK_BYTES,
        segments: 1000,
        data_offset: 1 << 20,
        shares: 1,
        slot_bytes: 256 << 10,
    };
    StripeMap::new(&geometry)
}

fn request(id: TensorId, durability: Durability, blocks: u64) -> PutRequest {
    let lane = Lane { durability, class: LifetimeClass::Step, copies: Copies::One };
    PutRequest { id, name: None, length: blocks * BLOCK_BYTES, lane }
}

fn scratch(blocks: u64) -> PutRequest {
    request(ID, Durability::Scratch, blocks)
}

fn durable(id: u128) -> PutRequest {
    request(TensorId(id), Durability::Durable, 1)
}

fn length(contents: &Contents) -> Option<u64> {
    contents.current(ID).map(|version| version.entry.length / BLOCK_BYTES)
}

fn named(name: &str) -> PutRequest {
    PutRequest { name: Some(name.into()), ..durable(7) }
}

#[test]
fn an_older_version_is_read_until_the_newer_one_is_complete() {
    let mut contents = contents(4);
    let first = contents.begin(scratch(1)).unwrap();
    assert_eq!(length(&contents), None);
    contents.install(&first, &[1]);
    let second = contents.begin(scratch(2)).unwrap();
    assert_eq!(length(&contents), Some(1));
    contents.abandon(&second);
    assert_eq!(length(&contents), Some(1), "a failed put leaves the older version");
    let third = contents.begin(scratch(3)).unwrap();
    contents.install(&third, &[3]);
    assert_eq!(length(&contents), Some(3));
    contents.audit().unwrap();
}

#[test]
fn writes_that_overtake_each_other_leave_the_newest() {
    let mut contents = contents(4);
    let older = contents.begin(scratch(1)).unwrap();
    let newer = contents.begin(scratch(2)).unwrap();
    contents.install(&newer, &[]);
    contents.install(&older, &[]);
    assert_eq!(length(&contents), Some(2));
    assert_eq!(contents.audit().unwrap().live.0, 2 * BLOCK_BYTES);
}

#[test]
fn a_write_in_flight_does_not_undo_a_deletion() {
    let mut contents = contents(4);
    assert_eq!(contents.remove_scratch(ID), Err(RemoveError::Unknown));
    let write = contents.begin(scratch(1)).unwrap();
    contents.remove_scratch(ID).unwrap();
    assert_eq!(contents.remove_scratch(ID), Err(RemoveError::Unknown), "it is deleted already");
    contents.install(&write, &[]);
    assert_eq!(length(&contents), None);
    let space = contents.audit().unwrap();
    assert_eq!(space.free, space.capacity);
}

#[test]
fn a_version_being_read_keeps_its_space_until_its_last_reader_ends() {
    let mut contents = contents(1);
    let write = contents.begin(scratch(4)).unwrap();
    contents.install(&write, &[]);
    let (one, two) = (contents.pin(ID).unwrap(), contents.pin(ID).unwrap());
    contents.remove_scratch(ID).unwrap();
    for reader in [one, two] {
        assert!(matches!(contents.begin(scratch(1)), Err(BeginError::Full(_))));
        assert_eq!(contents.audit().unwrap().reserved.0, 4 * BLOCK_BYTES);
        contents.unpin(reader);
    }
    assert!(contents.begin(scratch(4)).is_ok());
}

#[test]
fn durable_tensors_appear_and_disappear_only_by_a_commit() {
    let mut contents = contents(4);
    let write = contents.begin(durable(7)).unwrap();
    assert_eq!(length(&contents), None);
    assert_eq!(contents.begin(scratch(1)).unwrap_err(), BeginError::IsDurable);
    let entry = contents.entry(&write, &[5]).unwrap();
    assert_eq!(contents.durable_after(&[Change::Put(entry.clone())]).tensors, [&entry]);
    contents.apply(vec![(write, vec![5])], &[]);
    assert_eq!(length(&contents), Some(1));
    assert_eq!(contents.remove_scratch(ID), Err(RemoveError::IsDurable));
    assert_eq!(contents.begin(scratch(1)).unwrap_err(), BeginError::IsDurable);
    assert_eq!(contents.durable_after(&[Change::Delete(ID)]).tensors, Vec::<&TensorEntry>::new());
    contents.apply(vec![], &[ID]);
    assert_eq!(length(&contents), None);
    let space = contents.audit().unwrap();
    assert_eq!(space.free, space.capacity);
}

#[test]
fn a_commit_takes_the_place_of_a_scratch_tensor_but_not_of_one_in_flight() {
    let mut contents = contents(4);
    let write = contents.begin(scratch(2)).unwrap();
    assert_eq!(contents.begin(durable(7)).unwrap_err(), BeginError::ScratchInFlight);
    contents.install(&write, &[]);
    let write = contents.begin(durable(7)).unwrap();
    assert_eq!(length(&contents), Some(2));
    contents.apply(vec![(write, vec![])], &[]);
    assert_eq!(length(&contents), Some(1));
    contents.audit().unwrap();
}

#[test]
fn a_commit_in_doubt_keeps_its_space_for_ever() {
    let mut contents = contents(1);
    let write = contents.begin(durable(7)).unwrap();
    contents.leave_in_doubt(&write);
    contents.abandon(&write);
    assert_eq!(contents.audit().unwrap().reserved.0, BLOCK_BYTES);
}

#[test]
fn two_names_for_one_id_are_noticed() {
    let mut contents = contents(4);
    let collision = |name: &str| BeginError::NameCollision(name.into());
    let write = contents.begin(named("a")).unwrap();
    assert_eq!(contents.begin(named("b")).unwrap_err(), collision("a"));
    contents.apply(vec![(write, vec![])], &[]);
    assert_eq!(contents.begin(named("b")).unwrap_err(), collision("a"));
    let again = contents.begin(named("a")).unwrap();
    contents.abandon(&again);
    contents.apply(vec![], &[ID]);
    assert!(contents.begin(named("b")).is_ok());
}

/// A tensor that shares a segment with a dead one, and what moves it.
fn mixed(contents: &mut Contents) -> Reclamation {
    for (id, blocks) in [(7, 2), (8, 2)] {
        let write = contents.begin(request(TensorId(id), Durability::Scratch, blocks)).unwrap();
        contents.install(&write, &[0]);
    }
    contents.remove_scratch(TensorId(8)).unwrap();
    contents.begin_reclaim(Wanted::ANY).unwrap()
}

fn moved(relocation: &Relocation) -> TensorEntry {
    let runs = relocation.stretches.iter().flat_map(|stretch| stretch.to.clone()).collect();
    TensorEntry { runs, ..relocation.version.entry.clone() }
}

#[test]
fn a_move_does_not_get_in_the_way_of_a_write_that_began_before_it() {
    let mut contents = contents(4);
    let Reclamation { victim, relocations } = mixed(&mut contents);
    let write = contents.begin(scratch(3)).unwrap();
    contents.audit().unwrap();
    assert!(contents.relocate(&relocations[0], moved(&relocations[0])));
    contents.end_reclaim(&victim, false);
    contents.audit().unwrap();
    contents.install(&write, &[1]);
    assert_eq!(length(&contents), Some(3));
    assert_eq!(contents.audit().unwrap().live.0, 3 * BLOCK_BYTES);
}

#[test]
fn a_move_never_brings_back_what_was_replaced_or_deleted_meanwhile() {
    for replaced in [false, true] {
        let mut contents = contents(4);
        let Reclamation { victim, relocations } = mixed(&mut contents);
        if replaced {
            let write = contents.begin(scratch(1)).unwrap();
            contents.install(&write, &[1]);
        } else {
            contents.remove_scratch(ID).unwrap();
        }
        contents.audit().unwrap();
        assert!(!contents.relocate(&relocations[0], moved(&relocations[0])));
        contents.end_reclaim(&victim, false);
        assert_eq!(length(&contents), replaced.then_some(1));
        let space = contents.audit().unwrap();
        assert_eq!((space.live.0, space.reserved.0), (u64::from(replaced) * BLOCK_BYTES, 0));
    }
}

#[test]
fn a_move_that_is_given_up_or_in_doubt_leaves_the_tensor_where_it_is() {
    for in_doubt in [false, true] {
        let mut contents = contents(4);
        let Reclamation { victim, relocations } = mixed(&mut contents);
        let place = relocations[0].version.entry.runs.clone();
        if in_doubt {
            contents.leave_relocation_in_doubt(&relocations[0]);
        } else {
            contents.abandon_relocation(&relocations[0]);
        }
        contents.end_reclaim(&victim, false);
        assert_eq!(contents.current(ID).unwrap().entry.runs, place);
        let space = contents.audit().unwrap();
        // The place that may be named on the media is nobody's until the pool is opened again.
        assert_eq!(space.reserved.0, u64::from(in_doubt) * 2 * BLOCK_BYTES);
    }
}

#[test]
fn a_read_that_began_before_a_move_keeps_what_did_not_move_once_nothing_else_does() {
    let mut contents = contents(4);
    for (id, blocks) in [(8, 2), (7, 4)] {
        let write = contents.begin(request(TensorId(id), Durability::Scratch, blocks)).unwrap();
        contents.install(&write, &[0]);
    }
    contents.remove_scratch(TensorId(8)).unwrap();
    let older = contents.pin(ID).unwrap();
    let Reclamation { victim, relocations } = contents.begin_reclaim(Wanted::ANY).unwrap();
    let whole = TensorEntry { runs: relocations[0].runs(), ..older.entry.clone() };
    assert!(contents.relocate(&relocations[0], whole));
    contents.end_reclaim(&victim, false);
    drop(relocations);
    let newer = contents.pin(ID).unwrap();
    assert_eq!(older.entry.runs[1], newer.entry.runs[1]);
    assert_ne!(older.entry.runs[0], newer.entry.runs[0]);
    contents.unpin(newer);
    assert_eq!(contents.audit().unwrap().reserved.0, 2 * BLOCK_BYTES);
    contents.remove_scratch(ID).unwrap();
    assert_eq!(contents.audit().unwrap().reserved.0, 6 * BLOCK_BYTES, "two of them are read");
    contents.unpin(older);
    let space = contents.audit().unwrap();
    assert_eq!((space.reserved.0, space.free), (0, space.capacity));
}
