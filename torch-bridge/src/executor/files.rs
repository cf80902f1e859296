//! Files for the user: written whole or not at all.

use std::ffi::OsString;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::error::Failure;

/// Writes a file that the user asked for, and calls `what`.
pub(super) fn write(what: &str, path: &Path, text: &str) -> Result<(), Failure> {
    replace(path, text.as_bytes()).map_err(|(place, error)| {
        Failure::invalid(format!("the {what} cannot be written to {place:?}: {error}"))
    })
}

/// Writes a file beside `path` and renames it: who reads `path` sees the old one or the new one.
fn replace(path: &Path, bytes: &[u8]) -> Result<(), (String, std::io::Error)> {
    let beside = beside(path)
        .ok_or_else(|| (path.display().to_string(), std::io::ErrorKind::InvalidFilename.into()))?;
    let written = fs::File::create(&beside).and_then(|mut file| file.write_all(bytes));
    let replaced = match written {
        Ok(()) => fs::rename(&beside, path).map_err(|error| (path.display().to_string(), error)),
        Err(error) => Err((beside.display().to_string(), error)),
    };
    if replaced.is_err() {
        let _ = fs::remove_file(&beside); // where it was not even made, there is nothing to remove
    }
    replaced
}

fn beside(path: &Path) -> Option<PathBuf> {
    let mut name = OsString::from(".");
    name.push(path.file_name()?);
    name.push(format!(".{}.tmp", std::process::id()));
    Some(path.with_file_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_replaces_the_older_one_and_leaves_nothing_beside_it() {
        let folder = std::env::temp_dir().join(format!("tidelog-report-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("report.html");
        replace(&path, b"old").unwrap();
        replace(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_report_that_cannot_be_written_says_where() {
        let (place, _) = replace(Path::new("/nonexistent/folder/report.html"), b"x").unwrap_err();
        assert!(place.starts_with("/nonexistent/folder/"), "{place}");
        let (place, error) = replace(Path::new("/"), b"x").unwrap_err();
        assert_eq!((place.as_str(), error.kind()), ("/", std::io::ErrorKind::InvalidFilename));
    }
}
