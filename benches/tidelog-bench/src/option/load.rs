//! Option on the load of a job: `rw=`.

use super::value::{KbBase, bytes};
use crate::direction::DataDirection;

/// Load that `rw=` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent, as the table below shows")]
pub struct Load {
    /// The name in fio.
    pub name: &'static str,
    /// True if the load reads.
    pub reads: bool,
    /// True if the load writes.
    pub writes: bool,
    /// True if the load tells devices that nobody needs their bytes.
    pub trims: bool,
    /// True if offsets, or tensors, come in random order.
    pub random: bool,
    /// Gap between one operation of a sequential load and the next, in bytes: below zero it goes
    /// backwards.
    pub add: i64,
}

impl Load {
    const ALL: [Self; 10] = [
        Self { name: "read", reads: true, ..Self::NOTHING },
        Self { name: "write", writes: true, ..Self::NOTHING },
        Self { name: "rw", reads: true, writes: true, ..Self::NOTHING },
        Self { name: "trim", trims: true, ..Self::NOTHING },
        Self { name: "randread", reads: true, random: true, ..Self::NOTHING },
        Self { name: "randwrite", writes: true, random: true, ..Self::NOTHING },
        Self { name: "randrw", reads: true, writes: true, random: true, ..Self::NOTHING },
        Self { name: "randtrim", trims: true, random: true, ..Self::NOTHING },
        Self { name: "trimwrite", trims: true, writes: true, ..Self::NOTHING },
        Self { name: "randtrimwrite", trims: true, writes: true, random: true, ..Self::NOTHING },
    ];

    const NOTHING: Self =
        Self { name: "", reads: false, writes: false, trims: false, random: false, add: 0 };

    /// The load of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn named(text: &str, base: KbBase) -> Result<Self, String> {
        let (name, add) =
            text.split_once(':').map_or((text, None), |(name, add)| (name, Some(add)));
        let wanted = match name.trim() {
            "readwrite" => "rw",
            other => other,
        };
        let load = Self::ALL.into_iter().find(|load| load.name == wanted).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|load| load.name).collect();
            format!("{name:?} is none of {}", names.join(", "))
        })?;
        let Some(add) = add else { return Ok(load) };
        if load.random || load.is_mix() || load.trims {
            return Err("an offset is for read and write alone".to_owned());
        }
        let (sign, size) = add.trim().strip_prefix('-').map_or((1, add), |size| (-1, size));
        let size = i64::try_from(bytes(size, base)?).map_err(|_| format!("{add} is too much"))?;
        Ok(Self { add: sign * size, ..load })
    }

    /// Returns whether each block is trimmed and then written: twice the operations, as in fio.
    pub fn writes_what_it_trims(self) -> bool {
        self.trims && self.writes
    }

    /// Returns whether the load both reads and writes.
    pub fn is_mix(self) -> bool {
        self.reads && self.writes
    }

    /// Returns whether what a device holds is gone afterwards.
    pub fn changes(self) -> bool {
        self.writes || self.trims
    }

    /// Draws the direction of the next operation on a new block; of a mix, `rwmixread` percent
    /// read.
    pub fn draw(self, random: &mut fastrand::Rng, rwmixread: u8) -> DataDirection {
        match self {
            Self { trims: true, .. } => DataDirection::Trim,
            Self { reads: true, writes: true, .. } if random.u8(0..100) < rwmixread => {
                DataDirection::Read
            }
            Self { writes: true, .. } => DataDirection::Write,
            _ => DataDirection::Read,
        }
    }
}

impl Default for Load {
    fn default() -> Self {
        Self::ALL[0]
    }
}
