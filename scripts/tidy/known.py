"""Exceptions of the checks, each with its reason. Nothing is added here without one."""

ABI_MODULE = "torch-bridge/python/tidelog/abi/_native.py"
# Those that call the C library; tests/torch/test_package.py reads this, too.
ABI_MODULES = (
    ABI_MODULE,
    "torch-bridge/python/tidelog/abi/_seals.py",  # the same for pools and seals
    "torch-bridge/python/tidelog/memory/_kept.py",  # for memory that is kept
    "torch-bridge/python/tidelog/memory/_mapped.py",  # for memory of GPUs
    "torch-bridge/python/tidelog/memory/_arena.py",  # the same, in an arena
    "torch-bridge/python/tidelog/abi/_host.py",  # for what the kernel says of the host
    "torch-bridge/python/tidelog/abi/_library.py",  # how all of them do it
)
GLOSSARY = "docs/glossary.md"
# Files that name the version.
WORKSPACE, CHANGELOG, ABI_VERSION = "Cargo.toml", "CHANGELOG.md", "torch-bridge/src/abi/error.rs"

# House -> circles of its rooms that stay, with the reason.
CIRCLES = {}

# Types of which a build has one: the loom models' twins, and what a build without SPDK has instead.
NAMES_OF_MORE = {"Announcement": 2, "WakeEvent": 2, "ClaimedController": 2}
