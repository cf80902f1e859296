"""MkDocs' hook: the pages of the site are the repository's, at their own paths, so that links between them hold.

Beside them the site has the pictures and source files that they link to, and the reference pages.
"""

import posixpath
import re
import subprocess
import sys
from pathlib import Path

from mkdocs.structure.files import File

sys.path.insert(0, str(Path(__file__).parent))

import reference
from helptexts import ROOT

# Relative links of a page, without their anchors.
_LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


def on_files(files, config):
    """Says which pages there are."""
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-co", "--exclude-standard", "*.md"], check=True, text=True, capture_output=True
    ).stdout
    linked = set()
    for path in listed.splitlines():
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
        for link in _LINK.findall((ROOT / path).read_text()):
            target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
            if not target.endswith(".md") and (ROOT / target).is_file():
                linked.add(target)
    for path in sorted(linked):
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    for path, text in reference.pages().items():
        files.append(File.generated(config, path, content=text))
    return files
