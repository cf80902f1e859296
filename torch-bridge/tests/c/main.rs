//! Tests of C programs that are compiled, linked and run, and what is held to the last release.

mod programs;
mod stability;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The shared library that cargo built for this very test.
fn library() -> PathBuf {
    let library = std::env::current_exe().unwrap().with_file_name("libtidelog.so");
    assert!(library.exists(), "{} is missing: run the tests by cargo", library.display());
    library
}

fn include() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include")
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

fn compiler(name: &str, fallback: &str) -> Command {
    Command::new(std::env::var(name).unwrap_or_else(|_| fallback.to_owned()))
}

/// A fresh folder of this test's own.
fn folder(name: &str) -> PathBuf {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("c-program-{name}-{}-{count}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}
