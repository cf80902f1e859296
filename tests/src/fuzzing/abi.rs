//! The C ABI as a sequence of calls: the first byte says of what, the others decide one call after
//! another.

use crate::abi::{CallerBehaviour, Choices, Delivery, walk_pool, walk_session};

/// Longer walks show nothing new, and take their time.
const STEPS_MAX: u32 = 200;

pub(super) fn run(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    let choices = Choices::of_bytes(bytes);
    let delivery = if kind / 3 % 2 == 0 { Delivery::Pulled } else { Delivery::Callbacks };
    let faithful = CallerBehaviour { delivery, ..CallerBehaviour::default() };
    let careless = CallerBehaviour {
        redelivered: 20,
        refused: 15,
        misreported: 20,
        interrupted: 15,
        ..faithful
    };
    match kind % 3 {
        0 => drop(walk_pool("fuzz-pool", choices, STEPS_MAX)),
        1 => drop(walk_session("fuzz-session", choices, STEPS_MAX, faithful)),
        _ => drop(walk_session("fuzz-careless", choices, STEPS_MAX, careless)),
    }
}
