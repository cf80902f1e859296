//! Libraries that are opened at run time: the first that opens of the places where one lives, each
//! of its functions looked up once.
#![allow(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// A library that is open.
pub(crate) struct Loaded {
    pub(crate) library: Library,
    /// The file, or the name by which the loader knew it.
    pub(crate) path: PathBuf,
}

/// The library is too old, or something else of that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{library} has no {symbol}; {advice}")]
pub struct Missing {
    /// The file.
    pub library: String,
    /// Function that the library lacks.
    pub symbol: &'static str,
    /// Advice on the missing function.
    pub advice: &'static str,
}

/// Opens a library: the named file and no other (by `variable` in the environment, where the caller
/// names none), or the first that opens of `places`.
///
/// # Errors
/// Each place that was tried, and what the loader said.
pub(crate) fn open(
    named: Option<&Path>,
    variable: &str,
    places: impl FnOnce() -> Vec<PathBuf>,
) -> Result<Loaded, Vec<String>> {
    let named = named.map(PathBuf::from);
    let named = named.or_else(|| std::env::var_os(variable).map(PathBuf::from));
    let mut tried = Vec::new();
    for path in named.map_or_else(places, |path| vec![path]) {
        // SAFETY: opening runs the library's initialisers, as any program that uses it does;
        // whoever can put another file there can run code here anyway.
        match unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) } {
            Ok(library) => return Ok(Loaded { library, path }),
            Err(error) => tried.push(said(&path, &error)),
        }
    }
    Err(tried)
}

fn said(path: &Path, error: &libloading::Error) -> String {
    let text = error.to_string();
    let name = path.display().to_string();
    if text.contains(&name) { text } else { format!("{name}: {text}") }
}

/// Returns the names of these files that are in a folder.
pub(crate) fn present<'a>(
    folder: &Path,
    names: &'a [&str],
) -> impl Iterator<Item = PathBuf> + use<'a> {
    let folder = folder.to_path_buf();
    names.iter().map(move |name| folder.join(name)).filter(|path| path.exists())
}

/// Returns the entries of a folder, in order.
pub(crate) fn children(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// Each function, or the word that it is missing: looked up once, when the library is opened.
macro_rules! functions {
    ($error:ty, $advice:literal: $($field:ident: $symbol:literal => fn($($argument:ty),*) $(-> $answer:ty)?;)*) => {
        /// The library's functions, each with the word that it is missing where it is.
        pub(super) struct Functions {
            $(pub(super) $field: Result<
                unsafe extern "C" fn($($argument),*) $(-> $answer)?,
                $error,
            >,)*
        }

        impl Functions {
            fn resolve(loaded: &$crate::loading::Loaded) -> Self {
                Self {
                    $($field: {
                        // SAFETY: the type is the one that the library's header declares for this
                        // name.
                        let found = unsafe {
                            loaded.library
                                .get::<unsafe extern "C" fn($($argument),*) $(-> $answer)?>($symbol)
                        };
                        found.map(|symbol| *symbol).map_err(|_| <$error>::from($crate::loading::Missing {
                            library: loaded.path.display().to_string(),
                            symbol: $symbol,
                            advice: $advice,
                        }))
                    },)*
                }
            }

            fn missing(&self) -> Vec<&'static str> {
                let all = [$(($symbol, self.$field.is_ok())),*];
                all.into_iter().filter(|(_, there)| !there).map(|(symbol, _)| symbol).collect()
            }
        }
    };
}
pub(crate) use functions;
