//! Options on the kernel besides bytes: priorities of operations, a thread that takes submissions,
//! the nodes that memory comes from.

use tidelog_engine::memory::MemoryPolicy;
use tidelog_engine::path::{IoPriority, PathKind, PriorityClass, SubmissionThread};

use super::job::{JobOptions, Level};
use super::value::{number, percent, processors};
use crate::direction::DataDirection;
use crate::exit::BenchError;

/// Requests of a job to the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kernel {
    /// Priorities of its operations.
    pub priorities: Priorities,
    /// The thread that takes its submissions.
    pub submission: Option<SubmissionThread>,
    /// Policy of its memory.
    pub memory: Option<MemoryPolicy>,
}

/// The priorities of a job's operations, by fio's rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Priorities {
    /// Class of most operations: `prioclass`, and `prio`.
    pub class: Option<PriorityClass>,
    /// See `class`.
    pub level: Option<u8>,
    /// Share of reads and writes with the other priority, in percent.
    pub percentage: [u8; 2],
    /// Class of the remaining reads and writes: `cmdprio_class`, and `cmdprio`.
    pub other_class: [Option<PriorityClass>; 2],
    /// See `other_class`.
    pub other_level: [Option<u8>; 2],
}

impl Priorities {
    /// The priority of the next operation in this direction.
    pub fn draw(&self, direction: DataDirection, random: &mut fastrand::Rng) -> Option<IoPriority> {
        if direction == DataDirection::Trim {
            return None;
        }
        let index = direction as usize;
        let is_other = self.percentage[index] > 0 && random.u8(0..100) < self.percentage[index];
        if is_other {
            let class = self.other_class[index].unwrap_or(PriorityClass::RealTime);
            return IoPriority::new(class, self.other_level[index].unwrap_or(0));
        }
        if self.class.is_none() && self.level.is_none() {
            return None;
        }
        let class = self.class.unwrap_or(PriorityClass::BestEffort);
        IoPriority::new(class, self.level.unwrap_or(0))
    }
}

impl JobOptions {
    /// Checks that the data path can ask the kernel for what the job asks of it.
    pub(super) fn check_kernel(&self, engine: PathKind) -> Result<(), BenchError> {
        let Kernel { priorities, submission, memory } = &self.kernel;
        let has_priorities = *priorities != Priorities::default();
        let submits = [PathKind::Uring, PathKind::UringCmd].contains(&engine);
        let wrong = |what: &str| Err(BenchError::usage(what).within(&self.name));
        let asked = [
            ("prio, prioclass and cmdprio_percentage", has_priorities),
            ("sqthread_poll", submission.is_some()),
            ("numa_mem_policy", memory.is_some()),
        ];
        if let Some((name, _)) =
            asked.iter().find(|(_, is_asked)| *is_asked && self.level == Level::Log)
        {
            return wrong(&format!("{name}: for the raw level"));
        }
        if has_priorities && engine != PathKind::Uring {
            return wrong(
                "prio, prioclass and cmdprio_percentage: no data path but tidelog-uring passes a \
                 priority on to the kernel",
            );
        }
        if submission.is_some() && !submits {
            return wrong("sqthread_poll works with tidelog-uring and tidelog-uring-cmd only");
        }
        if memory.is_some() && engine == PathKind::Spdk {
            return wrong(
                "numa_mem_policy: SPDK's memory comes from the node of each controller, whatever the \
                 thread's policy",
            );
        }
        let is_without = |index: usize| {
            let is_given =
                priorities.other_class[index].is_some() || priorities.other_level[index].is_some();
            is_given && priorities.percentage == [0; 2]
        };
        if (0..2).any(is_without) {
            return wrong(
                "cmdprio and cmdprio_class are for cmdprio_percentage, which is not given",
            );
        }
        Ok(())
    }
}

