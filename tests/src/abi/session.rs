//! A session under a framework that follows the rules, and under one that is careless with them.

use std::ptr::{null, null_mut};

use tidelog::abi::*;

use super::{
    CallerBehaviour, Choices, Delivery, Framework, STAGING, last_error, statuses_of_a_stale,
};

const KIB: usize = 1 << 10;

/// Walks through everything that may be called of a session, `steps` long or until the choices are
/// over. Returns the session's figures at the end.
pub fn walk_session(
    name: &str,
    mut choices: Choices,
    steps: u32,
    manners: CallerBehaviour,
) -> serde_json::Value {
    let budget = STAGING + (512 << 10);
    let mut framework = Framework::open(name, budget, choices.content(), manners);
    // With callbacks a call sees the end of what it begins: there may be no memory for it.
    let may_fail = manners.delivery == Delivery::Callbacks && manners.refused > 0;
    let mut index = -1_i64;
    for _ in 0..steps {
        if choices.are_over() {
            break;
        }
        let numbers = framework.numbers();
        let some = |choices: &mut Choices| {
            (!numbers.is_empty()).then(|| numbers[choices.below(numbers.len() as u64) as usize])
        };
        match choices.below(100) {
            0..45 => {
                let mut uses: Vec<(u32, bool)> = Vec::new();
                for _ in 0..choices.below(4) {
                    uses.extend(some(&mut choices).map(|number| (number, choices.percent(40))));
                }
                uses.sort_unstable();
                uses.dedup_by_key(|(number, _)| *number);
                let size = (choices.below(64 * KIB as u64) + 1) as usize;
                let makes = choices.percent(40).then(|| (framework.free_number(), size));
                let op = (index, "aten.op", choices.below(3));
                if choices.percent(8) {
                    // Ctrl-C: begun, and never heard of again.
                    let outputs = makes.as_slice();
                    let status = framework.begin_op(op, &uses, outputs);
                    let is_usual = [TIDE_BUDGET_EXCEEDED, TIDE_INTERRUPTED].contains(&status);
                    assert!(status >= 0 || is_usual || may_fail, "{}", last_error());
                } else if framework.op(op, &uses, makes.as_slice()) && index >= 0 {
                    index += 1;
                }
            }
            45..60 => {
                let number = framework.free_number();
                framework.make(number, (choices.below(96 * KIB as u64)) as usize, None);
            }
            60..70 => {
                if let Some(number) = some(&mut choices) {
                    framework.kill(number);
                }
            }
            70..75 => {
                if let Some(number) = some(&mut choices) {
                    framework.evict(number);
                }
            }
            75..79 => {
                if let Some(number) = some(&mut choices) {
                    framework.write_beside(number);
                }
            }
            79..83 => {
                if let Some(number) = some(&mut choices).filter(|_| choices.percent(50)) {
                    if framework.op((-1, "collective", 0), &[(number, true)], &[]) {
                        framework.async_use(number, true);
                    }
                } else if let Some(number) = some(&mut choices) {
                    framework.pin(number, true);
                    framework.op((-1, "alias", 0), &[(number, true)], &[]);
                    framework.pin(number, false);
                }
            }
            83..87 => {
                let begins = choices.percent(60);
                framework.step(if begins { 1 } else { i32::from(choices.percent(30)) * 2 });
                index = if begins { 0 } else { -1 };
            }
            87..90 => set_a_budget(&mut choices, &mut framework, budget),
            90 => assert_eq!(tide_session_leave_plan(framework.session), TIDE_READY),
            91 => {
                let held = i32::from(choices.percent(50));
                assert!((0..=1).contains(&tide_session_hold_plan(framework.session, held)));
            }
            92..94 => {
                framework.perform_one();
            }
            94..96 => assert!(framework.stats()["resident_bytes"].is_u64()),
            97 if choices.percent(40) => framework.pause(choices.percent(50)),
            96..98 => {
                framework.sync();
                let status = framework.call(|session| tide_session_settle(session));
                framework.drive(status);
            }
            // Calls that fit nothing that went before.
            98 if choices.percent(50) => hostile(&mut choices, framework.session),
            98 => {
                framework.sync();
                assert_usual(framework.call(|session| tide_session_op_end(session)));
            }
            _ => {
                framework.sync();
                assert_usual(framework.call(|session| tide_session_resume(session)));
                assert_usual(framework.call(|session| tide_session_resume_or_refuse(session)));
                assert_usual(framework.call(|session| tide_session_wait(session, 0)));
            }
        }
    }
    let stats = framework.stats();
    framework.end();
    stats
}

/// Sets another budget of memory, or of bytes that are written.
fn set_a_budget(choices: &mut Choices, framework: &mut Framework, budget: u64) {
    if choices.percent(60) {
        return framework.set_budget(budget + choices.below(128 << 10));
    }
    let per_day = [0, 1, choices.below(1 << 50), u64::MAX][choices.below(4) as usize];
    assert_eq!(tide_session_set_write_budget(framework.session, per_day), TIDE_READY);
    let paused = tide_session_throttle(framework.session, 0);
    assert!([TIDE_READY, TIDE_WAITING].contains(&paused), "{}", last_error());
}

/// A state, or an error that may come of a call that fits nothing that went before.
fn assert_usual(status: i32) {
    assert!(status >= TIDE_BUDGET_EXCEEDED || status == TIDE_INTERRUPTED, "{}", last_error());
}

/// Calls that no caller should make: each is refused and changes nothing.
fn hostile(choices: &mut Choices, session: u64) {
    let unknown = u32::MAX >> 1;
    let (word, birth) =
        (3_u32, tide_birth { storage: choices.below(1 << 40) | 1 << 33, size: 1, place: u64::MAX });
    let name = c"op".as_ptr();
    let call = choices.below(16);
    // SAFETY: null and misaligned pointers and impossible counts are what the functions must
    // withstand: they are refused before anything is read.
    let status = unsafe {
        match call {
            0 => tide_session_sync(session, null(), 1 + choices.below(9) as usize, null(), 0),
            1 => tide_session_sync(session, null(), 0, null(), usize::MAX),
            2 => tide_session_sync(session, &raw const birth, 1, null(), 0),
            3 => tide_session_sync(session, (&raw const birth).byte_add(1), 1, null(), 0),
            4 => tide_session_op_begin(session, 0, 0, name, &raw const word, usize::MAX, 0),
            5 => tide_session_op_begin(session, 0, 0, null(), null(), 0, 0),
            6 => tide_session_name(session, unknown, 1, name),
            7 => tide_session_resized(session, unknown, choices.below(u64::MAX)),
            8 => tide_session_modified(session, unknown),
            9 => tide_session_evict(session, unknown),
            10 => tide_session_step(session, 3 + choices.below(100) as i32),
            11 => tide_session_next_action(session, null_mut::<tide_action>().wrapping_byte_add(1)),
            12 => tide_session_plan(session, null_mut(), null_mut()),
            13 => tide_session_trace(session, null()),
            14 => tide_session_set_callbacks(
                session,
                null::<tide_session_callbacks>().wrapping_byte_add(1),
            ),
            _ => tide_session_report(session, null()),
        }
    };
    let no_request = call == 11 && status == TIDE_READY;
    assert!(no_request || status == TIDE_INVALID_ARGUMENT, "{call}: {status}: {}", last_error());
    let stale = session + 1 + choices.below(1 << 50);
    let statuses = statuses_of_a_stale(stale);
    assert!(statuses.iter().all(|&status| status == TIDE_STALE_HANDLE), "{statuses:?}");
}
