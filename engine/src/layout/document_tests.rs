//! `docs/format.md` and the committed fixtures against the code.

use std::mem::offset_of;

use super::change::RecordOnMedia;
use super::checkpoint::CheckpointOnMedia;
use super::entry::{EntryOnMedia, RunOnMedia};
use super::holder::HolderOnMedia;
use super::owner::OwnerOnMedia;
use super::superblock::{ShareOnMedia, SuperblockOnMedia};
use super::unfinished::UnfinishedOnMedia;
use super::*;
use crate::units::{ByteCount, DeviceSet};

/// The fields of a structure: where each starts, and its name.
macro_rules! fields {
    ($structure:ty: $($field:ident),+) => {
        (size_of::<$structure>(), vec![$((offset_of!($structure, $field), stringify!($field))),+])
    };
}

#[test]
fn the_document_shows_every_structure_as_it_is() {
    let document = include_str!("../../../docs/format.md");
    let mut tables = document
        .split("| offset | bytes | field |\n|---|---|---|\n")
        .skip(1)
        .map(|rest| rest.lines().take_while(|line| line.starts_with('|')).collect::<Vec<_>>());
    let structures = [
        fields!(SuperblockOnMedia: magic, version, checksum, generation, features, pool, device,
            devices, device_bytes, stripe_unit, segment_bytes, data_offset, slot_bytes, segments,
            shares, formatted_at, depth, copies, missing, reserved, share_table, sets,
            current_set, unused, metadata, removed, rates, tail),
        fields!(ShareOnMedia: metadata_offset, metadata_bytes, first_segment, segments, reserved),
        fields!(UnfinishedOnMedia: magic, checksum, unused, pool, reserved),
        fields!(HolderOnMedia: magic, checksum, share, pool, process, command_bytes, since, command,
            event, opening, confirmed, confirmed_opening, event_checksum, log_epoch, log_sequence,
            commit_epoch, commit_sequence, log_state, mark_checksum, reserved),
        fields!(OwnerOnMedia: magic, checksum, state, pool, claim, generation, since, host_bytes, host,
            fenced, reserved),
        fields!(EntryOnMedia: id, length, entry_bytes, runs, checksums, name_bytes, kind, class,
            number),
        fields!(RunOnMedia: segment, block, blocks, mirrors, set, reserved),
        fields!(CheckpointOnMedia: magic, checksum, share, pool, epoch, payload_bytes, tensors,
            segments, set),
        fields!(RecordOnMedia: magic, checksum, payload_bytes, pool, epoch, sequence, share,
            reserved),
    ];
    for (size, fields) in structures {
        let table = tables.next().expect("a table for each structure");
        assert_eq!(table.len(), fields.len(), "{table:?}");
        let ends = fields.iter().skip(1).map(|(offset, _)| *offset).chain([size]);
        for ((row, (offset, name)), end) in table.iter().zip(&fields).zip(ends) {
            let expected = format!("| {offset} | {} | `{name}`", end - offset);
            assert!(row.starts_with(&expected), "{row} is not {expected}");
        }
    }
    assert_eq!(tables.next(), None, "a table for nothing");
}

fn fixture_superblock() -> Superblock {
    let geometry = Geometry::plan(&GeometryRequest {
        devices: 2,
        device_bytes: ByteCount::mib(64),
        stripe_unit: ByteCount::kib(256),
        segment_bytes: None,
        shares: 3,
        copies: Copies::One,
    })
    .unwrap();
    Superblock {
        generation: 1,
        pool: 0x0011_2233_4455_6677_8899_AABB_CCDD_EEFF,
        device: 1,
        geometry,
        formatted_at: 1_700_000_000,
        depth: None,
        index_in_segments: false,
        seals: false,
        block_checksums: false,
        copies: None,
        missing: DeviceSet::default(),
        table: None,
    }
}

