"""The dispatch mode: what is done before and after every op. `cpp` has its kernels in C++."""
