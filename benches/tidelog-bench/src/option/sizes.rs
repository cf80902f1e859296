//! Sizes of operations: one size, a range of sizes, or sizes by weight, for all directions or for
//! each.

use std::ops::RangeInclusive;

use super::load::Load;
use super::value::{KbBase, bytes};
use crate::direction::DataDirection;

/// The sizes of a job's operations, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// `bs=`: all of one size.
    One(u64),
    /// `bsrange=`: any multiple of the smallest up to the largest, all alike.
    Range(RangeInclusive<u64>),
    /// `bssplit=`: these, with these weights in percent.
    Split(Vec<(u64, u8)>),
    /// Sizes of reads, of writes and of trims.
    Each(Box<[Self; 3]>),
}

impl Sizes {
    /// Reads `bs=4k`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn one(text: &str, base: KbBase) -> Result<Self, String> {
        each(text, |text| positive(text, base).map(Self::One))
    }

    /// Reads `bsrange=4k-64k`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn range(text: &str, base: KbBase) -> Result<Self, String> {
        each(text, |text| Self::one_range(text, base))
    }

    fn one_range(text: &str, base: KbBase) -> Result<Self, String> {
        let (least, most) = text
            .split_once('-')
            .ok_or_else(|| format!("{text:?} is no range of sizes; write 4k-64k"))?;
        let (least, most) = (positive(least, base)?, positive(most, base)?);
        if least > most {
            return Err(format!("{text}: the smaller size comes first"));
        }
        Ok(Self::Range(least..=most))
    }

    /// Reads `bssplit=4k/10:64k/50:1m/40`. Weights that are left out share what the others leave.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn split(text: &str, base: KbBase) -> Result<Self, String> {
        each(text, |text| Self::one_split(text, base))
    }

    fn one_split(text: &str, base: KbBase) -> Result<Self, String> {
        let mut sizes = Vec::new();
        for part in text.split(':') {
            let (size, weight) = part.split_once('/').unwrap_or((part, ""));
            let weight = match weight.trim() {
                "" => None,
                weight => Some(super::value::percent(weight)?),
            };
            sizes.push((positive(size, base)?, weight));
        }
        let given: u32 = sizes.iter().filter_map(|(_, weight)| weight.map(u32::from)).sum();
        let open = sizes.iter().filter(|(_, weight)| weight.is_none()).count() as u32;
        if given > 100 || (open == 0 && given != 100) {
            return Err(format!("the weights of {text} make {given} percent, not 100"));
        }
        let each = (100 - given).checked_div(open).unwrap_or(0) as u8;
        let mut split: Vec<(u64, u8)> =
            sizes.into_iter().map(|(size, weight)| (size, weight.unwrap_or(each))).collect();
        // What does not divide evenly goes to the last.
        let sum: u32 = split.iter().map(|(_, weight)| u32::from(*weight)).sum();
        if let Some((_, last)) = split.last_mut() {
            *last += (100 - sum) as u8;
        }
        Ok(Self::Split(split))
    }

    /// Selects the sizes of the directions that a load has.
    #[must_use]
    pub fn for_load(self, load: Load) -> Self {
        let Self::Each(mut each) = self else { return self };
        let [reads, writes, trims] = &mut *each;
        match load {
            _ if load.is_mix() && reads != writes => {
                *trims = writes.clone();
                Self::Each(each)
            }
            Load { trims: true, .. } => trims.clone(),
            Load { writes: true, .. } => writes.clone(),
            _ => reads.clone(),
        }
    }

    /// Returns the sizes of one direction.
    pub fn of(&self, direction: DataDirection) -> &Self {
        match self {
            Self::Each(each) => &each[direction as usize],
            all => all,
        }
    }

    /// The smallest.
    pub fn least(&self) -> u64 {
        match self {
            Self::One(size) => *size,
            Self::Range(range) => *range.start(),
            Self::Split(split) => split.iter().map(|(size, _)| *size).min().unwrap_or(0),
            Self::Each(each) => each.iter().map(Self::least).min().unwrap_or(0),
        }
    }

    /// The largest.
    pub fn most(&self) -> u64 {
        match self {
            Self::One(size) => *size,
            Self::Range(range) => *range.end(),
            Self::Split(split) => split.iter().map(|(size, _)| *size).max().unwrap_or(0),
            Self::Each(each) => each.iter().map(Self::most).max().unwrap_or(0),
        }
    }

    /// Returns whether every one is a multiple of `unit`.
    pub fn are_multiples_of(&self, unit: u64) -> bool {
        match self {
            Self::One(size) => size.is_multiple_of(unit),
            // Steps of the smallest.
            Self::Range(range) => range.start().is_multiple_of(unit),
            Self::Split(split) => split.iter().all(|(size, _)| size.is_multiple_of(unit)),
            Self::Each(each) => each.iter().all(|sizes| sizes.are_multiples_of(unit)),
        }
    }

    /// The size of the next operation in a direction.
    pub fn draw(&self, direction: DataDirection, random: &mut fastrand::Rng) -> u64 {
        match self {
            Self::Each(each) => each[direction as usize].draw(direction, random),
            Self::One(size) => *size,
            Self::Range(range) => {
                let least = *range.start();
                least * random.u64(1..=range.end() / least)
            }
            Self::Split(split) => {
                let mut left = random.u8(0..100);
                for (size, weight) in split {
                    match left.checked_sub(*weight) {
                        None => return *size,
                        Some(rest) => left = rest,
                    }
                }
                self.most()
            }
        }
    }
}

