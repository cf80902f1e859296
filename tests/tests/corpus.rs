//! The committed corpus of the fuzz targets, replayed without a fuzzer: what was found once stays
//! found.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use tidelog_tests::fuzzing::{TARGETS, Target};

fn entries(folder: &Path) -> Vec<PathBuf> {
    let listed = std::fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("{} cannot be listed: {error}", folder.display()));
    let mut paths: Vec<_> = listed.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

fn replay(target: &Target) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target.name);
    let inputs = entries(&corpus);
    assert!(!inputs.is_empty(), "{} has no inputs", corpus.display());
    for input in inputs {
        let bytes = std::fs::read(&input).unwrap();
        let ran = std::panic::catch_unwind(|| (target.run)(&bytes));
        assert!(ran.is_ok(), "{} breaks a rule: see the panic above", input.display());
    }
}

#[test]
fn every_target_has_a_corpus_and_a_binary_and_no_corpus_is_without_a_target() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz");
    let names = |folder: PathBuf| -> BTreeSet<String> {
        let stem = |path: &PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
        entries(&folder).iter().map(stem).collect()
    };
    let targets: BTreeSet<_> = TARGETS.iter().map(|target| target.name.to_owned()).collect();
    assert_eq!(names(fuzz.join("corpus")), targets);
    assert_eq!(names(fuzz.join("targets")), targets);
}

macro_rules! replays {
    ($($target:ident),+) => {
        $(
            #[test]
            fn $target() {
                let target = TARGETS.iter().find(|target| target.name == stringify!($target));
                replay(target.expect("it is a target"));
            }
        )+

        #[test]
        fn every_target_is_replayed() {
            let replayed = [$(stringify!($target)),+];
            assert_eq!(TARGETS.map(|target| target.name).as_slice(), replayed.as_slice());
        }
    };
}

replays!(superblock, record, index, recovery, device, trace, plan, machine, abi);
