"""Tests of the HTML that notebooks show of a block, a report and an answer of `fit`: HTML that is whole in itself."""

import html
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
import torch

import tidelog
from tidelog.output import _notebook

VOID = {"br", "meta", "link", "img", "hr", "input"}


class Page(HTMLParser):
    """Follows the tags of a page; `open` is empty at its end where each was closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.attributes, self.text = [], [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.attributes += attributes
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.attributes += attributes

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, tag

    def handle_data(self, data):
        self.text += data


def shown(thing):
    """Returns the HTML of a notebook, which must be whole: all tags closed, nothing fetched, no script."""
    text = thing._repr_html_()
    page = Page(text)
    assert page.open == []
    own = [(name, value) for name, value in page.attributes if name not in ("xmlns", "srcdoc")]
    assert not any("//" in (value or "") or name.startswith("on") for name, value in own), own
    assert "<script" not in text
    return page


def test_a_block_shows_memory_bytes_and_stalls(pool):
    with tidelog.offload(pool=pool, memory="2MiB", staging="256KiB", pool_size="64MiB") as tide:
        tensors = [torch.ones(256 << 10) for _ in range(4)]
        page = shown(tide)
        for word in ("budget 2.0 MiB", "peak ", "reactive", "evictions", "stalls", tide.stats()["data_path"]):
            assert word in page.text or tide.phase != "reactive" and word == "reactive", word
        totals = tide.stats()["totals"]
        assert f"{totals['evictions']} evictions" in page.text and totals["evictions"] > 0
        bar = ElementTree.fromstring(re.search(r"<svg.*</svg>", tide._repr_html_())[0])
        room, used = [float(each.get("width")) for each in bar.iter("{http://www.w3.org/2000/svg}rect")]
        assert abs(used / room - tide.live_bytes / (2 << 20)) < 0.01
        del tensors
    assert "not open" in shown(tide).text


def test_a_report_shows_its_page(pool, tmp_path):
    with tidelog.offload(pool=pool, memory="64MiB") as tide:
        with tide.step():
            torch.ones(8).sum()
        report = tide.report(tmp_path / "step.html")
    page = shown(report)
    assert dict(page.attributes)["srcdoc"] == (tmp_path / "step.html").read_text() == open(report).read()


def test_names_of_tensors_are_text():
    name = '<img src="//evil">&'
    rows = _notebook.memory_bar(1, {name: 2}, name)
    assert "<img" not in rows and html.escape(name, quote=False).split("&amp;")[0] in rows.replace("&quot;", '"')
    ElementTree.fromstring(rows)


def test_an_answer_of_fit_shows_its_screen_and_the_bar(tmp_path):
    pytest.importorskip("transformers")
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 100}')
    answer = tidelog.fit(config, memory="4MiB", read=1e9, write=1e9, micro_batch=1, sequence=16)
    page = shown(answer)
    assert answer.fits and str(answer) in page.text and "budget 4.0 MiB" in page.text
    assert "too small" in shown(tidelog.Fit({**answer.figures, "fits": False})).text
    for model, words, why in (("nothing-known", {"read": 1e9, "write": 1e9}, "no known model"), (config, {}, "--pool")):
        with pytest.raises(tidelog.Error, match=why):
            tidelog.fit(model, **words)


@pytest.mark.parametrize("marks", [(10, 20), (10, 60, 100), (50, 99), (98, 99, 100), (0, 100), (48, 74)])
def test_labels_of_a_bar_do_not_overlap(marks):
    bar = ElementTree.fromstring(_notebook.memory_bar(100, {str(each): each for each in marks}, "in use"))
    boxes = []
    for label in bar.iter("{http://www.w3.org/2000/svg}text"):
        at, below, width = float(label.get("x")), float(label.get("y")), 8 * len(label.text)
        begin = at - width if label.get("text-anchor") == "end" else at
        assert below <= float(bar.get("height")) and not any(
            abs(below - other) < 12 and begin < its_end and its_begin < begin + width
            for other, its_begin, its_end in boxes
        ), (marks, label.text)
        boxes.append((below, begin, begin + width))
    assert len(boxes) == len(marks)


def test_a_block_says_what_it_is(pool):
    with tidelog.offload(pool=pool, memory="2MiB", staging="256KiB", pool_size="64MiB") as tide:
        assert re.fullmatch(r"<tidelog.Tide [a-z]+, [0-9.]+ KiB of 2.0 MiB in memory>", repr(tide))
    assert repr(tide) == "<tidelog.Tide with a budget of 2.0 MiB, not open>"
