//! The simulation itself: it holds, it replays, it shrinks. `make sim` runs thousands of seeds.

use tidelog_tests::sim::{Act, Content, Script, Violation, run, shrink};

#[test]
fn seeds_hold() {
    for seed in 1_000_000..1_000_020 {
        let (figures, result) = run(&Script::new(seed, 1000));
        assert!(result.is_ok(), "seed {seed}: {}", result.unwrap_err());
        assert!(
            figures.crashes >= 3 && figures.faults >= 5 && figures.commits > 0,
            "seed {seed}: {figures:?}"
        );
    }
}

#[test]
fn a_seed_replays_to_the_last_fault() {
    for seed in [3, 4, 5] {
        let run = || run(&Script::new(seed, 800)).0;
        let (one, other) = (run(), run());
        assert_eq!(format!("{one:?}"), format!("{other:?}"), "seed {seed}");
    }
}

/// A class that does not exist makes the run panic: something to shrink.
#[test]
fn a_failure_shrinks_to_the_acts_that_it_needs() {
    let mut script = Script::new(7, 120);
    let content = Content { length: 5000, salt: 1 };
    script.acts.insert(70, Act::Put { id: 1, content, class: 9, urgent: false });
    let violation: Violation = run(&script).1.expect_err("there is no class 9");
    let (shortest, still) = shrink(&script, violation, 200);
    assert_eq!(shortest.acts.len(), 1, "{shortest:?}");
    assert!(still.what.contains("panicked"), "{still}");
}
