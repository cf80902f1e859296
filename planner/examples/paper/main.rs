//! Program of `make paper`: every policy on every recorded set, the published figures beside, and
//! whether the project's own marks are reached. `paper TRACES OUTPUT.json [SET ...]` reads what
//! `benches/paper/record.py` wrote to the directory TRACES, writes the page OUTPUT.html beside
//! OUTPUT.json, and ends with status 1 where a figure falls short. With sets named, those alone are
//! planned; `orders` names all steps that are planned in every order, `recompute` all that are
//! planned with some of their layers computed again, `recompute:NAME` one of them, and so do
//! `parts` and `parts:NAME` for steps that are planned with parts of storages, `host-updates` and
//! `host-updates:NAME` for those with some of their updates on the host.

mod cell;
mod certificates;
mod columns;
mod growth;
mod host_updates;
mod marks;
mod orders;
mod output;
mod page;
mod parts;
mod recompute;
mod sets;
mod small;
mod snake;
mod table;

use cell::{Cell, Traces};
use orders::Orders;
use output::Results;
use sets::{SETS, Set, TracePart};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use table::Table;

const GIB: u64 = 1 << 30;

/// The name of all steps that are planned in every order.
const ALL_ORDERS: &str = "orders";

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, output, names @ ..] = arguments.as_slice() else {
        return Err("usage: paper TRACES OUTPUT.json [SET ...]".into());
    };
    let ordered = orders::names();
    let sets = SETS.iter().map(|set| set.name);
    let recomputed = recompute::names();
    let parted = parts::names();
    let hosted = host_updates::names();
    let one_by_one = recomputed.iter().map(|name| recompute::asked_as(name));
    let one_by_one = one_by_one.chain(parted.iter().map(|name| parts::asked_as(name)));
    let one_by_one = one_by_one.chain(hosted.iter().map(|name| host_updates::asked_as(name)));
    let one_by_one: Vec<String> = one_by_one.collect();
    let known: Vec<&str> = sets
        .chain(ordered.iter().chain(&one_by_one).map(String::as_str))
        .chain([ALL_ORDERS, recompute::ALL, parts::ALL, host_updates::ALL])
        .collect();
    if let Some(unknown) = names.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(format!("set {unknown} is not known; there are {}", known.join(", ")).into());
    }
    let asked = |name: &str| names.is_empty() || names.iter().any(|one| one == name);
    let wanted = |set: &&'static Set| asked(set.name);
    let stages: Vec<TracePart> = SETS.iter().filter(wanted).flat_map(TracePart::of).collect();
    let ordered: Vec<String> =
        ordered.into_iter().filter(|name| asked(ALL_ORDERS) || asked(name)).collect();
    let is_asked = |name: &String| asked(recompute::ALL) || asked(&recompute::asked_as(name));
    let recomputed: Vec<String> = recomputed.into_iter().filter(is_asked).collect();
    let is_asked = |name: &String| asked(parts::ALL) || asked(&parts::asked_as(name));
    let parted: Vec<String> = parted.into_iter().filter(is_asked).collect();
    let is_asked = |name: &String| asked(host_updates::ALL) || asked(&host_updates::asked_as(name));
    let hosted: Vec<String> = hosted.into_iter().filter(is_asked).collect();
    let folder = Path::new(folder);
    let traces = stages.iter().map(|part| read(folder, *part)).collect::<Result<Vec<_>, _>>()?;

    let began = Instant::now();
    let bounds = folder.with_file_name("bounds");
    let cells = cells(&stages, &traces, &bounds)?;
    let orders = Orders::of(&ordered, folder, &bounds)?;
    let recomputed =
        Table::of(&recomputed, "computed again", |name| recompute::row(name, folder, &bounds))?;
    let parts = Table::of(&parted, "in parts", |name| parts::row(name, folder, &bounds))?;
    let hosted =
        Table::of(&hosted, "on the host", |name| host_updates::row(name, folder, &bounds))?;
    if stages.is_empty() && !names.is_empty() {
        // Small instances and growth have nothing to do with these.
        let missed = orders.missed().into_iter().chain(recomputed.missed());
        let missed = missed.chain(parts.missed()).chain(hosted.missed());
        let missed: Vec<String> = missed.collect();
        for line in &missed {
            println!("falls short: {line}");
        }
        let found = serde_json::json!({
            "orders": orders.json(), "recompute": recomputed.json(), "parts": parts.json(),
            "host_updates": hosted.json(), "falls_short": missed,
        });
        std::fs::write(output, format!("{found:#}\n"))?;
        std::process::exit(i32::from(!missed.is_empty()));
    }
    let small = small::small()?;
    print!("{}", output::small_in_words(&small));
    let sizes = growth::growth(|size| println!("{}", output::size_in_words(size)))?;

    let missed = cells.iter().flat_map(columns::missed_by).chain(marks::missed_by_small(&small));
    let missed = missed.chain(marks::missed_by_growth(&sizes));
    let missed = missed.chain(orders.missed()).chain(recomputed.missed());
    let missed = missed.chain(parts.missed()).chain(hosted.missed()).collect();
    let out_of_reach = cells.iter().filter_map(columns::out_of_reach).collect();
    let results =
        Results { cells, orders, recomputed, parts, hosted, small, sizes, missed, out_of_reach };
    write(Path::new(output), &results)?;
    for line in &results.out_of_reach {
        println!("out of reach: {line}");
    }
    for line in &results.missed {
        println!("falls short: {line}");
    }
    let (count, minutes) = (results.cells.len(), began.elapsed().as_secs() / 60);
    println!(
        "{count} tables in {output} after {minutes} min, {} figures fall short, {} marks are proved out of reach",
        results.missed.len(),
        results.out_of_reach.len()
    );
    std::process::exit(i32::from(!results.missed.is_empty()));
}

