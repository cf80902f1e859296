//! The order in which a job visits its files.

use super::lfsr::Lfsr;
use crate::direction::DataDirection;
use crate::option::{Distribution, Draw, JobOptions, Sizes};
use crate::permutation::Permutation;

/// The part of one file that a job works on, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileWindow {
    /// The first byte.
    pub start: u64,
    /// The length.
    pub length: u64,
}

/// Range of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRange {
    /// Index of the file.
    pub file: usize,
    /// The byte in it.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
}

/// Passes over the windows of a job's files, to each in turn.
#[derive(Clone, Debug)]
pub struct OffsetStream {
    windows: Vec<FileWindow>,
    sizes: Sizes,
    order: Order,
    /// Random places are multiples of it.
    unit: u64,
    /// Share of operations that follow the one before, in percent, in each direction.
    runs: [u8; 3],
    seed: u64,
    differs: bool,
    pass: u64,
    random: fastrand::Rng,
    /// State of `random` when this pass began.
    beginning: fastrand::Rng,
    /// The file whose turn it is.
    turn: usize,
    done: Vec<Done>,
    /// True if the first operation of all goes to the beginning although the others come from the
    /// end, as fio's does.
    leads: Vec<bool>,
}

/// State of a pass in one file.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    bytes: u64,
    operations: u64,
    /// End of the last operation.
    end: u64,
}

#[derive(Clone, Debug)]
enum Order {
    Sequential,
    /// Every block once.
    Map(Vec<Permutation>),
    /// Every block once, by shift registers.
    Shifted(Vec<Lfsr>),
    /// Random order.
    Free,
    /// Random order with weights, by file.
    Skewed(Vec<Draw>),
    /// Order with a stride, which may be negative, from one operation to the next.
    Stepping {
        stride: i64,
        first: i64,
    },
    /// The first `size` bytes of every `every` bytes.
    Strided {
        size: u64,
        every: u64,
    },
}

/// Order in which a job goes through its files.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches, as in fio")]
pub struct FileOrder {
    /// True for a random order.
    pub random: bool,
    /// Each block has its turn before any comes again, which takes blocks of one size.
    pub map: bool,
    /// True if the random order comes of a shift register.
    pub lfsr: bool,
    /// Alignment of random places; of the smallest operation if this is 0.
    pub align: u64,
    /// Share of random operations that are none, in percent, in each direction.
    pub runs: [u8; 3],
    /// Distribution of random places.
    pub distribution: Distribution,
    /// Gap between operations that are not random.
    pub add: i64,
    /// Part of each stride that is used: how many, of how many.
    pub strided: Option<(u64, u64)>,
    /// True if a pass goes another way than the one before.
    pub differs: bool,
    /// Decides everything random.
    pub seed: u64,
}

impl FileOrder {
    /// Makes the order that a job asks for.
    pub fn of(job: &JobOptions, seed: u64) -> Self {
        let zone = job.zonerange.max(job.zonesize);
        // To fio what takes no block once is one pass without an end. What is read back goes the
        // way that it was written, and finds blocks of the pass before only if that wrote them all.
        let runs = job.percentage_random.map(|random| 100 - random);
        let map = !job.norandommap && job.blockalign == 0 && runs == [0; 3];
        let endless = job.load.random && (!map || job.distribution != Distribution::Even);
        Self {
            differs: (job.passes_differ() || endless) && (map || !(job.verify && job.load.writes)),
            random: job.load.random,
            map,
            lfsr: job.lfsr,
            align: job.blockalign,
            runs,
            distribution: job.distribution.clone(),
            add: job.load.add,
            strided: job.strided.then(|| (job.zonesize, zone + job.zoneskip)),
            seed,
        }
    }
}

