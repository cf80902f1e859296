//! Commands of `tidelog-format` that change a pool's devices, killed at any moment and given again.
//!
//! The commands are the real programs, on files. After each that has ended well, every durable byte
//! is compared; where tensors have two copies, also without any one device.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::Source;
use tidelog_engine::path::DeviceSpec;
use tidelog_engine::pool::{Copies, FormatOptions, OpenOptions, Pool, PutOptions};
use tidelog_engine::units::ByteCount;
use tidelog_random::Random;

use crate::sim::Content;
use crate::victim::{Failure, open_options, read_range, verdict};

const DEVICE_SIZE: ByteCount = ByteCount::mib(24);
const TENSORS: u64 = 10;
const LENGTH_MAX: u64 = 500_000;
/// Devices of a pool at most.
const DEVICES_MAX: usize = 4;
/// Changes of one pool's devices, after which another pool is made.
const CHANGES: u64 = 12;
/// Kills of one command at most, before it may end.
const KILLS_MAX: u64 = 3;

/// A command that changes a pool's devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    Add,
    Evacuate,
    Remove,
    Replace,
}

impl Change {
    fn name(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Evacuate => "evacuate",
            Self::Remove => "remove",
            Self::Replace => "replace",
        }
    }
}

/// Figures of commands that were killed.
#[derive(Debug, Default)]
pub struct KilledCommands {
    /// Processes that were killed on their way, by command.
    kills: BTreeMap<&'static str, u64>,
    /// Processes that had ended before they could be killed.
    ended: u64,
    /// Commands that ended well, each after what was killed of it.
    finished: u64,
    /// Tensors that were compared, byte by byte.
    compared: u64,
    /// Openings without one device.
    degraded: u64,
}

impl KilledCommands {
    /// Returns the number of processes that were killed.
    pub fn count(&self) -> u64 {
        self.kills.values().sum()
    }
}

impl fmt::Display for KilledCommands {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kills, ended, finished, compared, degraded } = self;
        write!(
            out,
            "{} kills {kills:?}, {ended} had ended before; {finished} commands finished by the same \
             command, {compared} tensors compared, {degraded} openings without one device; 0 lost",
            self.count()
        )
    }
}

/// Kills the tool's commands `kills` times, on pools in a directory.
///
/// # Errors
/// A command does not finish what was begun, or something durable is lost; the seed is named.
pub fn kill_commands(
    tool: &Path,
    directory: &Path,
    kills: u64,
    seed: u64,
) -> Result<KilledCommands, Failure> {
    let mut figures = KilledCommands::default();
    let mut lasted = BTreeMap::new();
    for pool in 0.. {
        if figures.count() >= kills {
            break;
        }
        let directory = directory.join(format!("pool{pool}"));
        std::fs::create_dir_all(directory.parent().unwrap_or(&directory))?;
        std::fs::create_dir(&directory).map_err(|error| {
            let path = directory.display();
            format!("{path} cannot be made ({error}): remove what a run before has left of it")
        })?;
        let random = Random::new(seed.wrapping_mul(1_000_003).wrapping_add(pool));
        let mut lived = LivePool::new(tool, &directory, random, &mut figures, &mut lasted)?;
        let outcome = lived.live(kills);
        outcome.map_err(|what| format!("pool {pool} of seed {seed}: {what}"))?;
        std::fs::remove_dir_all(&directory)?;
    }
    Ok(figures)
}

/// A pool of files, and what must be in it.
struct LivePool<'a> {
    tool: &'a Path,
    directory: &'a Path,
    random: Random,
    copies: Copies,
    /// Each with its place in the pool.
    devices: Vec<(PathBuf, u32)>,
    /// The device that was emptied.
    emptied: Option<PathBuf>,
    /// Places that the pool has had.
    had: u32,
    tensors: BTreeMap<u64, Content>,
    figures: &'a mut KilledCommands,
    /// Duration of each command when nobody killed it.
    lasted: &'a mut BTreeMap<Change, Duration>,
}

