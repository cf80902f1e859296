//! Part of each file that a job works on, and the file's size.

use tidelog_device_safety::NamedDevice;
use tidelog_engine::memory::ALIGNMENT;
use tidelog_engine::units::ByteCount;

use crate::exit::BenchError;
use crate::load::FileWindow;
use crate::option::JobOptions;
use crate::option::value::Amount;

/// The part of each file, of these sizes, that the `clone`th of a job's `numjobs` works on.
///
/// # Errors
/// A part has no room for one operation.
pub fn windows(
    job: &JobOptions,
    sizes: &[ByteCount],
    clone: u32,
) -> Result<Vec<FileWindow>, BenchError> {
    let unit = ALIGNMENT as u64;
    let down = |bytes: u64| bytes / unit * unit;
    let window = |(index, (name, whole)): (usize, (&String, &ByteCount))| {
        let start = down(skipped(job, whole.0, clone).ok_or_else(|| beyond_all_devices(job))?);
        let rest = down(whole.0.saturating_sub(start));
        let own = job.filesizes.get(index).map(|own| Amount::Bytes(own * sizes.len() as u64));
        let wanted = match own.or(job.size) {
            None => rest,
            Some(Amount::Bytes(bytes)) => down(bytes / sizes.len() as u64),
            Some(percent @ Amount::Percent(_)) => down(percent.of(whole.0)).min(rest),
        };
        if wanted > rest || wanted < job.sizes.most() {
            let what = format!(
                "{name}: there are {} from byte {start} on, and the job needs {}, in blocks of up to {}",
                ByteCount(rest),
                ByteCount(wanted),
                ByteCount(job.sizes.most()),
            );
            return Err(BenchError::usage(what).within(&job.name));
        }
        zoned(job, name, FileWindow { start, length: wanted })
    };
    job.filename.iter().zip(sizes).enumerate().map(window).collect()
}

/// Returns the length of a file for a job.
pub(super) fn file_size(job: &JobOptions, target: &NamedDevice) -> Result<ByteCount, BenchError> {
    match job.size {
        Some(Amount::Bytes(size)) => {
            let index = job.filename.iter().position(|name| *name == target.given);
            let own = index.and_then(|index| job.filesizes.get(index)).copied();
            let each = own.unwrap_or(size / job.filename.len() as u64);
            skipped(job, target.size.0, job.first_clone + job.numjobs - 1)
                .and_then(|skipped| {
                    skipped.checked_add(each)?.checked_next_multiple_of(ALIGNMENT as u64)
                })
                .map(ByteCount)
                .ok_or_else(|| beyond_all_devices(job))
        }
        _ if target.size > ByteCount::ZERO => Ok(target.size),
        _ => {
            let what = format!("{} does not exist or is empty: give its size", target.given);
            Err(BenchError::usage(what).within(&job.name))
        }
    }
}

/// Returns the offset at which the `clone`th of a job's `numjobs` begins in a file of `whole`
/// bytes; `None` if no number is that large.
fn skipped(job: &JobOptions, whole: u64, clone: u32) -> Option<u64> {
    let increments = job.offset_increment.0.checked_mul(u64::from(clone))?;
    job.offset.of(whole).checked_add(increments)
}

fn beyond_all_devices(job: &JobOptions) -> BenchError {
    let what = "size, offset and offset_increment lead beyond the end of every device";
    BenchError::usage(what).within(&job.name)
}

/// Returns the part of a window that a job may write with `zonemode=zbd`: whole zones.
fn zoned(job: &JobOptions, name: &str, window: FileWindow) -> Result<FileWindow, BenchError> {
    if !job.zbd || !job.load.changes() {
        return Ok(window);
    }
    let start = window.start.next_multiple_of(job.zonesize);
    let end = (window.start + window.length) / job.zonesize * job.zonesize;
    if start >= end {
        let what = format!(
            "{name}: zonemode=zbd writes whole zones, and there is none from byte {} on",
            window.start
        );
        return Err(BenchError::usage(what).within(&job.name));
    }
    Ok(FileWindow { start, length: end - start })
}
