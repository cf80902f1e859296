/* A clock: what each step takes on the GPU, and how long its kernels' streams had nothing to do in between.
 *
 * Copies have a fixed cost and a rate, kernels what their launch says. By default a copy takes 5 us and what its bytes
 * take at 50 GB/s (PCIe 5.0 x16 has 64 GB/s each way by NVIDIA's data sheet of the H100; what is left after its packets'
 * headers is less), one within the GPU 3 us at 1 TB/s. These are assumptions: ratios of idle time are what they are for.
 *
 * Calls that wait for the GPU by themselves: CUDA's programming guide has allocations of device memory and of page-locked
 * memory, memory sets and copies of the default stream under "Implicit Synchronization", and the loading of modules under
 * "Lazy Loading" ("may require context synchronization"); freeing waits in practice, which PyTorch's allocator is built
 * upon. They are always counted, and they wait where the clock runs: without it that would only hide what is late. */
#define _GNU_SOURCE
#include "fake.h"
#include <time.h>

static bool runs;
static uint64_t copy_ns = 5000, bytes_per_us = 50000, sum_ns = 3000;

bool is_clocked(void) { return runs || is_virtual(); }

uint64_t clock_now(void) {
    if (is_virtual()) return virtual_now();
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* From now on time passes by itself, or only when somebody asks. */
void fake_clock(bool on, uint64_t fixed_ns, uint64_t rate) {
    pthread_mutex_lock(&fake_lock);
    runs = on;
    if (rate) { copy_ns = fixed_ns; bytes_per_us = rate; }
    state.idle_ns = state.busy_ns = state.clocked = 0;
    for (unsigned i = 0; i < stream_count; i++) streams[i]->computes = false;
    pthread_mutex_unlock(&fake_lock);
}

bool fake_is_clocked(void) { return is_clocked(); }

/* What each checksum takes beside its bytes. */
void fake_sums_take(uint64_t ns) { sum_ns = ns; }

static uint64_t duration(const struct Step *s) {
    switch (s->kind) {
    case COPY_IN: case COPY_OUT: return copy_ns + s->length * 1000 / bytes_per_us;
    case COPY: case ZERO: return 3000 + s->length / 1000;
    case SUM: return sum_ns + s->length / 1000;
    case KERNEL: return s->length;
    default: return 0;
    }
}

/* The first step of a stream happens, if it has ended by now. */
static bool keep_up_in(struct Stream *stream, uint64_t now) {
    struct Step *s = stream->head;
    if (!s || (s->kind == RECORD && s->event == held_event)) return false;
    if (s->kind == WAIT && s->event->happened < s->ticket) return false;
    uint64_t begun = s->appended_at > stream->ended_at ? s->appended_at : stream->ended_at;
    if (s->kind == WAIT && s->event->happened_at > begun) begun = s->event->happened_at;
    uint64_t ended = begun + duration(s);
    if (ended > now) return false;
    if (s->kind == KERNEL) {
        if (stream->computes) { state.idle_ns += begun - stream->computed_at; state.busy_ns += ended - begun; state.clocked++; }
        stream->computes = true;
        stream->computed_at = ended;
    }
    if (s->kind == RECORD) s->event->happened_at = ended;
    stream->ended_at = ended;
    return advance(stream);
}

void keep_up(void) {
    if (is_virtual()) { virtual_keep_up(); return; }
    uint64_t now = clock_now();
    for (bool moved = !held; moved;) {
        moved = keep_up_in(&default_stream, now);
        for (unsigned i = 0; i < stream_count; i++)
            while (keep_up_in(streams[i], now)) moved = true;
    }
}

void wait_for_gpu(void) {
    pthread_mutex_lock(&fake_lock);
    state.waits++;
    if (is_virtual()) virtual_wait_for_stream(NULL);
    for (unsigned i = 0; runs && i < stream_count; i++) drain(streams[i]);
    pthread_mutex_unlock(&fake_lock);
}
