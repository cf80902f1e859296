//! Option on the distribution of random operations: `random_distribution=`.

use super::value::{KbBase, bytes};
use crate::permutation::Permutation;

/// Distribution that a user asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Distribution {
    /// Uniform distribution; each block in its turn, unless `norandommap`.
    Even,
    /// The nth most popular block is taken as often as 1 / n^theta.
    Zipf(f64),
    /// Pareto's, of this power.
    Pareto(f64),
    /// Normal distribution about the middle, with this deviation in percent of the range.
    Normal(f64),
    /// Zones by percentage: so many percent of the operations go to so many percent of the range,
    /// from its beginning on.
    Zoned(Vec<(f64, f64)>),
    /// Zones by bytes: so many percent of the operations go to so many bytes, from the range's
    /// beginning on.
    ZonedBytes(Vec<(f64, u64)>),
}

impl Distribution {
    /// Reads `zipf:1.2`, `zoned:50/5:30/15:20/`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(text: &str, base: KbBase) -> Result<Self, String> {
        let (kind, rest) = text.trim().split_once(':').unwrap_or((text.trim(), ""));
        let number = |least: f64, most: f64, default: f64, what: &str| {
            let text = if rest.is_empty() { default.to_string() } else { rest.to_owned() };
            let found = text.parse::<f64>().ok().filter(|it| *it > least && *it < most);
            found.ok_or_else(|| {
                format!("{text:?}: {what} is a number above {least} and below {most}")
            })
        };
        match kind {
            "random" if rest.is_empty() => Ok(Self::Even),
            "zipf" => match number(0.0, 10.0, 1.1, "theta")? {
                theta if (theta - 1.0).abs() < 1e-9 => {
                    Err("theta cannot be 1; use 1.01".to_owned())
                }
                theta => Ok(Self::Zipf(theta)),
            },
            "pareto" => number(0.0, 1.0, 0.2, "the power").map(Self::Pareto),
            "normal" | "gauss" => {
                number(0.0, 100.0, 0.0, "the deviation in percent").map(Self::Normal)
            }
            "zoned" => zones(rest, percent).and_then(|zones| {
                let zones = share_out(&zones, 100.0)?;
                let space: Vec<Option<f64>> = zones.iter().map(|(_, space)| *space).collect();
                let space = fill(&space, 100.0)?;
                Ok(Self::Zoned(zones.iter().map(|(part, _)| *part).zip(space).collect()))
            }),
            "zoned_abs" => zones(rest, |size| bytes(size, base)).and_then(|zones| {
                let zones = share_out(&zones, 100.0)?;
                let sized = zones.iter().map(|(part, size)| Some((*part, (*size)?)));
                let sized: Option<Vec<_>> = sized.collect();
                sized
                    .map(Self::ZonedBytes)
                    .ok_or_else(|| "each zone has a size, as in 60/10g".to_owned())
            }),
            _ => Err("there are random, zipf, pareto, normal, zoned and zoned_abs".to_owned()),
        }
    }
}

/// The part of the operations, and the space.
type Zone<T> = (Option<f64>, Option<T>);

/// `ACCESSES/SPACE:...`; either may be left out.
fn zones<T>(text: &str, space: impl Fn(&str) -> Result<T, String>) -> Result<Vec<Zone<T>>, String> {
    if text.contains(',') {
        return Err(
            "the same zones serve reads, writes and trims here; leave out the comma".to_owned()
        );
    }
    let zone = |part: &str| {
        let (accesses, room) = part
            .split_once('/')
            .ok_or_else(|| format!("{part:?} is no zone; write ACCESSES/SPACE, as in 60/10"))?;
        let accesses = if accesses.trim().is_empty() { None } else { Some(percent(accesses)?) };
        let room = if room.trim().is_empty() { None } else { Some(space(room)?) };
        Ok((accesses, room))
    };
    text.split(':').map(zone).collect()
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim().parse::<f64>().ok().filter(|it| (0.0..=100.0).contains(it));
    number.ok_or_else(|| format!("{text:?} is no percentage; write 0 to 100"))
}

