//! `endurance`: terabytes a day, how long drives last, and the price of writing less.

use super::table::table;
use crate::cli::{DriveArgs, EnduranceArgs, PolicyName, ReportArgs};
use crate::failure::PlanFailure;
use crate::inputs::LoadedStep;
use serde_json::json;
use std::fmt::Write;
use tidelog_command_line::{OutputFormat, complain};
use tidelog_planner::endurance::{
    DriveWear, StepChoice, Wearing, WriteBudgetPoint, curve, under_budget,
};
use tidelog_planner::hardware::Drives;
use tidelog_planner::report::text::{factor, time};
use tidelog_planner::report::{BudgetPoint, Report};
use tidelog_planner::units::Bytes;

const TERABYTE: f64 = 1e12;

pub(crate) fn endurance(
    arguments: &EnduranceArgs,
    output: OutputFormat,
) -> Result<String, PlanFailure> {
    let step = LoadedStep::read(&arguments.step.inputs, &arguments.step.source)?;
    let wearing = wearing(&step, &arguments.drives)?;
    let now = wearing.wear(step.simulation.time, step.simulation.bytes.ssd_written);
    let (title, policy) = (step.trace.name.clone(), step.simulation.policy.clone());
    let points = curve(&found(&step)?);
    let wears: Vec<DriveWear> =
        points.iter().map(|point| wearing.wear(point.step, point.written_per_step)).collect();
    if output == OutputFormat::Json {
        let curve: Vec<_> = points
            .iter()
            .zip(&wears)
            .map(|(point, wear)| json!({"budget": point, "wear": wear}))
            .collect();
        let answer = json!({
            "trace": title, "policy": policy, "drives": wearing, "wear": now, "curve": curve,
        });
        return Ok(format!("{answer:#}\n"));
    }
    let mut text = format!("{title}, {policy}, on {}\n", drives_of(&wearing));
    sentences(&wearing, &now, &mut text);
    if points.is_empty() {
        return Ok(text);
    }
    text += "\nWhat a smaller write budget costs (planned for less writing, simulated; a pause keeps to what no plan \
             keeps to)\n";
    let head = ["TB a day", "step", "slower", "of it pause", "GB a step", "drive lasts", "steps"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for (point, wear) in points.iter().zip(&wears) {
        rows.push(vec![
            terabytes(Bytes(point.budget_per_day.0)),
            time(point.step),
            factor(point.step.0, points[0].step.0),
            time(point.pause),
            gigabytes(point.written_per_step),
            lasts(wear),
            wear.lifetime_steps.map_or_else(|| "–".to_owned(), |steps| steps.to_string()),
        ]);
    }
    Ok(text + &table(&rows))
}

/// The fastest plan that keeps to so many terabytes a day; what that takes is said beside.
pub(super) fn plan_under(step: &LoadedStep, terabytes_per_day: f64) -> Result<String, PlanFailure> {
    if !(terabytes_per_day > 0.0 && terabytes_per_day.is_finite()) {
        return Err(PlanFailure::Usage(
            "--write-budget is a number of terabytes above 0".to_owned(),
        ));
    }
    let found = found(step)?;
    #[allow(clippy::cast_sign_loss, reason = "checked above")]
    let budget = Bytes((terabytes_per_day * TERABYTE) as u64);
    let point = under_budget(&found, budget).expect("the plan without a budget is one of them");
    if point.pause.0 > 0 {
        complain(&format!(
            "tidelog-plan: no plan writes so little: this one keeps to the budget if each step is followed by a \
             pause of {}",
            time(point.pause)
        ));
    }
    Ok(step.file_of(&found[point.choice].plan))
}

/// Puts wear and the price of writing less into a page.
pub(super) fn draw(
    step: &LoadedStep,
    arguments: &ReportArgs,
    report: &mut Report,
) -> Result<(), PlanFailure> {
    let Ok(wearing) = wearing(step, &arguments.drives) else { return Ok(()) };
    let now = wearing.wear(step.simulation.time, step.simulation.bytes.ssd_written);
    let per_day = terabytes(now.written_per_day);
    report.figures.extend([
        ("drives".to_owned(), drives_of(&wearing)),
        ("written a day".to_owned(), format!("{per_day} TB")),
        ("a drive lasts".to_owned(), lasts(&now)),
    ]);
    if arguments.quick || step.policy == PolicyName::Lru {
        return Ok(());
    }
    let drawn = curve(&found(step)?).into_iter().map(|point: WriteBudgetPoint| BudgetPoint {
        per_day: point.budget_per_day,
        step: point.step,
        pause: point.pause,
        lasts: lasts(&wearing.wear(point.step, point.written_per_step)),
    });
    report.budgets = drawn.collect();
    Ok(())
}

fn found(step: &LoadedStep) -> Result<Vec<StepChoice>, PlanFailure> {
    if step.plan.is_none() {
        return Err(PlanFailure::Usage(
            "policy lru makes no plan, so none that writes less: choose another --policy"
                .to_owned(),
        ));
    }
    step.choices()
}

fn wearing(step: &LoadedStep, arguments: &DriveArgs) -> Result<Wearing, PlanFailure> {
    let named = arguments.drive.as_ref().map(|model| Drives::of(model, arguments.count));
    match (&step.hardware, named) {
        (Some(hardware), None) => Ok(Wearing::of(hardware, arguments.amplification)),
        (Some(hardware), Some(mut drives)) => {
            drives.shared = hardware.drives.shared;
            let hardware = tidelog_planner::hardware::Hardware { drives, ..hardware.clone() };
            Ok(Wearing::of(&hardware, arguments.amplification))
        }
        (None, Some(drives)) => {
            let drive = drives.drive()?;
            Ok(Wearing {
                model: drive.model,
                drives: drives.count,
                writers: 1,
                capacity: drive.capacity,
                endurance: drive.endurance,
                amplification_percent: arguments.amplification,
            })
        }
        (None, None) => Err(PlanFailure::Usage(
            "the machine file names no drives: add \"drives\" to it, or use --drive MODEL --count COUNT".to_owned(),
        )),
    }
}

fn drives_of(wearing: &Wearing) -> String {
    let gpus = match wearing.writers {
        1 => String::new(),
        writers => format!(", shared by {writers} GPUs"),
    };
    format!("{} x {}{gpus}", wearing.drives, wearing.model)
}

fn sentences(wearing: &Wearing, wear: &DriveWear, text: &mut String) {
    let filled = wear.drive_writes_per_day_per_mille.map_or_else(String::new, |times| {
        format!(", which fills it {}.{} times", times / 1000, times % 1000 / 100)
    });
    let _ = writeln!(
        text,
        "  A step takes {} and writes {} GB: {} TB a day, {} TB on each drive{filled}.",
        time(wear.step),
        gigabytes(wear.written_per_step),
        terabytes(wear.written_per_day),
        terabytes(wear.written_per_day_and_drive)
    );
    let _ = match (wearing.endurance, wear.lifetime_steps) {
        (None, _) => writeln!(
            text,
            "  The rating of the drives is not known (\"tbw\" or \"dwpd\" in the machine file)."
        ),
        (Some(_), None) => writeln!(text, "  Nothing is written: the drives do not wear out."),
        (Some(rating), Some(steps)) => writeln!(
            text,
            "  A drive is rated for {} TB: it lasts {}, {steps} steps.",
            terabytes(rating),
            lasts(wear)
        ),
    };
}

/// Returns the life of a drive, in words.
fn lasts(wear: &DriveWear) -> String {
    match wear.lifetime_hours {
        None => "–".to_owned(),
        Some(hours @ 0..72) => format!("{hours} hours"),
        Some(hours @ 72..17_520) => format!("{} days", hours / 24),
        Some(hours) => format!("{} years", hours / 8760),
    }
}

#[allow(clippy::cast_precision_loss, reason = "for people")]
fn terabytes(bytes: Bytes) -> String {
    let terabytes = bytes.0 as f64 / TERABYTE;
    if terabytes < 10.0 { format!("{terabytes:.2}") } else { format!("{terabytes:.0}") }
}

#[allow(clippy::cast_precision_loss, reason = "for people")]
fn gigabytes(bytes: Bytes) -> String {
    let gigabytes = bytes.0 as f64 / 1e9;
    if gigabytes < 10.0 { format!("{gigabytes:.2}") } else { format!("{gigabytes:.0}") }
}
