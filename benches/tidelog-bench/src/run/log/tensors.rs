//! The tensors that a job puts and gets.

use tidelog_engine::layout::TensorId;
use tidelog_engine::units::ByteCount;

use crate::direction::DataDirection;
use crate::exit::BenchError;
use crate::load::STAMP_BYTES;
use crate::option::JobOptions;

/// Tensor of the load.
#[derive(Clone, Copy)]
pub(super) struct Tensor {
    pub(super) id: TensorId,
    pub(super) length: u64,
    /// The pass of the last put that is complete. Without one it cannot be read.
    pub(super) put: Option<u64>,
    /// True while a transfer moves it.
    pub(super) in_flight: bool,
}

/// The tensors of the `clone`th of a job's `numjobs`: of the sizes that were asked for, `size`
/// bytes in all.
pub(super) fn tensors(
    job: &JobOptions,
    clone: u32,
    capacity: ByteCount,
) -> Result<Vec<Tensor>, BenchError> {
    let wrong = |what: String| Err(BenchError::usage(what).within(&job.name));
    // A tensor that is put again exists twice until the put is complete.
    let room = capacity.0 / 2 / u64::from(job.numjobs);
    let size = job.size.map_or(room, |size| size.of(room));
    if size > room {
        let most = ByteCount(room);
        return wrong(format!(
            "the pool holds {capacity}; size can be at most {most} for each of numjobs, half of that in all"
        ));
    }
    if job.verify && job.sizes.least() < STAMP_BYTES as u64 {
        return wrong(format!("verify needs tensors of at least {STAMP_BYTES} bytes"));
    }
    let mut random = fastrand::Rng::with_seed(job.randseed);
    let (mut tensors, mut left) = (Vec::new(), size);
    loop {
        let length = job.sizes.draw(DataDirection::Write, &mut random);
        let Some(rest) = left.checked_sub(length) else { break };
        left = rest;
        let name = format!("tidelog-bench/{}/{clone}/{}", job.name, tensors.len());
        let id = TensorId::from_name(&name);
        tensors.push(Tensor { id, length, put: None, in_flight: false });
    }
    if tensors.is_empty() {
        return wrong(format!("no tensor fits into {}; give a larger size", ByteCount(size)));
    }
    Ok(tensors)
}
