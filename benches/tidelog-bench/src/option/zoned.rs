//! `zonemode=zbd`.

use std::collections::BTreeMap;

use super::job::{JobOptions, Level};
use super::sizes::Sizes;
use crate::exit::BenchError;

/// Checks that jobs with zones, and those that work on the same files, agree on them.
///
/// # Errors
/// Options that do not go together.
pub fn check_zones(jobs: &[JobOptions]) -> Result<(), BenchError> {
    let mut known: BTreeMap<&str, (u64, usize)> = BTreeMap::new();
    for job in jobs {
        let within = |what: &str| BenchError::usage(what).within(&job.name);
        if !job.zbd {
            if job.max_open_zones > 0 || job.read_beyond_wp {
                return Err(within("max_open_zones and read_beyond_wp are for zonemode=zbd"));
            }
            continue;
        }
        check(job).map_err(within)?;
        let how = (job.zonesize, job.max_open_zones);
        for file in &job.filename {
            if *known.entry(file).or_insert(how) != how {
                return Err(within(
                    "zonesize and max_open_zones are the same for all jobs of a file",
                ));
            }
        }
    }
    Ok(())
}

fn check(job: &JobOptions) -> Result<(), &'static str> {
    let Sizes::One(size) = job.sizes else {
        return Err("zonemode=zbd needs one block size: give bs");
    };
    if job.level == Level::Log {
        return Err("zonemode is for the raw level");
    }
    if job.zonesize == 0 || !job.zonesize.is_multiple_of(size) {
        return Err("zonemode=zbd needs zonesize, a multiple of bs");
    }
    if job.zoneskip > 0 || (job.zonerange > 0 && job.zonerange != job.zonesize) {
        return Err("zonemode=zbd works on whole zones: leave zoneskip and zonerange out");
    }
    if job.load.trims || job.load.add != 0 {
        return Err("zonemode=zbd is for reads and writes, without an offset between them");
    }
    Ok(())
}
