//! Costs of the parts, each alone: `cargo bench -p tidelog-engine --bench parts`.

use std::hint::black_box;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tidelog_engine::layout::{
    BLOCK_BYTES, BlockFormat, Copies, Geometry, GeometryRequest, LifetimeClass, Run, Runs, TensorId,
};
use tidelog_engine::log::{
    AllocationReach, Contents, Durability, IndexRoom, Lane, LogPlace, PutRequest, RecoveredIndex,
    Space, StripeMap,
};
use tidelog_engine::memory::Source;
use tidelog_engine::path::sim::{SimDisk, SimDisks, SimProfile};
use tidelog_engine::schedule::{
    CompletionQueue, Finish, Piece, Reactor, ReactorOptions, Ticket, Transfer, Urgency,
};
use tidelog_engine::units::{ByteCount, DeviceIndex};

const LANE: Lane =
    Lane { durability: Durability::Scratch, class: LifetimeClass::ALL[0], copies: Copies::One };

/// Writes in flight at once.
const TOGETHER: u64 = 64;

fn geometry() -> Geometry {
    Geometry::plan(&GeometryRequest {
        devices: 4,
        device_bytes: ByteCount::gib(64),
        stripe_unit: ByteCount::kib(256),
        segment_bytes: None,
        shares: 1,
        copies: Copies::One,
    })
    .expect("four devices of 64 GiB make a pool")
}

fn stripe_map(criterion: &mut Criterion) {
    let map = StripeMap::new(&geometry());
    let mut group = criterion.benchmark_group("stripe map");
    for bytes in [4096, 1 << 20, 64 << 20_u64] {
        let run = Run::single(3, 0, (bytes / BLOCK_BYTES) as u32);
        let runs = vec![run];
        group.bench_with_input(
            BenchmarkId::from_parameter(ByteCount(bytes)),
            &bytes,
            |bench, &bytes| {
                bench.iter(|| map.placements(black_box(&runs), bytes).map(black_box).count());
            },
        );
    }
    group.finish();
}

fn allocator(criterion: &mut Criterion) {
    let geometry = geometry();
    let area = geometry.share(0).expect("there is a share");
    let mut space = Space::new(&area, geometry.segment_blocks());
    let mut group = criterion.benchmark_group("allocator");
    for bytes in [4096, 1 << 20, 64 << 20_u64] {
        group.bench_with_input(
            BenchmarkId::from_parameter(ByteCount(bytes)),
            &bytes,
            |bench, &bytes| {
                bench.iter(|| {
                    let mut runs = Runs::new();
                    let room = space.allocate(LANE, bytes, AllocationReach::Sisters, &mut runs);
                    room.expect("there is room");
                    space.abandon(&runs);
                });
            },
        );
    }
    group.finish();
}

fn index(criterion: &mut Criterion) {
    let geometry = geometry();
    let place = LogPlace::new(1, 0, &geometry, BlockFormat::Checked).expect("there is a share");
    let mut group = criterion.benchmark_group("index");
    for tensors in [1000, 1_000_000_u64] {
        let space = Space::new(&place.area, geometry.segment_blocks());
        let room = IndexRoom::new(&place, [Vec::new(), Vec::new()], true);
        let mut contents = Contents::recovered(space, room, RecoveredIndex::default());
        let put = |contents: &mut Contents, index: u64| {
            let id =
                TensorId(u128::from(index).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835));
            let request = PutRequest { id, name: None, length: 4096, lane: LANE };
            let reservation = contents.begin(request).expect("there is room");
            contents.install(&reservation, &[index as u32]);
            id
        };
        let ids: Vec<TensorId> = (0..tensors).map(|index| put(&mut contents, index)).collect();
        let mut turn = (0..tensors).cycle();
        let mut next = move || turn.next().expect("a cycle has no end") * 7919 % tensors;
        group.bench_function(BenchmarkId::new("look up", tensors), |bench| {
            bench.iter(|| contents.current(ids[next() as usize]).is_some());
        });
        group.bench_function(BenchmarkId::new("put again", tensors), |bench| {
            bench.iter(|| put(&mut contents, next()));
        });
    }
    group.finish();
}

fn start() -> Reactor {
    let disks = SimDisks(vec![SimDisk::with_profile(ByteCount::mib(64), SimProfile::plain())]);
    Reactor::start(Box::new(disks), ReactorOptions::default()).expect("simulated disks open")
}

/// `pieces` of 4 KiB each.
fn write(reactor: &Reactor, queue: Option<&CompletionQueue>, pieces: u64) -> Ticket {
    let piece =
        |index: u64| Piece::new(DeviceIndex(0), ByteCount(index * 4096), index * 4096, 4096);
    let source = Source::from(vec![1; pieces as usize * 4096]);
    let transfer = Transfer::Write { source, pieces: (0..pieces).map(piece).collect() };
    let notify = queue.map(|queue| (queue.clone(), 0));
    reactor.submit(transfer, Urgency::Urgent, notify, Finish::nothing()).expect("it is valid")
}

fn reactor(criterion: &mut Criterion) {
    let reactor = start();
    let mut group = criterion.benchmark_group("reactor");
    group.bench_function("ticket there and back, nothing to move", |bench| {
        bench.iter(|| write(&reactor, None, 0).wait());
    });
    group.bench_function("write of 4 KiB there and back, simulated disk", |bench| {
        bench.iter(|| write(&reactor, None, 1).wait());
    });
    group.throughput(Throughput::Elements(TOGETHER));
    group.bench_function("64 writes of 4 KiB in flight, simulated disk", |bench| {
        let queue = CompletionQueue::new();
        bench.iter_batched(
            || (),
            |()| {
                (0..TOGETHER).for_each(|_| drop(write(&reactor, Some(&queue), 1)));
                (0..TOGETHER)
                    .for_each(|_| while queue.wait_pop(std::time::Duration::MAX).is_none() {});
            },
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

criterion_group!(parts, stripe_map, allocator, index, reactor);
criterion_main!(parts);
