/* What tests set, plan and read. */
#include "fake.h"
#include <stdio.h>
#include <string.h>

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t seed = 1;
unsigned laziness = 4;
static char first_violation[256];
static unsigned violations;
static struct { char what[32]; int after, code, times; } plans[16];
struct State state = { .status = 1u << 4, .features = 1u << 1, .major = 2, .minor = 17, .batch_max = 128, .gpus = 1, .configured_compat = true, .allow_compat = -1, .flushes_by = 1 };

bool held;
struct Event *held_event;
void fake_hold_event(struct Event *event) { held_event = event; }

uint64_t chance(void) {
    seed ^= seed << 13; seed ^= seed >> 7; seed ^= seed << 17;
    return seed * 0x2545F4914F6CDD1Dull;
}

void violated(const char *what, uint64_t at, uint64_t length) {
    if (violations++ == 0)
        snprintf(first_violation, sizeof first_violation, "%s (%llu bytes at %llx)", what, (unsigned long long)length,
                 (unsigned long long)at);
}

int planned(const char *what) {
    for (unsigned i = 0; i < 16; i++) {
        if (plans[i].times == 0 || strcmp(plans[i].what, what) != 0) continue;
        if (plans[i].after-- > 0) return 0;
        plans[i].after = 0;
        if (plans[i].times > 0) plans[i].times--;
        return plans[i].code;
    }
    return 0;
}

void fake_clock(bool on, uint64_t fixed_ns, uint64_t rate);
void fake_sums_take(uint64_t ns);
void fake_reset(uint64_t new_seed, unsigned new_laziness) {
    fake_clock(false, 5000, 50000);
    fake_sums_take(3000);
    pthread_mutex_lock(&fake_lock);
    seed = new_seed * 2 + 1; laziness = new_laziness; violations = 0; first_violation[0] = 0;
    memset(plans, 0, sizeof plans); held = false; held_event = NULL; state.hangs = 0; state.broken = 0;
    /* What an earlier test has leaked stays so, and is nobody else's. */
    forget_given_up(); forget_capture(); forget_capacity(); state.waits = state.urgent_streams = 0; state.handles = state.buffers = state.batches = state.allocated = 0;
    state.status = 1u << 4; state.features = 1u << 1; state.major = 2; state.minor = 17; state.batch_max = 128;
    state.configured_compat = true; if (!state.driver_open) state.allow_compat = -1; state.force_compat = false; state.p2pdma = false; state.p2p_flags = 0; state.entered = state.handles_made = 0; state.gpus = 1; state.ordering = 0; state.flushes_by = 1; state.flushes = 0;
    state.submitted = state.batch_longest = state.copies = state.kernels = 0; state.host_bytes = state.pageable = 0; state.driver_opens = state.driver_closes = state.driver_open_calls = 0;
    pthread_mutex_unlock(&fake_lock);
}

/* The call fails with `code` when it was made `after` more times; `times` times, or for ever if that is negative. */
void fake_plan(const char *what, int after, int code, int times) {
    pthread_mutex_lock(&fake_lock);
    for (unsigned i = 0; i < 16; i++)
        if (plans[i].times == 0) {
            snprintf(plans[i].what, sizeof plans[i].what, "%s", what);
            plans[i].after = after; plans[i].code = code; plans[i].times = times;
            break;
        }
    pthread_mutex_unlock(&fake_lock);
}

/* As after a kernel that went wrong: the context is of no use any more, until the next reset. */
void fake_break(int code) {
    pthread_mutex_lock(&fake_lock);
    state.broken = code;
    abandon();
    pthread_mutex_unlock(&fake_lock);
}

/* Calls of that name fail no longer. */
void fake_plan_end(const char *what) {
    pthread_mutex_lock(&fake_lock);
    for (unsigned i = 0; i < 16; i++)
        if (!strcmp(plans[i].what, what)) plans[i].times = 0;
    pthread_mutex_unlock(&fake_lock);
}

void fake_driver(unsigned status, unsigned features, unsigned major, unsigned batch_max, int gpus) {
    state.minor = major ? 17 : 0;
    state.status = status; state.features = features; state.major = major; state.batch_max = batch_max; state.gpus = gpus;
}

/* Whether cufile.json allows compat mode, and what the library says of peer-to-peer DMA for NVMe. */
void fake_configure(bool compat, unsigned p2p_flags) { state.configured_compat = compat; state.p2p_flags = p2p_flags; }

/* How the GPU comes to see what other devices write: in order (100), by itself not (0); by which flushes (1, the host's). */
void fake_remote_writes(int ordering, int flushes_by) { state.ordering = ordering; state.flushes_by = flushes_by; }
void fake_hold(bool still) { held = still; }
void fake_hang(uint64_t inode) { state.hangs = inode; }

void fake_unify(bool unified) { state.unified = unified; }

unsigned fake_violations(char *first, size_t room) {
    if (room) snprintf(first, room, "%s", first_violation);
    return violations;
}

uint64_t fake_count(const char *what) {
    if (!strcmp(what, "handles")) return state.handles;
    if (!strcmp(what, "handles_made")) return state.handles_made;
    if (!strcmp(what, "entered")) return state.entered;
    if (!strcmp(what, "buffers")) return state.buffers;
    if (!strcmp(what, "batches")) return state.batches;
    if (!strcmp(what, "submitted")) return state.submitted;
    if (!strcmp(what, "batch_longest")) return state.batch_longest;
    if (!strcmp(what, "copies")) return state.copies;
    if (!strcmp(what, "allocated")) return state.allocated;
    if (!strcmp(what, "modules")) return state.modules;
    if (!strcmp(what, "modules_loaded")) return state.modules_loaded;
    if (!strcmp(what, "kernels")) return state.kernels;
    if (!strcmp(what, "host_bytes")) return state.host_bytes;
    if (!strcmp(what, "urgent_streams")) return state.urgent_streams;
    if (!strcmp(what, "waits")) return state.waits;
    if (!strcmp(what, "idle_ns")) return state.idle_ns;
    if (!strcmp(what, "busy_ns")) return state.busy_ns;
    if (!strcmp(what, "clocked")) return state.clocked;
    if (!strcmp(what, "flushes")) return state.flushes;
    if (!strcmp(what, "pinned")) return gdr_count();
    if (!strcmp(what, "pageable")) return state.pageable;
    if (!strcmp(what, "mapped_bytes")) return LOCKED(made_bytes());
    if (!strcmp(what, "creations")) return LOCKED(creation_count());
    if (!strcmp(what, "unmappings")) return LOCKED(unmapping_count());
    if (!strcmp(what, "host_memory")) return host_memory_bytes();
    if (!strcmp(what, "driver_opens")) return state.driver_opens;
    if (!strcmp(what, "driver_open_calls")) return state.driver_open_calls;
    if (!strcmp(what, "driver_closes")) return state.driver_closes;
    return ~0ull;
}
