//! `zonemode=zbd`.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::job::{JobOptions, Level};
use super::sizes::Sizes;
use crate::exit::BenchError;
use crate::load::Zones;

/// Gives jobs the zones of their files; those that work on the same have the same.
///
/// # Errors
/// Options that do not go together.
pub fn with_zones(mut jobs: Vec<JobOptions>) -> Result<Vec<JobOptions>, BenchError> {
    let mut known: BTreeMap<String, ((u64, usize), Arc<Zones>)> = BTreeMap::new();
    for job in &mut jobs {
        let within = |what: &str| BenchError::usage(what).within(&job.name);
        if !job.zbd {
            if job.max_open_zones > 0 || job.read_beyond_wp {
                return Err(within("max_open_zones and read_beyond_wp are for zonemode=zbd"));
            }
            continue;
        }
        check(job).map_err(within)?;
        let (size, most_open) = (job.zonesize, job.max_open_zones);
        for file in &job.filename {
            let made = || ((size, most_open), Arc::new(Zones::new(size, most_open)));
            let (how, zones) = known.entry(file.clone()).or_insert_with(made);
            if *how != (size, most_open) {
                return Err(within(
                    "zonesize and max_open_zones are the same for all jobs of a file",
                ));
            }
            job.zones.push(Arc::clone(zones));
        }
    }
    Ok(jobs)
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