impl<'a> LivePool<'a> {
    fn new(
        tool: &'a Path,
        directory: &'a Path,
        mut random: Random,
        figures: &'a mut KilledCommands,
        lasted: &'a mut BTreeMap<Change, Duration>,
    ) -> Result<Self, Failure> {
        let copies = random.pick(&[Copies::One, Copies::Two, Copies::Two]);
        let count = 2 + random.below(2) as u32;
        let devices: Vec<(PathBuf, u32)> =
            (0..count).map(|place| (directory.join(format!("device{place}")), place)).collect();
        let options = FormatOptions {
            device_size: Some(DEVICE_SIZE),
            stripe_unit: ByteCount::kib(16),
            share_count: 1 + random.below(2) as u32,
            copies,
            overwrite: true,
            buffered: true,
            ..FormatOptions::default()
        };
        Pool::format(&specs(&devices), &options)?;
        let (had, tensors, emptied) = (count, BTreeMap::new(), None);
        Ok(Self {
            tool,
            directory,
            random,
            copies,
            devices,
            emptied,
            had,
            tensors,
            figures,
            lasted,
        })
    }

    fn live(&mut self, kills: u64) -> Result<(), Failure> {
        self.commit()?;
        for _ in 0..CHANGES {
            if self.figures.count() >= kills {
                break;
            }
            self.change()?;
            self.compare()?;
            self.commit()?;
        }
        Ok(())
    }

    /// Puts some tensors and deletes some.
    fn commit(&mut self) -> Result<(), Failure> {
        let pool = Pool::open(&specs(&self.devices), &open_options(true))?;
        let mut batch = pool.batch();
        for id in 0..TENSORS {
            if self.random.chance(2) {
                let length = self.random.below(LENGTH_MAX) as u32;
                let content = Content { length, salt: self.random.draw() as u32 };
                batch.put(tensor(id), Source::from(content.bytes()), PutOptions::default())?;
                self.tensors.insert(id, content);
            } else if self.random.chance(4) && self.tensors.remove(&id).is_some() {
                batch.delete(tensor(id))?;
            }
        }
        batch.commit()?;
        Ok(pool.close()?)
    }

    fn change(&mut self) -> Result<(), Failure> {
        let least = self.copies.count() as usize;
        // What was emptied goes, or is taken back.
        if let Some(emptied) = self.emptied.take() {
            let place = self.devices.iter().position(|it| it.0 == emptied);
            let place = place.ok_or("the device that was emptied")?;
            return if self.random.chance(2) { self.remove(place) } else { self.add(emptied) };
        }
        let chosen = self.random.below(self.devices.len() as u64) as usize;
        match self.random.below(4) {
            0 if self.copies == Copies::Two => self.replace(chosen),
            1 if self.devices.len() > least => self.evacuate(chosen),
            2 if self.devices.len() > least => self.remove(chosen),
            _ if self.devices.len() < DEVICES_MAX => self.add(self.new_name()),
            _ => self.evacuate(chosen),
        }
    }

    fn new_name(&self) -> PathBuf {
        let count = self.figures.finished;
        self.directory.join(format!("device{}-{count}", self.had))
    }

    fn add(&mut self, new: PathBuf) -> Result<(), Failure> {
        let others = self.devices.iter().filter(|it| it.0 != new);
        let named = std::iter::once(&new).chain(others.map(|it| &it.0));
        self.finish(Change::Add, &named.map(text).collect::<Vec<_>>())?;
        if !self.devices.iter().any(|it| it.0 == new) {
            self.devices.push((new, self.had));
            self.had += 1;
        }
        Ok(())
    }

    fn evacuate(&mut self, chosen: usize) -> Result<(), Failure> {
        let old = self.devices[chosen].0.clone();
        self.finish(Change::Evacuate, &self.without(chosen, text(&old)))?;
        self.emptied = Some(old);
        Ok(())
    }

    /// Removes a device, or where tensors have two copies one that is lost.
    fn remove(&mut self, chosen: usize) -> Result<(), Failure> {
        let (old, place) = self.devices[chosen].clone();
        let is_lost = self.copies == Copies::Two && self.random.chance(3);
        let named = if is_lost { place.to_string() } else { text(&old) };
        if is_lost {
            std::fs::remove_file(&old)?;
        }
        self.finish(Change::Remove, &self.without(chosen, named))?;
        self.devices.remove(chosen);
        if !is_lost {
            std::fs::remove_file(old)?;
        }
        Ok(())
    }

