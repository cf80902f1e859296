//! A C program, compiled against the header and linked with the shared library, works.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The shared library that cargo built for this very test, and the folder it is in.
fn library() -> (PathBuf, PathBuf) {
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let library = folder.join("libtidelog.so");
    assert!(library.exists(), "{} is missing: run the tests by cargo", library.display());
    (library, folder)
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

fn compiler(name: &str, fallback: &str) -> Command {
    Command::new(std::env::var(name).unwrap_or_else(|_| fallback.to_owned()))
}

/// A fresh folder of this test's own.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("c-program-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn a_c_program_moves_tensors_and_finds_the_durable_one_again() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (library, libraries) = library();
    let work = folder("roundtrip");
    let program = work.join("roundtrip");
    run(compiler("CC", "cc")
        .args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-g", "-D_GNU_SOURCE"])
        .arg("-I")
        .arg(package.join("include"))
        .arg(package.join("tests/c/roundtrip.c"))
        .arg(&library)
        .arg(format!("-Wl,-rpath,{}", libraries.display()))
        .arg("-o")
        .arg(&program));
    let (first, second) = (work.join("ssd0"), work.join("ssd1"));
    for device in [&first, &second] {
        std::fs::create_dir_all(device).unwrap();
    }
    run(Command::new(&program).arg(&first).arg(&second));
    std::fs::remove_dir_all(&work).unwrap();
}

#[test]
fn the_header_is_c_and_cpp_by_itself() {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/tidelog.h");
    let strict = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only"];
    run(compiler("CC", "cc").args(["-x", "c", "-std=c99"]).args(strict).arg(&header));
    run(compiler("CXX", "c++").args(["-x", "c++", "-std=c++11"]).args(strict).arg(&header));
}
