//! fio's options that there are not.

use super::table::OPTIONS;

/// Options of fio that there are not, and why or what to do instead.
const REFUSED: &[(&str, &str)] = &[
    ("mem", "memory comes from the data path, in huge pages where there are any"),
    ("iomem", "memory comes from the data path, in huge pages where there are any"),
    (
        "fill_device",
        "it would fill the file system to its last byte; give size, or use a block device",
    ),
    ("fill_fs", "it would fill the file system to its last byte; give size, or use a block device"),
    ("verify_pattern", "blocks carry stamps, and between them bytes that do not compress"),
    ("verify_interval", "each block carries one stamp; give bs"),
    ("verify_async", "blocks are compared where they are read"),
    ("blockalign", "operations are aligned to the smallest block"),
    ("cmdprio_bssplit", "priorities do not depend on the size; give cmdprio_percentage"),
    ("buffer_pattern", "what is written is random, or zeros behind that"),
    ("buffer_compress_chunk", "each block compresses as a whole"),
    ("continue_on_error", "the first operation that fails ends its job"),
    ("ignore_error", "the first operation that fails ends its job"),
    ("fallocate", "files that are made are reserved whole, so that a full disk is found before"),
    ("create_on_open", "files are made, and reserved whole, before any job begins"),
    ("create_serialize", "files are made one after the other before any job begins; leave it out"),
    ("sg_write_mode", "no data path here sends SCSI commands"),
];

/// That something is no option, and why, or what may have been meant.
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
