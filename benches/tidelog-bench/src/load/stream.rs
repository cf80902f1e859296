//! The order in which a job visits its files.

use super::permutation::Permutation;
use crate::option::Sizes;

/// The part of one file that a job works on, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its first byte.
    pub start: u64,
    /// Its length.
    pub length: u64,
}

/// Where one operation goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which file.
    pub file: usize,
    /// The byte in it.
    pub offset: u64,
    /// How many bytes.
    pub length: u64,
}

/// One pass over the windows of a job's files, to each in turn.
#[derive(Clone, Debug)]
pub struct Stream {
    windows: Vec<Window>,
    sizes: Sizes,
    order: Order,
    seed: u64,
    random: fastrand::Rng,
    /// The file whose turn it is.
    turn: usize,
    done: Vec<Done>,
}

/// What had its turn in one file.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    bytes: u64,
    operations: u64,
}

#[derive(Clone, Debug)]
enum Order {
    Sequential,
    /// Every block once.
    Map(Vec<Permutation>),
    /// As chance has it.
    Free,
}

impl Stream {
    /// A pass over `windows`. `random` says whether in random order, `map` whether each block has its turn
    /// before any comes again, which takes blocks of one size.
    pub fn new(windows: Vec<Window>, sizes: Sizes, random: bool, map: bool, seed: u64) -> Self {
        let order = match (&sizes, random) {
            (_, false) => Order::Sequential,
            (Sizes::One(size), true) if map => {
                let maps = windows.iter().zip(seed..);
                Order::Map(
                    maps.map(|(it, seed)| Permutation::new(it.length / size, seed)).collect(),
                )
            }
            (_, true) => Order::Free,
        };
        let done = vec![Done::default(); windows.len()];
        let random = fastrand::Rng::with_seed(seed);
        Self { windows, sizes, order, seed, random, turn: 0, done }
    }

    /// Begins the same pass again.
    pub fn rewind(&mut self) {
        self.random = fastrand::Rng::with_seed(self.seed);
        self.turn = 0;
        self.done.fill(Done::default());
    }

    /// The next place; `None` at the end of the pass.
    pub fn advance(&mut self) -> Option<Place> {
        let length = self.sizes.draw(&mut self.random);
        for _ in 0..self.windows.len() {
            let file = self.turn;
            self.turn = if file + 1 == self.windows.len() { 0 } else { file + 1 };
            if let Some(offset) = self.next_in(file, length) {
                return Some(Place { file, offset, length });
            }
        }
        None
    }

    fn next_in(&mut self, file: usize, length: u64) -> Option<u64> {
        let Window { start, length: whole } = self.windows[file];
        let Done { bytes, operations } = self.done[file];
        // Whatever does not fit behind what is done is left out, as there are no shorter operations.
        if whole - bytes < length {
            return None;
        }
        self.done[file] = Done { bytes: bytes + length, operations: operations + 1 };
        let within = match &self.order {
            Order::Sequential => bytes,
            Order::Map(maps) => maps[file].at(operations) * length,
            Order::Free => {
                let step = self.sizes.least();
                step * self.random.u64(0..=(whole - length) / step)
            }
        };
        Some(start + within)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows() -> Vec<Window> {
        vec![Window { start: 8192, length: 40960 }, Window { start: 0, length: 20480 }]
    }

    fn pass(stream: &mut Stream) -> Vec<Place> {
        std::iter::from_fn(|| stream.advance()).collect()
    }

    #[test]
    fn files_take_turns_until_each_is_done() {
        let mut stream = Stream::new(windows(), Sizes::One(4096), false, true, 0);
        let places = pass(&mut stream);
        assert_eq!(places.len(), 15);
        let first: Vec<(usize, u64)> = places[..4].iter().map(|it| (it.file, it.offset)).collect();
        assert_eq!(first, [(0, 8192), (1, 0), (0, 12288), (1, 4096)]);
        assert!(places[10..].iter().all(|it| it.file == 0), "the longer file goes on alone");
    }

    #[test]
    fn a_random_pass_covers_every_block_once_and_rewinds_to_itself() {
        let mut stream = Stream::new(windows(), Sizes::One(4096), true, true, 3);
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
            let mut stream = Stream::new(windows(), sizes, random, true, 9);
            let places = pass(&mut stream);
            assert!(places.len() > 4);
            for Place { file, offset, length } in places {
                let Window { start, length: whole } = windows()[file];
                assert!(offset >= start && offset + length <= start + whole);
            }
        }
    }
}
