"""Checkpoints by reference to the pool, and how a run goes on from one."""
