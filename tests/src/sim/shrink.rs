//! Leaves out what a failure does not need.

use super::runner::{Violation, run};
use super::script::Script;

/// The shortest script that still fails, found by leaving out ever smaller parts, in at most `runs`
/// runs.
pub fn shrink(script: &Script, violation: Violation, runs: usize) -> (Script, Violation) {
    let mut best = script.clone();
    best.acts.truncate(violation.act + 1);
    let mut found = violation;
    let mut left = runs;
    let mut part = best.acts.len() / 2;
    while part > 0 && left > 0 {
        let mut at = 0;
        while at < best.acts.len() && left > 0 {
            left -= 1;
            let mut without = best.clone();
            without.acts.drain(at..(at + part).min(best.acts.len()));
            match run(&without).1 {
                Err(violation) => {
                    without.acts.truncate(violation.act + 1);
                    (best, found) = (without, violation);
                }
                Ok(()) => at += part,
            }
        }
        part /= 2;
    }
    (best, found)
}
