use super::*;
use crate::simulate::with_expectations;
use crate::testing::{machine, training};
use crate::tidelog::{TidelogOptions, frontier};

fn four_990_pro() -> Wearing {
    Wearing {
        model: "990 PRO 2TB".to_owned(),
        drives: 4,
        writers: 1,
        capacity: Some(Bytes(2_000_000_000_000)),
        endurance: Some(Bytes(1_200_000_000_000_000)),
        amplification_percent: 100,
    }
}

#[test]
fn four_drives_under_eight_gigabytes_a_second_last_a_week() {
    // The figure of the published system's authors: 4 x 1200 TB at 8 GB/s.
    let wear = four_990_pro().wear(Nanos(1_000_000_000), Bytes(8_000_000_000));
    assert_eq!(wear.written_per_day, Bytes(691_200_000_000_000));
    assert_eq!(wear.written_per_day_and_drive, Bytes(172_800_000_000_000));
    assert_eq!(wear.drive_writes_per_day_per_mille, Some(86_400));
    assert_eq!(wear.lifetime_hours, Some(166));
    assert_eq!(wear.lifetime_steps, Some(600_000));
}

#[test]
fn gpus_that_share_drives_wear_them_together_and_amplification_counts() {
    let shared = Wearing { writers: 2, amplification_percent: 150, ..four_990_pro() };
    let wear = shared.wear(Nanos(1_000_000_000), Bytes(8_000_000_000));
    assert_eq!(wear.written_per_day, Bytes(3 * 691_200_000_000_000));
    assert_eq!(wear.lifetime_steps, Some(200_000));
}

#[test]
fn a_step_that_writes_nothing_wears_nothing_out() {
    let wear = four_990_pro().wear(Nanos(1_000_000_000), Bytes(0));
    assert_eq!((wear.lifetime_hours, wear.lifetime_steps), (None, None));
    let unrated = Wearing { endurance: None, capacity: None, ..four_990_pro() };
    let wear = unrated.wear(Nanos(5), Bytes(5));
    assert_eq!((wear.lifetime_hours, wear.drive_writes_per_day_per_mille), (None, None));
}

fn all_choices(budget: u64) -> Vec<StepChoice> {
    let trace = training(8, 50, 40, 30);
    let machine = machine(budget);
    let found = frontier(&trace, &machine, TidelogOptions::default()).unwrap();
    let found = found.into_iter().map(|(plan, simulation)| StepChoice { plan, simulation });
    // Those that are known twice, or beaten, do not count.
    let twice: Vec<StepChoice> = found.flat_map(|one| [one.clone(), one]).collect();
    unbeaten(twice)
}

#[test]
fn every_choice_is_faster_or_writes_less_and_its_figures_are_simulated() {
    let trace = training(8, 50, 40, 30);
    let found = all_choices(500);
    for pair in found.windows(2) {
        assert!(pair[0].simulation.time < pair[1].simulation.time);
        assert!(pair[0].simulation.bytes.ssd_written > pair[1].simulation.bytes.ssd_written);
    }
    for choice in &found {
        assert_eq!(choice.plan.machine, machine(500));
        let again = with_expectations(choice.plan.clone(), &trace, &machine(500)).unwrap().1;
        assert_eq!((again.time, again.bytes), (choice.simulation.time, choice.simulation.bytes));
    }
}

#[test]
fn a_smaller_budget_is_kept_and_never_faster() {
    let found = all_choices(500);
    let curve = curve(&found);
    assert_eq!(curve[0].step, found[0].simulation.time);
    assert_eq!(curve[0].pause, Nanos(0));
    assert!(curve.is_sorted_by_key(|point| point.step), "{curve:?}");
    for point in &curve {
        let written = u128::from(point.written_per_step.0) * DAY / u128::from(point.step.0);
        assert!(written <= u128::from(point.budget_per_day.0), "{point:?}");
        let chosen = &found[point.choice].simulation;
        assert_eq!(point.step.0 - point.pause.0, chosen.time.0);
    }
}
