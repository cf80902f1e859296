//! Lives put together from stretches, against lives walked interval by interval.

use super::costs::{Cost, Matrix, Warm, after, matrix, product};
use super::lives::{Gathering, LifetimeEnd, cheapest, only};
use super::moved::{Flow, KINDS, MEMORY, MovedBytes, READ, ROOM, WRITE};
use super::relax::Relaxation;
use super::states::{DIRTY, Instant, IntervalEvent, IntervalPrices, IntervalStep, states};
use super::stretches::{Layout, Stretches};
use crate::cost::HostLink;
use crate::testing::{machine, random_trace};
use crate::units::{Bandwidth, Bytes, Nanos};
use tidelog_random::Random;

const IDLE: IntervalStep = IntervalStep { event: IntervalEvent::Idle, instant: Instant::Free };
const AGAIN: IntervalStep = IntervalStep { event: IntervalEvent::Modify, instant: Instant::Free };
const BEGIN: IntervalStep = IntervalStep { event: IntervalEvent::Modify, instant: Instant::Before };

fn random_rates(random: &mut Random, count: usize) -> Vec<IntervalPrices<u64>> {
    let mut price = || random.below(1000);
    let mut pair = || [price(), price()];
    (0..count)
        .map(|_| IntervalPrices { read: pair(), write: pair(), room: pair(), memory: pair()[0] })
        .collect()
}

#[test]
fn every_run_costs_what_its_intervals_do() {
    let mut random = Random::new(11);
    for count in 1..=20 {
        let rates = random_rates(&mut random, count);
        let mut costs = Stretches::<u64, { states(2) }>::new(Layout { count });
        costs.price(&rates);
        for from in 0..count {
            let mut plain: Matrix<u64, { states(2) }> = std::array::from_fn(only);
            for (last, rates) in rates.iter().enumerate().skip(from) {
                plain = product(&plain, &matrix(IDLE, rates));
                let run = costs.layout.run(from, last).map(|stretch| costs.cost(stretch));
                let whole = run.fold(std::array::from_fn(only), |one, next| product(&one, next));
                assert_eq!(plain, whole, "{from} to {last} of {count}");
            }
        }
    }
}

/// Checks that a storage modified in each iteration has no cycle of several iterations that is
/// cheaper than the cheapest of one.
#[test]
fn a_modified_life_needs_one_turn() {
    const S: usize = states(2);
    let mut random = Random::new(12);
    for _ in 0..200 {
        let count = 2 + random.below(9) as usize;
        let rates = random_rates(&mut random, count);
        let mut costs = Stretches::<u64, S>::new(Layout { count });
        costs.price(&rates);
        let layout = costs.layout;
        let mut life = vec![layout.step(BEGIN, 0)];
        life.extend(layout.run(1, count - 1));
        life.push(layout.step(AGAIN, 0));
        let found = cheapest(&costs, &life, LifetimeEnd::Modified);

        let mut around: Matrix<u64, S> = matrix(AGAIN, &rates[0]);
        for rates in &rates[1..] {
            around = product(&around, &matrix(IDLE, rates));
        }
        let (mut power, mut best) = (around, u64::FORBIDDEN);
        for turns in 1..=S as u64 {
            let closed = (0..S).map(|state| power[state][state]).min().unwrap_or_default();
            best = best.min(closed.div_ceil(turns));
            power = product(&power, &around);
        }
        assert_eq!(found, best);
    }
}

/// The bytes moved are how the smoothed cost changes with each price.
#[test]
fn moved_bytes_are_the_slope_of_the_cost() {
    const WARMTH: f64 = 0.05;
    let mut random = Random::new(13);
    for _ in 0..30 {
        let trace = random_trace(&mut random, 12, 6);
        let mut machine = machine(100);
        let rate = Bandwidth(1 << 30);
        let host = HostLink { read: rate, write: rate, latency: Nanos(0), memory: Bytes(50) };
        machine.host = Some(host);
        let relaxation = Relaxation::new(&trace, &machine, 1 << 20);
        let count = relaxation.instants().len();
        let prices: Vec<IntervalPrices<f64>> = random_rates(&mut random, count)
            .iter()
            .map(|rates| {
                let mut rates = rates.map(|price| f64::from(price as u32) / 1000.0);
                rates.room[0] = 0.0;
                rates
            })
            .collect();
        let left = vec![0.0; prices.len()];
        let (moved, _) = Flow::<{ states(2) }>::new(&relaxation).at(&prices, &left, WARMTH);
        for _ in 0..20 {
            let (interval, kind) =
                (random.below(count as u64) as usize, random.below(KINDS as u64) as usize);
            let cost = |change: f64| {
                let mut prices = prices.clone();
                let rates = &mut prices[interval];
                match kind {
                    MEMORY => rates.memory += change,
                    READ..WRITE => rates.read[kind - READ] += change,
                    WRITE..ROOM => rates.write[kind - WRITE] += change,
                    _ => rates.room[1] += change,
                }
                smoothed(&relaxation, &prices, WARMTH)
            };
            let (step, found) = (1e-5, moved[interval][kind]);
            let slope = (cost(step) - cost(-step)) / (2.0 * step);
            assert!((slope - found).abs() < 1e-3 * (1.0 + found.abs()), "{slope} {found}");
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "small numbers")]
fn smoothed(relaxation: &Relaxation, prices: &[IntervalPrices<f64>], warmth: f64) -> f64 {
    const S: usize = states(2);
    let layout = Layout { count: prices.len() };
    let mut costs = Stretches::<Warm, S>::new(layout);
    let warm: Vec<_> = prices.iter().map(|rates| rates.map(|rate| Warm(rate / warmth))).collect();
    costs.price(&warm);
    let lives = &relaxation.lives;
    let cost = |life: &super::lives::Life| {
        let end = |from| {
            let start: [Warm; S] = only(from);
            lives.of(life).iter().fold(start, |reached, one| after(&reached, costs.cost(*one)))
        };
        let cost = match life.end {
            LifetimeEnd::Death => Warm::either(end(DIRTY)),
            LifetimeEnd::Modified => end(DIRTY)[DIRTY],
            LifetimeEnd::Never => {
                Warm::either::<{ S - 1 }>(std::array::from_fn(|at| end(at + 1)[at + 1]))
            }
        };
        cost.0 * warmth * life.bytes as f64
    };
    lives.all.iter().map(cost).sum()
}

#[test]
fn those_that_live_alike_are_one() {
    let mut lives = Gathering::default();
    lives.add(vec![1, 2], LifetimeEnd::Death, 10);
    lives.add(vec![1, 2], LifetimeEnd::Modified, 20);
    lives.add(vec![1, 2], LifetimeEnd::Death, 30);
    let lives = lives.finish();
    let found: Vec<_> =
        lives.all.iter().map(|life| (lives.of(life), life.end, life.bytes)).collect();
    assert_eq!(
        found,
        [(&[1, 2][..], LifetimeEnd::Death, 40), (&[1, 2][..], LifetimeEnd::Modified, 20)]
    );
}
