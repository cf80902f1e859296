//! Job files: `[global]` and one section for each job.

use std::path::Path;

use ini_core::{Item, Parser};

use crate::exit::BenchError;
use crate::option::{JobOptions, apply, find};

/// The jobs of a file's text, or of these sections of it if any are named. Options of `[global]`
/// hold for the sections after it, on top of `base`. Files that it includes are looked for in
/// `directory`.
///
/// # Errors
/// Every line that cannot be understood, by its number.
pub fn parse(
    text: &str,
    base: &JobOptions,
    sections: &[String],
    directory: &Path,
) -> Result<Vec<JobOptions>, BenchError> {
    let mut global = base.clone();
    let mut jobs: Vec<JobOptions> = Vec::new();
    let mut section = Section::None;
    // The parser hands out one item for each line, and one more before each section and at the end.
    let mut line = 0;
    let mut wrong: Vec<(usize, BenchError)> = Vec::new();
    for item in Parser::new(text) {
        if !matches!(item, Item::SectionEnd) {
            line += 1;
        }
        let within = |error: BenchError| error.within(&format!("line {line}"));
        match item {
            Item::Section(name) if name.trim() == "global" => section = Section::Global,
            Item::Section(name)
                if !sections.is_empty() && sections.iter().all(|it| *it != name.trim()) =>
            {
                section = Section::LeftOut;
            }
            Item::Section(name) => {
                section = Section::Job;
                jobs.push(JobOptions { name: name.trim().to_owned(), ..global.clone() });
            }
            Item::Error(what) => {
                return Err(within(BenchError::usage(format!("{what:?} is no section"))));
            }
            Item::Property(..) if matches!(section, Section::LeftOut) => {}
            Item::Property(key, _) if key.trim_start().starts_with(['#', ';']) => {}
            Item::Property(key, None) if key.trim().is_empty() => {}
            Item::Property(key, value) => {
                let target = match section {
                    Section::None => {
                        let what = "an option before any section; begin with [global] or [NAME]";
                        return Err(within(BenchError::usage(what)));
                    }
                    Section::Global => &mut global,
                    Section::Job | Section::LeftOut => jobs.last_mut().unwrap_or(&mut global),
                };
                let set = set(target, key, value, directory, 0);
                wrong.extend(set.err().map(|error| (line, error)));
            }
            Item::Comment(_) | Item::Blank | Item::SectionEnd => {}
        }
    }
    if !wrong.is_empty() {
        let told = wrong.iter().map(|(line, error)| format!("line {line}: {error}"));
        return Err(BenchError::usage(told.collect::<Vec<_>>().join("\n  ")));
    }
    if jobs.is_empty() {
        return Err(BenchError::usage(match sections {
            [] => "there is no job: a job is a section other than [global]".to_owned(),
            names => format!("there is no section called {}", names.join(" or ")),
        }));
    }
    Ok(jobs)
}

/// Does what a line of a section says.
fn set(
    target: &mut JobOptions,
    key: &str,
    value: Option<&str>,
    directory: &Path,
    nested: u32,
) -> Result<(), BenchError> {
    // As in fio a comment may follow anything, and begins with either sign.
    let (key, value) = match key.find(COMMENTS) {
        Some(end) => (key[..end].trim(), None),
        None => (key.trim(), value.map(before_comment)),
    };
    if let (Some(name), None) = (key.strip_prefix("include "), value) {
        return include(target, &directory.join(name.trim()), nested);
    }
    // Alone on its line a switch is on. What is no switch says itself what it misses.
    let is_switch = find(key).is_none_or(|spec| spec.value.is_empty());
    let alone = if is_switch { "1" } else { "" };
    let value = expand(value.unwrap_or(alone).trim())?;
    apply(target, key, &value)
}

/// Does what the lines of another file say, as if they stood here.
fn include(target: &mut JobOptions, path: &Path, nested: u32) -> Result<(), BenchError> {
    let wrong = |what: String| BenchError::usage(format!("include {}: {what}", path.display()));
    if nested == INCLUDES {
        return Err(wrong("files include each other without an end".to_owned()));
    }
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let directory = path.parent().unwrap_or(Path::new(""));
    let items = Parser::new(&text).filter(|item| !matches!(item, Item::SectionEnd));
    for (line, item) in (1..).zip(items) {
        let set = match item {
            Item::Property(key, _) if key.trim_start().starts_with(COMMENTS) => Ok(()),
            Item::Property(key, None) if key.trim().is_empty() => Ok(()),
            Item::Property(key, value) => set(target, key, value, directory, nested + 1),
            Item::Section(_) | Item::Error(_) => {
                Err(BenchError::usage("a file that is included has options and no sections"))
            }
            Item::Comment(_) | Item::Blank | Item::SectionEnd => Ok(()),
        };
        set.map_err(|error| wrong(format!("line {line}: {error}")))?;
    }
    Ok(())
}

/// Limit of the depth of included files.
const INCLUDES: u32 = 16;

/// Characters that begin a comment.
const COMMENTS: [char; 2] = [';', '#'];

fn before_comment(value: &str) -> &str {
    value.find(COMMENTS).map_or(value, |end| &value[..end])
}

