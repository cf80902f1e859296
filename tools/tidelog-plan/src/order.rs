//! Orders by name, and what each brings.

use crate::cli::OrderName;
use crate::failure::PlanFailure;
use tidelog_planner::order::{MicroBatches, OpOrder, Updates};
use tidelog_planner::trace::Trace;

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

/// The step in an order.
pub(crate) fn in_order(program: &Trace, order: OpOrder) -> Result<Trace, PlanFailure> {
    Ok(order.of(program)?.trace)
}
