//! Random corruption of pools on files, with seals and an index that goes on in segments: of one
//! device and of two. Whatever stands on one good copy is there; what is lost is named, and nothing
//! is ever other bytes. `TIDELOG_CORRUPTIONS` says how many there are of each kind of pool.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use common::{temporary, tool};
use serde_json::Value;
use tidelog_engine::layout::{Geometry, METADATA_OFFSET, TensorEntry, TensorId};
use tidelog_engine::log::StripeMap;
use tidelog_engine::memory::{Destination, Source};
use tidelog_engine::path::DeviceSpec;
use tidelog_engine::pool::inspect::inspect;
use tidelog_engine::pool::{OpenOptions, Pool, PutOptions};
use tidelog_engine::schedule::Urgency;
use tidelog_engine::units::ByteCount;
use tidelog_tests::machine::Directory;
use tidelog_tests::sim::{Content, Random};

const BLOCK: u64 = 4096;
/// Range of the counts of opens and closes in a holder block.
const EVENT_FIELDS: Range<usize> = 1072..1124;
const DEVICE: &str = "4MiB";
/// Tensors that make the index go on in segments.
const FILLERS: usize = 300;
const TENSORS: u8 = 12;

/// Contents that must be there: by seal, or none for what stands, and by id.
type Contents = BTreeMap<(Option<&'static str>, u128), Content>;

/// Version of a tensor: whether it stands under its id, the id, and its length: seals hold several
/// versions of one id.
type Version = (bool, u128, u64);

/// A pool that was closed, and what its files hold.
struct Closed {
    folder: Directory,
    names: Vec<String>,
    saved: Vec<Vec<u8>>,
    geometry: Geometry,
    /// Segments in which the index goes on.
    grown: Vec<u32>,
    /// Entries of all that holds bytes.
    entries: Vec<(bool, TensorEntry)>,
    contents: Contents,
}

fn options() -> OpenOptions {
    OpenOptions {
        buffered: true,
        huge_pages: false,
        staging: ByteCount::mib(1),
        ..OpenOptions::default()
    }
}

fn content(random: &mut Random) -> Content {
    Content { length: 1 + random.below(40_000) as u32, salt: random.draw() as u32 }
}

impl Closed {
    fn make(devices: usize) -> Self {
        let folder = temporary(&format!("corruption{devices}"));
        let names: Vec<String> = (0..devices).map(|at| folder.at(&format!("device{at}"))).collect();
        let files: Vec<&str> = names.iter().map(String::as_str).collect();
        let format = ["format", "--size", DEVICE, "--stripe-unit", "16KiB", "--yes"];
        tool(&[&format[..], &files].concat()).expect(0);
        let specs: Vec<DeviceSpec> = names.iter().map(DeviceSpec::new).collect();
        let pool = Pool::open(&specs, &options()).unwrap();
        let mut random = Random::new(devices as u64);
        let mut contents = Contents::new();
        let mut batch = pool.batch();
        for filler in 0..FILLERS {
            let name = format!("{filler:0>1000}");
            batch.put(name.as_str(), Source::from(Vec::new()), PutOptions::default()).unwrap();
        }
        batch.commit().unwrap();
        let mut put = |contents: &mut Contents, ids: Range<u8>| {
            let mut batch = pool.batch();
            for id in ids {
                let content = content(&mut random);
                let bytes = Source::from(content.bytes());
                batch.put(TensorId(id.into()), bytes, PutOptions::default()).unwrap();
                contents.insert((None, id.into()), content);
            }
            batch.commit().unwrap();
        };
        let seal = |contents: &mut Contents, name: &'static str, ids: Range<u8>| {
            let mut batch = pool.batch();
            batch.seal(name, ids.clone().map(|id| TensorId(id.into()))).unwrap();
            batch.commit().unwrap();
            for id in ids {
                contents.insert((Some(name), id.into()), contents[&(None, id.into())]);
            }
        };
        put(&mut contents, 0..TENSORS);
        seal(&mut contents, "first", 0..5);
        put(&mut contents, 3..8);
        seal(&mut contents, "second", 4..9);
        for id in 0..4 {
            put(&mut contents, id..id + 2);
        }
        let grown = pool.index_segments().unwrap();
        assert!(!grown.is_empty(), "the index goes on in segments");
        let geometry = pool.description().geometry;
        pool.close().unwrap();
        let found = inspect(&specs).unwrap();
        let index = found.shares[0].index.as_ref().unwrap();
        let entries =
            index.readable().map(|(entry, _, current)| (current, entry.clone())).collect();
        let saved = names.iter().map(|name| fs::read(name).unwrap()).collect();
        Self { folder, names, saved, geometry, grown, entries, contents }
    }

    fn specs(&self) -> Vec<DeviceSpec> {
        self.names.iter().map(DeviceSpec::new).collect()
    }

    /// Hits some blocks; returns what the files hold then.
    fn hit(&self, random: &mut Random) -> Vec<Vec<u8>> {
        let mut bytes = self.saved.clone();
        for _ in 0..=random.below(3) {
            let device = random.below(bytes.len() as u64) as usize;
            let first = self.place(random) / BLOCK * BLOCK;
            let blocks = if random.chance(6) { 1 + random.below(8) } else { 1 };
            let end = (first + blocks * BLOCK).min(bytes[device].len() as u64);
            let range = first as usize..end as usize;
            match random.below(4) {
                0 => {
                    let at = first + random.below(BLOCK);
                    bytes[device][at as usize] ^= 1 << random.below(8);
                }
                1 => bytes[device][range].fill(0),
                2 => bytes[device][range].fill_with(|| random.draw() as u8),
                // A write that went astray: what stands elsewhere.
                _ => {
                    let from = self.place(random) / BLOCK * BLOCK;
                    let other = random.below(bytes.len() as u64) as usize;
                    let block = self.saved[other][from as usize..][..BLOCK as usize].to_vec();
                    bytes[device][first as usize..][..BLOCK as usize].copy_from_slice(&block);
                }
            }
        }
        bytes
    }

    /// A byte of some structure.
    fn place(&self, random: &mut Random) -> u64 {
        let Geometry { data_offset, segment_bytes, .. } = self.geometry;
        let last = self.geometry.second_superblock_offset();
        match random.below(10) {
            0 => BLOCK,
            1 => last,
            2 => 2 * BLOCK,
            3 => BLOCK + random.below(METADATA_OFFSET - BLOCK),
            4..7 => METADATA_OFFSET + random.below(data_offset - METADATA_OFFSET),
            7 => {
                let segment = random.pick(&self.grown);
                data_offset + u64::from(segment) * segment_bytes + random.below(segment_bytes)
            }
            _ => data_offset + random.below(last - data_offset),
        }
    }

    /// Blocks that differ from what was saved, by device.
    fn changed(&self, bytes: &[Vec<u8>]) -> BTreeSet<(usize, u64)> {
        let all = bytes.iter().zip(&self.saved).enumerate();
        let blocks = all.flat_map(|(device, (now, before))| {
            let pairs = now.chunks(BLOCK as usize).zip(before.chunks(BLOCK as usize));
            let differ = pairs.enumerate().filter(|(_, (now, before))| now != before);
            differ.map(move |(block, _)| (device, block as u64 * BLOCK))
        });
        blocks.collect()
    }

    /// Returns whether a block belongs to the index.
    fn is_of_index(&self, block: u64) -> bool {
        let Geometry { data_offset, segment_bytes, .. } = self.geometry;
        let in_segment = |segment: &u32| {
            let start = data_offset + u64::from(*segment) * segment_bytes;
            (start..start + segment_bytes).contains(&block)
        };
        (METADATA_OFFSET..data_offset).contains(&block) || self.grown.iter().any(in_segment)
    }

    /// Returns whether of each block of the metadata that was hit a good copy is left, and nothing
    /// was changed of a device's start but one block.
    fn is_recoverable(&self, bytes: &[Vec<u8>], changed: &BTreeSet<(usize, u64)>) -> bool {
        let devices = self.saved.len();
        let index = changed.iter().filter(|(_, block)| self.is_of_index(*block));
        let twins = index
            .clone()
            .all(|(device, block)| devices == 2 && !changed.contains(&(1 - device, *block)));
        let last = self.geometry.second_superblock_offset();
        let starts = (0..devices).all(|device| {
            let hit = |block: u64| changed.contains(&(device, block));
            let start =
                changed.iter().filter(|(at, block)| *at == device && *block < METADATA_OFFSET);
            !(hit(BLOCK) && (hit(last) || start.count() > 1))
        });
        // A superblock says which pool it is; a holder block on each device says when it was used.
        let first = changed.iter().filter(|(_, block)| *block == BLOCK || *block == last);
        let holders = changed.iter().filter(|(_, block)| *block == 2 * BLOCK);
        // Where zeroes are in the place of its count, the device's own index has to say that it
        // missed nothing, beside another that is whole.
        let is_blank = |(device, block): &(usize, u64)| {
            bytes[*device][*block as usize..][EVENT_FIELDS].iter().all(|byte| *byte == 0)
        };
        let is_told = !holders.clone().any(is_blank) || index.count() == 0;
        twins && starts && is_told && first.count() <= 1 && holders.count() <= 1
    }

    /// The versions of which bytes were changed.
    fn lost(&self, bytes: &[Vec<u8>]) -> BTreeSet<Version> {
        let map = StripeMap::new(&self.geometry);
        let is_hit = |entry: &TensorEntry| {
            map.placements(&entry.runs, entry.length).any(|piece| {
                let (device, start) = (usize::from(piece.device), piece.device_offset as usize);
                let range = start..start + piece.length as usize;
                bytes[device][range.clone()] != self.saved[device][range]
            })
        };
        let hit = self.entries.iter().filter(|(_, entry)| is_hit(entry));
        hit.map(|(current, entry)| (*current, entry.id.0, entry.length)).collect()
    }

    fn write(&self, bytes: &[Vec<u8>]) {
        for (name, bytes) in self.names.iter().zip(bytes) {
            fs::File::options().write(true).open(name).unwrap().write_all_at(bytes, 0).unwrap();
        }
    }

    /// Reads everything. Returns what could not be read, or what is wrong.
    fn read(&self, pool: &Pool) -> Result<BTreeSet<(Option<&'static str>, u128)>, String> {
        let found = pool.durable_tensors().unwrap().len();
        if found != FILLERS + usize::from(TENSORS) {
            return Err(format!("{found} tensors are there"));
        }
        let mut unread = BTreeSet::new();
        for (&(seal, id), content) in &self.contents {
            let length = u64::from(content.length);
            let (id, memory) = (TensorId(id), Destination::buffer(content.length as usize));
            let read = match seal {
                None => pool.get(id, 0..length, memory, Urgency::Urgent, None),
                Some(seal) => pool.get_sealed(seal, id, 0..length, memory, Urgency::Urgent, None),
            };
            let ticket = read.map_err(|error| format!("{seal:?} {id}: {error}"))?;
            match ticket.wait() {
                Err(_) => drop(unread.insert((seal, id.0))),
                Ok(_) if ticket.take_bytes().as_deref() == Some(&content.bytes()[..]) => (),
                Ok(_) => return Err(format!("WRONG BYTES of {id} in {seal:?}")),
            }
        }
        Ok(unread)
    }

    /// The contents that these versions are.
    fn contents_of(&self, lost: &BTreeSet<Version>) -> BTreeSet<(Option<&'static str>, u128)> {
        let stands = |id: u128| self.contents[&(None, id)];
        let is_lost = |(&(seal, id), content): (&(Option<&'static str>, u128), &Content)| {
            let current = seal.is_none() || *content == stands(id);
            lost.contains(&(current, id, content.length.into())).then_some((seal, id))
        };
        self.contents.iter().filter_map(is_lost).collect()
    }
}

/// Returns the findings of a check, in JSON, and its exit code.
fn checked(names: &[&str]) -> (i32, Value) {
    let ran = tool(&[&["check", "--buffered", "--output", "json"][..], names].concat());
    (ran.code, ran.json())
}

fn campaign(devices: usize) {
    let count = std::env::var("TIDELOG_CORRUPTIONS").ok().and_then(|it| it.parse().ok());
    let pool = Closed::make(devices);
    let names: Vec<&str> = pool.names.iter().map(String::as_str).collect();
    let (mut refused, mut recovered, mut told) = (0, 0, 0);
    for round in 0..count.unwrap_or(20) {
        let mut random = Random::new(round << 8 | devices as u64);
        let bytes = pool.hit(&mut random);
        let changed = pool.changed(&bytes);
        let (lost, recoverable) = (pool.lost(&bytes), pool.is_recoverable(&bytes, &changed));
        let what =
            format!("{devices} device(s), round {round}, changed {changed:x?}, lost {lost:?}");
        pool.write(&bytes);
        let (code, report) = checked(&names);
        if !lost.is_empty() {
            assert_ne!(code, 0, "clean, and tensors are lost: {what}");
        }
        let try_open = || Pool::open(&pool.specs(), &options());
        match try_open() {
            Ok(open) => {
                let unread = pool.read(&open).unwrap_or_else(|why| panic!("{why}: {what}"));
                open.close().unwrap();
                assert_eq!(unread, pool.contents_of(&lost), "{what}");
                recovered += 1;
                told += lost.len();
                let ids: BTreeSet<String> =
                    lost.iter().map(|(_, id, _)| format!("{id:032x}")).collect();
                let told = report["damage"].as_array().into_iter().flatten();
                let told = told.filter_map(|it| it["id"].as_str().map(str::to_owned));
                assert_eq!(told.collect::<BTreeSet<_>>(), ids, "{report:#}: {what}");
            }
            Err(why) => {
                assert!(!recoverable, "refused: {why}; check: {report:#}: {what}");
                assert_ne!(code, 0, "clean, and refused: {why}: {what}");
                assert!(try_open().is_err(), "refused once alone: {why}: {what}");
                refused += 1;
            }
        }
        // From the same state, by the tool.
        pool.write(&bytes);
        tool(&[&["repair", "--buffered"][..], &names].concat());
        if recoverable {
            let (_, after) = checked(&names);
            let left = after["damage"].as_array().into_iter().flatten();
            let left = left.filter(|it| it["repairable"] == true).count();
            assert_eq!(left, 0, "repair left it: {after:#}: {what}");
        }
        if let Ok(open) = try_open() {
            let unread = pool.read(&open).unwrap_or_else(|why| panic!("repaired, {why}: {what}"));
            open.close().unwrap();
            assert_eq!(unread, pool.contents_of(&lost), "repaired: {what}");
        } else {
            assert!(!recoverable, "refused once repaired: {what}");
        }
        pool.write(&pool.saved);
    }
    println!(
        "{devices} device(s): {recovered} with everything that was not hit, {told} lost and named; {refused} refused"
    );
    drop(pool.folder);
}

#[test]
fn what_stands_on_a_good_copy_of_two_is_there_and_what_is_lost_is_named() {
    campaign(2);
}

#[test]
fn a_pool_of_one_device_is_whole_or_refused_and_what_is_lost_is_named() {
    campaign(1);
}
