//! The C header that is checked in is the one that cbindgen makes of the ABI's source.

use std::path::Path;

/// Set, it writes the header instead of comparing it.
const BLESS: &str = "TIDELOG_BLESS";

#[test]
fn header_is_in_step() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = package.join("include/tidelog.h");
    // The files beside it come with its `mod` lines.
    let builder = cbindgen::Builder::new().with_src(package.join("src/abi/mod.rs"));
    let config = cbindgen::Config::from_file(package.join("cbindgen.toml")).unwrap();
    let mut made = Vec::new();
    builder.with_config(config).generate().unwrap().write(&mut made);
    let made = String::from_utf8(made).unwrap();
    if std::env::var_os(BLESS).is_some() {
        std::fs::write(&path, made).unwrap();
        return;
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = made.lines().zip(found.lines()).find(|(made, found)| made != found);
    assert!(
        made == found,
        "{} is not what the source says (first difference: {differs:?}); run this test with \
         {BLESS}=1 and commit the header",
        path.display()
    );
}
