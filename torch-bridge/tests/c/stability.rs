//! Tests of the ABI on which released programs rely, as it stands in `include/abi-MAJOR.MINOR.txt`:
//! exported symbols, signatures, constants, sizes and offsets. What is new is added to it; what
//! stands there changes only with the version.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::Command;

use crate::{compiler, folder, include, library, run};

/// Set, it adds what is new to the file.
const BLESS: &str = "TIDELOG_BLESS";

const ABOUT: &str = "\
# What programs that were built with this version of libtidelog rely on, on 64-bit Linux. Made of the
# header, the compiler and the library by `TIDELOG_BLESS=1 cargo test -p tidelog-torch --test c`, which
# adds what is new and changes nothing else.
";

/// One line a thing, by what it is called: `function tide_put` and its types.
type Abi = BTreeMap<String, String>;
/// Change of the ABI by a version.
type Change = Box<dyn Fn(&mut Abi)>;

/// The header without comments, lines of the preprocessor and C++'s bracket.
fn plain(header: &str) -> String {
    let mut text = String::new();
    let mut rest = header;
    while let Some((before, comment)) = rest.split_once("/*") {
        text.push_str(before);
        rest = comment.split_once("*/").expect("a comment ends").1;
    }
    text.push_str(rest);
    let code = |line: &&str| !line.starts_with('#') && !line.starts_with("extern \"C\"");
    text.lines().filter(code).collect::<Vec<_>>().join("\n")
}

fn words(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    text.replace("( ", "(").replace("* ", "*")
}

/// Type and name of a field or an argument.
fn typed(declaration: &str) -> (String, String) {
    let declaration = words(declaration);
    let name = declaration.rfind(|letter: char| !letter.is_alphanumeric() && letter != '_');
    let (kind, name) = declaration.split_at(name.map_or(0, |at| at + 1));
    (kind.trim().to_owned(), name.to_owned())
}

/// The structs of the header, each with its fields.
fn structs(code: &str) -> Vec<(String, Vec<(String, String)>)> {
    let bodies = code.split("typedef struct ").skip(1);
    let of = |body: &str| {
        let (name, rest) = body.split_once('{').expect("a body");
        let fields = rest.split_once('}').expect("its end").0;
        let fields = fields.split(';').filter(|field| !field.trim().is_empty());
        (name.trim().to_owned(), fields.map(typed).collect())
    };
    bodies.map(of).collect()
}

/// Functions, and types of callbacks: their names, results, and types of arguments.
fn functions(code: &str) -> Abi {
    let prototypes = code.split(';').filter(|it| it.contains('(') && !it.contains('{'));
    let of = |prototype: &str| {
        let prototype = prototype.rsplit('}').next().expect("one at least");
        let (kind, prototype) = match prototype.trim().strip_prefix("typedef ") {
            Some(callback) => ("callback", callback.replacen("(*", "", 1).replacen(')', "", 1)),
            None => ("function", prototype.to_owned()),
        };
        let (head, arguments) = prototype.split_once('(').expect("arguments");
        let (result, name) = typed(head);
        let arguments = arguments.trim_end().trim_end_matches(')');
        let kinds: Vec<String> = match words(arguments).as_str() {
            "void" => Vec::new(),
            arguments => arguments.split(',').map(|argument| typed(argument).0).collect(),
        };
        (format!("{kind} {name}"), format!("{result} ({})", kinds.join(", ")))
    };
    prototypes.map(of).collect()
}

fn constants(header: &str) -> Abi {
    let lines = header.lines().filter_map(|line| line.strip_prefix("#define TIDE_"));
    let of = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        Some((format!("constant TIDE_{name}"), value.to_owned()))
    };
    // The version is what all of this is of.
    lines.filter(|line| !line.starts_with("VERSION_")).filter_map(of).collect()
}

