"""The table of docs/everywhere.md is what its programs give."""

import pytest
import torch

import everywhere

pytestmark = [
    pytest.mark.host_memory("it brings a GPU of its own"),
    pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed"),
]

ALONE = "GPU, FSDP2"  # which no other test has; what is in the other columns, others have, too


@pytest.mark.parametrize(
    "column", [each if each == ALONE else pytest.param(each, marks=pytest.mark.slow) for each in everywhere.COLUMNS]
)
def test_a_column_is_what_its_programs_give(column):
    said = everywhere.said_of(column)
    found = everywhere.tried(column)
    assert {name: why is None for name, why in found.items()} == said, found
