"""Tests of the logger "tidelog"; the library itself prints nothing. Progress by tqdm."""

import logging
import sys

import pytest
import torch

import tidelog
from tidelog.output import _progress

WITHIN = dict(memory="2MiB", staging="256KiB", pool_size="64MiB")


def train(pool, steps=6):
    layers = torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(12)])
    optimizer = torch.optim.AdamW(layers.parameters())
    with tidelog.offload(layers, optimizer, pool=pool, **WITHIN) as tide:
        for step in range(steps):
            with tide.step():
                layers(torch.ones(16, 128)).sum().backward()
                optimizer.step()
                if step == steps - 1:
                    torch.ones(3)  # not in the plan
        tide.restore()


def test_a_block_tells_of_its_pool_its_plan_and_its_end(pool, caplog, capfd):
    with caplog.at_level(logging.INFO, logger="tidelog"):
        train(pool)
    said = [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "tidelog"]
    begins, ends = said[1], said[-1]
    assert said[0][0] == "WARNING" and "must_exist" in said[0][1]
    assert begins[0] == "INFO" and begins[1].startswith("a block begins: budget 2097152 bytes, data path ")
    assert ends[0] == "INFO" and ends[1].startswith("the block ends: at most ")
    assert sum("is ready, and steps follow it" in text for _, text in said) == 1
    assert [level for level, text in said if "left the plan" in text] == ["WARNING"]
    assert capfd.readouterr() == ("", "")


def test_nobody_hears_of_it_who_did_not_ask(pool, capfd):
    train(pool, steps=2)
    out, err = capfd.readouterr()
    # The one warning goes where Python's logging sends warnings that nobody handles.
    assert out == "" and err.count("\n") <= 1


def at_a_terminal(monkeypatch):
    """Standard error is a terminal, and nothing is too short to be shown."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(_progress, "_LONG_SECONDS", 0.0)


def test_restoring_shows_progress_where_it_takes_long(pool, monkeypatch, capsys):
    at_a_terminal(monkeypatch)
    pytest.importorskip("tqdm")
    tensors = []
    with tidelog.offload(pool=pool, **WITHIN) as tide:
        tensors += [torch.ones(64 << 10) for _ in range(16)]
        away = [tensor for tensor in tensors if not tide.is_resident(tensor)]
        tide.restore()
        shown = capsys.readouterr().err
        assert away and "tidelog: restoring tensors" in shown and "B/s" in shown, shown
    assert all(tensor.sum() == 64 << 10 for tensor in tensors)


def test_without_tqdm_nothing_is_shown_and_nothing_is_missing(monkeypatch, capsys):
    at_a_terminal(monkeypatch)
    monkeypatch.setattr(_progress.importlib.util, "find_spec", lambda name: None)
    with _progress.Progress("nothing", "B", 10) as progress:
        progress.add(10)
    assert capsys.readouterr().err == ""


def test_what_is_no_terminal_gets_no_bar(capsys, monkeypatch):
    monkeypatch.setattr(_progress, "_LONG_SECONDS", 0.0)
    with _progress.Progress("nothing", "B", 10) as progress:
        progress.add(10)
    assert capsys.readouterr().err == ""
