"""Programs that train.py compares: `runs` are the ways to train, each a process of its own; `bound` is what no way can
beat.
"""

WARM_STEPS = 3  # profiled, planned, and the first that follows the plan: none of them is timed
GIB = 1 << 30
