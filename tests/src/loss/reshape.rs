//! Devices that a pool gets and gives up, with processes that are killed on the way.

use tidelog_engine::path::sim::SimDisk;
use tidelog_engine::pool::inspect::check;
use tidelog_engine::pool::{
    OpenError, OpenOptions, Pool, ReshapeError, ReshapeOptions, Reshaped, add, evacuate, remove,
};
use tidelog_engine::units::{ByteCount, DeviceIndex};

use super::life::{Check, PoolLife, SIZE, disk, never_cut, options, rates, text};

/// Places that a pool has at most.
const PLACES: u32 = 12;

/// Figures of changes of a pool's devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReshapeFigures {
    /// Devices that were added.
    pub added: u64,
    /// Devices that were emptied.
    pub evacuated: u64,
    /// Devices that were removed, of which some were lost before.
    pub removed: u64,
    /// Devices that were removed after they were lost.
    pub removed_lost: u64,
    /// Changes for which there was no space.
    pub full: u64,
    /// Processes that were killed meanwhile.
    pub kills: ReshapeKills,
}

/// Processes that were killed, by what they did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReshapeKills {
    /// Processes that added a device.
    pub add: u64,
    /// Processes that emptied one.
    pub evacuate: u64,
    /// Processes that removed one.
    pub remove: u64,
}

impl ReshapeFigures {
    /// Adds those of another life.
    pub fn add(&mut self, other: &Self) {
        self.added += other.added;
        self.evacuated += other.evacuated;
        self.removed += other.removed;
        self.removed_lost += other.removed_lost;
        self.full += other.full;
        self.kills.add += other.kills.add;
        self.kills.evacuate += other.kills.evacuate;
        self.kills.remove += other.kills.remove;
    }
}

/// A change of a pool's devices.
#[derive(Clone)]
enum Change {
    Add(SimDisk),
    /// The number of the disk among the pool's.
    Evacuate(usize),
    Remove(usize),
}

impl PoolLife {
    /// Adds, empties or removes a device, and opens the pool again.
    pub(super) fn reshape(&mut self) -> Check {
        let count = self.disks.len();
        let least = self.copies.count() as usize;
        let kind = self.random.below(3);
        let change = match kind {
            0 if self.emptied.is_some() && self.random.chance(2) => {
                let emptied = self.emptied.take().ok_or("one is empty")?;
                return self.take_back(emptied);
            }
            0 if self.had < PLACES => Change::Add(self.new_disk()),
            _ if count > least => {
                let chosen = self.random.below(count as u64) as usize;
                let chosen = self.emptied.filter(|_| self.random.chance(2)).unwrap_or(chosen);
                if kind == 1 && self.emptied.is_none() {
                    Change::Evacuate(chosen)
                } else if self.emptied.is_some_and(|it| it != chosen) && count < least + 2 {
                    return Ok(());
                } else {
                    Change::Remove(chosen)
                }
            }
            _ if self.had < PLACES => Change::Add(self.new_disk()),
            _ => return Ok(()),
        };
        self.change(&change)?;
        self.open()
    }

    /// Takes the device out that was lost, with what it had made again on the others.
    /// Returns whether the others had the space.
    pub(super) fn remove_lost(&mut self) -> Check<bool> {
        let Some(lost) = self.missing else { return Ok(false) };
        let has_space = self.change(&Change::Remove(lost))?;
        if has_space {
            self.missing = None;
            self.figures.reshapes.removed_lost += 1;
        }
        Ok(has_space)
    }

    fn take_back(&mut self, emptied: usize) -> Check {
        self.change(&Change::Add(self.disks[emptied].clone()))?;
        self.open()
    }

    fn new_disk(&mut self) -> SimDisk {
        let new = disk(&mut self.random);
        // Larger ones are as good.
        if self.random.chance(2) { SimDisk::new(ByteCount(SIZE.0 + (1 << 20))) } else { new }
    }

    /// Carries a change out, with kills on the way. Returns whether there was space for it.
    fn change(&mut self, change: &Change) -> Check<bool> {
        self.wait_for(0)?;
        self.close()?;
        let mut all = self.present();
        if let Change::Add(new) = change {
            all.push(new.clone());
        }
        for attempt in 0.. {
            let is_killed = attempt < 6 && !self.random.chance(4);
            if is_killed {
                let (nth, cut) = (self.random.below(40 << attempt), self.cut());
                SimDisk::cut_power_at(&all, nth, cut);
            } else {
                never_cut(&all);
            }
            let done = self.attempt(change);
            let is_off = all.iter().any(SimDisk::is_off);
            never_cut(&all);
            match done {
                Ok(_) => break,
                Err(_) if is_killed && is_off => self.count_kill(change),
                Err(ReshapeError::NoSpace { .. } | ReshapeError::NoRoom(_)) => {
                    return self.give_up(change).map(|()| false);
                }
                Err(error) => return Err(format!("attempt {attempt} to change devices: {error}")),
            }
            if self.random.chance(3) {
                self.use_meanwhile(change)?;
            }
        }
        self.note_change(change);
        self.look(change)?;
        if self.missing.is_none() && self.random.chance(3) {
            let rates = rates(&mut self.random);
            Pool::store_rates(&self.disks, rates, false).map_err(text)?;
        }
        Ok(true)
    }

