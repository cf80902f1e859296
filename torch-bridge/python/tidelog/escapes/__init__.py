"""Ways to data past the dispatcher: addresses, files, other threads, kernels, collectives."""
