//! A C program, compiled against the header and linked with the shared library, works.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The shared library that cargo built for this very test.
fn library() -> PathBuf {
    let library = std::env::current_exe().unwrap().with_file_name("libtidelog.so");
    assert!(library.exists(), "{} is missing: run the tests by cargo", library.display());
    library
}

/// Has the compiler link with the library, which the program finds by its name in `work`.
fn link(compiler: &mut Command, work: &Path) {
    let library = library();
    std::os::unix::fs::symlink(&library, work.join("libtidelog.so.0")).unwrap();
    compiler.arg(library).arg(format!("-Wl,-rpath,{}", work.display()));
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
    let work = folder("roundtrip");
    let program = work.join("roundtrip");
    let mut compiler = compiler("CC", "cc");
    compiler
        .args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-g", "-D_GNU_SOURCE"])
        .arg("-I")
        .arg(package.join("include"))
        .arg(package.join("tests/c/roundtrip.c"));
    link(&mut compiler, &work);
    run(compiler.arg("-o").arg(&program));
    let (first, second) = (work.join("ssd0"), work.join("ssd1"));
    for device in [&first, &second] {
        std::fs::create_dir_all(device).unwrap();
    }
    run(Command::new(&program).arg(&first).arg(&second));
    std::fs::remove_dir_all(&work).unwrap();
}

/// Compiles an example against the header and the library, and runs it on two directories.
fn run_example(compiler: &mut Command, source: &str) {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let work = folder(&source.replace('.', "-"));
    let program = work.join("program");
    compiler
        .args(["-pedantic", "-Wall", "-Wextra", "-Werror", "-g"])
        .arg("-I")
        .arg(package.join("include"))
        .arg(package.join("examples").join(source));
    link(compiler, &work);
    run(compiler.arg("-o").arg(&program));
    run(Command::new(&program).arg(two_devices(&work)));
    std::fs::remove_dir_all(&work).unwrap();
}

/// Two directories in this one, as the library takes them.
fn two_devices(work: &Path) -> String {
    let devices = ["ssd0", "ssd1"].map(|name| work.join(name));
    for device in &devices {
        std::fs::create_dir_all(device).unwrap();
    }
    devices.map(|device| device.display().to_string()).join(",")
}

#[test]
fn the_c_example_is_c90_and_works() {
    run_example(compiler("CC", "cc").arg("-std=c90"), "tensors.c");
}

#[test]
fn the_cpp_example_is_cpp17_and_works() {
    run_example(compiler("CXX", "c++").arg("-std=c++17"), "tensors.cpp");
}

#[test]
fn the_numpy_example_works_without_torch() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = package.join("../.venv/bin/python");
    if !python.exists() {
        println!("SKIPPED: there is no {}, which `make setup` makes", python.display());
        return;
    }
    let work = folder("numpy");
    run(Command::new(python)
        .arg(package.join("examples/numpy_arrays.py"))
        .arg(library())
        .arg(two_devices(&work)));
    std::fs::remove_dir_all(&work).unwrap();
}

#[test]
fn the_header_is_c_and_cpp_by_itself() {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/tidelog.h");
    let strict = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only"];
    for standard in ["-std=c90", "-std=c17"] {
        run(compiler("CC", "cc").args(["-x", "c", standard]).args(strict).arg(&header));
    }
    for standard in ["-std=c++11", "-std=c++17"] {
        run(compiler("CXX", "c++").args(["-x", "c++", standard]).args(strict).arg(&header));
    }
}
