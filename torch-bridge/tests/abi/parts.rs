//! Plans that move parts of storages, under a framework that follows the rules and under ones that
//! are careless with them. What is out in part has other bytes than it should, so nobody takes it
//! for what it was.

use tidelog::abi::*;

use tidelog_tests::abi::{CallerBehaviour, Choices, Delivery, Framework, STAGING, last_error};

use super::training::{LAYERS, Training};

const SIZE: usize = 4 << 20;
/// A quarter of a storage does not fit: a part of it is enough.
const BUDGET: u64 = STAGING + (2 * LAYERS as usize * SIZE - SIZE / 4) as u64;

/// A training that moves parts.
fn in_parts(seed: u64, manners: CallerBehaviour) -> Training {
    let manners = CallerBehaviour { parts: true, ..manners };
    let framework = Framework::open(&format!("parted-{seed}"), BUDGET, seed, manners);
    let mut training = Training::new(framework, SIZE);
    training.until(40, |stats| stats["last_step"]["fetches_of_parts"].as_u64() > Some(0));
    training
}

/// Disturbs the framework as a program may do between two ops.
fn disturb(choices: &mut Choices, framework: &mut Framework) {
    let numbers = framework.numbers();
    let number = numbers[choices.below(numbers.len() as u64) as usize];
    let size = 1 + choices.below(SIZE as u64 / 4) as usize;
    match choices.below(16) {
        0..2 => framework.write_beside(number),
        2..4 => framework.evict(number),
        4 => {
            let begun = framework.op((-1, "collective", 0), &[(number, true)], &[]);
            framework.async_use(number, begun);
        }
        5 => {
            framework.pin(number, true);
            framework.op((-1, "alias", 0), &[(number, true)], &[]);
            framework.pin(number, false);
        }
        6 => {
            // Ctrl-C: begun, and never heard of again.
            let status = framework.begin_op((-1, "interrupted", 0), &[(number, true)], &[]);
            let is_usual = status >= TIDE_BUDGET_EXCEEDED || status == TIDE_INTERRUPTED;
            assert!(is_usual, "{}", last_error());
        }
        7 => {
            framework.perform_one();
        }
        8 => {
            framework.sync();
            let status = framework.call(|session| tide_session_settle(session));
            framework.drive(status);
        }
        9 => framework.set_budget(BUDGET + choices.below(SIZE as u64)),
        10 => {
            let made = framework.free_number();
            if framework.op((-1, "made", 0), &[(number, false)], &[(made, size)]) {
                framework.kill(made);
            }
        }
        11 if choices.percent(20) => {
            assert_eq!(tide_session_leave_plan(framework.session), TIDE_READY);
        }
        12 => {
            let _ = framework.op((-1, "look", 0), &[(number, false)], &[]);
        }
        13 => {
            framework.sync();
            assert!(tide_session_resume(framework.session) >= TIDE_BUDGET_EXCEEDED);
            assert!(tide_session_wait(framework.session, 0) >= TIDE_BUDGET_EXCEEDED);
        }
        _ => {}
    }
}

#[test]
fn parts_move_and_no_byte_is_lost() {
    let mut training = in_parts(0, CallerBehaviour::default());
    training.steps(2);
    training.framework.end();
}

#[test]
fn no_byte_of_a_part_is_lost_whatever_happens_between_ops() {
    for seed in 1..4 {
        // The last one has callbacks, which end calls in place of taking requests twice.
        let careless = CallerBehaviour {
            redelivered: 10 * seed,
            refused: 3 * seed,
            delivery: if seed < 3 { Delivery::Pulled } else { Delivery::Callbacks },
            interrupted: 10,
            ..Default::default()
        };
        let mut training = in_parts(seed, careless);
        let mut choices = Choices::of_seed(seed);
        for _ in 0..4 {
            training.step_with(|framework| disturb(&mut choices, framework));
        }
        training.framework.end();
    }
}

#[test]
fn what_fits_no_session_with_parts_is_refused() {
    let manners = CallerBehaviour { parts: true, ..CallerBehaviour::default() };
    let framework = Framework::open("parts-refused", BUDGET, 0, manners);
    let session = framework.session;
    let birth = tide_birth { storage: 7, size: 1 << 20, place: u64::from(u32::MAX) << 16 };
    // SAFETY: one birth, no deaths; a null pointer is what the function must withstand.
    let (born, begin) = unsafe {
        let born = tide_session_sync(session, &raw const birth, 1, std::ptr::null(), 0);
        (born, tide_session_part_begin(session, 1, std::ptr::null_mut()))
    };
    assert_eq!((born, begin), (TIDE_INVALID_ARGUMENT, TIDE_INVALID_ARGUMENT));
    framework.end();
}
