#!/usr/bin/env python3
"""Each check finds an example that was planted for it, and takes the example's mended form.

python3 scripts/tidy/planted.py
"""

import unittest

import checks
import known
import wrap

WORDS = "## Words that are not used\n\n| word | use instead | where |\n|---|---|---|\n| obey | process | spdk |\n"


def release(changes="## 1.2.3\n", minor=2):
    """Returns a tree of version 1.2.3."""
    constants = (("MAJOR", 1), ("MINOR", minor), ("PATCH", 3))
    return {
        known.WORKSPACE: '[workspace.package]\nversion = "1.2.3"\n',
        known.CHANGELOG: changes,
        known.ABI_VERSION: "".join(f"const TIDE_VERSION_{name}: i32 = {number};\n" for name, number in constants),
    }


# Check -> (what is wrong, the tree with it, the tree without it).
EXAMPLES = {
    checks.line_widths: [
        ("a wide comment", {"engine/src/a.rs": "// " + "word " * 20}, {"engine/src/a.rs": "// " + "word " * 15}),
        ("a wide comment of C++", {"a/native/a.h": "// " + "word " * 25}, {"a/native/a.h": "// " + "word " * 20}),
        ("a wide line of code", {"a.py": "x = " + "1 + " * 40 + "1"}, {"a.py": "x = 1"}),
        ("a wide paragraph", {"docs/a.md": "word " * 40}, {"docs/a.md": "| " + "word " * 40 + "|"}),
    ],
    checks.one_meaning: [
        (
            "two public types of one name",
            {"engine/src/a.rs": "pub struct Room;\n", "planner/src/b.rs": "pub(crate) enum Room {}\n"},
            {"engine/src/a.rs": "pub struct Room;\n", "planner/src/b.rs": "enum Room {}\n"},
        ),
    ],
    checks.no_circles: [
        (
            "two rooms of a crate",
            {"engine/src/a.rs": "use crate::b::B;\n", "engine/src/b/c.rs": "fn f() { crate::{d, a::A::new()} }\n"},
            {"engine/src/a.rs": "use crate::b::B;\n", "engine/src/b/c.rs": "// crate::a is named in a comment\n"},
        ),
        (
            "three rooms in Python",
            {
                f"torch-bridge/python/tidelog/{one}.py": f"def f():\n    from tidelog.{other} import g\n"
                for one, other in (("a/_one", "b"), ("b/_two", "_c"), ("_c", "a._one"))
            },
            {
                f"torch-bridge/python/tidelog/{one}.py": f"from tidelog.{other} import g\n"
                for one, other in (("a/_one", "b._two"), ("b/_two", "_c"), ("a/_three", "a._one"))
            },
        ),
    ],
    checks.raw_calls: [
        (
            "a call from another module",
            {"torch-bridge/python/tidelog/dispatch/_steps.py": "library.tide_close(1)\n"},
            {known.ABI_MODULE: "library.tide_close(1)\n"},
        ),
        (
            "a C function in another room",
            {"torch-bridge/src/memory.rs": 'pub extern "C" fn tide_close() {}\n'},
            {"torch-bridge/src/abi/memory.rs": 'pub extern "C" fn tide_close() {}\n'},
        ),
    ],
    checks.old_words: [
        (
            "a word of the table",
            {known.GLOSSARY: WORDS, "engine/src/a.rs": "fn obey() {}\n"},
            {known.GLOSSARY: WORDS, "engine/src/a.rs": 'fn process() { println!("obey") }\n'},
        ),
        (
            "a word of the table in C++",
            {known.GLOSSARY: WORDS, "a.cpp": "// They obey.\n"},
            {known.GLOSSARY: WORDS, "a.cpp": 'auto text = "They obey.";\n'},
        ),
        (
            "a word of the table in Python",
            {known.GLOSSARY: WORDS, "a.py": 'def f():\n    """They obey."""\n'},
            {known.GLOSSARY: WORDS, "a.py": 'def f():\n    """Workers process."""\n    print(f"obey {f}")\n'},
        ),
    ],
    checks.summary_lines: [
        (
            "a clause in Rust",
            {"a.rs": "/// What a device can do.\nstruct A;\n"},
            {"a.rs": "/// Capabilities of a device. What it lacks is an error.\nstruct A;\n"},
        ),
        (
            "a pronoun in a field",
            {"a.rs": "struct A {\n    /// Its length.\n    a: u8,\n}\n"},
            {"a.rs": "struct A {\n    // Its length.\n    a: u8, // whether it is long\n}\n"},
        ),
        (
            "a module that points to another",
            {"a.rs": "//! The same for files.\n"},
            {"a.rs": "//! Reads files of the same size.\n"},
        ),
        (
            "an object outside of the sentence",
            {"a.rs": "/// Closes it.\nfn a() {}\n"},
            {"a.rs": "/// Closes.\nfn a() {}\n"},
        ),
        (
            "a clause in a private function of Python",
            {"a.py": 'def _f():\n    """How it ends."""\n'},
            {"a.py": '"""Ends."""\n'},
        ),
        (
            "a preposition in C++",
            {"a.h": "#pragma once\n\nnamespace a {\n\n// From here on.\nvoid f() {\n  // In the body.\n  g();\n}\n}\n"},
            {"a.h": "#pragma once\n\nnamespace a {\n\n// Begins.\nvoid f() {\n  // In the body.\n  g();\n}\n}\n"},
        ),
        (
            "a pronoun in a class of C++",
            {"a.h": "// Rooms.\nclass A {\n public:\n  // It ends.\n  void end();\n};\n"},
            {"a.h": "// Rooms.\nclass A {\n public:\n  void end();  // It ends.\n};\n"},
        ),
    ],
    checks.one_version: [
        ("a release without a section", release(changes="## Unreleased\n"), release()),
        ("a header of another version", release(minor=1), release()),
    ],
}