fn fixture_tensors() -> Vec<TensorEntry> {
    let named = TensorEntry {
        id: TensorId::from_name("layer.0.weight"),
        name: Some("layer.0.weight".into()),
        length: 600_000,
        class: LifetimeClass::Persistent,
        runs: Runs::from_slice(&[Run::single(3, 500, 12), Run::single(5, 0, 135)]),
        checksums: Checksums::from_slice(&[1, 0x0102_0304, u32::MAX, 4]),
    };
    let empty = TensorEntry {
        id: TensorId(7),
        name: None,
        length: 0,
        class: LifetimeClass::Transient,
        runs: Runs::from_slice(&[]),
        checksums: Checksums::from_slice(&[]),
    };
    vec![named, empty]
}

/// Compares what is written today with what an older build wrote. To make fixtures of a new
/// version: delete the files and run the tests with `TIDELOG_WRITE_FIXTURES` set.
fn check_fixture(name: &str, written: &[u8]) -> Vec<u8> {
    let path = format!("{}/src/layout/fixtures/v1-{name}.bin", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("TIDELOG_WRITE_FIXTURES").is_some() {
        std::fs::write(&path, written).unwrap();
    }
    let fixture = std::fs::read(&path).unwrap();
    assert!(fixture == written, "{name} is not written as it was when version 1 was fixed");
    fixture
}

#[test]
fn version_1_is_written_and_read_as_it_was_when_it_was_fixed() {
    let superblock = fixture_superblock();
    let fixture = check_fixture("superblock", &superblock.encode());
    assert_eq!(Superblock::decode(&fixture), Ok(superblock));

    let holder = Holder { process: 4711, command: "python train.py".into(), since: 1_700_000_000 };
    let fixture = check_fixture("holder", &holder.encode(superblock.pool, 2, Events::NONE));
    assert_eq!(Holder::decode(&fixture, 2), Some(holder));

    let owner = Owner {
        host: "node-3".into(),
        owns: true,
        generation: 7,
        claim: 42,
        since: 1_700_000_000,
        fenced: false,
    };
    let fixture = check_fixture("owner", &owner.encode(superblock.pool));
    assert_eq!(Owner::decode(&fixture), Some(owner));

    let (pool, share, epoch) = (superblock.pool, 2, 9);
    let (segments, tensors) = (Vec::new(), fixture_tensors());
    let (held, seals) = (Vec::new(), Vec::new());
    let checkpoint = Checkpoint { pool, share, epoch, segments, set: 0, tensors, held, seals };
    let written = Checkpoint::encode(pool, share, epoch, (&[], 0), &(&checkpoint).into());
    let plain = BlockFormat::Plain;
    let fixture = check_fixture("checkpoint", &plain.lay_out(written));
    assert_eq!(Checkpoint::decode(&fixture), Ok(checkpoint));

    let puts = fixture_tensors().into_iter().map(Change::Put);
    let changes = puts.chain([Change::Delete(TensorId(1 << 100))]).collect();
    let record = ChangeRecord { pool, share, epoch, sequence: 4, changes };
    let fixture = check_fixture("change", &plain.lay_out(record.encode()));
    assert_eq!(ChangeRecord::decode(&fixture), Ok(record.clone()));

    // With the feature block-checksums.
    let checked = BlockFormat::Checked;
    let fixture = check_fixture("change-checked", &checked.lay_out(record.encode()));
    assert_eq!(ChangeRecord::decode(&checked.take_out(fixture)), Ok(record));

    // With the feature copies.
    let segment_bytes = 2 * superblock.geometry.stripe_unit;
    let segments = superblock.geometry.segments / 2;
    let geometry = Geometry { segment_bytes, segments, ..superblock.geometry };
    let superblock = Superblock { geometry, copies: Some(Copies::Two), ..superblock };
    let fixture = check_fixture("superblock-copies", &superblock.encode());
    assert_eq!(Superblock::decode(&fixture), Ok(superblock));
    let mut mirrored = fixture_tensors().remove(0);
    for run in &mut mirrored.runs {
        *run = Run { blocks: 2 * run.blocks, copies: Copies::Two, ..*run };
    }
    let changes = vec![Change::Put(mirrored)];
    let record = ChangeRecord { pool, share, epoch, sequence: 5, changes };
    let fixture = check_fixture("change-copies", &plain.lay_out(record.encode()));
    assert_eq!(ChangeRecord::decode(&fixture), Ok(record));
}
