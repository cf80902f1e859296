"""How data is reached past the dispatcher: addresses, files, other threads, kernels, collectives."""