/// Zones whose parts of the operations make `whole`; those that are left out share what the others
/// leave.
fn share_out<T: Copy>(zones: &[Zone<T>], whole: f64) -> Result<Vec<(f64, Option<T>)>, String> {
    let parts: Vec<Option<f64>> = zones.iter().map(|(part, _)| *part).collect();
    Ok(fill(&parts, whole)?.into_iter().zip(zones.iter().map(|(_, space)| *space)).collect())
}

fn fill(parts: &[Option<f64>], whole: f64) -> Result<Vec<f64>, String> {
    let given: f64 = parts.iter().flatten().sum();
    let open = parts.iter().filter(|part| part.is_none()).count();
    if given > whole + 1e-9 || (open == 0 && (given - whole).abs() > 1e-9) {
        return Err(format!("the zones make {given} percent, not {whole}"));
    }
    #[expect(clippy::cast_precision_loss, reason = "a handful of zones")]
    let each = (whole - given) / open.max(1) as f64;
    Ok(parts.iter().map(|part| part.unwrap_or(each)).collect())
}

/// Distribution over a number of blocks.
#[derive(Clone, Debug)]
pub struct Draw {
    blocks: u64,
    kind: Kind,
    /// Spreads what is popular over the whole range, as fio's hash does.
    scattered: Permutation,
}

#[derive(Clone, Debug)]
enum Kind {
    Zipf {
        theta: f64,
        zeta: f64,
    },
    Pareto {
        exponent: f64,
    },
    Normal {
        deviation: f64,
    },
    /// Each zone: up to which part of the operations, its first block, how many it has.
    Zones(Vec<(f64, u64, u64)>),
}

/// Sums over more blocks than this differ in nothing that shows, and take long; fio stops there,
/// too.
const SUM_MOST: u64 = 10_000_000;

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "chance does not mind the last bits of a block's number"
)]
impl Draw {
    /// Makes the distribution over `blocks` blocks of `size` bytes; `None` where every block is as
    /// likely.
    pub fn new(distribution: &Distribution, blocks: u64, size: u64, seed: u64) -> Option<Self> {
        let kind = match distribution {
            Distribution::Even => return None,
            Distribution::Zipf(theta) => {
                let zeta = (1..=blocks.min(SUM_MOST)).map(|n| (n as f64).powf(-theta)).sum();
                Kind::Zipf { theta: *theta, zeta }
            }
            Distribution::Pareto(power) => {
                Kind::Pareto { exponent: power.ln() / (1.0 - power).ln() }
            }
            Distribution::Normal(percent) => {
                Kind::Normal { deviation: blocks as f64 * percent / 100.0 }
            }
            Distribution::Zoned(zones) => Kind::Zones(zones_of(
                blocks,
                zones.iter().map(|(part, space)| (*part, blocks as f64 * space / 100.0)),
            )),
            Distribution::ZonedBytes(zones) => Kind::Zones(zones_of(
                blocks,
                zones.iter().map(|(part, bytes)| (*part, (bytes / size.max(1)) as f64)),
            )),
        };
        Some(Self { blocks, kind, scattered: Permutation::new(blocks, seed) })
    }

    /// The next block.
    pub fn next(&self, random: &mut fastrand::Rng) -> u64 {
        let blocks = self.blocks as f64;
        let last = self.blocks - 1;
        match &self.kind {
            Kind::Zipf { theta, zeta } => {
                let zeta_of_two = 1.0 + 0.5_f64.powf(*theta);
                let uniform = random.f64();
                let eta = (1.0 - (2.0 / blocks).powf(1.0 - theta)) / (1.0 - zeta_of_two / zeta);
                let rank = match uniform * zeta {
                    below if below < 1.0 => 0,
                    below if below < zeta_of_two => 1,
                    _ => (blocks * (eta * uniform - eta + 1.0).powf(1.0 / (1.0 - theta))) as u64,
                };
                self.scattered.at(rank.min(last))
            }
            Kind::Pareto { exponent } => {
                let rank = (last as f64 * random.f64().powf(*exponent)) as u64;
                self.scattered.at(rank.min(last))
            }
            Kind::Normal { deviation } => loop {
                // Box and Muller's; what falls beside the range is drawn again.
                let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
                let turn = radius * (std::f64::consts::TAU * random.f64()).cos();
                let block = blocks / 2.0 + deviation * turn;
                if (0.0..blocks).contains(&block) {
                    return block as u64;
                }
            },
            Kind::Zones(zones) => {
                let part = random.f64() * 100.0;
                let zone = zones.iter().find(|(upto, ..)| part < *upto).or(zones.last());
                zone.map_or(0, |(_, first, count)| (first + random.u64(0..*count)).min(last))
            }
        }
    }
}