/// Sizes and offsets, as the compiler says them.
fn layouts(code: &str) -> Abi {
    let mut program =
        String::from("#include <stdio.h>\n#include \"tidelog.h\"\nint main(void) {\n");
    for (name, fields) in structs(code) {
        writeln!(program, "printf(\"struct {name}=%zu bytes\\n\", sizeof({name}));").unwrap();
        for (kind, field) in fields {
            writeln!(
                program,
                "printf(\"field {name}.{field}=at %zu, %zu bytes, {kind}\\n\", offsetof({name}, {field}), \
                 sizeof((({name} *)0)->{field}));"
            )
            .unwrap();
        }
    }
    program.push_str("return 0;\n}\n");
    let work = folder("layouts");
    let (source, built) = (work.join("layouts.c"), work.join("layouts"));
    std::fs::write(&source, program).unwrap();
    run(compiler("CC", "cc").arg("-I").arg(include()).arg(&source).arg("-o").arg(&built));
    let said = String::from_utf8(run(&mut Command::new(&built)).stdout).unwrap();
    std::fs::remove_dir_all(&work).unwrap();
    let lines = said.lines().map(|line| line.split_once('=').expect("a name and what it is"));
    lines.map(|(name, what)| (name.to_owned(), what.to_owned())).collect()
}

/// Returns the exported symbols, as `nm` says it.
fn symbols() -> Abi {
    let listed = run(Command::new("nm").args(["-D", "--defined-only"]).arg(library()));
    let listed = String::from_utf8(listed.stdout).unwrap();
    let of = |line: &str| {
        let mut columns = line.split_whitespace().skip(1);
        Some((columns.next()?.to_owned(), columns.next()?.to_owned()))
    };
    let of_kind = listed.lines().filter_map(of);
    of_kind.map(|(kind, name)| (format!("symbol {name}"), kind)).collect()
}

/// The name by which programs that were linked with the library look for it.
fn soname() -> Abi {
    let read = run(Command::new("readelf").args(["-d", "-W"]).arg(library()));
    let read = String::from_utf8(read.stdout).unwrap();
    let line = read.lines().find(|line| line.contains("(SONAME)")).expect("a SONAME");
    let name = line.split(['[', ']']).nth(1).expect("its text");
    [("soname".to_owned(), name.to_owned())].into()
}

fn present() -> Abi {
    let header = std::fs::read_to_string(include().join("tidelog.h")).unwrap();
    let code = plain(&header);
    let parts = [constants(&header), functions(&code), layouts(&code), symbols(), soname()];
    parts.into_iter().flatten().collect()
}

fn parse(text: &str) -> Abi {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let lines = lines.filter_map(|line| line.split_once(": "));
    lines.map(|(name, what)| (name.to_owned(), what.to_owned())).collect()
}

fn print(abi: &Abi) -> String {
    let mut text = ABOUT.to_owned();
    for (name, what) in abi {
        writeln!(text, "{name}: {what}").unwrap();
    }
    text
}

/// Returns whether a struct says its own size, and so may grow.
fn grows(abi: &Abi, name: &str) -> bool {
    let size = format!("field {}.size", name.trim_start_matches("struct "));
    abi.get(&size).is_some_and(|what| what.starts_with("at 0, 8 bytes, uint64_t"))
}

fn bytes(what: &str) -> u64 {
    what.strip_suffix(" bytes").and_then(|size| size.parse().ok()).expect("a size")
}

/// Returns the differences from the release, a sentence each; and what is new.
fn differences(released: &Abi, present: &Abi) -> (Vec<String>, Vec<String>) {
    let (mut broken, mut added) = (Vec::new(), Vec::new());
    for (name, was) in released {
        match present.get(name) {
            None => broken.push(format!("{name} is gone")),
            Some(is) if is == was => {}
            Some(is)
                if name.starts_with("struct ")
                    && grows(released, name)
                    && bytes(is) > bytes(was) =>
            {
                added.push(format!("{name} has grown from {was} to {is}"));
            }
            Some(is) => broken.push(format!("{name} is {is}, and was {was}")),
        }
    }
    for name in present.keys().filter(|name| !released.contains_key(*name)) {
        let (of, grown) = match name.strip_prefix("field ").and_then(|name| name.split_once('.')) {
            Some((of, _)) => (format!("struct {of}"), true),
            None => (String::new(), false),
        };
        if grown && released.contains_key(&of) && !grows(released, &of) {
            broken.push(format!("{name} is new, and {of} does not say its size: it cannot grow"));
        } else {
            added.push(format!("{name} is new"));
        }
    }
    (broken, added)
}

