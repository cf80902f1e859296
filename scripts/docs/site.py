"""MkDocs' hook: the pages of the site are the repository's, at their own paths, so that links between them hold.

Beside them the site has the pictures and source files that they link to, and the reference pages.
"""

import posixpath
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority
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


@event_priority(-200)  # behind the plugins that write the index of the search
def on_post_build(config):
    """Looks at the site as a browser does: each link leads to a file of it, no page loads anything from the net, and
    the search has what it needs where the site is read from a folder.
    """
    site, wrong = Path(config.site_dir), []
    if not (site / "search" / "search_index.js").is_file():
        wrong.append("search/search_index.js: the index is not there as a script, which a folder needs")
    for path in site.rglob("*.html"):
        page = _Page()
        page.feed(path.read_text())
        if not any(link.endswith("iframe-worker.js") for link in page.loads):
            wrong.append(
                f"{path.relative_to(site)}: does not load iframe-worker.js, which the search needs in a folder"
            )
        loaded = [link for link in page.loads if re.match(r"(https?:)?//", link)]
        wrong += [f"{path.relative_to(site)}: loads {link} from the net" for link in loaded]
        if path.name == "404.html":
            continue  # It is shown under any address, so its links begin at the root of the site.
        for link in {*page.loads, *page.leads_to}:
            file = re.split("[?#]", link)[0]
            if file and not re.match(r"\w+:|//", link) and not (path.parent / file).is_file():
                wrong.append(f"{path.relative_to(site)}: there is no {link}")
    if wrong:
        raise PluginError("\n".join(sorted(wrong)))


class _Page(HTMLParser):
    """Resources that a page loads, and targets of its links."""

    def __init__(self):
        super().__init__()
        self.loads, self.leads_to = set(), set()

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        if tag == "a" and attributes.get("href"):
            self.leads_to.add(attributes["href"])
        elif tag == "link" and attributes.get("rel") not in ("canonical", "prev", "next"):
            self.loads.add(attributes.get("href") or "")
        elif attributes.get("src"):
            self.loads.add(attributes["src"])