/// Zones one after the other, each with a block at least.
#[expect(clippy::cast_sign_loss, reason = "parts of a range are not negative")]
fn zones_of(blocks: u64, zones: impl Iterator<Item = (f64, f64)>) -> Vec<(f64, u64, u64)> {
    let (mut upto, mut end) = (0.0, 0.0);
    let zone = |(part, room): (f64, f64)| {
        upto += part;
        let first = (end as u64).min(blocks - 1);
        end += room;
        let count = (end as u64).min(blocks).saturating_sub(first).max(1);
        (upto, first, count)
    };
    zones.map(zone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: KbBase = KbBase::Compatible;

    fn counts(text: &str) -> Vec<u32> {
        let distribution = Distribution::read(text, BASE).unwrap();
        let draw = Draw::new(&distribution, 1000, 4096, 7).unwrap();
        let mut random = fastrand::Rng::with_seed(1);
        let mut counts = vec![0; 1000];
        (0..100_000).for_each(|_| counts[draw.next(&mut random) as usize] += 1);
        counts
    }

    #[test]
    fn zones_get_their_part_of_the_operations() {
        for text in ["zoned:50/5:30/15:20/", "zoned_abs:50/200k:30/600k:20/3200k"] {
            let counts = counts(text);
            let sums = [&counts[..50], &counts[50..200], &counts[200..]]
                .map(|zone| zone.iter().sum::<u32>());
            for (sum, expected) in sums.into_iter().zip([50_000, 30_000, 20_000]) {
                assert!(sum.abs_diff(expected) < 1000, "{text}: {sums:?}");
            }
        }
        assert!(Distribution::read("zoned:50/5:30/15", BASE).is_err(), "80 percent");
        assert!(Distribution::read("zoned:50/5:50/95,60/10:40/90", BASE).is_err());
    }

    #[test]
    fn zipf_takes_the_nth_block_as_often_as_it_says() {
        let mut counts = counts("zipf:0.5");
        assert!(!counts.is_sorted_by(|a, b| a >= b), "what is popular is spread");
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let sum: f64 = (1..=1000).map(|n| f64::from(n).powf(-0.5)).sum();
        for n in [1_u32, 10, 100] {
            let expected = 100_000.0 * f64::from(n).powf(-0.5) / sum;
            let found = f64::from(counts[n as usize - 1]);
            assert!((found / expected - 1.0).abs() < 0.25, "{n}: {found}, not {expected}");
        }
    }

    #[test]
    fn pareto_and_normal_are_skewed_as_they_are_called() {
        let mut pareto = counts("pareto:0.2");
        pareto.sort_unstable_by(|a, b| b.cmp(a));
        // A fifth of the blocks get four fifths of the operations: that is what the power says.
        let fifth: u32 = pareto[..200].iter().sum();
        assert!(fifth.abs_diff(80_000) < 3000, "{fifth}");
        let normal = counts("normal:10");
        let within: u32 = normal[400..600].iter().sum();
        assert!(within.abs_diff(68_270) < 1500, "{within} within one deviation");
    }

    #[test]
    fn what_is_no_distribution_is_refused() {
        for text in
            ["zipf:0", "zipf:1", "pareto:1.5", "normal:-3", "zipf:many", "curved", "random:2"]
        {
            assert!(Distribution::read(text, BASE).is_err(), "{text}");
        }
    }
}
