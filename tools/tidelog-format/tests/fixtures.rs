//! The pools of every format version, seen by the tool.

mod common;

use common::tool;
use tidelog_tests::{fixture, machine};

#[test]
fn the_pool_of_every_format_version_is_clean() {
    for (path, fixture) in fixture::all().unwrap() {
        let directory =
            machine::Directory::new(&format!("seen-v{}", fixture.format_version)).unwrap();
        let specs = fixture.unpack(&path, directory.path()).unwrap();
        let names: Vec<String> =
            specs.iter().map(|spec| spec.target().display().to_string()).collect();
        let names = names.iter().map(String::as_str);
        let arguments: Vec<&str> = ["check", "--buffered"].into_iter().chain(names).collect();
        tool(&arguments).expect(0);
    }
}
