//! Program of `make gpu-step`: what a step takes on a GPU, and why, without one.

mod arguments;
mod cell;
mod output;

use arguments::{Arguments, TableFormat};
use cell::{Deciding, StepCell};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use tidelog_planner::gpu_step::{Constants, RangeEnd};

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    match Arguments::parse(std::env::args().skip(1)) {
        Ok(Some(arguments)) => print(&arguments),
        Ok(None) => {
            print!("{}", arguments::HELP);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("gpu-step: {error}; --help says more");
            ExitCode::from(2)
        }
    }
}

fn print(arguments: &Arguments) -> ExitCode {
    match told(arguments) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("gpu-step: {error}");
            ExitCode::FAILURE
        }
    }
}

fn told(arguments: &Arguments) -> Result<String, Failure> {
    let constants = Constants::at(RangeEnd::Value);
    let cells = cells(arguments)?;
    let deciding = match &arguments.deciding {
        Some(bridge) => cells
            .iter()
            .map(|cell| Deciding::of(cell, *bridge))
            .collect::<Result<Vec<_>, Failure>>()?,
        None => Vec::new(),
    };
    Ok(match arguments.format {
        TableFormat::Text => output::text(&cells, &deciding, &constants),
        TableFormat::Json => output::json(&cells, &deciding, &constants)?,
    })
}

/// Every cell, on all cores.
fn cells(arguments: &Arguments) -> Result<Vec<StepCell>, Failure> {
    let wanted: Vec<(&str, u32)> = arguments
        .traces
        .iter()
        .flat_map(|name| arguments.percents.iter().map(|percent| (name.as_str(), *percent)))
        .collect();
    let made: Vec<Mutex<Option<Result<StepCell, Failure>>>> =
        wanted.iter().map(|_| Mutex::new(None)).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some((name, percent)) = wanted.get(at) else { break };
            let cell = StepCell::of(name, *percent, &arguments.bridges);
            *made[at].lock().expect("no thread panics with it") = Some(cell);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let made = made.into_iter().filter_map(|cell| cell.into_inner().ok().flatten());
    made.collect()
}
