//! Location of cuFile's log: into the current folder, unless it is told otherwise. Only the
//! environment and its configuration tell it: 1.17 takes no notice of `cuFileSetParameterString`.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// Names the log's file; outranks the configuration.
const VARIABLE: &str = "CUFILE_LOGFILE_PATH";

/// Has the log of a cuFile that this process opens later be in the user's folder for such files,
/// and not in the current one. Returns where it is, unless that was said before, or threads run
/// already: they may be reading the environment.
pub fn keep_log() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name);
    let configuration = variable("CUFILE_ENV_PATH_JSON").unwrap_or("/etc/cufile.json".into());
    let configuration = fs::read_to_string(configuration).unwrap_or_default();
    let file = place(&variable, &configuration)?;
    let threads = fs::read_dir("/proc/self/task").ok()?.count();
    if threads != 1 {
        return None;
    }
    fs::create_dir_all(file.parent()?).ok()?;
    // SAFETY: this is the only thread of the process, so nobody reads the environment meanwhile.
    unsafe { std::env::set_var(VARIABLE, &file) };
    Some(file)
}

/// The file, where nobody has named one, nor a folder.
fn place(variable: &dyn Fn(&str) -> Option<OsString>, configuration: &str) -> Option<PathBuf> {
    let is_configured = configuration.lines().any(|line| line.trim().starts_with("\"dir\""));
    if variable(VARIABLE).is_some() || is_configured {
        return None;
    }
    let state = variable("XDG_STATE_HOME").map(PathBuf::from);
    let home = || Some(Path::new(&variable("HOME")?).join(".local/state"));
    Some(state.or_else(home)?.join("tidelog/cufile.log"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_the_users_unless_a_place_was_named() {
        let with = |set: &[(&str, &str)], configuration: &str| {
            let found = |name: &str| {
                set.iter().find(|(each, _)| *each == name).map(|(_, value)| OsString::from(*value))
            };
            place(&found, configuration)
        };
        let home = ("HOME", "/home/a");
        let usual = Some(PathBuf::from("/home/a/.local/state/tidelog/cufile.log"));
        assert_eq!(with(&[home], ""), usual);
        // As it is installed: a comment.
        assert_eq!(with(&[home], "\"logging\": {\n  //\"dir\": \"/home/<xxxx>\",\n}"), usual);
        let named = with(&[home, ("XDG_STATE_HOME", "/state")], "");
        assert_eq!(named, Some(PathBuf::from("/state/tidelog/cufile.log")));
        assert_eq!(with(&[home, (VARIABLE, "/b")], ""), None);
        assert_eq!(with(&[home], "\"logging\": {\n  \"dir\": \"/logs\",\n}"), None);
        assert_eq!(with(&[], ""), None);
    }
}
