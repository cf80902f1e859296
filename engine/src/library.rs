//! Libraries between us and a device: what their errors name.

/// A library with error numbers of its own.
#[derive(Debug)]
pub struct ErrorLibrary {
    /// What it is called.
    pub name: &'static str,
    /// Its name for one of its numbers.
    pub describe: fn(i32) -> &'static str,
}

impl PartialEq for ErrorLibrary {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for ErrorLibrary {}
