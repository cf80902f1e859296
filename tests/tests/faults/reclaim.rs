//! Readers that verify every byte while reclamation copies it somewhere else.

use std::time::Duration;

use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::Source;
use tidelog_engine::pool::{PutError, PutOptions};
use tidelog_tests::load::{Ledger, Load, LoadOptions};

use super::rig::{Kind, Rig, only_honest_errors, watch};

#[test]
fn readers_see_every_byte_while_reclamation_copies_in_a_pool_that_is_nearly_full() {
    let test = "readers_see_every_byte_while_reclamation_copies_in_a_pool_that_is_nearly_full";
    let _watchdog = watch(test);
    for percent in [80, 90, 95] {
        let rig = Rig::new(&format!("reclaim-{percent}"), Kind::Files).unwrap();
        let pool = rig.open();
        let options =
            LoadOptions { tensors_per_writer: 12, longest: 40_000, readers: 3, seed: percent };
        let ledger = Ledger::new(options);
        let load = Load::start(&pool, &ledger);
        // What never dies lies between what always does: the load runs while it is put.
        let mut ballast = 0;
        let target = pool.audit().unwrap().capacity.0 * percent / 100;
        while pool.audit().unwrap().live.0 < target {
            let put = pool.put(
                TensorId(ballast),
                Source::from(vec![ballast as u8; 24_000]),
                PutOptions::default(),
            );
            match put {
                Ok(ticket) => ticket.wait().map(|_| ()).unwrap(),
                // The load's own tensors may be long just now: this is as full as it gets.
                Err(PutError::PoolFull { .. }) => break,
                Err(error) => panic!("{error}"),
            }
            ballast += 1;
        }
        let before = pool.stats().unwrap().written.moved.0;
        let mut rounds = 0;
        while pool.stats().unwrap().written.moved.0 < before + (8 << 20) && rounds < 200 {
            load.run(50, Duration::from_millis(100));
            rounds += 1;
        }
        let moved = pool.stats().unwrap().written.moved.0 - before;
        load.stop();
        // A pool this full may refuse a put; it says so with its figures.
        only_honest_errors(&ledger, &["the pool is full"]);
        assert!(moved > 1 << 20, "{percent} %: reclamation has copied {moved} bytes only");
        ledger.verify_scratch(&pool).unwrap();
        let report = pool.scrub().unwrap();
        assert_eq!(report.damaged, [], "{percent} %");
        pool.audit().unwrap();
        pool.close().unwrap();
        let pool = rig.open();
        ledger.verify_durable(&pool, |_, _| false).unwrap();
        pool.audit().unwrap();
    }
}
