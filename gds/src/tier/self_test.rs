//! Rates of the link between a GPU and page-locked memory, measured when the tier opens: one way at
//! a time, and both ways at once.
//!
//! Steps show the rates, too, but only once they have moved something, and those of both ways
//! mixed: how fast one way is alone, which a plan may choose, they do not tell.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::cuda::{CopyTimer, CudaError, DeviceMemory, Gpu, HostMemory, Stream};

/// Bytes of one copy, few enough for a GPU that is nearly full.
const PIECE: usize = 16 << 20;
/// Time for which each way is measured, more or less.
const PHASE: Duration = Duration::from_millis(8);
/// Number of copies of a phase, at least and at most.
const COPIES: Range<u32> = 2..64;

/// Bytes per second of each way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WayRates {
    /// Rate from the GPU.
    pub out: u64,
    /// Rate to the GPU.
    pub back: u64,
}

/// Rates of the link, as they were measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasuredLink {
    /// Rates of one way at a time.
    pub alone: WayRates,
    /// Rates of both ways at once: never above those alone.
    pub both: WayRates,
}

/// One way of the link: its stream, and its end of the copies.
struct Way<'a> {
    stream: Stream,
    timer: CopyTimer,
    gpu: DeviceMemory,
    host: &'a HostMemory,
    /// Offset in the host memory.
    at: usize,
    is_out: bool,
}

/// Measures the link with the first bytes of memory that nobody uses yet. Nothing where the memory
/// is too small, the GPU has no room for it, or its clock does not say.
pub(super) fn measure(
    gpu: &Arc<Gpu>,
    memory: &HostMemory,
) -> Result<Option<MeasuredLink>, CudaError> {
    if memory.len() < 2 * PIECE {
        return Ok(None);
    }
    let device = || DeviceMemory::new(gpu, PIECE).ok();
    let Some((from, to)) = device().zip(device()) else { return Ok(None) };
    let way = |gpu_memory, at, is_out| {
        let (stream, timer) = (Stream::new(gpu)?, CopyTimer::new(gpu)?);
        Ok(Way { stream, timer, gpu: gpu_memory, host: memory, at, is_out })
    };
    let (out, back) = (way(from, 0, true)?, way(to, PIECE, false)?);
    let Some((alone_out, alone_back)) = out.alone()?.zip(back.alone()?) else { return Ok(None) };
    let counts = [alone_out, alone_back].map(copies_in_phase);
    out.begin(counts[0])?;
    back.begin(counts[1])?;
    let Some((took_out, took_back)) = out.end()?.zip(back.end()?) else { return Ok(None) };
    let alone = WayRates { out: rate(1, alone_out), back: rate(1, alone_back) };
    let both = both_ways(alone, counts, [took_out, took_back]);
    Ok(Some(MeasuredLink { alone, both }))
}

impl Way<'_> {
    /// Measures the way while the other one is idle: the time of one copy.
    fn alone(&self) -> Result<Option<Duration>, CudaError> {
        // The first one wakes the link up.
        self.begin(1)?;
        let Some(first) = self.end()? else { return Ok(None) };
        let copies = copies_in_phase(first);
        self.begin(copies)?;
        Ok(self.end()?.map(|took| took / copies))
    }

    /// Puts copies into the stream.
    fn begin(&self, copies: u32) -> Result<(), CudaError> {
        self.timer.begin(&self.stream)?;
        let host = self.host.at(self.at, PIECE).as_ptr();
        for _ in 0..copies {
            // SAFETY: both ranges are allocated and nobody else's: the tier has given none of its
            // memory to a tensor yet, and the GPU's was made for this. `drop` waits for the stream
            // before either goes.
            unsafe {
                if self.is_out {
                    self.stream.copy_out(self.gpu.base(), host, PIECE)
                } else {
                    self.stream.copy_in(host, self.gpu.base(), PIECE)
                }
            }?;
        }
        self.timer.end(&self.stream)
    }

    /// Waits for the copies, and returns the time that they took.
    fn end(&self) -> Result<Option<Duration>, CudaError> {
        self.stream.synchronize()?;
        Ok(self.timer.took())
    }
}

impl Drop for Way<'_> {
    fn drop(&mut self) {
        // A failure is that of the whole context, in which then nothing runs.
        let _ = self.stream.synchronize();
    }
}

fn copies_in_phase(one: Duration) -> u32 {
    let copies = PHASE.as_nanos() / one.as_nanos().max(1);
    u32::try_from(copies).unwrap_or(u32::MAX).clamp(COPIES.start, COPIES.end)
}

/// Returns the bytes per second of copies that took a time.
fn rate(copies: u32, took: Duration) -> u64 {
    let bytes = u128::from(copies) * PIECE as u128;
    let per_second = bytes * 1_000_000_000 / took.as_nanos().max(1);
    u64::try_from(per_second).unwrap_or(u64::MAX)
}

/// Returns the rates of both ways at once, of copies that began together. Behind the end of the
/// way that was done first the other one went on alone, and as fast as that.
fn both_ways(
    alone: WayRates,
    [out, back]: [u32; 2],
    [took_out, took_back]: [Duration; 2],
) -> WayRates {
    let together = took_out.min(took_back);
    let of = |copies, took: Duration, alone: u64| {
        let moved = rate(copies, Duration::from_secs(1));
        let later = u128::from(alone) * took.saturating_sub(together).as_nanos() / 1_000_000_000;
        let beside = u128::from(moved).saturating_sub(later);
        let per_second = beside * 1_000_000_000 / together.as_nanos().max(1);
        u64::try_from(per_second).unwrap_or(u64::MAX).min(alone).max(1)
    };
    WayRates { out: of(out, took_out, alone.out), back: of(back, took_back, alone.back) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALONE: WayRates = WayRates { out: 16 << 30, back: 8 << 30 };

    fn milliseconds(count: f64) -> Duration {
        Duration::from_secs_f64(count / 1000.0)
    }

    /// 1 GiB is 64 copies, which take 62.5 ms at 16 GiB/s.
    #[test]
    fn ways_that_do_not_disturb_each_other_are_as_fast_as_alone() {
        let took = [milliseconds(62.5), milliseconds(125.0)];
        let both = both_ways(ALONE, [64, 64], took);
        assert_eq!(both, ALONE);
    }

    #[test]
    fn what_goes_on_alone_is_not_counted() {
        // Out at 8 GiB/s for 125 ms. Back at 4 GiB/s meanwhile, and then the other half at 8.
        let took = [milliseconds(125.0), milliseconds(187.5)];
        let both = both_ways(ALONE, [64, 64], took);
        assert_eq!((both.out >> 20, both.back >> 20), (8 << 10, 4 << 10));
    }

    #[test]
    fn both_at_once_are_never_above_one_alone_nor_nothing() {
        let took = [milliseconds(1.0), milliseconds(1000.0)];
        let both = both_ways(ALONE, [64, 2], took);
        assert_eq!((both.out, both.back), (ALONE.out, 1));
    }

    #[test]
    fn a_phase_has_some_copies_and_not_many() {
        assert_eq!(copies_in_phase(Duration::from_millis(1)), 8);
        assert_eq!(copies_in_phase(Duration::ZERO), 64);
        assert_eq!(copies_in_phase(Duration::from_secs(9)), 2);
    }
}
