//! `tidelog-doctor`: see `tidelog-doctor --help`.

use std::process::ExitCode;

use serde_json::json;
use tidelog_command_line::{DoctorExit, OutputFormat, completions, fail, finish, parse, printable};
use tidelog_device_safety::{System, program_directories};
use tidelog_doctor::bind::{BindDirection, BindPlan, SystemPaths, carry_out, plan};
use tidelog_doctor::cli::{CheckArgs, DoctorCli, DoctorCommand, HandOverArgs};
use tidelog_doctor::devices::devices;
use tidelog_doctor::facts::{Has, Roots, all};
use tidelog_doctor::gpus::gpus;
use tidelog_doctor::latency::{counted, latency};
use tidelog_doctor::next::Advice;
use tidelog_doctor::outcome::DoctorFailure;
use tidelog_doctor::page::DoctorPage;
use tidelog_doctor::paths::try_all;
use tidelog_gds::cufile::keep_log;
use tidelog_gds::topology::{Sysfs, nvml_gpus};

const TOOL: &str = "tidelog-doctor";

fn main() -> ExitCode {
    // Before any thread is there. The doctor leaves nothing in the current folder.
    keep_log();
    let cli: DoctorCli = match parse() {
        Ok(cli) => cli,
        Err(ended) => return ended,
    };
    match run(&cli) {
        Ok((out, exit)) => finish(TOOL, &out, exit),
        Err(DoctorFailure { exit, message, help }) => fail(TOOL, cli.output, &message, &help, exit),
    }
}

/// Runs the command; returns the output and the exit code.
fn run(cli: &DoctorCli) -> Result<(String, DoctorExit), DoctorFailure> {
    match &cli.command {
        DoctorCommand::Check(arguments) => check(cli, arguments),
        DoctorCommand::Bind(arguments) => {
            rebind(cli, &arguments.rebind, BindDirection::UserSpace(arguments.driver))
        }
        DoctorCommand::Unbind(arguments) => rebind(cli, arguments, BindDirection::Kernel),
        DoctorCommand::Completions { shell } => {
            Ok((completions::<DoctorCli>(*shell), DoctorExit::Works))
        }
    }
}

fn check(cli: &DoctorCli, arguments: &CheckArgs) -> Result<(String, DoctorExit), DoctorFailure> {
    let (sysfs, procfs, boot) = (cli.sysfs.clone(), cli.procfs.clone(), cli.boot.clone());
    let roots = Roots { sysfs, procfs, boot, udev: cli.udev.clone() };
    let machine = machine(cli);
    let sysfs = &machine.sysfs;
    let pci = sysfs.pci_devices();
    let devices = devices(&pci, &machine, &program_directories());
    let advice = Advice { roots: &roots, pci: &pci, devices: &devices };
    let before = counted(&roots);
    let rows = try_all(arguments, &advice).map_err(|error| {
        DoctorFailure::new(
            DoctorExit::Failed,
            error.to_string(),
            "name a directory in which you may make files",
        )
    })?;
    let nvml = nvml_gpus();
    let gpus = gpus(&advice, sysfs, &nvml);
    let has = Has { gpu: !gpus.is_empty(), nvme: !devices.is_empty() };
    let page = DoctorPage {
        facts: all(&roots, has).into_iter().chain([latency(&before, &counted(&roots))]).collect(),
        gpus,
        nvml_why_not: nvml.err(),
        rows,
        spdk_next: advice.for_spdk(),
        devices,
    };
    let text = match cli.output {
        OutputFormat::Text => page.text(),
        OutputFormat::Json => format!("{:#}\n", page.json()),
    };
    Ok((text, page.exit()))
}

fn rebind(
    cli: &DoctorCli,
    arguments: &HandOverArgs,
    towards: BindDirection,
) -> Result<(String, DoctorExit), DoctorFailure> {
    let machine = machine(cli);
    let plan = plan(&arguments.device, towards, &machine)?;
    if arguments.yes {
        carry_out(&plan, &machine)?;
    }
    let text = match cli.output {
        OutputFormat::Text => steps_text(&plan, arguments.yes),
        OutputFormat::Json => {
            let document = json!({
                "device": plan.address,
                "driver": plan.driver,
                "notes": plan.notes,
                "steps": plan.steps,
                "done": arguments.yes,
            });
            format!("{document:#}\n")
        }
    };
    Ok((text, DoctorExit::Works))
}

fn steps_text(plan: &BindPlan, done: bool) -> String {
    if plan.steps.is_empty() {
        return format!("{} has {} already; nothing to do\n", plan.driver, plan.address);
    }
    let notes = plan.notes.iter().map(|note| format!("{}\n", printable(note)));
    let steps =
        plan.steps.iter().map(|step| format!("  echo {:?} > {}\n", step.text, step.file.display()));
    let end = if done {
        format!("{} has {} now\n", plan.driver, plan.address)
    } else {
        "nothing was done; add --yes to do it\n".to_owned()
    };
    notes.chain(steps).chain([end]).collect()
}

fn machine(cli: &DoctorCli) -> SystemPaths {
    let system = System { sysfs: cli.sysfs.clone(), procfs: cli.procfs.clone() };
    let sysfs = Sysfs(cli.sysfs.clone());
    SystemPaths { sysfs, system, nodes: cli.devfs.clone(), claims: cli.claims.clone() }
}
