"""libtidelog over the C ABI: where it is, how it is called, what it says."""
