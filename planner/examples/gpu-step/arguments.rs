//! Arguments of the command line.

use tidelog_planner::gpu_step::Bridge;

/// The steps that are recorded in `planner/traces`.
const TRACES: [&str; 3] = ["gpt-8", "gpt-32", "llama3-8b-layers"];

pub(crate) const HELP: &str = "\
What a training step takes on a GPU whose memory holds a part of it, and why: a model with two
clocks, the program's thread and the GPU, that needs no GPU.

    gpu-step [STEP ...] [--percent P ...] [--bridge NAME ...] [--deciding NAME] [--output FORMAT]

A STEP is one of gpt-8 and gpt-32 (the GPT that was measured on an H200, 8 and 32 sequences) and
llama3-8b-layers; all of them by default. planner/traces/record.py records them on meta tensors.

  --percent P ...     memory, in hundredths of the step's peak (default: 50 33)
  --bridge NAME ...   how the bridge behaves (default: measured native ordered
                      arena event-ordered):
                      measured          the host waits for transfers, checks what was written once
                                        more, and works in torch's allocator; ops and requests are
                                        Python's; the search's first plan
                      measured-planned  the same under the plan that the search ends with
                      native            the same, ops and requests are C++'s
                      ordered           the same, what is written is ordered by events: the code as it
                                        is
                      arena             the same in one arena of memory, not torch's allocator
                      checks-in-stream  measured-planned, checks behind the copy in a stream of their own
                      event-ordered     streams wait for events, memory is one arena's, ops and
                                        requests are C++'s
                      all               all seven
  --deciding NAME     also which constants decide, for that bridge: each alone at both ends of its
                      range, under the plan for the likeliest figures
  --output FORMAT     text or json (times in ns, sizes in bytes)

How to read it. The true bound is what no bridge and no plan can beat: kernel times alone, without
gaps between launches, against what the link carries each way. \"x bound\" is the step over it. Every
millisecond of a step has one cause: kernels ran; or checksums took their place; or the GPU had
nothing to do, because of what its next kernel waited for (copies), or because of what the
program's thread did instead of launching (dispatch, requests, the allocator, being woken, waiting
for a transfer). Causes sum to the step. In brackets is the same with all constants at the fast,
and at the slow end of their ranges; planner/gpu-costs.json has them, each with its source.
";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableFormat {
    Text,
    Json,
}

#[derive(Debug)]
pub(crate) struct Arguments {
    pub(crate) traces: Vec<String>,
    pub(crate) percents: Vec<u32>,
    pub(crate) bridges: Vec<Bridge>,
    pub(crate) deciding: Option<Bridge>,
    pub(crate) format: TableFormat,
}

impl Arguments {
    /// Parses the arguments; `None` for help.
    pub(crate) fn parse(words: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let (mut traces, mut percents, mut bridges) = (Vec::new(), Vec::new(), Vec::new());
        let (mut deciding, mut format) = (None, TableFormat::Text);
        let mut option = String::new();
        for word in words {
            if word == "--help" || word == "-h" {
                return Ok(None);
            }
            if word.starts_with("--") {
                if !["--percent", "--bridge", "--deciding", "--output"].contains(&word.as_str()) {
                    return Err(format!("there is no option {word}"));
                }
                option = word;
                continue;
            }
            match option.as_str() {
                "--percent" => percents.push(percent(&word)?),
                "--bridge" if word == "all" => bridges.extend(Bridge::ALL),
                "--bridge" => bridges.push(bridge(&word)?),
                "--deciding" if deciding.is_none() => deciding = Some(bridge(&word)?),
                "--output" if word == "text" => format = TableFormat::Text,
                "--output" if word == "json" => format = TableFormat::Json,
                "--output" => return Err(format!("--output {word}: it is text or json")),
                _ if TRACES.contains(&word.as_str()) => traces.push(word),
                _ => return Err(format!("step {word} is not known: {}", TRACES.join(", "))),
            }
            if ["--deciding", "--output"].contains(&option.as_str()) {
                option.clear();
            }
        }
        or(&mut traces, TRACES.map(String::from));
        or(&mut percents, [50, 33]);
        let usual = [
            Bridge::Measured,
            Bridge::Native,
            Bridge::Ordered,
            Bridge::Arena,
            Bridge::EventOrdered,
        ];
        or(&mut bridges, usual);
        Ok(Some(Self { traces, percents, bridges, deciding, format }))
    }
}

fn or<T, const N: usize>(asked: &mut Vec<T>, default: [T; N]) {
    if asked.is_empty() {
        asked.extend(default);
    }
}

fn percent(word: &str) -> Result<u32, String> {
    let percent = word.parse().ok().filter(|percent| (1..=100).contains(percent));
    percent.ok_or_else(|| format!("--percent {word}: it is a number from 1 to 100"))
}

fn bridge(word: &str) -> Result<Bridge, String> {
    let known = Bridge::ALL.into_iter().find(|bridge| bridge.word() == word);
    let names = || Bridge::ALL.map(Bridge::word).join(", ");
    known.ok_or_else(|| format!("bridge {word} is not known: {}", names()))
}
