//! `record`: the recorder is Python, because the model is.

use crate::cli::RecordArgs;
use crate::failure::PlanFailure;
use crate::inputs::text_of;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The GPUs that need only be named.
const GPUS: [(&str, &str); 4] = [
    ("a100", include_str!("../../../../planner/machines/a100.json")),
    ("h100-nvl", include_str!("../../../../planner/machines/h100-nvl.json")),
    ("h200", include_str!("../../../../planner/machines/h200.json")),
    ("rtx-4090", include_str!("../../../../planner/machines/rtx-4090.json")),
];

/// Says which of what it needs a Python lacks.
const PROBE: &str = "import importlib.util as u\n\
                     print(' '.join(n for n in ('torch', 'tidelog') if u.find_spec(n) is None))";

pub(crate) fn record(arguments: &RecordArgs) -> Result<String, PlanFailure> {
    let gpu = match GPUS.iter().find(|(name, _)| *name == arguments.gpu) {
        Some((_, text)) => (*text).to_owned(),
        None => text_of_file(&arguments.gpu)?,
    };
    let python = arguments.python.clone().unwrap_or_else(installed_with);
    probe(&python)?;
    let mut command = Command::new(&python);
    command.args(["-m", "tidelog.models", &arguments.model, "--gpu", &gpu]);
    if let Some(precision) = &arguments.precision {
        command.args(["--precision", precision]);
    }
    for (option, number) in [
        ("--micro-batch", arguments.micro_batch),
        ("--micro-batches", arguments.micro_batches),
        ("--sequence", arguments.sequence),
        ("--data-parallel", arguments.data_parallel),
    ] {
        command.args([option, &number.to_string()]);
    }
    if arguments.checkpointing {
        command.arg("--checkpointing");
    }
    let done =
        command.stderr(Stdio::inherit()).output().map_err(|error| not_there(&python, &error))?;
    if !done.status.success() {
        return Err(PlanFailure::Recorder(format!(
            "the recorder ended with {}; its messages are above",
            done.status
        )));
    }
    let text = String::from_utf8(done.stdout).map_err(|_| {
        PlanFailure::Recorder("the recorder wrote something that is not text".to_owned())
    })?;
    super::write_or_print(arguments.output_file.as_deref(), text)
}

/// Returns the text of a GPU's file.
fn text_of_file(gpu: &str) -> Result<String, PlanFailure> {
    let path = Path::new(gpu);
    if path.exists() {
        return text_of(path);
    }
    let known: Vec<&str> = GPUS.iter().map(|(name, _)| *name).collect();
    Err(PlanFailure::NotFound(format!(
        "--gpu {gpu}: no GPU of that name is known ({}), and there is no such file",
        known.join(", ")
    )))
}

/// The Python beside this program, where a wheel was installed; else whichever is found first.
fn installed_with() -> PathBuf {
    let beside = std::env::current_exe().ok().map(|program| program.with_file_name("python3"));
    beside.filter(|python| python.exists()).unwrap_or_else(|| PathBuf::from("python3"))
}

fn probe(python: &Path) -> Result<(), PlanFailure> {
    let found = Command::new(python).args(["-c", PROBE]).output();
    let found = found.map_err(|error| not_there(python, &error))?;
    if !found.status.success() {
        let said = String::from_utf8_lossy(&found.stderr);
        return Err(PlanFailure::Recorder(format!(
            "{} does not run: {}",
            python.display(),
            said.trim()
        )));
    }
    let missing = String::from_utf8_lossy(&found.stdout).trim().to_owned();
    if missing.is_empty() {
        return Ok(());
    }
    let mut what = Vec::new();
    if missing.contains("torch") {
        what.push("PyTorch (`pip install torch transformers`; the CPU build will do)");
    }
    if missing.contains("tidelog") {
        what.push("the tidelog package (put Tidelog's torch-bridge/python on PYTHONPATH)");
    }
    Err(PlanFailure::Recorder(format!(
        "{} lacks {}; --python names another one, such as the .venv/bin/python that `make setup` makes",
        python.display(),
        what.join(" and ")
    )))
}

fn not_there(python: &Path, error: &std::io::Error) -> PlanFailure {
    PlanFailure::Recorder(format!(
        "{}: {error}; --python names the Python to use",
        python.display()
    ))
}
