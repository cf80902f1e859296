"""Helpers of the Python package's tests: comparing bits, counting bytes, small training worlds."""

KIB = 1 << 10
MIB = 1 << 20
