//! Libraries between us and a device: what their errors name.

/// A library with error numbers of its own.
#[derive(Debug)]
pub struct ErrorLibrary {
    /// Name of the library.
    pub name: &'static str,
    /// Function that names one of the library's numbers.
    pub describe: fn(i32) -> &'static str,
}

impl PartialEq for ErrorLibrary {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for ErrorLibrary {}
