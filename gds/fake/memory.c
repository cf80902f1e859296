/* Memory of the GPU, and of the host as far as the GPU knows it. */
#include "fake.h"

struct Allocation memory[MAX];
struct Range words[MAX], locks[MAX];

static bool is_word(uint64_t at, size_t length) {
    for (unsigned i = 0; i < MAX; i++)
        if (words[i].base && at >= (uintptr_t)words[i].base && at + length <= (uintptr_t)words[i].base + words[i].length) return true;
    return false;
}

uint64_t host_memory_bytes(void) {
    uint64_t bytes = 0;
    for (unsigned i = 0; i < MAX; i++)
        if (words[i].base) bytes += words[i].length;
    return bytes;
}

bool is_locked(uint64_t at, size_t length) {
    for (unsigned i = 0; i < MAX; i++)
        if (locks[i].base && at >= (uintptr_t)locks[i].base && at + length <= (uintptr_t)locks[i].base + locks[i].length) return true;
    return is_word(at, length);
}

bool allocated(CUdeviceptr at, size_t length) {
    if (is_word(at, length)) return true;
    if (is_reserved(at)) return is_accessible(at, length);
    if (state.unified && at < FAR) return true;
    for (unsigned i = 0; i < MAX; i++)
        if (memory[i].base && at >= memory[i].base && at + length <= memory[i].base + memory[i].length) return true;
    return false;
}

bool is_synchronous(uint64_t at) {
    for (unsigned i = 0; i < MAX; i++)
        if (memory[i].base && at >= memory[i].base && at < memory[i].base + memory[i].length) return memory[i].synchronous;
    return false;
}

char *near(CUdeviceptr at) { return (char *)(uintptr_t)(at < FAR ? at : at - FAR); }

bool overlap(uint64_t a, size_t n, uint64_t b, size_t m) { return a < b + m && b < a + n; }