impl OffsetStream {
    /// A pass over `windows`.
    pub fn new(windows: Vec<FileWindow>, sizes: Sizes, way: FileOrder) -> Self {
        let FileOrder { random, map, lfsr, align, runs, distribution, add, strided, differs, seed } =
            way;
        let seeds = windows.iter().zip(seed..);
        let unit = if align > 0 { align } else { sizes.least() };
        let runs = if random { runs } else { [0; 3] };
        let order = match (&sizes, random) {
            (_, true) if distribution != Distribution::Even => {
                let draw = |(it, seed): (&FileWindow, u64)| {
                    Draw::new(&distribution, it.length / unit, unit, seed)
                };
                Order::Skewed(seeds.filter_map(draw).collect())
            }
            (_, false) if add != 0 => {
                let stride = unit.cast_signed() + add;
                Order::Stepping { stride, first: if stride < 0 { add } else { 0 } }
            }
            (_, false) => match strided {
                Some((size, every)) => Order::Strided { size, every },
                None => Order::Sequential,
            },
            (Sizes::One(size), true) if lfsr => {
                Order::Shifted(seeds.map(|(it, seed)| Lfsr::new(it.length / size, seed)).collect())
            }
            (Sizes::One(size), true) if map => Order::Map(maps(&windows, *size, seed)),
            (_, true) => Order::Free,
        };
        let is_backwards = matches!(order, Order::Stepping { stride, .. } if stride < 0);
        let leads = windows.iter().map(|it| is_backwards && it.start == 0).collect();
        let done = vec![Done::default(); windows.len()];
        let random = fastrand::Rng::with_seed(seed);
        let beginning = random.clone();
        Self {
            windows,
            sizes,
            order,
            unit,
            runs,
            seed,
            differs,
            pass: 0,
            random,
            beginning,
            turn: 0,
            done,
            leads,
        }
    }

    /// The part of a file that it works on.
    pub fn window(&self, file: usize) -> FileWindow {
        self.windows[file]
    }

    /// Begins the next pass. As in fio a shift register goes the same way in each.
    pub fn next_pass(&mut self) {
        if self.differs {
            self.pass += 1;
            self.beginning = self.random.clone();
            if let Order::Map(maps) = &mut self.order {
                *maps =
                    self::maps(&self.windows, self.sizes.least(), seed_of(self.seed, self.pass));
            }
        }
        self.rewind();
    }

    /// Begins the same pass again.
    pub fn rewind(&mut self) {
        self.random = self.beginning.clone();
        self.turn = 0;
        self.done.fill(Done::default());
        if let Order::Shifted(registers) = &mut self.order {
            registers.iter_mut().for_each(Lfsr::rewind);
        }
    }

    /// The next place of an operation in this direction; `None` at the end of the pass.
    pub fn advance(&mut self, direction: DataDirection) -> Option<BlockRange> {
        let length = self.sizes.draw(direction, &mut self.random);
        let run = self.runs[direction as usize];
        let follows = run > 0 && self.random.u8(0..100) < run;
        for _ in 0..self.windows.len() {
            let file = self.turn;
            self.turn = if file + 1 == self.windows.len() { 0 } else { file + 1 };
            if let Some(offset) = self.next_in(file, length, follows) {
                return Some(BlockRange { file, offset, length });
            }
        }
        None
    }

    fn next_in(&mut self, file: usize, length: u64, follows: bool) -> Option<u64> {
        let FileWindow { start, length: whole } = self.windows[file];
        let Done { bytes, operations, end } = self.done[file];
        if std::mem::take(&mut self.leads[file]) {
            return Some(start);
        }
        // Whatever does not fit behind what is done is left out, as there are no shorter
        // operations.
        if whole - bytes < length {
            return None;
        }
        let unit = self.unit;
        let within = match &mut self.order {
            _ if follows => {
                if end + length > whole {
                    0
                } else {
                    end
                }
            }
            Order::Sequential => bytes,
            Order::Map(maps) => maps[file].at(operations) * length,
            Order::Shifted(registers) => registers[file].advance() * length,
            Order::Free => unit * self.random.u64(0..=(whole - length) / unit),
            Order::Skewed(draws) => {
                (unit * draws[file].next(&mut self.random)).min((whole - length) / unit * unit)
            }
            Order::Stepping { stride, first } => {
                // As in fio: forwards from the beginning, backwards from the end.
                let origin = if *stride < 0 { whole.cast_signed() + *first } else { 0 };
                let at = u64::try_from(origin + *stride * operations.cast_signed()).ok();
                let Some(at) = at.filter(|at| at.saturating_add(length) <= whole) else {
                    // Nothing comes any more in this pass.
                    self.done[file].bytes = whole;
                    return None;
                };
                at
            }
            Order::Strided { size, every } => {
                let (size, every) = (*size, *every);
                let (zone, mut within) = (bytes / every, bytes % every);
                let mut at = zone * every;
                if within + length > size {
                    (at, within) = (at + every, 0);
                }
                if at + within + length > whole {
                    return None;
                }
                let bytes = at + within + length;
                self.done[file] = Done { bytes, operations: operations + 1, end };
                return Some(start + at + within);
            }
        };
        self.done[file] =
            Done { bytes: bytes + length, operations: operations + 1, end: within + length };
        Some(start + within)
    }
}

