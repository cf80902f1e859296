"""Summary lines of documentation: the first sentence of a Rust or C++ doc comment, or of a Python docstring."""

import ast
import re
from typing import NamedTuple

import rust

# A summary begins with a noun or a verb: neither with a clause that a question word or a conjunction opens, nor with a
# pronoun or an adverb that needs the sentence before, nor with a preposition.
FIRST_WORDS = frozenset(
    """
    what whatever whether where wherever how however when whenever who whoever whom whose which whichever why
    it its itself they them their theirs he she his her him we our us you your i my
    this that these those such both neither either other others same latter former another
    here there then thus hence so meanwhile also too again still now yet not never nowhere only just even else elsewhere
    far everywhere otherwise away back alone alike enough twice mostly more less fewer later further may must can shall
    as if unless though although while once until till since because and or but nor than like
    in on at for of to with without by from into onto over under above below between among behind beyond beside besides
    before after during within across against along around through throughout towards via per about near out off up down
    outside inside past
    nothing something anything everything nobody somebody anybody everybody someone anyone everyone
    """.split()
)
# What a sentence cannot say without the text around it.
POINTERS = re.compile(
    r"^(the|quite the|just the) (same|other|others|rest|latter|former|above)\b"
    r"|\b(as|see|the) (above|below)\b"
    r"|\bso (many|much)\b(?! .*\bthat\b)"
    r"|\bas before\b|\b(likewise|ditto|aforementioned|aforesaid)\b"
    r"|^\w+( whether| if)? (it|its|they|them|their)\b"
    r"|^one (that|who|which|whose|of (them|these|those))\b"
    r"|^(all|none|some|many|most|each|any) (that|who|which|whose|of (it|them|this|these|those))\b",
    re.IGNORECASE,
)
FIRST_WORD = re.compile(r"\W*([A-Za-z]+)(?![\w']*[_:(])")
NOT_PROSE = ("- ", "* ", "|", "```", "# ")
SENTENCE_END = re.compile(r"(?<=[.!?:])\s")


class Summary(NamedTuple):
    """The first paragraph of a doc comment, and the line on which it begins."""

    line: int
    text: str

    @property
    def sentence(self):
        """The first sentence of the paragraph."""
        return SENTENCE_END.split(self.text, maxsplit=1)[0]


def fault(sentence):
    """Describes what is wrong with a summary; None where nothing is."""
    if sentence.startswith(("`", "[`", "#", "|", "```")):
        return None
    word = FIRST_WORD.match(sentence)
    if word and word[1].lower() in FIRST_WORDS:
        return f"begins with `{word[1]}`"
    pointer = POINTERS.search(sentence)
    if pointer:
        return f"says `{pointer[0]}`, which points outside of it"
    return None


def of_file(path, text):
    """Summaries of a source file, by its language."""
    if path.endswith(".rs"):
        return of_rust(text)
    if path.endswith(".py"):
        return of_python(text)
    return of_c(text) if path.endswith((".h", ".cpp", ".c", ".cu")) else ()


def of_rust(text):
    """Doc comments of Rust, outer and inner."""
    return blocks(rust.without_strings(text), re.compile(r"\s*(//[/!])(?!/) ?(.*)"), lambda number, lines: True)


def of_c(text):
    """Comments of C and C++ that begin a file, or come before a declaration outside of functions."""
    depths = function_depths(text)
    lines = text.splitlines()

    def documents(first, after):
        if first == 1:
            return True
        follows = lines[after - 1].strip() if after <= len(lines) else ""
        return bool(follows) and not follows.startswith(("#", "}")) and not depths[first - 1]

    return blocks(text, re.compile(r"\s*(//)[/!]? ?(.*)"), documents)


def blocks(text, mark, documents):
    """Runs of comment lines that `documents(first, after)` takes, as summaries; both are line numbers."""
    first, kind, lines = 0, None, []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        found = mark.match(line)
        if lines and (not found or found[1] != kind):
            if documents(first, number):
                yield Summary(first, paragraph(lines))
            lines = []
        if found:
            if not lines:
                first, kind = number, found[1]
            lines.append(found[2])


def of_python(text):
    """Docstrings of modules, classes and functions."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            documentation = ast.get_docstring(node)
            if documentation:
                yield Summary(node.body[0].lineno, paragraph(documentation.splitlines()))


def paragraph(lines):
    """The lines up to the first empty one, or to a list, a table or code, joined."""
    joined = []
    for line in map(str.strip, lines):
        if not line or (joined and line.startswith(NOT_PROSE)):
            break
        joined.append(line)
    return " ".join(joined)


def function_depths(text):
    """Returns, for each line of C or C++, whether it begins within the body of a function, or within an expression."""
    code = re.sub(
        r"//[^\n]*|/\*.*?\*/",
        lambda found: re.sub(r"[^\n]", " ", found[0]),
        rust.without_strings(text),
        flags=re.DOTALL,
    )
    within, stack, head = [False], [], ""
    for character in code:
        if character == "\n":
            within.append(any(stack))
        if character in "{};":
            if character == "{":
                stack.append(not re.search(r"\b(namespace|class|struct|enum|union)\b[^()=]*$|\bextern\s*$", head))
            elif character == "}" and stack:
                stack.pop()
            head = ""
        else:
            head += character
    return within