/// One value for all directions, or one for each by fio's rules: what is left out behind the last
/// comma is as before it, and what is empty is as without the option.
fn each(text: &str, read: impl Fn(&str) -> Result<Sizes, String>) -> Result<Sizes, String> {
    let parts: Vec<&str> = text.split(',').collect();
    match parts.len() {
        1 => return read(text),
        2 | 3 => {}
        _ => return Err("there are reads, writes and trims".to_owned()),
    }
    let one = |part: &str| if part.trim().is_empty() { Ok(Sizes::One(4096)) } else { read(part) };
    let [reads, writes] = [one(parts[0])?, one(parts[1])?];
    let trims = parts.get(2).map_or_else(|| Ok(writes.clone()), |part| one(part))?;
    Ok(Sizes::Each(Box::new([reads, writes, trims])))
}

fn positive(text: &str, base: KbBase) -> Result<u64, String> {
    match bytes(text, base)? {
        0 => Err("an operation of 0 bytes moves nothing".to_owned()),
        bytes => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: KbBase = KbBase::Compatible;

    #[test]
    fn a_split_is_drawn_by_weight() {
        let sizes = Sizes::split("4k/75:8k/25", BASE).unwrap();
        let mut random = fastrand::Rng::with_seed(1);
        let small =
            (0..10_000).filter(|_| sizes.draw(DataDirection::Read, &mut random) == 4096).count();
        assert!((7300..7700).contains(&small), "{small}");
        assert_eq!((sizes.least(), sizes.most()), (4096, 8192));
    }

    #[test]
    fn weights_left_out_share_the_rest() {
        let expected = Sizes::Split(vec![(4096, 50), (8192, 25), (16384, 25)]);
        assert_eq!(Sizes::split("4k/50:8k:16k", BASE), Ok(expected));
        let uneven = Sizes::split("4k:8k:16k", BASE).unwrap();
        assert_eq!(uneven, Sizes::Split(vec![(4096, 33), (8192, 33), (16384, 34)]));
        assert!(Sizes::split("4k/50:8k/49", BASE).is_err());
        assert!(Sizes::split("4k/90:8k/20", BASE).is_err());
    }

    #[test]
    fn commas_are_for_reads_writes_and_trims_as_in_fio() {
        for (text, sizes) in [
            ("8k,32k", [8192, 32768, 32768]),
            ("8k,32k,", [8192, 32768, 4096]),
            (",8k", [4096, 8192, 8192]),
            (",8k,", [4096, 8192, 4096]),
        ] {
            let read = Sizes::one(text, BASE).unwrap();
            assert_eq!(read, Sizes::Each(Box::new(sizes.map(Sizes::One))), "{text}");
        }
        assert!(Sizes::one("4k,4k,4k,4k", BASE).is_err() && Sizes::one("", BASE).is_err());
        let load = |name| Load::named(name, BASE).unwrap();
        let sizes = || Sizes::one("4k,16k", BASE).unwrap();
        assert_eq!(sizes().for_load(load("randread")), Sizes::One(4096));
        assert_eq!(sizes().for_load(load("write")), Sizes::One(16384));
        assert_eq!(sizes().for_load(load("randrw")).most(), 16384);
        assert_eq!(Sizes::one("8k,8k", BASE).unwrap().for_load(load("rw")), Sizes::One(8192));
    }

    #[test]
    fn a_range_has_every_step_of_its_smallest() {
        let sizes = Sizes::range("4k-16k", BASE).unwrap();
        let mut random = fastrand::Rng::with_seed(1);
        let mut seen: Vec<u64> =
            (0..200).map(|_| sizes.draw(DataDirection::Read, &mut random)).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, [4096, 8192, 12288, 16384]);
        assert!(Sizes::range("16k-4k", BASE).is_err());
    }
}
