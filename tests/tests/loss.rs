//! Lives in which devices are lost: some of those that `tidelog-sim --losses` lives.

use tidelog_tests::loss::{LossFigures, ReshapeFigures, live};

#[test]
fn lives_with_a_lost_device_lose_nothing_durable() {
    let mut all = LossFigures::default();
    for seed in 2_000_000..2_000_060 {
        let figures = live(seed).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        all.add(&figures);
    }
    // What was never met proves nothing.
    assert!(all.during_work > 20 && all.refused > 40, "{all:?}");
    assert!(all.replaced > 20 && all.kills > 10 && all.second_losses > 20, "{all:?}");
    let ReshapeFigures { added, evacuated, removed, kills, .. } = all.reshapes;
    assert!(added > 5 && evacuated > 5 && removed > 5, "{all:?}");
    assert!(kills.add > 0 && kills.evacuate > 5 && kills.remove > 5, "{all:?}");
    assert!(all.replaced_in_use > 5 && all.kills_in_use > 2, "{all:?}");
    assert!(all.shared_out > 20, "{all:?}");
    assert!(all.commits > 500 && all.compared > 500, "{all:?}");
}
