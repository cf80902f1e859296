"""What the checks take as it is, each with its reason. Nothing is added here without one."""

ABI_MODULE = "torch-bridge/python/tidelog/_native.py"
# The same for pools and seals, and how both do it.
ABI_OF_SEALS = "torch-bridge/python/tidelog/_seals.py"
ABI_LIBRARY = "torch-bridge/python/tidelog/_library.py"
# And for memory that is kept.
ABI_OF_MEMORY = "torch-bridge/python/tidelog/_kept.py"
GLOSSARY = "docs/glossary.md"

# House -> circles of its rooms that stay, with the reason.
CIRCLES = {}

# Types of which a build has one: the loom models' twins, and what a build without SPDK has instead.
NAMES_OF_MORE = {"Announcement": 2, "WakeEvent": 2, "ClaimedController": 2}
