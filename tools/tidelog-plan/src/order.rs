//! Orders by name.

use crate::cli::OrderName;
use tidelog_planner::order::{MicroBatches, OpOrder, Updates};

/// The orders to try, the program's own first if there are several.
pub(crate) fn orders(name: OrderName) -> Vec<OpOrder> {
    let order = |micro_batches, updates| vec![OpOrder { micro_batches, updates }];
    match name {
        OrderName::Own => vec![OpOrder::OWN],
        OrderName::Lazy => order(MicroBatches::Own, Updates::Lazy),
        OrderName::Early => order(MicroBatches::Own, Updates::Early),
        OrderName::LayerWise => order(MicroBatches::LayerWise, Updates::Own),
        OrderName::LayerWiseLazy => order(MicroBatches::LayerWise, Updates::Lazy),
        OrderName::LayerWiseEarly => order(MicroBatches::LayerWise, Updates::Early),
        OrderName::Best => OpOrder::ALL.to_vec(),
    }
}
