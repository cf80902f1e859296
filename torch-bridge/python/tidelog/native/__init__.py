"""The part of the bridge in C++, how it is built, and what it has for Python."""
