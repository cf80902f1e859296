//! The recorded models, and what the TERAIO paper (arXiv 2506.06472) reports of them.

use super::GIB;
use super::columns::Marks;

/// Published figures: the share of the ideal time in percent, or in words.
#[derive(Clone, Copy)]
pub(super) struct Published {
    pub(super) peak_percent: f64,
    pub(super) zero_offload: &'static str,
    pub(super) zero_infinity: &'static str,
    pub(super) ssd: &'static str,
    pub(super) ssd_and_host: &'static str,
}

/// A recorded model.
pub(super) struct Set {
    pub(super) name: &'static str,
    /// Pipeline stages of which each has a trace; none: one trace of the whole model.
    pub(super) stages: &'static [usize],
    pub(super) capacities: [u64; 2],
    /// Host memory for evicted tensors of one GPU, in the second kind of cell.
    pub(super) host_gib: u64,
    /// `None`: held out. Nobody has published anything of it, and it was never looked at while the
    /// policy was made.
    pub(super) published: Option<Published>,
    pub(super) marks: Marks,
}

/// 80 GiB, and 94 GB (87.5 GiB): both are called the capacity of an H100 NVL.
const H100: [u64; 2] = [80 * GIB, 875 * GIB / 10];

/// The held-out models are smaller: half a GPU, too.
const SMALLER: [u64; 2] = [80 * GIB, 40 * GIB];

const BOTH: &[usize] = &[0, 1];

const EIGHT_B: Published = Published {
    peak_percent: 187.56,
    zero_offload: "65.9 %",
    zero_infinity: "slightly below ZeRO-Offload",
    ssd: "near ideal",
    ssd_and_host: "near ideal",
};

const fn held_out(name: &'static str) -> Set {
    let (stages, capacities) = (&[], SMALLER);
    Set { name, stages, capacities, host_gib: 64, published: None, marks: Marks::HELD_OUT }
}

pub(super) const SETS: [Set; 8] = [
    Set {
        name: "llama3-8b-fp32",
        stages: BOTH,
        capacities: H100,
        host_gib: 64,
        published: Some(EIGHT_B),
        marks: Marks::LLAMA3_8B,
    },
    Set {
        name: "llama3-8b-tf32",
        stages: BOTH,
        capacities: H100,
        host_gib: 64,
        published: Some(Published {
            zero_offload: "not reported",
            zero_infinity: "not reported",
            ssd: "not reported",
            ssd_and_host: "not reported",
            ..EIGHT_B
        }),
        marks: Marks::LLAMA3_8B_TF32,
    },
    Set {
        name: "granite-8b-fp32",
        stages: BOTH,
        capacities: H100,
        host_gib: 128,
        published: Some(Published {
            peak_percent: 379.34,
            zero_offload: "65.5 %",
            zero_infinity: "slightly below ZeRO-Offload",
            ssd: "about as ZeRO",
            ssd_and_host: "near ideal",
        }),
        marks: Marks::GRANITE_8B,
    },
    Set {
        name: "llama3-70b-fp32",
        stages: BOTH,
        capacities: H100,
        host_gib: 1024,
        published: Some(Published {
            peak_percent: 940.23,
            zero_offload: "out of memory",
            zero_infinity: "43.0 %",
            ssd: "between 43.0 and 59.7 %",
            ssd_and_host: "59.7 %",
        }),
        marks: Marks::LLAMA3_70B,
    },
    held_out("gpt2-xl"),
    held_out("mixtral-like"),
    held_out("t5-large"),
    held_out("vit-huge"),
];

/// One trace of a set.
#[derive(Clone, Copy)]
pub(super) struct TracePart {
    pub(super) set: &'static Set,
    pub(super) stage: Option<usize>,
}

impl TracePart {
    /// The parts of a set.
    pub(super) fn of(set: &'static Set) -> Vec<Self> {
        let staged = set.stages.iter().map(|stage| Self { set, stage: Some(*stage) });
        let whole = set.stages.is_empty().then_some(Self { set, stage: None });
        staged.chain(whole).collect()
    }

    /// Returns the name of its files, without their endings.
    pub(super) fn file(self) -> String {
        let stage = self.stage.map_or(String::new(), |stage| format!("-stage{stage}"));
        format!("{}{stage}", self.set.name)
    }

    /// Returns the title, for people.
    pub(super) fn title(self) -> String {
        let stage = self.stage.map_or(String::new(), |stage| format!(", stage {stage}"));
        format!("{}{stage}", self.set.name)
    }

    /// Returns whether the trace part is the first of its set.
    pub(super) fn is_first(self) -> bool {
        self.stage.is_none_or(|stage| stage == 0)
    }
}

/// The traces of the first stages of the sets that somebody has published.
pub(super) fn published_stages() -> impl Iterator<Item = String> {
    let published = SETS.iter().filter(|set| set.published.is_some());
    published.map(|set| format!("{}-stage0", set.name))
}