/// An order of the blocks of each window.
fn maps(windows: &[FileWindow], size: u64, seed: u64) -> Vec<Permutation> {
    windows.iter().zip(seed..).map(|(it, seed)| Permutation::new(it.length / size, seed)).collect()
}

/// Returns the seed of a pass that goes another way than those before it.
pub fn seed_of(seed: u64, pass: u64) -> u64 {
    seed ^ pass.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows() -> Vec<FileWindow> {
        vec![FileWindow { start: 8192, length: 40960 }, FileWindow { start: 0, length: 20480 }]
    }

    fn way(random: bool, seed: u64) -> FileOrder {
        let job = JobOptions::default();
        FileOrder { random, ..FileOrder::of(&job, seed) }
    }

    fn offsets(way: FileOrder) -> Vec<u64> {
        let windows = vec![FileWindow { start: 0, length: 40960 }];
        let mut stream = OffsetStream::new(windows, Sizes::One(4096), way);
        pass(&mut stream);
        stream.rewind();
        let places = pass(&mut stream);
        stream.rewind();
        assert_eq!(pass(&mut stream), places);
        places.iter().map(|it| it.offset / 4096).collect()
    }

    #[test]
    fn an_offset_between_operations_makes_holes_or_goes_backwards_as_in_fio() {
        let add = |add| offsets(FileOrder { add, ..way(false, 0) });
        assert_eq!(add(8192), [0, 3, 6, 9]);
        assert_eq!(add(-8192), [8, 7, 6, 5, 4, 3, 2, 1, 0]);
        // fio 3.33's own log of rw=read:-8k over ten blocks begins so.
        let windows = vec![FileWindow { start: 0, length: 40960 }];
        let mut stream =
            OffsetStream::new(windows, Sizes::One(4096), FileOrder { add: -8192, ..way(false, 0) });
        let first: Vec<u64> = pass(&mut stream)[..3].iter().map(|it| it.offset / 4096).collect();
        assert_eq!(first, [0, 8, 7]);
    }

    #[test]
    fn random_places_are_aligned_and_so_many_follow_the_one_before() {
        let all = |options: &[(&str, &str)]| {
            let mut job = JobOptions::default();
            for (name, value) in options {
                crate::option::apply(&mut job, name, value).unwrap();
            }
            let windows = vec![FileWindow { start: 0, length: 64 << 20 }];
            pass(&mut OffsetStream::new(windows, job.sizes.clone(), FileOrder::of(&job, 3)))
        };
        let places = all(&[("rw", "randread"), ("bs", "64k"), ("blockalign", "4k")]);
        let odd = places.iter().filter(|place| place.offset % 65536 > 0).count();
        assert!(odd > places.len() / 2 && places.iter().all(|place| place.offset % 4096 == 0));
        let places = all(&[("rw", "randread"), ("bs", "64k"), ("percentage_random", "20")]);
        let next = |pair: &&[BlockRange]| pair[1].offset == pair[0].offset + 65536;
        let following = places.windows(2).filter(next).count() * 100 / places.len();
        assert!((72..=88).contains(&following), "{following} percent");
    }

    #[test]
    fn a_shift_register_gives_every_block_its_turn_in_each_pass() {
        let mut blocks = offsets(FileOrder { lfsr: true, ..way(true, 5) });
        assert!(!blocks.is_sorted());
        blocks.sort_unstable();
        assert!(blocks.into_iter().eq(0..10));
    }

    #[test]
    fn a_part_of_each_zone_is_worked_on() {
        let strided = Some((8192, 16384));
        assert_eq!(offsets(FileOrder { strided, ..way(false, 0) }), [0, 1, 4, 5, 8, 9]);
    }

    #[test]
    fn a_skewed_pass_stays_in_its_window() {
        for text in ["zipf:0.8", "pareto:0.3", "normal:20", "zoned:90/10:10/90"] {
            let distribution = Distribution::read(text, crate::option::value::KbBase::Compatible);
            let found = offsets(FileOrder { distribution: distribution.unwrap(), ..way(true, 3) });
            assert!(
                found.len() == 10 && found.iter().all(|block| *block < 10),
                "{text}: {found:?}"
            );
        }
    }

    #[test]
    fn a_pass_goes_another_way_only_where_fios_does() {
        let two = |options: &[(&str, &str)]| {
            let mut job = JobOptions::default();
            for (name, value) in [("rw", "randread"), ("bs", "4k")].iter().chain(options) {
                crate::option::apply(&mut job, name, value).unwrap();
            }
            let window = FileWindow { start: 0, length: 1 << 20 };
            let mut stream =
                OffsetStream::new(vec![window], job.sizes.clone(), FileOrder::of(&job, 3));
            let first = pass(&mut stream);
            stream.next_pass();
            let second = pass(&mut stream);
            stream.rewind();
            assert_eq!(pass(&mut stream), second, "what is read back goes the same way");
            first == second
        };
        for (options, is_same) in [
            (&[][..], true),
            (&[("time_based", "1")], false),
            (&[("randrepeat", "0")], false),
            (&[("norandommap", "1")], false),
            (&[("random_distribution", "zipf:1.1")], false),
            (&[("random_distribution", "pareto:0.2")], false),
            (&[("random_distribution", "normal:20")], false),
            (&[("random_distribution", "zoned:50/5:50/95")], false),
            (&[("time_based", "1"), ("random_generator", "lfsr")], true),
            (&[("time_based", "1"), ("bssplit", "4k/50:8k/50")], false),
            (&[("percentage_random", "50")], false),
            (&[("blockalign", "4k")], false),
            (&[("time_based", "1"), ("verify", "crc32c")], false),
            (
                &[
                    ("rw", "randwrite"),
                    ("time_based", "1"),
                    ("verify", "crc32c"),
                    ("norandommap", "1"),
                ],
                true,
            ),
        ] {
            assert_eq!(two(options), is_same, "{options:?}");
        }
    }

    fn pass(stream: &mut OffsetStream) -> Vec<BlockRange> {
        std::iter::from_fn(|| stream.advance(DataDirection::Read)).collect()
    }

    #[test]
    fn files_take_turns_until_each_is_done() {
        let mut stream = OffsetStream::new(windows(), Sizes::One(4096), way(false, 0));
        let places = pass(&mut stream);
        assert_eq!(places.len(), 15);
        let first: Vec<(usize, u64)> = places[..4].iter().map(|it| (it.file, it.offset)).collect();
        assert_eq!(first, [(0, 8192), (1, 0), (0, 12288), (1, 4096)]);
        assert!(places[10..].iter().all(|it| it.file == 0), "the longer file goes on alone");
    }

    #[test]
    fn a_random_pass_covers_every_block_once_and_rewinds_to_itself() {
        let mut stream = OffsetStream::new(windows(), Sizes::One(4096), way(true, 3));
        let places = pass(&mut stream);
        stream.rewind();
        assert_eq!(pass(&mut stream), places);
        let mut blocks: Vec<(usize, u64)> = places.iter().map(|it| (it.file, it.offset)).collect();
        assert!(!blocks.is_sorted());
        blocks.sort_unstable();
        blocks.dedup();
        assert_eq!(blocks.len(), 15);
    }

    #[test]
    fn no_place_reaches_beyond_its_window() {
        let sizes = [Sizes::Range(4096..=16384), Sizes::Split(vec![(4096, 50), (8192, 50)])];
        for (sizes, random) in sizes.into_iter().flat_map(|it| [(it.clone(), true), (it, false)]) {
            let mut stream = OffsetStream::new(windows(), sizes, way(random, 9));
            let places = pass(&mut stream);
            assert!(places.len() > 4);
            for BlockRange { file, offset, length } in places {
                let FileWindow { start, length: whole } = windows()[file];
                assert!(offset >= start && offset + length <= start + whole);
            }
        }
    }
}
