/* What the fake CUDA and the fake gdrcopy know of each other. */
#ifndef TIDELOG_FAKE_H
#define TIDELOG_FAKE_H
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

extern pthread_mutex_t fake_lock;

/* The code that a planned failure of this call answers, or 0. The lock is held. */
int planned(const char *what);
void violated(const char *what, uint64_t at, uint64_t length);
/* Whether an allocation of the GPU's holds these bytes, and whether its copies were told to be synchronous. */
bool allocated(uint64_t at, size_t length);
bool is_synchronous(uint64_t at);
/* Where the host has what the GPU has at this address. */
char *near(uint64_t at);
bool overlap(uint64_t a, size_t n, uint64_t b, size_t m);

/* Whether any of these bytes is pinned for other devices. */
bool is_pinned(uint64_t at, size_t length);
/* Connections, pinned ranges and mappings that were not given back. */
uint64_t gdr_count(void);

#pragma GCC visibility pop
#endif
