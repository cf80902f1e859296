//! Inputs to begin with: one good example of everything, from which a fuzzer finds the bad ones.

use tidelog_engine::layout::{
    Change, ChangeRecord, Checkpoint, Checksums, Copies, Events, Geometry, GeometryRequest,
    HeldVersion, Holder, LifetimeClass, Run, Runs, Seal, Superblock, TensorEntry, TensorId,
};
use tidelog_engine::units::{ByteCount, DeviceSet};

use super::index::payload;
use super::planner;
use crate::sim::Random;

/// An input, and which target it is for.
pub struct Seed {
    /// The target's name.
    pub target: &'static str,
    /// Name of the input's purpose.
    pub name: String,
    /// The input.
    pub bytes: Vec<u8>,
}

/// Every seed.
pub fn seeds() -> Vec<Seed> {
    let mut seeds = Vec::new();
    let mut add = |target, name: &str, kind: &[u8], bytes: &[u8]| {
        seeds.push(Seed { target, name: name.into(), bytes: [kind, bytes].concat() });
    };
    let (block, holder) = (superblock(), Holder { process: 7, command: "train".into(), since: 9 });
    let holder = holder.encode(5, 1, Events::NONE);
    add("superblock", "superblock", &[0], &block);
    add("superblock", "superblock-to-seal", &[1], &block[..512]);
    add("superblock", "holder", &[2], &holder);
    add("superblock", "holder-to-seal", &[3], &holder[..128]);
    add("superblock", "geometry", &[4], &[2, 0, 0, 0, 1, 0, 0, 0, 0, 15, 0, 1, 0]);
    let changes = vec![
        Change::Put(entry(None, 1)),
        Change::Delete(TensorId(3)),
        Change::Put(entry(Some("layer.0.weight"), 2)),
    ];
    let record =
        ChangeRecord { pool: 5, share: 1, epoch: 3, sequence: 2, changes: changes.clone() };
    add("record", "record", &[0], &record.encode());
    add("record", "payload", &[1], &payload(&changes));
    let seal =
        Seal { name: "step 10".into(), sealed_at: 1_700_000_000, order: 0, versions: vec![4, 9] };
    let seals = [
        Change::Hold(HeldVersion { number: 4, entry: entry(None, 1) }),
        Change::Hold(HeldVersion { number: 9, entry: entry(Some("layer.0.weight"), 2) }),
        Change::Seal(seal),
        Change::Drop("step 9".into()),
    ];
    add("record", "seals", &[1], &payload(&seals));
    add("index", "seals", &[1, 0], &payload(&seals[..3]));
    let tensors = [entry(None, 1), entry(Some("layer.0.weight"), 2)];
    let puts: Vec<_> = tensors.iter().cloned().map(Change::Put).collect();
    add("index", "checkpoint", &[0], &Checkpoint::encode(5, 1, 3, (&[], 0), &tensors[..].into()));
    add("index", "payload", &[1, 2], &payload(&puts));
    add("trace", "two-layers", &[], planner::trace().to_json().as_bytes());
    add("plan", "two-layers", &[], planner::plan().named(&planner::trace()).to_json().as_bytes());
    add("plan", "in-parts", &[], planner::plan_in_parts().to_json().as_bytes());
    for (name, text) in planner::machines() {
        add("machine", name, &[], text.as_bytes());
    }
    // The rest reads its input word by word as decisions: any bytes are a good beginning.
    for target in ["record", "index", "recovery", "device", "abi"] {
        for seed in 0..12 {
            let described = matches!(target, "record" | "index");
            let kind: &[u8] = if described { &[2] } else { &[] };
            add(target, &format!("decisions-{seed}"), kind, &noise(seed, 40 << (seed % 4)));
        }
    }
    seeds
}

fn superblock() -> Vec<u8> {
    let geometry = Geometry::plan(&GeometryRequest {
        devices: 2,
        device_bytes: ByteCount::mib(64),
        stripe_unit: ByteCount::kib(32),
        segment_bytes: None,
        shares: 3,
        copies: Copies::Two,
    });
    let geometry = geometry.expect("64 MiB are enough for three shares");
    Superblock {
        generation: 5,
        pool: 0xABCD,
        device: 1,
        geometry,
        formatted_at: 1_700_000_000,
        depth: None,
        index_in_segments: true,
        seals: true,
        block_checksums: true,
        copies: Some(Copies::Two),
        missing: DeviceSet::default(),
        table: None,
    }
    .encode()
}

fn entry(name: Option<&str>, number: u128) -> TensorEntry {
    TensorEntry {
        id: name.map_or(TensorId(number), TensorId::from_name),
        name: name.map(Into::into),
        length: 9000,
        class: LifetimeClass::Step,
        runs: Runs::from_slice(&[Run::single(1, 2, 1), Run::single(3, 0, 2)]),
        checksums: Checksums::from_slice(&[7, 8, 9]),
    }
}

fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..length).map(|_| random.draw() as u8).collect()
}