/// One value for reads and writes, or one for each.
pub(super) fn for_reads_and_writes<T: Copy>(
    text: &str,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<[T; 2], String> {
    let (reads, writes) = text.split_once(',').unwrap_or((text, text));
    Ok([read(reads)?, read(writes)?])
}

pub(super) fn percentages(text: &str) -> Result<[u8; 2], String> {
    for_reads_and_writes(text, percent)
}

pub(super) fn priority_class(text: &str) -> Result<Option<PriorityClass>, String> {
    match text.trim() {
        "0" => Ok(None),
        "1" => Ok(Some(PriorityClass::RealTime)),
        "2" => Ok(Some(PriorityClass::BestEffort)),
        "3" => Ok(Some(PriorityClass::Idle)),
        _ => {
            Err("there are 1 (real time), 2 (best effort) and 3 (idle), and 0 for none".to_owned())
        }
    }
}

pub(super) fn priority_level(text: &str) -> Result<Option<u8>, String> {
    let level = number(text, 0)?;
    let level = u8::try_from(level).ok().filter(|level| *level <= IoPriority::LEVEL_MAX);
    level.map(Some).ok_or_else(|| "0 is the highest, and 7 the lowest".to_owned())
}

/// Reads `default`, `local`, `prefer:1`, `bind:0-1` or `interleave:0-1`.
pub(super) fn memory_policy(text: &str) -> Result<MemoryPolicy, String> {
    let (mode, nodes) = text.trim().split_once(':').unwrap_or((text.trim(), ""));
    let set = || {
        processors(nodes)
            .map_err(|_| format!("{nodes:?} is no set of nodes; write {mode}:0, or {mode}:0,2-3"))
    };
    match (mode, nodes) {
        ("default", "") => Ok(MemoryPolicy::Default),
        ("local", "") => Ok(MemoryPolicy::Local),
        ("prefer", _) => match set()?[..] {
            [node] => Ok(MemoryPolicy::Preferred(node)),
            _ => Err("prefer takes one node".to_owned()),
        },
        ("bind", _) => set().map(MemoryPolicy::Bind),
        ("interleave", _) => set().map(MemoryPolicy::Interleave),
        _ => {
            Err("there are default, local, prefer:NODE, bind:NODES and interleave:NODES".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::option::apply;

    fn job(options: &[(&str, &str)]) -> Result<JobOptions, BenchError> {
        let mut job = JobOptions { filename: vec!["x".to_owned()], ..JobOptions::default() };
        for (name, value) in options {
            apply(&mut job, name, value)?;
        }
        job.check().map(|()| job)
    }

    #[test]
    fn so_many_operations_have_the_other_priority() {
        let uring = ("ioengine", "tidelog-uring");
        let wanted = [uring, ("prioclass", "3"), ("cmdprio_percentage", "20,0"), ("cmdprio", "2")];
        let priorities = job(&wanted).unwrap().kernel.priorities;
        let mut random = fastrand::Rng::with_seed(1);
        let mut numbers = |direction| {
            let drawn = (0..1000).map(|_| priorities.draw(direction, &mut random));
            drawn.map(|it| it.map(IoPriority::number)).collect::<Vec<_>>()
        };
        let reads = numbers(DataDirection::Read);
        let urgent = reads.iter().filter(|it| **it == Some(0x2002)).count();
        assert!((150..250).contains(&urgent), "{urgent}");
        assert!(reads.iter().all(|it| [Some(0x2002), Some(0x6000)].contains(it)));
        assert!(numbers(DataDirection::Write).iter().all(|it| *it == Some(0x6000)));
        assert!(numbers(DataDirection::Trim).iter().all(Option::is_none));
        let plain = job(&[uring]).unwrap().kernel.priorities;
        assert_eq!(plain.draw(DataDirection::Read, &mut random), None);
    }

    #[test]
    fn a_path_that_cannot_ask_the_kernel_refuses_by_name() {
        let posix = ("ioengine", "tidelog-posix");
        for option in [("prio", "1"), ("cmdprio_percentage", "5"), ("sqthread_poll", "1")] {
            let said = job(&[posix, option]).unwrap_err().to_string();
            assert!(said.contains(option.0), "{said}");
            let log = [("ioengine", "tidelog-uring"), ("level", "log"), option];
            assert!(job(&log).unwrap_err().to_string().contains("raw level"));
        }
        assert!(job(&[posix, ("numa_mem_policy", "local")]).is_ok());
        let alone = job(&[("ioengine", "tidelog-uring"), ("cmdprio_class", "2")]);
        assert!(alone.unwrap_err().to_string().contains("cmdprio_percentage"));
    }

    #[test]
    fn a_memory_policy_is_read_as_fio_reads_it() {
        assert_eq!(memory_policy("bind:0,2-3"), Ok(MemoryPolicy::Bind(vec![0, 2, 3])));
        assert_eq!(memory_policy("prefer:1"), Ok(MemoryPolicy::Preferred(1)));
        assert_eq!(memory_policy("local"), Ok(MemoryPolicy::Local));
        for text in ["bind", "prefer:0-1", "local:1", "near"] {
            assert!(memory_policy(text).is_err(), "{text}");
        }
    }
}
