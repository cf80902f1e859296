"""The table of docs/everywhere.md is what its programs give."""

import pytest
import torch

import everywhere

pytestmark = [
    pytest.mark.host_memory("it brings a GPU of its own"),
    pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed"),
]

# A machine that is busy may find no plan with parts within the steps that are tried.
BY_CHANCE = "no plan has a use for it"


def compare(column, features=()):
    said, found = everywhere.said_of(column), everywhere.tried(column, features)
    assert found
    for name, why in found.items():
        assert why == BY_CHANCE or (why is None) == said[name], found


@pytest.mark.slow
@pytest.mark.parametrize("column", everywhere.COLUMNS)
def test_a_column_is_what_its_programs_give(column):
    compare(column)


def test_ranks_with_the_memory_of_a_gpu_run_as_the_page_says():
    """No other test has both."""
    compare("GPU, FSDP2", ["plans of whole tensors", 'updates="early"'])