class Planted(unittest.TestCase):
    def setUp(self):
        """What is known of the real source does not hold for the examples."""
        self.known = (known.CIRCLES, known.NAMES_OF_MORE)
        known.CIRCLES, known.NAMES_OF_MORE = {}, {}

    def tearDown(self):
        known.CIRCLES, known.NAMES_OF_MORE = self.known

    def test_every_check_has_an_example_and_finds_it(self):
        self.assertEqual(set(EXAMPLES), set(checks.CHECKS))
        for check, examples in EXAMPLES.items():
            for name, wrong, mended in examples:
                with self.subTest(check=check.__name__, example=name):
                    self.assertTrue(list(check(wrong)), "the planted example was not found")
                    self.assertEqual(list(check(mended)), [], "the mended form was refused")

    def test_what_is_known_must_still_be_so(self):
        known.CIRCLES = {"engine/src": [(("a", "b"), "a reason")]}
        known.NAMES_OF_MORE = {"Room": 2}
        tree = {"engine/src/a.rs": "pub struct Room;\n", "engine/src/b.rs": ""}
        for check in (checks.no_circles, checks.one_meaning):
            self.assertIn("known.py", str(list(check(tree))[0]), check.__name__)

    def test_wrapping_keeps_every_word_and_touches_nothing_else(self):
        words = " ".join(f"word{number}" for number in range(40))
        text = f"    /// - {words}\n    /// - short\nlet a = 1; // {words}\n// | a |   table | {words}\n"
        wrapped = wrap.comments("engine/src/a.rs", text)
        first, rest = wrapped.split("    /// - short")
        self.assertEqual(first.replace("///", "").split(), ["-", *words.split()])
        self.assertTrue(all(len(line) <= checks.RUST_COMMENT_COLUMNS for line in first.splitlines()))
        self.assertTrue(all(line.startswith("    ///   ") for line in first.splitlines()[1:]))
        self.assertEqual(rest, text.split("    /// - short")[1])

    def test_a_heading_stays_alone(self):
        words = " ".join(f"word{number}" for number in range(40))
        wrapped = wrap.comments("engine/src/a.rs", f"/// # Safety\n/// {words}\nfn a() {{}}\n")
        self.assertTrue(wrapped.startswith("/// # Safety\n/// word0 "))

    def test_a_wide_docstring_is_wrapped_and_other_strings_are_not(self):
        words = " ".join(f"word{number}" for number in range(40))
        text = f'def f():\n    """{words}"""\n    return """{words}"""\n'
        wrapped = wrap.source("a.py", text)
        documented, returned = wrapped.split("    return ")
        self.assertTrue(all(len(line) <= checks.COLUMNS for line in documented.splitlines()))
        self.assertTrue(documented.endswith('\n    """\n'))
        self.assertEqual(returned, text.split("    return ")[1])


if __name__ == "__main__":
    unittest.main()