#[derive(Clone, Copy)]
enum Section {
    None,
    Global,
    Job,
    /// Section that is left out, as another one was named.
    LeftOut,
}

/// Puts in the values of environment variables, `${NAME}`.
fn expand(value: &str) -> Result<String, BenchError> {
    let mut expanded = String::new();
    let mut rest = value;
    while let Some((before, after)) = rest.split_once("${") {
        let (name, after) = after
            .split_once('}')
            .ok_or_else(|| BenchError::usage(format!("{value}: a brace is not closed")))?;
        let found = std::env::var(name).map_err(|_| {
            BenchError::usage(format!("{value}: the environment has no variable {name}"))
        })?;
        expanded.push_str(before);
        expanded.push_str(&found);
        rest = after;
    }
    expanded.push_str(rest);
    Ok(expanded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::option::Sizes;

    fn jobs(text: &str) -> Result<Vec<JobOptions>, String> {
        parse(text, &JobOptions::default(), &[], Path::new("")).map_err(|error| error.to_string())
    }

    #[test]
    fn sections_inherit_what_global_said_before_them() {
        let text = "; fio's own comments\n# both kinds\n[global]\nbs=64k\ntime_based\nruntime=1\n\n\
                    [first]\nrw=write\n[global]\nbs = 4k  \n[second]\nstonewall\n[second]\n";
        let jobs = jobs(text).unwrap();
        let names: Vec<&str> = jobs.iter().map(|job| job.name.as_str()).collect();
        assert_eq!(names, ["first", "second", "second"], "a name may come twice, as in fio");
        assert_eq!(jobs[0].sizes, Sizes::One(65536));
        assert_eq!(jobs[1].sizes, Sizes::One(4096));
        assert!(jobs[0].time_based && jobs[0].load.writes);
        assert!(jobs[1].stonewall && !jobs[2].stonewall && !jobs[1].load.writes);
    }

    #[test]
    fn a_mistake_is_told_with_its_line() {
        for (text, line, what) in [
            ("[a]\n; fine\n\nbs=huge\n", "line 4: ", "bs=huge"),
            ("[global]\n[a]\nthinktimes=1m\n", "line 3: ", "(did you mean thinktime?)"),
            ("bs=4k\n", "line 1: ", "before any section"),
            ("[a]\niodepth\n", "line 2: ", "is no number"),
            ("[a]\n[b\n", "line 2: ", "no section"),
            ("[a]\nsize=${TIDELOG_BENCH_NO_SUCH}\n", "line 2: ", "TIDELOG_BENCH_NO_SUCH"),
        ] {
            let error = jobs(text).unwrap_err();
            assert!(error.starts_with(line) && error.contains(what), "{text:?}: {error}");
        }
        assert!(jobs("[global]\nbs=4k\n").unwrap_err().contains("no job"));
    }

    #[test]
    fn every_option_that_is_none_is_told_at_once_with_what_may_be_meant() {
        let error =
            jobs("[a]\nbz=4k\niodepht=3\n[b]\nmem=shm\nbs=4k\nzonemode=zones\nioengine=libaio\n")
                .unwrap_err();
        for said in [
            "line 2: bz is no option here",
            "line 3: iodepht is no option here (did you mean iodepth?)",
            "line 5: mem: memory comes from the data path",
            "line 7: zonemode=zones: there are none, strided and zbd",
            "line 8: ioengine=libaio: this engine is fio's own",
        ] {
            assert!(error.contains(said), "{said}: {error}");
        }
        assert!(!error.contains("line 6"), "{error}");
    }

    #[test]
    fn a_comment_may_follow_a_value_or_a_switch() {
        let text = "[a]\nbs=8k\t; or 4k\niodepth=4 # deep\ntime_based ; yes\nruntime=2;3\n";
        let jobs = jobs(text).unwrap();
        assert_eq!((&jobs[0].sizes, jobs[0].iodepth), (&Sizes::One(8192), 4));
        assert!(jobs[0].time_based && jobs[0].runtime == Some(std::time::Duration::from_secs(2)));
    }

    #[test]
    fn what_stands_alone_is_on_and_a_log_has_the_name_of_its_job() {
        let jobs = jobs("[a]\ntime_based\nruntime=1\nwrite_bw_log\n").unwrap();
        assert!(jobs[0].time_based);
        assert_eq!(jobs[0].logs.files("a", 1)[0].1.display().to_string(), "a_bw.1.log");
    }

    #[test]
    fn sections_that_are_named_stand_alone() {
        let text = "[global]\nbs=8k\n[a]\nbz=4\n[b]\niodepth=2\n";
        let named =
            |name: &str| parse(text, &JobOptions::default(), &[name.to_owned()], Path::new(""));
        let jobs = named("b").unwrap();
        assert_eq!((jobs.len(), jobs[0].iodepth, &jobs[0].sizes), (1, 2, &Sizes::One(8192)));
        assert!(named("c").unwrap_err().to_string().contains("no section called c"));
    }

    #[test]
    fn the_environment_fills_in() {
        let home = std::env::var("PATH").unwrap();
        let jobs = jobs("[a]\ndescription=<${PATH}>\n").unwrap();
        assert_eq!(jobs[0].description, format!("<{home}>"));
    }
}