fn read(folder: &Path, part: TracePart) -> Result<Traces, Failure> {
    let file = part.file();
    let (plain, checkpointed) =
        (table::read(folder, &file)?, table::read_checkpointed(folder, &file)?);
    Ok(Traces { plain, checkpointed })
}

/// Every part on each of its machines, as many at a time as there are cores; told of as they are
/// done.
fn cells(parts: &[TracePart], traces: &[Traces], bounds: &Path) -> Result<Vec<Cell>, Failure> {
    std::fs::create_dir_all(bounds)?;
    let mut jobs = Vec::new();
    for (part, traces) in parts.iter().zip(traces) {
        let kinds =
            part.set.capacities.into_iter().flat_map(|bytes| [(bytes, false), (bytes, true)]);
        jobs.extend(kinds.map(|(capacity, host)| (*part, traces, capacity, host)));
    }
    let made = side_by_side(jobs.len(), |index| {
        let (part, traces, capacity, host) = jobs[index];
        let made = cell::plan(part, traces, capacity, host, bounds);
        (made.as_ref().map_or_else(|_| part.title(), Cell::title), made)
    });
    let mut cells = Vec::new();
    for (index, cell) in made?.into_iter().enumerate() {
        let (part, traces, ..) = jobs[index];
        if index == 0 || jobs[index - 1].0.title() != part.title() {
            println!("{}", output::about(part, traces));
        }
        print!("{}", output::table(&cell));
        cells.push(cell);
    }
    Ok(cells)
}

/// Does `count` jobs, as many at a time as there are cores; each returns its title, too.
fn side_by_side<T: Send>(
    count: usize,
    job: impl Fn(usize) -> (String, Result<T, Failure>) + Sync,
) -> Result<Vec<T>, Failure> {
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let slots: Vec<Mutex<Option<Result<T, Failure>>>> =
        (0..count).map(|_| Mutex::default()).collect();
    let work = || {
        while let Some((index, slot)) =
            Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|at| Some((at, slots.get(at)?)))
        {
            let began = Instant::now();
            let (title, made) = job(index);
            let ended = done.fetch_add(1, Ordering::Relaxed) + 1;
            eprintln!("[{ended:2} of {count}] {title}: {} s", began.elapsed().as_secs());
            *slot.lock().expect("no one panics with it") = Some(made);
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(work);
        }
    });
    let made = slots.into_iter().map(|slot| slot.into_inner().ok().flatten());
    made.map(|made| made.ok_or("a thread ended early")?).collect()
}

fn write(output: &Path, results: &Results) -> Result<(), Failure> {
    std::fs::write(output, format!("{:#}\n", output::json(results)))?;
    let name = output.file_stem().unwrap_or_default().to_string_lossy();
    std::fs::write(output.with_extension("html"), page::page(results, &name))?;
    let steps = output.with_extension("").join(page::STEPS);
    std::fs::create_dir_all(&steps)?;
    for cell in &results.cells {
        if let Some(page) = &cell.page {
            std::fs::write(steps.join(page::step_file(cell)), page)?;
        }
    }
    Ok(())
}

#[allow(clippy::cast_precision_loss, reason = "for people")]
fn ratio(one: u64, other: u64) -> f64 {
    one as f64 / other as f64
}
