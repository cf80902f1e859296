"""Tidelog in other libraries' training loops. Each module needs its library; none is needed by
Tidelog."""
