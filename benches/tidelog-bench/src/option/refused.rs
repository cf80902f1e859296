//! fio's options that there are not.

use super::table::OPTIONS;
use crate::exit::BenchError;

/// Options of fio that there are not, and why or what to do instead. README.md has the same table.
pub(crate) const REFUSED: &[(&str, &str)] = &[
    ("mem", "memory comes from the data path, in huge pages where there are any"),
    ("iomem", "memory comes from the data path, in huge pages where there are any"),
    ("lockmem", "it takes memory from the machine that the job does not use"),
    (
        "fill_device",
        "it would fill the file system to its last byte; give size, or use a block device",
    ),
    ("fill_fs", "it would fill the file system to its last byte; give size, or use a block device"),
    ("verify_pattern", "blocks carry stamps, and between them bytes that do not compress"),
    ("verify_interval", "each block carries one stamp; give bs"),
    ("verify_async", "blocks are compared where they are read"),
    ("cmdprio_bssplit", "priorities do not depend on the size; give cmdprio_percentage"),
    ("buffer_pattern", "what is written is random, or zeros behind that"),
    ("buffer_compress_chunk", "each block compresses as a whole"),
    ("ignore_error", "the first operation that fails ends its job"),
    ("sg_write_mode", "no data path here sends SCSI commands"),
    ("ioscheduler", "it changes the machine: write to /sys/block/NAME/queue/scheduler yourself"),
    ("read_iolog", "only plans are replayed: give workload and trace"),
    ("write_iolog", "give write_bw_log and log_offset, which log where each operation went"),
    ("eta", "it is for the command line: --eta"),
    ("output-format", "it is for the command line: --output-format"),
    ("minimal", "it is for the command line: --minimal"),
];

/// Options of fio that change nothing that is measured here: with which values, or with any, and
/// what is so in any case. README.md has the same table.
pub(crate) const SETTLED: &[(&str, &[&str], &str)] = &[
    ("gtod_reduce", &[], "the clock is read once for many operations, and latencies are reported"),
    ("disable_lat", &[], "latencies are reported"),
    ("disable_clat", &[], "latencies are reported"),
    ("disable_slat", &[], "latencies are reported"),
    ("disable_bw", &[], "bandwidth is reported"),
    ("disable_bw_measurement", &[], "bandwidth is reported"),
    ("clocksource", &[], "the clock is the kernel's monotonic one"),
    ("softrandommap", &[], "a map of random blocks takes no memory"),
    ("openfiles", &[], "all files of a job are open"),
    ("create_serialize", &[], "files are made one after the other before any job begins"),
    ("create_fsync", &[], "files are laid out, and flushed, before any job begins"),
    ("create_on_open", &["0"], "files are made, and reserved whole, before any job begins"),
    (
        "fallocate",
        &["1", "native", "posix"],
        "files that are made are reserved whole, so that a full disk is found before",
    ),
    ("file_service_type", &["roundrobin"], "operations go to the files in turn"),
    ("unlink", &["0"], "files stay when the run ends"),
    ("continue_on_error", &["0", "none"], "the first operation that fails ends its job"),
    ("hipri", &["0"], "the data paths wait for interrupts"),
    (
        "scramble_buffers",
        &["0"],
        "buffers are filled once; give refill_buffers, which writes other bytes each time",
    ),
    ("unified_rw_reporting", &["0", "none"], "reads, writes and trims are reported apart"),
    ("bwavgtime", &["500"], "rates are averaged over 500 ms"),
    ("iopsavgtime", &["500"], "rates are averaged over 500 ms"),
];

/// Checks that a value of an option that is settled is what is done in any case; nothing if it is
/// another option.
pub(super) fn settled(name: &str, value: &str) -> Option<Result<(), BenchError>> {
    let (_, values, why) = SETTLED.iter().find(|(settled, ..)| *settled == name)?;
    let is_so = values.is_empty() || values.contains(&value.trim());
    Some(is_so.then_some(()).ok_or_else(|| BenchError::usage(format!("{name}={value}: {why}"))))
}

/// Returns the message that a name is no option, and why, or what may have been meant.
pub fn no_option(name: &str) -> String {
    if let Some((_, why)) = REFUSED.iter().find(|(refused, _)| *refused == name) {
        return format!("{name}: {why}");
    }
    let names = OPTIONS.iter().flat_map(|spec| spec.aliases.iter().copied().chain([spec.name]));
    let nearest = names.map(|known| (strsim::damerau_levenshtein(known, name), known)).min();
    let meant = nearest.filter(|(steps, known)| *steps <= 1.max(known.len() / 4));
    let meant = meant.map_or_else(String::new, |(_, known)| format!(" (did you mean {known}?)"));
    format!(
        "{name} is no option here{meant}. It is refused, since ignoring it could change what is measured; \
         --help lists all options"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_each_option_with_its_reason() {
        let page = include_str!("../../README.md");
        let settled = SETTLED.iter().map(|(name, values, why)| {
            let values = values.iter().map(|it| format!("`{it}`")).collect::<Vec<_>>().join(", ");
            (name, if values.is_empty() { "any".to_owned() } else { values }, why)
        });
        for (name, values, why) in settled {
            let row = format!("| `{name}` | {values} | {why} |");
            assert!(page.contains(&row), "README.md lacks: {row}");
        }
        for (name, why) in REFUSED {
            let row = format!("| `{name}` | {why} |");
            assert!(page.contains(&row), "README.md lacks: {row}");
        }
    }
}
