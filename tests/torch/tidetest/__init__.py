"""What the tests of the Python package share: comparing bits, counting bytes, small training worlds."""

KIB = 1 << 10
MIB = 1 << 20
