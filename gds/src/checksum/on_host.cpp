/* The kernel's source on the host, for tests: crc32c.cu itself, by the host's compiler, with what CUDA brings.
 *
 * A block's threads are fibers, which run one after the other up to each barrier: in the order of their numbers, or
 * against it, so that a barrier that is missing shows. Shared memory is something else before each block. */
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ucontext.h>

struct alignas(16) uint4 { unsigned x, y, z, w; };
static uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
static struct { unsigned x; } threadIdx, blockIdx;

/* Ends the phase of the fiber that runs: it goes on when all others are there. */
static void barrier();
static void __syncthreads() { barrier(); }
static unsigned exchanged[1024];
static unsigned __shfl_xor_sync(unsigned, unsigned value, unsigned distance) {
    exchanged[threadIdx.x] = value;
    barrier();
    unsigned other = exchanged[threadIdx.x ^ distance];
    barrier();
    return other;
}

#define __device__
#define __global__
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(threads)
#define __shared__ __attribute__((section("shared_memory"))) static
#include "crc32c.cu"

extern unsigned char shared_begin[] __asm__("__start_shared_memory") __attribute__((visibility("hidden")));
extern unsigned char shared_end[] __asm__("__stop_shared_memory") __attribute__((visibility("hidden")));

static struct { const unsigned char *data; unsigned long long length; unsigned unit, parts, *out; } launched;
static ucontext_t scheduler, fibers[THREADS];
alignas(16) static unsigned char stacks[THREADS][64 << 10];
static bool ended[THREADS];

static void barrier() {
    unsigned thread = threadIdx.x;
    swapcontext(&fibers[thread], &scheduler);
    threadIdx.x = thread;
}

static void fiber() {
    crc32c_units(launched.data, launched.length, launched.unit, launched.parts, launched.out);
    ended[threadIdx.x] = true;
}

/* Answers whether all threads of the block came to the same barriers. */
static bool run_block(bool backward) {
    memset(shared_begin, 0xA5, shared_end - shared_begin);
    for (unsigned thread = 0; thread < THREADS; thread++) {
        getcontext(&fibers[thread]);
        fibers[thread].uc_stack.ss_sp = stacks[thread];
        fibers[thread].uc_stack.ss_size = sizeof stacks[thread];
        fibers[thread].uc_link = &scheduler;
        makecontext(&fibers[thread], fiber, 0);
        ended[thread] = false;
    }
    unsigned over = 0;
    while (over == 0) {
        for (unsigned turn = 0; turn < THREADS; turn++) {
            threadIdx.x = backward ? THREADS - 1 - turn : turn;
            unsigned thread = threadIdx.x;
            swapcontext(&scheduler, &fibers[thread]);
            over += ended[thread];
        }
    }
    return over == THREADS;
}

extern "C" bool run_on_host(const unsigned char *data, unsigned long long length, unsigned unit, unsigned parts,
                            unsigned *out, bool backward) {
    launched = {data, length, unit, parts, out};
    unsigned blocks = static_cast<unsigned>((length + unit - 1) / unit) * parts;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
        if (!run_block(backward)) return false;
    return true;
}
