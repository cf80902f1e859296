"""The command `tidelog`, and what of it Python programs can call."""
