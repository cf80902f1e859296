use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A directory that goes when the test ends. `/var/tmp` is on a disk where `/tmp` may be memory.
#[derive(Debug)]
pub struct Directory(TempDir);

impl Directory {
    /// Makes one that no other caller has: tests that run side by side may give the same name,
    /// which only says whose it is when one was left behind.
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
        tempfile::Builder::new().prefix(&format!("tidelog-{name}-")).tempdir_in(folder).map(Self)
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// The name of something in it, as a command takes it.
    pub fn at(&self, name: &str) -> String {
        self.path().join(name).display().to_string()
    }

    /// Makes a file of which nothing is reserved.
    ///
    /// # Errors
    /// The operating system's.
    pub fn sparse_file(&self, name: &str, bytes: u64) -> io::Result<PathBuf> {
        let path = self.path().join(name);
        File::create(&path)?.set_len(bytes)?;
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_one_name_are_two_and_each_goes_with_its_owner() {
        let [first, second] = ["name", "name"].map(|name| Directory::new(name).unwrap());
        first.sparse_file("file", 1).unwrap();
        let gone = first.path().to_owned();
        drop(first);
        assert!(!gone.exists());
        assert!(second.path().exists());
    }
}
