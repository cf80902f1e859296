//! The files of jobs, by fio's rules: `directory`, `filesize`, and the names of those that have
//! none.

use tidelog_engine::memory::ALIGNMENT;

use super::job::{JobOptions, Level};
use super::value::Amount;
use crate::exit::BenchError;

/// Returns the jobs with the names of their files. One of several at the same time that have no
/// names becomes as many jobs, since each then has files of its own: `JOB.NUMBER.FILE`.
///
/// # Errors
/// Options that do not go together, or a job that waits for one that there is not.
pub fn with_files(jobs: &[JobOptions]) -> Result<Vec<JobOptions>, BenchError> {
    let mut named = Vec::new();
    let mut group = 0;
    for (index, job) in jobs.iter().enumerate() {
        check_wait(job, &jobs[..index])?;
        if index > 0 && (job.stonewall || job.new_group) {
            group += 1;
        }
        let mut job = JobOptions { group, ..job.clone() };
        job.sizes = job.sizes.for_load(job.load);
        if !job.randrepeat {
            job.randseed = fastrand::u64(..);
        }
        let within = |name: &str| match &job.directory {
            Some(directory) => format!("{directory}/{name}"),
            None => name.to_owned(),
        };
        if job.level == Level::Log || !job.filename.is_empty() {
            if job.nrfiles > 1 {
                let what = "nrfiles: filename already says how many files there are";
                return Err(BenchError::usage(what).within(&job.name));
            }
            let all = |names: &[String]| names.iter().map(|name| within(name)).collect();
            (job.filename, job.overwrite) = (all(&job.filename), all(&job.overwrite));
            named.push(sized(job));
            continue;
        }
        if job.name.contains('/') {
            let what = "a job whose name has a slash needs filename";
            return Err(BenchError::usage(what).within(&job.name));
        }
        let clones = (0..job.numjobs).map(|clone| {
            let name = |file| within(&format!("{}.{clone}.{file}", job.name));
            let first = clone == 0;
            JobOptions {
                filename: (0..job.nrfiles).map(name).collect(),
                numjobs: 1,
                first_clone: clone,
                stonewall: job.stonewall && first,
                ..job.clone()
            }
        });
        named.extend(clones.map(sized));
    }
    Ok(named)
}

/// Sets the sizes of files: with `filesize` the files are that large, and `size` says how much is
/// moved.
fn sized(mut job: JobOptions) -> JobOptions {
    let Some((least, most)) = job.filesize else { return job };
    if let (Some(Amount::Bytes(_)), None) = (job.size, job.io_size) {
        job.io_size = job.size;
    }
    let count = job.filename.len();
    let whole = if least == most {
        least.saturating_mul(count as u64)
    } else {
        let mut random = fastrand::Rng::with_seed(job.randseed ^ u64::from(job.first_clone));
        let unit = ALIGNMENT as u64;
        let size =
            || random.u64(least.div_ceil(unit)..=(most / unit).max(least.div_ceil(unit))) * unit;
        job.filesizes = std::iter::repeat_with(size).take(count).collect();
        job.filesizes.iter().fold(0, |sum: u64, size| sum.saturating_add(*size))
    };
    job.size = Some(Amount::Bytes(whole));
    job
}

/// Checks that the name that a job waits for is that of one job before it.
fn check_wait(job: &JobOptions, before: &[JobOptions]) -> Result<(), BenchError> {
    let Some(name) = &job.wait_for else { return Ok(()) };
    let what = match before.iter().filter(|other| other.name == *name).count() {
        1 => return Ok(()),
        0 => format!("wait_for={name}: no job before this one has that name"),
        many => format!("wait_for={name}: {many} jobs before this one have that name"),
    };
    Err(BenchError::usage(what).within(&job.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobfile::parse;

    fn jobs(text: &str) -> Result<Vec<JobOptions>, BenchError> {
        with_files(&parse(text, &JobOptions::default(), &[], "".as_ref()).unwrap())
    }

    #[test]
    fn files_without_names_are_called_as_fio_calls_them() {
        let found = jobs("[a]\nnumjobs=2\nnrfiles=2\ndirectory=/x\nstonewall\nsize=8k\n").unwrap();
        let names: Vec<_> = found.iter().map(|job| job.filename.join(" ")).collect();
        assert_eq!(names, ["/x/a.0.0 /x/a.0.1", "/x/a.1.0 /x/a.1.1"]);
        assert!(found[0].stonewall && !found[1].stonewall, "they run side by side");
        assert_eq!((found[1].first_clone, found[1].group), (1, 0));
        assert!(jobs("[a/b]\nsize=8k\n").is_err());
    }

    #[test]
    fn groups_begin_at_stonewalls_and_where_they_are_asked_for() {
        let found = jobs("[a]\nnew_group\n[b]\n[c]\nnew_group\n[d]\nstonewall\n[e]\n").unwrap();
        assert_eq!(found.iter().map(|job| job.group).collect::<Vec<_>>(), [0, 0, 1, 2, 2]);
    }

    #[test]
    fn filesize_is_how_large_files_are_and_size_how_much_is_moved() {
        let found = jobs("[a]\nfilesize=1m\nfilename=x:y\n[b]\nfilesize=1m\nsize=5m\n").unwrap();
        assert_eq!((found[0].size, found[0].io_size), (Some(Amount::Bytes(2 << 20)), None));
        assert_eq!(found[1].io_size, Some(Amount::Bytes(5 << 20)));
    }

    #[test]
    fn files_of_a_range_of_sizes_are_not_alike() {
        let found = jobs("[a]\nfilesize=16k-1m\nnrfiles=8\n").unwrap();
        let sizes = &found[0].filesizes;
        assert!(sizes.iter().all(|it| it % 4096 == 0 && (16 << 10..=1 << 20).contains(it)));
        assert!(sizes.iter().any(|it| *it != sizes[0]));
        assert_eq!(found[0].size, Some(Amount::Bytes(sizes.iter().sum())));
    }

    #[test]
    fn a_job_waits_for_one_that_there_is() {
        assert!(jobs("[a]\n[b]\nwait_for=a\n").is_ok());
        for text in ["[a]\nwait_for=b\n[b]\n", "[a]\n[a]\n[b]\nwait_for=a\n"] {
            assert!(jobs(text).unwrap_err().to_string().contains("wait_for="), "{text}");
        }
    }
}