fn version() -> String {
    let mut parts = env!("CARGO_PKG_VERSION").split('.');
    format!("{}.{}", parts.next().unwrap(), parts.next().unwrap())
}

#[test]
fn the_abi_is_the_releases_and_what_is_new_was_added() {
    let version = version();
    let path = include().join(format!("abi-{version}.txt"));
    let present = present();
    let bless = std::env::var_os(BLESS).is_some();
    let Ok(text) = std::fs::read_to_string(&path) else {
        assert!(
            bless,
            "there is no {}: version {version} is new; run this test with {BLESS}=1, and take the \
             file of the version before out of the repository",
            path.display()
        );
        return std::fs::write(&path, print(&present)).unwrap();
    };
    let released = parse(&text);
    let (broken, added) = differences(&released, &present);
    assert!(
        broken.is_empty(),
        "programs that were built with version {version} would break: {}. Put it back, and add a new \
         function or a field at the end instead; or raise the second number of the version (Cargo.toml, \
         TIDE_VERSION_MINOR, from 1.0 on the first number and the SONAME). Only while {version} was never \
         released may {} be deleted and made anew with {BLESS}=1",
        broken.join("; "),
        path.display()
    );
    if bless {
        return std::fs::write(&path, print(&present)).unwrap();
    }
    assert!(
        added.is_empty(),
        "{}: run this test with {BLESS}=1 and commit {}; from then on it stays",
        added.join("; "),
        path.display()
    );
    assert_eq!(text, print(&present), "{} was edited by hand", path.display());
}

#[test]
fn the_library_exports_the_functions_of_the_header_and_nothing_else() {
    let present = present();
    let of = |kind: &str| -> Vec<String> {
        present.keys().filter_map(|name| Some(name.strip_prefix(kind)?.to_owned())).collect()
    };
    assert_eq!(of("symbol "), of("function "));
    assert!(of("function ").len() > 40);
}

#[test]
fn each_way_to_break_programs_is_found_and_each_addition_is_none() {
    let released = present();
    let changed = |change: &dyn Fn(&mut Abi)| {
        let mut abi = released.clone();
        change(&mut abi);
        differences(&released, &abi)
    };
    let put = |name: &'static str, what: &'static str| {
        move |abi: &mut Abi| drop(abi.insert(name.to_owned(), what.to_owned()))
    };
    let take =
        |name: &'static str| move |abi: &mut Abi| drop(abi.remove(name).expect("it is there"));
    let broken: [(&str, Change); 9] = [
        ("symbol tide_put is gone", Box::new(take("symbol tide_put"))),
        ("function tide_get is gone", Box::new(take("function tide_get"))),
        ("function tide_put is", Box::new(put("function tide_put", "int32_t (uint64_t)"))),
        ("constant TIDE_FULL is -1,", Box::new(put("constant TIDE_FULL", "-1"))),
        (
            "tide_action.kind is at 0",
            Box::new(put("field tide_action.kind", "at 0, 4 bytes, uint32_t")),
        ),
        ("struct tide_action is 32", Box::new(put("struct tide_action", "32 bytes"))),
        ("struct tide_pool_options is 8", Box::new(put("struct tide_pool_options", "8 bytes"))),
        ("it cannot grow", Box::new(put("field tide_birth.more", "at 24, 8 bytes, uint64_t"))),
        ("soname is", Box::new(put("soname", "libtidelog.so.1"))),
    ];
    for (expected, change) in broken {
        let (broken, _) = changed(&*change);
        assert!(broken.iter().any(|it| it.contains(expected)), "{expected}: {broken:?}");
    }
    let (broken, added) = changed(&|abi| {
        put("symbol tide_new", "T")(abi);
        put("function tide_new", "int32_t (void)")(abi);
        put("struct tide_pool_options", "4096 bytes")(abi);
        put("field tide_pool_options.more", "at 4088, 8 bytes, uint64_t")(abi);
    });
    assert_eq!((broken, added.len()), (Vec::new(), 4));
    assert_eq!(differences(&released, &released), (Vec::new(), Vec::new()));
}
