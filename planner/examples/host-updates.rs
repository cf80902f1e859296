//! Compares a step whose updates run on the host with the other orders of updates, on a GPU of
//! 24 GiB in a slot of `PCIe` 4.0, beside host memory and one Gen4 SSD.
//!
//!     cargo run --release -p tidelog-planner --example host-updates TRACE.json [GIB [STEPS]]
//!
//! GIB: host memory (default 128). STEPS: of the search for each plan (default 1).
//!
//! As it is built, a parameter that leaves the GPU has a second copy in host memory, or on the SSD,
//! beside the one that is updated. The last row has one copy for both, which takes no second place.

use std::error::Error;
use std::time::Duration;
use tidelog_planner::cost::{HostLink, Machine, SsdLink};
use tidelog_planner::gpu_step::{Bridge, Constants, OpsIn, RangeEnd};
use tidelog_planner::order::{HostProcessor, MicroBatches, OpOrder, Updates, on_host};
use tidelog_planner::simulate::{CopyRates, GpuRuntime, Simulation, TimeCause};
use tidelog_planner::tidelog::{Search, TidelogOptions};
use tidelog_planner::trace::{Storage, StorageKind, Trace};
use tidelog_planner::units::{Bandwidth, Bytes, Nanos};

const GIB: u64 = 1 << 30;
const GPU_MEMORY: Bytes = Bytes(24 * GIB);

/// The GPU's link (`machines/rtx-4090.json`).
const LINK: Bandwidth = Bandwidth(25_000_000_000);

/// Part of the link's rate that each way has when bytes go both ways: 9 tenths (`gpu-costs.json`).
const BOTH_WAYS: Bandwidth = Bandwidth(LINK.0 / 10 * 9);

/// One Gen4 SSD, as those that are sold with 7 and 6 GB/s.
const SSD: SsdLink = SsdLink {
    read: Bandwidth(7_000_000_000),
    write: Bandwidth(6_000_000_000),
    latency: Nanos(100_000),
};

/// One order of updates: its step, and what it takes of the host.
struct Case {
    name: String,
    trace: Trace,
    host_memory: u64,
    busy: Nanos,
    waits: Nanos,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let path = words.next().ok_or("which trace? `tidelog-plan record` makes one")?;
    let host_memory = GIB * words.next().map_or(Ok(128), |word| word.parse::<u64>())?;
    let steps = words.next().map_or(Ok(1), |word| word.parse())?;
    let constants = Constants::at(RangeEnd::Value);
    let trace = constants.kernels_of(&Trace::from_json(&std::fs::read_to_string(path)?)?);
    let kernels = trace.duration();
    println!("{}: kernels take {:.2} s", trace.name, seconds(kernels));
    println!(
        "updates           step, s  of ideal  out, GiB  in, GiB  SSD, GiB  host busy, waited, s"
    );
    for case in cases(&trace, host_memory)? {
        let found = simulated(&case, steps)?;
        let Simulation { time, bytes, gpu, .. } = &found;
        println!(
            "{:<18}{:7.2}  {:7.1}%  {:8.1}  {:7.1}  {:8.1}  {:9.2} {:7.2}",
            case.name,
            seconds(*time),
            100.0 * seconds(kernels) / seconds(*time),
            gib(bytes.host_written.0 + bytes.ssd_written.0),
            gib(bytes.host_read.0 + bytes.ssd_read.0),
            gib(bytes.ssd_written.0 + bytes.ssd_read.0),
            seconds(case.busy),
            seconds(case.waits),
        );
        let causes = gpu.as_ref().map(|step| {
            let told = TimeCause::ALL
                .map(|cause| format!("{} {:.2}", cause.name(), seconds(step.of(cause))));
            told.join(", ")
        });
        println!("    {}", causes.unwrap_or_default());
    }
    Ok(())
}

fn cases(trace: &Trace, host_memory: u64) -> Result<Vec<Case>, Box<dyn Error>> {
    let mut cases = Vec::new();
    for updates in [Updates::Own, Updates::Lazy, Updates::Early] {
        let order = OpOrder { micro_batches: MicroBatches::Own, updates };
        cases.push(Case {
            name: order.name().to_owned(),
            trace: order.of(trace)?.trace,
            host_memory,
            busy: Nanos(0),
            waits: Nanos(0),
        });
    }
    for end in [RangeEnd::Value, RangeEnd::Fast, RangeEnd::Slow] {
        let memory = Constants::at(end).host_update();
        let step = on_host(trace, HostProcessor { memory, out: LINK, back: LINK })?;
        cases.push(Case {
            name: format!("host, {} GB/s", memory.0 / 1_000_000_000),
            trace: step.trace,
            host_memory: host_memory.saturating_sub(step.kept.0),
            busy: step.busy,
            waits: step.waits,
        });
    }
    let of_host = cases.iter().position(|case| case.busy > Nanos(0)).unwrap_or_default();
    let Case { trace, host_memory, busy, waits, .. } = &cases[of_host];
    let is_parameter = |storage: &&Storage| storage.kind == StorageKind::Parameter;
    let parameters: u64 = trace.storages.iter().filter(is_parameter).map(|one| one.size.0).sum();
    cases.push(Case {
        name: "host, one copy".to_owned(),
        trace: trace.clone(),
        host_memory: host_memory + parameters,
        busy: *busy,
        waits: *waits,
    });
    Ok(cases)
}

fn simulated(case: &Case, steps: u64) -> Result<Simulation, Box<dyn Error>> {
    let constants = Constants::at(RangeEnd::Value);
    let runtime = Bridge::Ordered.runtime(&constants);
    let mut costs = constants.costs(OpsIn::Native);
    costs.both_ways = Some(CopyRates { out: BOTH_WAYS, back: BOTH_WAYS });
    let runtime = GpuRuntime { costs, ..runtime };
    let host =
        HostLink { read: LINK, write: LINK, latency: Nanos(0), memory: Bytes(case.host_memory) };
    let machine = Machine {
        budget: GPU_MEMORY,
        staging: Bytes(0),
        ssd: SSD,
        host: Some(host),
        verify: costs.checksum,
    };
    let options = TidelogOptions { gpu: Some(runtime), ..TidelogOptions::default() };
    let mut search = Search::new(&case.trace, &machine, options)?;
    search.advance(steps)?;
    Ok(search.best().ok_or("the first step of a search makes a plan")?.1)
}

fn seconds(time: Nanos) -> f64 {
    Duration::from_nanos(time.0).as_secs_f64()
}

fn gib(bytes: u64) -> f64 {
    f64::from(u32::try_from(bytes >> 20).unwrap_or(u32::MAX)) / 1024.0
}
