//! The processors that a job runs on, and the nodes that its memory comes from: `cpus_allowed`,
//! `numa_cpu_nodes`, `numa_mem_policy`.

use std::fs;
use std::path::Path;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use crate::exit::BenchError;
use crate::option::JobOptions;
use crate::option::value::{Nodes, processors};

/// Binds the calling thread, of the `clone`th of a job's `numjobs`, to the processors of its job,
/// and its memory to the job's nodes. Threads that it starts inherit that.
pub(super) fn pin(job: &JobOptions, clone: u32) -> Result<(), BenchError> {
    take_memory_by_policy(job)?;
    let wanted = match &job.numa_cpu_nodes {
        None => job.cpus_allowed.clone(),
        Some(nodes) => {
            processors_of(nodes, Path::new("/sys/devices/system/node")).map_err(|what| {
                BenchError::usage(format!("numa_cpu_nodes: {what}")).within(&job.name)
            })?
        }
    };
    if wanted.is_empty() {
        return Ok(());
    }
    let own = [wanted[clone as usize % wanted.len()]];
    let wanted = if job.cpus_split { &own[..] } else { &wanted };
    let mut set = CpuSet::new();
    let set = wanted.iter().try_for_each(|processor| set.set(*processor)).map(|()| set);
    set.and_then(|set| sched_setaffinity(Pid::from_raw(0), &set)).map_err(|error| {
        let what = format!("{}: cannot run only on the processors that were asked for", job.name);
        BenchError::System { what, source: error.into() }
    })
}

fn take_memory_by_policy(job: &JobOptions) -> Result<(), BenchError> {
    let Some(policy) = &job.kernel.memory else { return Ok(()) };
    policy.set_for_this_thread().map_err(|source| {
        let what = format!("{}: numa_mem_policy: memory cannot come from there", job.name);
        BenchError::System { what, source }
    })
}

/// The processors of nodes, as the kernel lists them in sysfs.
fn processors_of(nodes: &Nodes, sysfs: &Path) -> Result<Vec<usize>, String> {
    let list = |name: &str| {
        let text = fs::read_to_string(sysfs.join(name));
        text.map(|text| text.trim().to_owned())
            .map_err(|_| "this kernel shows no NUMA nodes".to_owned())
    };
    let there = processors(&list("online")?)?;
    let wanted = match nodes {
        Nodes::All => &there,
        Nodes::Some(nodes) => nodes,
    };
    let mut set = Vec::new();
    for node in wanted {
        if !there.contains(node) {
            let there: Vec<String> = there.iter().map(ToString::to_string).collect();
            return Err(format!("there is no node {node} here; there is {}", there.join(", ")));
        }
        let cpus = list(&format!("node{node}/cpulist"))?;
        // A node of memory alone has none.
        set.extend(if cpus.is_empty() { Vec::new() } else { processors(&cpus)? });
    }
    if set.is_empty() { Err("these nodes have no processors".to_owned()) } else { Ok(set) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_become_the_processors_that_the_kernel_lists() {
        let sysfs =
            std::env::temp_dir().join(format!("tidelog-bench-nodes-{}", std::process::id()));
        for (node, cpus) in [("node0", "0-1,8"), ("node1", "2-3"), ("node2", "")] {
            fs::create_dir_all(sysfs.join(node)).unwrap();
            fs::write(sysfs.join(node).join("cpulist"), format!("{cpus}\n")).unwrap();
        }
        fs::write(sysfs.join("online"), "0-2\n").unwrap();
        let of = |nodes: &[usize]| processors_of(&Nodes::Some(nodes.to_vec()), &sysfs);
        assert_eq!(of(&[0, 1]), Ok(vec![0, 1, 8, 2, 3]));
        assert_eq!(processors_of(&Nodes::All, &sysfs), Ok(vec![0, 1, 8, 2, 3]));
        assert_eq!(of(&[7]), Err("there is no node 7 here; there is 0, 1, 2".to_owned()));
        assert_eq!(of(&[2]), Err("these nodes have no processors".to_owned()));
        fs::remove_dir_all(&sysfs).unwrap();
    }
}
