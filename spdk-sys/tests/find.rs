//! Messages of a build about the SPDK that it finds, or does not. No SPDK is needed: what
//! pkg-config finds is made up.

#[path = "../build/find.rs"]
mod find;

use std::fs;
use std::path::{Path, PathBuf};

use find::{InstalledSpdk, OLDEST, PkgConfig};

/// A directory of this test, with an SPDK of this version in it if there is one.
fn installed(name: &str, version: Option<(u32, u32)>) -> PathBuf {
    let place =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&place);
    fs::create_dir_all(place.join("include/spdk")).unwrap();
    if let Some((year, month)) = version {
        let package = format!(
            "Name: spdk_nvme\nDescription: of a test\nVersion: 1.0\nCflags: -I{}\n",
            place.join("include").display()
        );
        fs::write(place.join("spdk_nvme.pc"), package).unwrap();
        let header = format!(
            "#ifndef SPDK_VERSION_H\n#define SPDK_VERSION_MAJOR\t{year}\n#define SPDK_VERSION_MINOR\t{month}\n\
             #define SPDK_VERSION_MINOR_STRING \"x\"\n#endif\n"
        );
        fs::write(place.join("include/spdk/version.h"), header).unwrap();
    }
    place
}

fn find_in(place: &Path) -> Result<InstalledSpdk, String> {
    PkgConfig { only: Some(place.into()) }.find("spdk_nvme")
}

/// The tests need the program as the build itself does.
fn has_pkg_config() -> bool {
    let has = std::process::Command::new("pkg-config").arg("--version").output().is_ok();
    if !has {
        println!("SKIPPED: there is no pkg-config");
    }
    has
}

#[test]
fn an_spdk_that_is_not_there_is_asked_for_with_the_place_to_name() {
    if !has_pkg_config() {
        return;
    }
    let why = find_in(&installed("missing", None)).unwrap_err();
    for said in ["24.09 or newer", "spdk_nvme", "PKG_CONFIG_PATH"] {
        assert!(why.contains(said), "{why}");
    }
}

#[test]
fn an_spdk_that_is_too_old_is_refused_by_its_version() {
    if !has_pkg_config() {
        return;
    }
    let why = find_in(&installed("old", Some((24, 5)))).unwrap_err();
    assert_eq!(why, "SPDK 24.05 is too old; install 24.09 or newer");
}

#[test]
fn an_spdk_that_serves_is_found_with_its_version() {
    if !has_pkg_config() {
        return;
    }
    for (version, text) in [(OLDEST, "24.09"), ((26, 5), "26.05")] {
        let place = installed(text, Some(version));
        let header = place.join("include/spdk/version.h");
        assert_eq!(find_in(&place), Ok(InstalledSpdk { version: text.into(), header }));
    }
    let place = installed("without", Some(OLDEST));
    fs::write(place.join("include/spdk/version.h"), "").unwrap();
    assert!(find_in(&place).unwrap_err().contains("no SPDK_VERSION_MAJOR"));
}
