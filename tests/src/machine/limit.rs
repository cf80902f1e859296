use std::fs;
use std::path::{Path, PathBuf};

use super::Unavailable;

/// A control group whose processes have limited memory, page cache included.
#[derive(Debug)]
pub struct MemoryLimit(PathBuf);

impl MemoryLimit {
    /// Makes one, of version 2 or 1, whichever the machine has.
    ///
    /// # Errors
    /// Why this machine makes none.
    pub fn new(name: &str, bytes: u64) -> Result<Self, Unavailable> {
        let root = Path::new("/sys/fs/cgroup");
        let (parent, limit) = if root.join("cgroup.controllers").exists() {
            (root.to_path_buf(), "memory.max")
        } else {
            (root.join("memory"), "memory.limit_in_bytes")
        };
        let path = parent.join(format!("tidelog-{}-{name}", std::process::id()));
        let failed = |error| format!("no control group {}: {error}", path.display());
        fs::create_dir(&path).map_err(failed)?;
        let made = Self(path.clone());
        fs::write(path.join(limit), bytes.to_string()).map_err(failed)?;
        Ok(made)
    }

    /// The file that a process writes its id to, to come under the limit.
    pub fn processes(&self) -> PathBuf {
        self.0.join("cgroup.procs")
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}
