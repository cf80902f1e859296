//! The simulation itself: it holds, it replays, it shrinks. `make sim` runs thousands of seeds.

use tidelog_tests::sim::{
    Act, Content, Cut, Harm, HarmedCopies, How, Part, Script, Violation, run, shrink,
};

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

/// Harms the two copies of the metadata, or one block of a disk: every part in every way, on one
/// copy, on both in different blocks, and on both in the same.
#[test]
fn whatever_block_of_a_closed_pool_is_harmed_nothing_is_lost_while_a_copy_stands() {
    let content = |length: u32, salt: u32| Content { length, salt };
    let before = vec![
        Act::Batch {
            puts: (0..6).map(|id| (id, content(30_000, 1), 0)).collect(),
            deletes: vec![],
            commit: true,
        },
        Act::FillIndex { first: 0, count: 90, flight: false },
        Act::FillIndex { first: 90, count: 90, flight: false },
        Act::FillIndex { first: 180, count: 90, flight: false },
        Act::Seal {
            name: 0,
            scratch: vec![],
            durable: vec![1, 2, 3],
            dropped: None,
            flight: false,
        },
        Act::Batch { puts: vec![(1, content(9_000, 2), 0)], deletes: vec![5], commit: true },
        Act::Batch { puts: vec![(2, content(70_000, 3), 0)], deletes: vec![], commit: true },
    ];
    let (rot, other) = (How::Rot(16), How::OfAnotherDevice);
    let mut wrong = Vec::new();
    for (part, hows) in [
        (
            Part::FirstSuperblock,
            &[rot, How::Unreadable, How::Zeroes, other, How::OfAnotherPool][..],
        ),
        (Part::SecondSuperblock, &[rot, How::Unreadable, How::Zeroes, other, How::OfAnotherPool]),
        (Part::Holder, &[rot, How::Unreadable, How::Zeroes]),
        (Part::Owner, &[rot, How::Unreadable]),
        (Part::Checkpoint, &[rot, How::Unreadable, How::Zeroes]),
        (Part::Grown, &[rot, How::Unreadable, How::Zeroes]),
        (Part::Record, &[rot, How::Unreadable, How::Zeroes]),
        (Part::LastRecord, &[rot, How::Unreadable, How::Zeroes]),
        (Part::Tail, &[rot, How::Unreadable, How::Zeroes]),
        (Part::OtherSlot, &[rot, How::Unreadable, How::Zeroes]),
        (Part::Tensor, &[rot, How::Unreadable]),
    ] {
        // Each disk has its own superblocks, holder and owner block, and each tensor is there once.
        let is_of_index = matches!(
            part,
            Part::Checkpoint
                | Part::Grown
                | Part::Record
                | Part::LastRecord
                | Part::Tail
                | Part::OtherSlot
        );
        let all = [HarmedCopies::One, HarmedCopies::Apart, HarmedCopies::All];
        let copies = if is_of_index { &all[..] } else { &all[..1] };
        for (&how, &copies) in hows.iter().flat_map(|how| copies.iter().map(move |it| (how, it))) {
            let disks = if is_of_index && copies != HarmedCopies::One { 2..=2 } else { 1..=3 };
            for disks in disks {
                let at = [1000, 50_000];
                let second = hows[usize::from(disks) % hows.len()];
                let harm = Harm { part, how: [how, second], copies, disk: 1, at };
                let repair = disks == 2;
                // After the last commit, and after an opening, which leaves a checkpoint last.
                for last in [None, Some(Act::Reopen)] {
                    let mut acts = before.clone();
                    acts.extend(last.clone());
                    acts.push(Act::Harm { harm, cut: None, repair });
                    let (logical_block, stripe_kib) = (512, 16);
                    let script =
                        Script { seed: 9, disks, logical_block, stripe_kib, mirrors: false, acts };
                    if let Err(violation) = run(&script).1 {
                        wrong.push(format!("{disks} disk(s), {last:?} before: {violation}"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn a_seal_holds_what_its_own_batch_puts() {
    let content = |salt: u32| Content { length: 20_000, salt };
    let acts = vec![
        Act::Batch { puts: vec![(1, content(1), 0)], deletes: vec![], commit: true },
        Act::PutAndSeal {
            name: 0,
            puts: vec![(1, content(2), 0), (2, content(3), 1)],
            durable: vec![1],
            flight: false,
        },
        Act::Batch { puts: vec![(1, content(4), 0)], deletes: vec![2], commit: true },
        Act::Crash(Cut::Drop),
    ];
    let script =
        Script { seed: 3, disks: 2, logical_block: 4096, stripe_kib: 4, mirrors: false, acts };
    let (_, result) = run(&script);
    assert!(result.is_ok(), "{}", result.unwrap_err());
}

/// A read fails because its disk is gone, and a block that another tensor has there is lost before
/// anybody looks: that is one tensor lost.
#[test]
fn a_tensor_on_a_disk_that_is_gone_is_not_lost() {
    let content = |salt: u32| Content { length: 100_000, salt };
    for at in (0..u16::MAX).step_by(512) {
        let acts = vec![
            Act::Batch {
                puts: vec![(1, content(1), 0), (2, content(2), 0)],
                deletes: vec![],
                commit: true,
            },
            Act::Vanish { disk: 1 },
            Act::Begin { id: 1, durable: true, slow: false },
            Act::Lose { disk: 1, metadata: false, at },
        ];
        let script =
            Script { seed: 3, disks: 2, logical_block: 4096, stripe_kib: 16, mirrors: false, acts };
        let (_, result) = run(&script);
        assert!(result.is_ok(), "byte {at} of 65536: {}", result.unwrap_err());
    }
}

/// A copy that was made while a disk lacked its first superblock, and had rotted beside it, may be
/// refused for what stands there instead of for its age.
#[test]
fn an_older_copy_with_a_hurt_start_is_refused_for_either() {
    let acts = vec![
        Act::Rot { disk: 0, metadata: true, at: 13_571, mask: 1 },
        Act::Lose { disk: 0, metadata: true, at: 94 },
        Act::Copy { disk: 0 },
        Act::Reopen,
        Act::Stale { disk: 0, cut: None },
    ];
    let script =
        Script { seed: 10_450, disks: 3, logical_block: 512, stripe_kib: 16, mirrors: false, acts };
    let (_, result) = run(&script);
    assert!(result.is_ok(), "{}", result.unwrap_err());
}
