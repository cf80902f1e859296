use super::*;
use crate::cost::SsdLink;
use crate::simulate::{Policy, simulate};
use crate::testing::Builder;
use crate::trace::{Access, Identity};
use crate::units::Nanos;

const LAYERS: usize = 6;
const MB: u64 = 1_000_000;

/// Two micro-batches over layers of 100 MB with Adam: gradients of the second are added to those of
/// the first.
fn step() -> Trace {
    let mut b = Builder::default();
    let weights: Vec<_> = (0..LAYERS).map(|n| b.global(&format!("{n}.weight"), 100 * MB)).collect();
    let state: Vec<_> = (0..LAYERS).map(|n| b.global(&format!("{n}.state"), 200 * MB)).collect();
    let mut sums: Vec<Option<PlanStorage>> = vec![None; LAYERS];
    for _ in 0..2 {
        let mut saved = Vec::new();
        for weight in &weights {
            let op = b.op(10_000_000);
            b.uses(op, *weight, Access::Read);
            saved.push(b.birth(op, 50 * MB));
        }
        for layer in (0..LAYERS).rev() {
            let op = b.op(20_000_000);
            b.uses(op, weights[layer], Access::Read);
            b.uses(op, saved[layer], Access::Read);
            b.death(op, saved[layer], false);
            let made = b.birth(op, 100 * MB);
            b.trace.storages[made.0 as usize].kind = StorageKind::Gradient;
            if let Some(sum) = sums[layer] {
                let add = b.op(100_000);
                b.uses(add, sum, Access::Update);
                b.uses(add, made, Access::Read);
                b.death(add, made, false);
            } else {
                sums[layer] = Some(made);
            }
        }
    }
    for layer in 0..LAYERS {
        let op = b.op(1_000_000);
        b.uses(op, weights[layer], Access::Update);
        b.uses(op, state[layer], Access::Update);
        b.trace.storages[state[layer].0 as usize].kind = StorageKind::OptimizerState;
        let sum = sums[layer].expect("every layer has one");
        b.uses(op, sum, Access::Update);
        b.death(op, sum, false);
    }
    b.finish()
}

fn machine(capacity: u64) -> Machine {
    let [ssd, host] = [16, 50].map(|gigabytes| Bandwidth(gigabytes * 1_000_000_000));
    Machine {
        budget: Bytes(capacity),
        staging: Bytes(0),
        ssd: SsdLink { read: ssd, write: ssd, latency: Nanos(0) },
        host: Some(HostLink { read: host, write: host, latency: Nanos(0), memory: Bytes(1 << 40) }),
        verify: Bandwidth(1_000_000_000_000),
    }
}

/// 600 MB of parameters, six of activations, gradients on their way: less than 1200 MB of 3 GB.
#[test]
fn offload_keeps_parameters_and_moves_each_gradient_once() {
    let machine = machine(1_200 * MB);
    let ZeroStep { trace, plan, host_memory } = zero_offload(&step(), &machine).unwrap();
    trace.validate().unwrap();
    assert_eq!(host_memory, Bytes((600 + 1_200 + 600) * MB));
    let found = simulate(&trace, &machine, Policy::Planned(&plan)).unwrap();
    assert_eq!((found.bytes.ssd_written, found.bytes.ssd_read), (Bytes(0), Bytes(0)));
    // Both micro-batches' gradients go out, the new parameters come in.
    assert_eq!(found.bytes.host_written, Bytes(2 * 600 * MB));
    assert_eq!(found.bytes.host_read, Bytes(600 * MB));
    // 700 MB through the CPU for each layer, and the last gradient's 2 ms on their way to it.
    let adam = LAYERS as u64 * CPU_RATE.time_for(Bytes(700 * MB)).0 + 2_000_000;
    let gpu = 2 * LAYERS as u64 * 30_000_000;
    assert_eq!(trace.duration().0, gpu + adam);
    // The first layers' parameters are there again when the next step begins.
    assert!(found.time.0 <= gpu + adam + 3_000_000, "{:?}, {adam} of Adam", found.time);
}

#[test]
fn offload_is_out_of_memory_where_parameters_do_not_fit() {
    let error = zero_offload(&step(), &machine(700 * MB)).unwrap_err();
    assert!(matches!(error, ZeroError::Gpu(DoesNotFit { .. })), "{error}");
    let mut small = machine(1_200 * MB);
    small.host.as_mut().unwrap().memory = Bytes(2_000 * MB);
    let error = zero_offload(&step(), &small).unwrap_err();
    assert_eq!(error, ZeroError::Host { needed: Bytes(2_400 * MB), memory: Bytes(2_000 * MB) });
    small.host = None;
    assert_eq!(zero_offload(&step(), &small).unwrap_err(), ZeroError::NoHost);
}

/// Parameters a thousand times as large are not kept from one use to the next.
#[test]
fn infinity_reads_parameters_for_each_pass_and_writes_state_once() {
    let mut trace = step();
    for storage in &mut trace.storages {
        storage.size.0 *= 100;
    }
    for op in &mut trace.ops {
        op.duration.0 *= 100;
    }
    let machine = machine(90_000 * MB);
    let ZeroStep { trace: left, plan, host_memory } = zero_infinity(&trace, &machine).unwrap();
    left.validate().unwrap();
    assert!(plan.rows.iter().all(|row| match &left.storage(row.storage).identity {
        Identity::Name(name) => name.ends_with("weight") && row.target == Target::Ssd,
        _ => row.target == Target::Host,
    }));
    let found = simulate(&left, &machine, Policy::Planned(&plan)).unwrap();
    // Nothing that the GPU has is written to SSDs: the CPU does that, within its own time.
    assert_eq!(found.bytes.ssd_written, Bytes(0));
    // In each of four passes; where one turns, the last layer stays.
    let passes = found.bytes.ssd_read.0 / (10_000 * MB);
    assert!((3 * LAYERS as u64..=4 * LAYERS as u64).contains(&passes), "{passes} layers are read");
    let state = 60_000 * MB;
    let update = machine.ssd.read.time_for(Bytes(3 * state)).0;
    assert!(left.duration().0 > update, "state goes through NVMe");
    assert!(host_memory.0 > state, "gradients and activations");
    assert!(zero_infinity(&trace, &self::machine(15_000 * MB)).is_err());
}
