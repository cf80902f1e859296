//! Destination of results: standard output, or a file that is none of those that the run is about.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use tidelog_command_line::print;
use tidelog_engine::path::{DeviceIdentity, DeviceSpec};

use crate::cli::BenchRequest;
use crate::exit::BenchError;
use crate::option::{JobOptions, LogKind};
use crate::report::{log_files, log_lines};
use crate::run::JobResult;

/// Destination of results.
#[derive(Debug)]
pub enum OutputTarget {
    /// Standard output.
    Standard,
    /// A file, which keeps what it holds until there are results.
    File(PathBuf, File, OutputProgress),
}

/// Progress of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputProgress {
    /// Nothing: the file has what it had.
    Nothing,
    /// Results of a part of the run.
    Results,
}

impl OutputTarget {
    /// Opens what was asked for, so that no run is made in vain.
    ///
    /// # Errors
    /// It cannot be written, or must not be: it is a block device, or something that the run reads
    /// or measures.
    pub fn open(request: &BenchRequest) -> Result<Self, BenchError> {
        request.output.as_deref().map_or(Ok(Self::Standard), |path| Self::at(path, request))
    }

    /// Opens a file for results.
    ///
    /// # Errors
    /// As for [`Self::open`].
    pub fn at(path: &Path, request: &BenchRequest) -> Result<Self, BenchError> {
        // A look before anything is opened: to open a device for writing may already do something
        // to it.
        let found = fs::metadata(path).ok();
        if found.as_ref().is_some_and(|it| it.file_type().is_block_device()) {
            return Err(never(path, "is a block device"));
        }
        let opened = File::options().write(true).create(true).truncate(false).open(path);
        let file = opened.map_err(|source| lost(path, source))?;
        let is_it = |other: &Path| is_same_file(other, path);
        let names = request.jobs.iter().flat_map(|job| job.filename.iter().chain(&job.overwrite));
        if names.into_iter().any(|name| is_it(&DeviceSpec::new(name).target())) {
            return Err(never(path, "is also a filename"));
        }
        if request.jobfiles.iter().any(|jobfile| is_it(jobfile)) {
            return Err(never(path, "is also the job file"));
        }
        Ok(Self::File(path.to_path_buf(), file, OutputProgress::Nothing))
    }

    /// Writes results, instead of what a file held before the run, and behind what was written in
    /// it.
    ///
    /// # Errors
    /// The results are not there.
    pub fn write(&mut self, text: &str) -> Result<(), BenchError> {
        match self {
            Self::Standard => say(text),
            Self::File(path, file, written) => {
                let replaced = file.metadata().and_then(|it| {
                    // Pipes and terminals have no length.
                    let is_first = std::mem::replace(written, OutputProgress::Results)
                        == OutputProgress::Nothing;
                    if it.is_file() && is_first { file.set_len(0) } else { Ok(()) }
                });
                let written = replaced.and_then(|()| file.write_all(text.as_bytes()));
                written.map_err(|source| lost(path, source))
            }
        }
    }
}

/// The logs over time of every job of a run, each in its file.
#[derive(Debug)]
pub struct LogFiles {
    files: BTreeMap<PathBuf, OutputTarget>,
    of_jobs: Vec<Vec<(LogKind, PathBuf)>>,
}

impl LogFiles {
    /// Opens all that these jobs ask for.
    ///
    /// # Errors
    /// As for [`OutputTarget::open`].
    pub fn open(jobs: &[JobOptions], request: &BenchRequest) -> Result<Self, BenchError> {
        let (mut files, of_jobs) = (BTreeMap::new(), log_files(jobs));
        for (_, path) in of_jobs.iter().flatten() {
            if files.contains_key(path) {
                continue;
            }
            files.insert(path.clone(), OutputTarget::at(path, request)?);
            if request.output.as_deref().is_some_and(|output| is_same_file(output, path)) {
                return Err(never(path, "is also the output"));
            }
        }
        Ok(Self { files, of_jobs })
    }

    /// Writes the results.
    ///
    /// # Errors
    /// One is not there.
    pub fn write(&mut self, results: &[JobResult]) -> Result<(), BenchError> {
        for (result, logs) in results.iter().zip(&self.of_jobs) {
            for (kind, path) in logs {
                let lines = result
                    .recorder
                    .timeline
                    .as_ref()
                    .map(|it| log_lines(*kind, it, &result.options.logs));
                if let Some(file) = self.files.get_mut(path) {
                    file.write(&lines.unwrap_or_default())?;
                }
            }
        }
        Ok(())
    }
}

/// Writes to standard output.
///
/// # Errors
/// What was written is not there.
pub fn say(text: &str) -> Result<(), BenchError> {
    print(text).map_err(|source| BenchError::Output { what: "standard output".to_owned(), source })
}

fn is_same_file(left: &Path, right: &Path) -> bool {
    let identity = |path| fs::metadata(path).map(|found| DeviceIdentity::of(&found));
    matches!((identity(left), identity(right)), (Ok(left), Ok(right)) if left == right)
}

fn never(path: &Path, what: &str) -> BenchError {
    BenchError::usage(format!("results go to {}, which {what}; name another file", path.display()))
}

fn lost(path: &Path, source: io::Error) -> BenchError {
    BenchError::Output { what: path.display().to_string(), source }
}