    fn replace(&mut self, chosen: usize) -> Result<(), Failure> {
        let (old, place) = self.devices[chosen].clone();
        std::fs::remove_file(old)?;
        let new = self.new_name();
        let mut arguments = self.without(chosen, place.to_string());
        arguments.insert(1, text(&new));
        self.finish(Change::Replace, &arguments)?;
        self.devices[chosen].0 = new;
        Ok(())
    }

    /// The name of one device, and those of all others.
    fn without(&self, chosen: usize, named: String) -> Vec<String> {
        let others = self.devices.iter().enumerate().filter(|it| it.0 != chosen);
        std::iter::once(named).chain(others.map(|it| text(&it.1.0))).collect()
    }

    /// Gives a command, kills it some times on its way, and has the same command end.
    fn finish(&mut self, change: Change, arguments: &[String]) -> Result<(), Failure> {
        for _ in 0..self.random.below(KILLS_MAX + 1) {
            let longest = self.lasted.get(&change).copied();
            let longest = longest.unwrap_or(Duration::from_millis(200)).as_micros() as u64;
            let mut running = Running::start(self.tool, change, arguments)?;
            std::thread::sleep(Duration::from_micros(self.random.below(longest)));
            if running.kill()? {
                *self.figures.kills.entry(change.name()).or_default() += 1;
            } else {
                self.figures.ended += 1;
            }
        }
        let begun = Instant::now();
        let mut running = Running::start(self.tool, change, arguments)?;
        let ended = running.0.wait()?;
        if !ended.success() {
            let mut said = String::new();
            if let Some(mut errors) = running.0.stderr.take() {
                std::io::Read::read_to_string(&mut errors, &mut said)?;
            }
            let name = change.name();
            return Err(format!("{name} {} ends with {ended}: {said}", arguments.join(" ")).into());
        }
        let lasted = self.lasted.entry(change).or_insert(Duration::ZERO);
        // What is begun lasts less.
        *lasted = begun.elapsed().max(*lasted * 7 / 8);
        self.figures.finished += 1;
        Ok(())
    }

    /// Compares every byte: as the next process finds it, and without any one device.
    fn compare(&mut self) -> Result<(), Failure> {
        let all = specs(&self.devices);
        verdict(&all)?;
        self.compare_with(&all, &open_options(true))?;
        if self.copies == Copies::Two {
            let lost = self.random.below(all.len() as u64) as usize;
            let others = all.iter().enumerate().filter(|it| it.0 != lost);
            let others: Vec<DeviceSpec> = others.map(|it| it.1.clone()).collect();
            let options = OpenOptions { degraded: true, read_only: true, ..open_options(true) };
            self.compare_with(&others, &options)?;
            self.figures.degraded += 1;
        }
        Ok(())
    }

    fn compare_with(
        &mut self,
        devices: &[DeviceSpec],
        options: &OpenOptions,
    ) -> Result<(), Failure> {
        let pool = Pool::open(devices, options)?;
        let count = pool.durable_tensors()?.len();
        if count != self.tensors.len() {
            return Err(format!("LOST: {count} tensors, not {}", self.tensors.len()).into());
        }
        for (id, content) in &self.tensors {
            let found = read_range(&pool, tensor(*id), 0..content.length.into())?;
            if found != content.bytes() {
                return Err(format!("LOST: tensor {id} has other bytes").into());
            }
            self.figures.compared += 1;
        }
        pool.audit()?;
        Ok(pool.close()?)
    }
}

/// A command on its way. Dropped, it is killed.
struct Running(Child);

impl Running {
    fn start(tool: &Path, change: Change, arguments: &[String]) -> Result<Self, Failure> {
        let mut command = Command::new(tool);
        command.arg(change.name()).args(arguments).args(["--yes", "--buffered"]);
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        Ok(Self(command.spawn().map_err(|error| format!("{}: {error}", tool.display()))?))
    }

    /// SIGKILL: no destructor runs. Returns whether it was still on its way.
    fn kill(&mut self) -> Result<bool, Failure> {
        self.0.kill()?;
        // One that has ended by itself has an exit code.
        Ok(self.0.wait()?.code().is_none())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn tensor(id: u64) -> TensorId {
    TensorId(u128::from(id) + 1)
}

fn specs(devices: &[(PathBuf, u32)]) -> Vec<DeviceSpec> {
    devices.iter().map(|it| DeviceSpec::new(&it.0)).collect()
}

fn text(path: impl AsRef<Path>) -> String {
    path.as_ref().display().to_string()
}
