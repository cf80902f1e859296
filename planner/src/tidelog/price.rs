//! Costs of the plans that were found, in time and in bytes written.

use crate::units::{Bytes, Nanos};
use serde::Serialize;

/// A plan that no other one beats in both time and bytes written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PlanPrice {
    /// The length of its iteration.
    #[serde(rename = "time_ns")]
    pub time: Nanos,
    /// Bytes that it writes to SSDs.
    pub written: Bytes,
    /// True if the plan is the one that the goal prefers.
    pub chosen: bool,
}

impl PlanPrice {
    /// Selects at most about `most` prices for people: the first, the last and the chosen one are
    /// kept, and of the others those that are spread evenly over the time.
    pub fn few(prices: &[Self], most: usize) -> Vec<Self> {
        let (Some(first), Some(last)) = (prices.first(), prices.last()) else { return Vec::new() };
        let length = last.time.0.saturating_sub(first.time.0);
        let part = length / most.max(1) as u64;
        let (mut few, mut next) = (Vec::new(), 0);
        for (index, price) in prices.iter().enumerate() {
            let is_edge = index == 0 || index + 1 == prices.len();
            if is_edge || price.chosen || prices.len() <= most || price.time.0 >= next {
                few.push(*price);
                next = price.time.0 + part;
            }
        }
        few
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_prices_are_the_ends_the_chosen_one_and_some_between() {
        let price = |time: u64| PlanPrice {
            time: Nanos(1000 + time),
            written: Bytes(1000 - time),
            chosen: time == 7,
        };
        let all: Vec<PlanPrice> = (0..100).map(price).collect();
        let few = PlanPrice::few(&all, 5);
        assert!((4..=9).contains(&few.len()), "{few:?}");
        assert_eq!((few[0], few[few.len() - 1]), (all[0], all[99]));
        assert!(few.contains(&all[7]));
        assert_eq!(PlanPrice::few(&all[..4], 5), all[..4]);
        assert!(PlanPrice::few(&[], 5).is_empty());
    }
}