    fn attempt(&self, change: &Change) -> Result<Reshaped, ReshapeError> {
        let (present, how) = (self.present(), ReshapeOptions::default());
        match change {
            Change::Add(new) => {
                let is_new = |it: &&SimDisk| !it.is_same(new);
                let others: Vec<SimDisk> = present.iter().filter(is_new).cloned().collect();
                add(new, &others, &how, &mut |_| ())
            }
            Change::Evacuate(disk) => evacuate(&present, self.places[*disk], &how, &mut |_| ()),
            Change::Remove(disk) => remove(&present, self.places[*disk], &how, &mut |_| ()),
        }
    }

    fn count_kill(&mut self, change: &Change) {
        let kills = &mut self.figures.reshapes.kills;
        match change {
            Change::Add(_) => kills.add += 1,
            Change::Evacuate(_) => kills.evacuate += 1,
            Change::Remove(_) => kills.remove += 1,
        }
    }

    /// The pool is used between two attempts, with the devices that it needs.
    fn use_meanwhile(&mut self, change: &Change) -> Check {
        let degraded = self.missing.is_some();
        let present = self.present();
        let without = present.iter().enumerate().filter(|(number, _)| match change {
            Change::Remove(disk) => number != disk,
            _ => true,
        });
        let without: Vec<SimDisk> = without.map(|(_, disk)| disk.clone()).collect();
        let with_new = match change {
            Change::Add(new) if !present.iter().any(|it| it.is_same(new)) => {
                present.iter().chain([new]).cloned().collect()
            }
            _ => present.clone(),
        };
        // What it is that opens depends on how far the attempt came.
        let sets = [present, without, with_new];
        let open = |disks: &Vec<SimDisk>| Pool::open(disks, &options(degraded)).ok();
        let Some(pool) = sets.iter().find_map(open) else {
            return Err("between two attempts the pool cannot be opened".into());
        };
        self.pool = Some(pool.clone());
        self.commit(&pool)?;
        self.wait_for(0)?;
        drop(pool);
        self.close()
    }

    /// Takes the device back, for which the others have no space.
    fn give_up(&mut self, change: &Change) -> Check {
        self.figures.reshapes.full += 1;
        if let (Change::Evacuate(disk) | Change::Remove(disk), None) = (change, self.missing) {
            let back = Change::Add(self.disks[*disk].clone());
            let done = self.attempt(&back).map_err(text)?;
            if done.place != self.places[*disk] {
                return Err(format!("device {} came back as {}", self.places[*disk], done.place));
            }
        }
        Ok(())
    }

    /// Notes which disks the pool has now.
    fn note_change(&mut self, change: &Change) {
        match change {
            Change::Add(new) if self.disks.iter().any(|it| it.is_same(new)) => {
                self.figures.reshapes.added += 1;
            }
            Change::Add(new) => {
                self.disks.push(new.clone());
                self.places.push(self.had);
                self.had += 1;
                self.figures.reshapes.added += 1;
            }
            Change::Evacuate(disk) => {
                self.emptied = Some(*disk);
                self.figures.reshapes.evacuated += 1;
            }
            Change::Remove(disk) => {
                self.removed.push(self.disks.remove(*disk));
                self.places.remove(*disk);
                self.emptied = self.emptied.filter(|it| it != disk);
                self.emptied = self.emptied.map(|it| if it > *disk { it - 1 } else { it });
                self.figures.reshapes.removed += 1;
            }
        }
    }

    /// Looks at what the pool has become, without a process that uses it.
    fn look(&mut self, change: &Change) -> Check {
        let disks = match (change, self.missing) {
            // It is gone from the list already.
            (Change::Remove(_), _) | (_, None) => self.disks.clone(),
            _ => self.present(),
        };
        let report = check(&disks, true, &mut |_| ()).map_err(text)?;
        if let Some(damage) = report.damage.first() {
            return Err(format!("after a change of devices check finds: {damage}"));
        }
        let pool = Pool::open(&disks, &options(false)).map_err(text)?;
        pool.audit()?;
        let used = pool.description().table.used();
        let emptied = self.emptied.map(|it| self.places[it]);
        pool.close().map_err(text)?;
        if emptied.is_some_and(|place| used.contains(DeviceIndex(place as u8))) {
            return Err("a device that was emptied is in use".into());
        }
        for old in &self.removed {
            let all: Vec<SimDisk> = disks.iter().chain([old]).cloned().collect();
            let lies = OpenOptions { accept_older_copies: self.random.chance(2), ..options(true) };
            match Pool::open(&all, &lies) {
                Err(OpenError::Removed { .. }) => (),
                Err(error) => return Err(format!("it was removed, not: {error}")),
                Ok(_) => return Err("a device that was removed was taken in".into()),
            }
        }
        Ok(())
    }
}
