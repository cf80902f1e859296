//! Looking at devices whose front and end somebody else wrote, as files: what `tidelog-format`
//! shows, checks and repairs.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use arbitrary::Unstructured;
use tidelog_engine::layout::{Superblock, SuperblockError};
use tidelog_engine::path::DeviceSpec;
use tidelog_engine::pool::inspect::{Damage, DeviceView, check, inspect, probe, repair};

use super::corrupt_device::CorruptDevice;

pub(super) fn run(bytes: &[u8]) {
    let mut words = Unstructured::new(bytes);
    let Ok(thorough) = words.ratio(1, 4) else { return };
    let Ok(pool) = CorruptDevice::of(&mut words) else { return };
    let files = Files::of(&pool);
    let specs = &files.specs;
    for spec in specs {
        says_what_it_is(&probe(spec).expect("a file can be looked at"));
    }
    let Ok(view) = inspect(specs) else { return };
    for index in view.shares.iter().filter_map(|share| share.index.as_ref().ok()) {
        let space = index.space;
        let parts = [space.live, space.dead, space.free, space.reserved, space.index];
        let sum: u64 = parts.iter().map(|part| part.0).sum();
        assert_eq!(sum, space.capacity.0, "{space:?}");
    }
    if !thorough {
        return;
    }
    let Ok(report) = check(specs, true, &mut |_| ()) else { return };
    let unreadable = view.shares.iter().filter(|share| share.index.is_err()).count();
    let lost = report.damage.iter().filter(|it| matches!(it, Damage::Index { .. })).count();
    assert_eq!(unreadable, lost, "looking and checking agree on what cannot be read");
    if let Ok(repaired) = repair(specs, &[], true, &mut |_| ()) {
        let left = repaired.after.damage.iter().filter(|it| it.is_repairable());
        // What has no good copy stays as it is, and so do the copies beside it.
        assert!(lost > 0 || left.count() == 0, "{:?}", repaired.after.damage);
    }
}

/// A device says what it is where one of its superblocks is whole, and a newer version has written
/// neither: that is not taken for damage, whatever the other copy says.
fn says_what_it_is(device: &DeviceView) {
    let copies = device.copies.each_ref().map(|copy| copy.state.as_ref());
    let is_whole = copies.iter().any(Result::is_ok);
    let is_newer =
        copies.iter().any(|copy| copy.is_err_and(SuperblockError::is_of_another_version));
    match (&device.newest, copies) {
        (Err(SuperblockError::Disagree { .. }), [Ok(first), Ok(second)]) => {
            assert!(!first.is_of_the_same_device(second), "they agree: {device:?}");
            // A pool that is larger than the device is a lie, and leaves the other one.
            let fits = |it: &Superblock| it.geometry.device_bytes <= device.size.0;
            assert_eq!(fits(first), fits(second), "the size tells which is right: {device:?}");
        }
        (newest, _) => assert_eq!(newest.is_ok(), is_whole && !is_newer, "{device:?}"),
    }
}

/// The devices as files, removed again.
struct Files {
    folder: PathBuf,
    specs: Vec<DeviceSpec>,
}

impl Files {
    fn of(pool: &CorruptDevice) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidelog-fuzz-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("the temporary folder can be written");
        let paths: Vec<PathBuf> = (0..pool.geometry.devices)
            .map(|device| folder.join(format!("{device}.tide")))
            .collect();
        let files: Vec<File> = paths
            .iter()
            .map(|path| {
                let file = File::create(path).expect("a file can be made");
                file.set_len(pool.geometry.device_bytes).expect("of four MiB");
                file
            })
            .collect();
        for patch in &pool.patches {
            files[patch.device].write_all_at(&patch.bytes, patch.offset).expect("and written");
        }
        let spec = |path: &PathBuf| path.to_str().unwrap_or_default().parse();
        let specs = paths.iter().map(|path| spec(path).expect("a path is a device")).collect();
        Self { folder, specs }
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
