//! Programs in C, C++ and Python, against the header and the shared library.

use std::path::Path;
use std::process::Command;

use crate::{compiler, folder, include, library, run};

/// Memory that is read or written where it must not be, leaks, and undefined behaviour end the
/// program. What the library itself allocates is watched, too: by `malloc`.
const SANITIZE: [&str; 2] = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

/// Has the compiler link with the library, which the program finds by its name in `work`.
fn link(compiler: &mut Command, work: &Path) {
    let library = library();
    std::os::unix::fs::symlink(&library, work.join("libtidelog.so.0")).unwrap();
    compiler.arg(library).arg(format!("-Wl,-rpath,{}", work.display()));
}

/// The options of a compiler that has the sanitizers.
fn sanitizers(name: &str, fallback: &str, work: &Path) -> &'static [&'static str] {
    let probe = work.join("probe.c");
    std::fs::write(&probe, "int main(void) { return 0; }\n").unwrap();
    let program = work.join("probe");
    let built =
        compiler(name, fallback).args(SANITIZE).arg(&probe).arg("-o").arg(&program).output();
    let works = built.is_ok_and(|built| built.status.success())
        && Command::new(&program).output().is_ok_and(|ran| ran.status.success());
    if works {
        return &SANITIZE;
    }
    println!("SKIPPED: {fallback} has no AddressSanitizer here; the program runs without it");
    &[]
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
        .arg(include())
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

/// Compiles an example against the header and the library, and runs it on two directories under
/// the sanitizers. Returns what it says.
fn run_example((name, fallback): (&str, &str), standard: &str, source: &str) -> String {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let work = folder(&source.replace('.', "-"));
    let program = work.join("program");
    let mut compiler = compiler(name, fallback);
    compiler
        .args([standard, "-pedantic", "-Wall", "-Wextra", "-Werror", "-g"])
        .args(sanitizers(name, fallback, &work))
        .arg("-I")
        .arg(include())
        .arg(package.join("examples").join(source));
    link(&mut compiler, &work);
    run(compiler.arg("-o").arg(&program));
    let options = "detect_leaks=1:detect_stack_use_after_return=1";
    let ran = run(Command::new(&program).arg(two_devices(&work)).env("ASAN_OPTIONS", options));
    std::fs::remove_dir_all(&work).unwrap();
    String::from_utf8(ran.stdout).unwrap()
}

/// Two directories in this one, as the library takes them.
fn two_devices(work: &Path) -> String {
    let devices = ["ssd0", "ssd1"].map(|name| work.join(name));
    for device in &devices {
        std::fs::create_dir_all(device).unwrap();
    }
    devices.map(|device| device.display().to_string()).join(",")
}

const C: (&str, &str) = ("CC", "cc");
const CPP: (&str, &str) = ("CXX", "c++");

#[test]
fn the_c_example_is_c90_and_works() {
    let says = run_example(C, "-std=c90", "tensors.c");
    assert!(says.contains("[\"weights\"]"), "{says}");
}

#[test]
fn the_cpp_example_is_cpp17_and_works() {
    let says = run_example(CPP, "-std=c++17", "tensors.cpp");
    assert!(says.contains("as it should"), "{says}");
}

#[test]
fn the_event_loop_example_is_c90_and_works() {
    let says = run_example(C, "-std=c90", "event_loop.c");
    assert!(says.contains("16 transfers and 1 commit"), "{says}");
}

#[test]
fn the_session_example_is_c90_and_works() {
    let says = run_example(C, "-std=c90", "session.c");
    assert!(says.contains("they moved"), "{says}");
}

#[test]
fn the_sanitizers_see_what_the_library_allocates() {
    // The other way round: a program that leaks, and one that the library hands a buffer too short.
    let work = folder("leak");
    let options = sanitizers("CC", "cc", &work);
    if options.is_empty() {
        return;
    }
    let source = work.join("leak.c");
    let text = "#include <stdlib.h>\n#include \"tidelog.h\"\n\
         int main(int argc, char **argv) { uint64_t t[4]; size_t i; char *volatile short_one = malloc(1);\n\
         (void)argv; if (argc > 1) { tide_ticket_wait(1, 0); tide_last_error(short_one, 64, NULL); \
         free(short_one); }\n short_one = NULL; (void)t; (void)i; return 0; }\n";
    std::fs::write(&source, text).unwrap();
    let program = work.join("program");
    let mut compiler = compiler("CC", "cc");
    compiler.args(options).args(["-g", "-I"]).arg(include()).arg(&source);
    link(&mut compiler, &work);
    run(compiler.arg("-o").arg(&program));
    let found = |arguments: &[&str]| {
        let ran = Command::new(&program).args(arguments).output().unwrap();
        assert!(!ran.status.success(), "nothing was found with {arguments:?}");
        String::from_utf8_lossy(&ran.stderr).into_owned()
    };
    assert!(found(&[]).contains("LeakSanitizer"));
    assert!(found(&["overflow"]).contains("heap-buffer-overflow"));
    std::fs::remove_dir_all(&work).unwrap();
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
    let header = include().join("tidelog.h");
    let strict = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only"];
    for standard in ["-std=c90", "-std=c17"] {
        run(compiler("CC", "cc").args(["-x", "c", standard]).args(strict).arg(&header));
    }
    for standard in ["-std=c++11", "-std=c++17"] {
        run(compiler("CXX", "c++").args(["-x", "c++", standard]).args(strict).arg(&header));
    }
}
