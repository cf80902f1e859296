use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// A directory that goes when the test ends. `/var/tmp` is on a disk where `/tmp` may be memory.
#[derive(Debug)]
pub struct Directory(PathBuf);

impl Directory {
    /// Makes one whose name nobody else takes.
    ///
    /// # Errors
    /// The operating system's.
    pub fn new(name: &str) -> io::Result<Self> {
        Self::new_in(Path::new("/var/tmp"), name)
    }

    /// Makes a directory in another folder.
    ///
    /// # Errors
    /// The operating system's.
    pub fn new_in(folder: &Path, name: &str) -> io::Result<Self> {
        let path = folder.join(format!("tidelog-{}-{name}", std::process::id()));
        fs::create_dir(&path)?;
        Ok(Self(path))
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The name of something in it, as a command takes it.
    pub fn at(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// Makes a file of which nothing is reserved.
    ///
    /// # Errors
    /// The operating system's.
    pub fn sparse_file(&self, name: &str, bytes: u64) -> io::Result<PathBuf> {
        let path = self.0.join(name);
        File::create(&path)?.set_len(bytes)?;
        Ok(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
