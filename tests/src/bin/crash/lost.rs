//! Loop devices that lose all they hold under load, and are replaced.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tidelog_engine::path::DeviceSpec;
use tidelog_engine::pool::{Copies, FormatOptions, OpenOptions, Pool, ReplaceOptions, replace};
use tidelog_engine::units::ByteCount;
use tidelog_tests::machine::{LoopDevice, LoopOptions};
use tidelog_tests::sim::Random;
use tidelog_tests::victim::{self, Failure, open_options};

use super::{Arguments, DEVICE_SIZE, LIFE_MAX_MICROS, Victim, last_told, names};

/// Any one may be lost, and there are two for two copies then.
const DEVICES: usize = 3;

/// Time for which the victim goes on without the device, at most.
const LEFT_MAX_MICROS: u64 = 20_000;

/// A loop device and the file behind it, which are one drive.
struct Drive {
    file: PathBuf,
    device: LoopDevice,
}

impl Drive {
    fn new(directory: &Path, number: u64, sector: u32) -> Result<Self, Failure> {
        let file = directory.join(format!("lost{number}"));
        File::create(&file)?.set_len(DEVICE_SIZE.0)?;
        let device = LoopDevice::attach(&file, LoopOptions { sector, ..LoopOptions::default() })?;
        Ok(Self { file, device })
    }

    fn spec(&self) -> DeviceSpec {
        DeviceSpec::new(self.device.node())
    }

    /// Fails everything from now on, whoever has it open.
    fn lose(&self) -> Result<(), Failure> {
        Ok(File::options().write(true).open(&self.file)?.set_len(0)?)
    }
}

impl Drop for Drive {
    fn drop(&mut self) {
        let _ = self.device.detach();
        let _ = std::fs::remove_file(&self.file);
    }
}

/// Loses a device under load `losses` times.
pub(super) fn lose_devices(arguments: &Arguments, losses: u64) -> Result<(), Failure> {
    std::fs::create_dir_all(&arguments.directory)?;
    let new = |number| Drive::new(&arguments.directory, number, arguments.sector);
    let drives = (0..DEVICES as u64).map(new).collect::<Result<Vec<_>, _>>();
    let mut drives = match drives {
        Ok(drives) => drives,
        Err(why) => {
            println!("SKIPPED loop devices that are lost: {why}");
            return Ok(());
        }
    };
    let options = FormatOptions {
        stripe_unit: ByteCount::kib(16),
        copies: Copies::Two,
        ..FormatOptions::default()
    };
    Pool::format(&drives.iter().map(Drive::spec).collect::<Vec<_>>(), &options)?;
    let mut random = Random::new(arguments.seed);
    let (mut last, mut rebuilt) = (0, 0);
    for turn in 0..losses {
        let of_loss = |what: Failure| format!("loss {turn} of seed {}: {what}", arguments.seed);
        let chosen = random.below(DEVICES as u64) as usize;
        let returned = live_and_lose(&drives, chosen, last + 1, &mut random).map_err(of_loss)?;
        let gone = drives.remove(chosen);
        drop(gone);
        let others: Vec<DeviceSpec> = drives.iter().map(Drive::spec).collect();
        let degraded = OpenOptions { degraded: true, ..open_options(true) };
        let found = victim::verify(&others, &degraded, returned.max(last), 0).map_err(of_loss)?;
        drives.insert(chosen, new(DEVICES as u64 + turn)?);
        let how = ReplaceOptions { buffered: true, ..ReplaceOptions::default() };
        let replaced = replace(&drives[chosen].spec(), &others, &how, &mut |_| ());
        let replaced = replaced.map_err(|error| of_loss(error.into()))?;
        rebuilt += replaced.bytes.0;
        let all: Vec<DeviceSpec> = drives.iter().map(Drive::spec).collect();
        victim::verdict(&all).map_err(of_loss)?;
        last = victim::verify(&all, &open_options(true), found, 0).map_err(of_loss)?;
    }
    println!(
        "loop devices that are lost: {losses} losses under load, {last} commits, {} made again; 0 lost",
        ByteCount(rebuilt)
    );
    Ok(())
}

/// Starts a victim, takes a device away some time after its first commit, and kills it a while
/// later. Returns the last commit that returned.
fn live_and_lose(
    drives: &[Drive],
    chosen: usize,
    next: u64,
    random: &mut Random,
) -> Result<u64, Failure> {
    let nodes: Vec<PathBuf> = drives.iter().map(|it| it.device.node().into()).collect();
    let mut victim = Victim::start(&names(&nodes), next)?;
    let (first, told) = victim.first()?;
    std::thread::sleep(Duration::from_micros(random.below(LIFE_MAX_MICROS)));
    drives[chosen].lose()?;
    std::thread::sleep(Duration::from_micros(random.below(LEFT_MAX_MICROS)));
    victim.kill();
    last_told(told, first)
}
