/* A GPU and cuFile that are not there: the symbols of libcuda and libcufile that we use, over host memory.
 *
 * What the real ones leave open happens here on purpose, from a seed: a copy is done only some time after it was put
 * into its stream, streams overtake each other, the transfers of a batch end late and in any order. Time passes only
 * when somebody asks (an event's state, a batch's state). Device pointers are no host addresses: a host that follows
 * one crashes. Every transfer and every copy is checked against all others that are on their way over the same bytes;
 * a race is counted, with the first one's description, and so is every other misuse. */
#define _GNU_SOURCE
#include "fake.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

typedef int CUresult;
typedef uint64_t CUdeviceptr;
enum { OK = 0, INVALID = 1, NO_MEMORY = 2, NOT_READY = 600, ALREADY_LOCKED = 712, NOT_LOCKED = 713 };

/* Device addresses are host addresses with this added: no canonical address, so nobody follows one by mistake. */
#define FAR 0x4000000000000000ull
#define MAX 1024

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- what tests set and read ---- */

static uint64_t seed = 1;
static unsigned laziness = 4;      /* a step does nothing this many times out of (this + 1) */
static char first_violation[256];
static unsigned violations;
static struct { char what[32]; int after, code, times; } plans[16];
static struct {
    unsigned status, features, major, minor, batch_max, driver_opens, driver_closes;
    bool allow_compat, force_compat, p2pdma, driver_open;
    int gpus;
    bool unified; /* host addresses are device addresses too: for frameworks whose tensors are really in host memory */
    int ordering, flushes_by; /* how other devices' writes come to be seen: CUDA's numbers */
    unsigned flushes;
    unsigned handles, buffers, batches, submitted, batch_longest, copies, allocated, modules, kernels;
    uint64_t host_bytes; /* that streams copied between the GPU and the host */
    uint64_t pageable;   /* of these, to or from host memory that is not page-locked */
} state = { .status = 1u << 4, .features = 1u << 1, .major = 2, .minor = 17, .batch_max = 128, .gpus = 1, .p2pdma = true, .flushes_by = 1 };

static bool held; /* time stands still */

static uint64_t chance(void) {
    seed ^= seed << 13; seed ^= seed >> 7; seed ^= seed << 17;
    return seed * 0x2545F4914F6CDD1Dull;
}

void violated(const char *what, uint64_t at, uint64_t length) {
    if (violations++ == 0)
        snprintf(first_violation, sizeof first_violation, "%s (%llu bytes at %llx)", what, (unsigned long long)length,
                 (unsigned long long)at);
}

/* The code that a planned failure of this call answers, or 0. */
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

void fake_reset(uint64_t new_seed, unsigned new_laziness) {
    pthread_mutex_lock(&fake_lock);
    seed = new_seed * 2 + 1; laziness = new_laziness; violations = 0; first_violation[0] = 0;
    memset(plans, 0, sizeof plans); held = false;
    state.status = 1u << 4; state.features = 1u << 1; state.major = 2; state.minor = 17; state.batch_max = 128;
    state.force_compat = false; state.p2pdma = true; state.gpus = 1; state.ordering = 0; state.flushes_by = 1; state.flushes = 0;
    state.submitted = state.batch_longest = state.copies = state.kernels = 0; state.host_bytes = state.pageable = 0; state.driver_opens = state.driver_closes = 0;
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

void fake_driver(unsigned status, unsigned features, unsigned major, unsigned batch_max, int gpus) {
    state.minor = major ? 17 : 0;
    state.status = status; state.features = features; state.major = major; state.batch_max = batch_max; state.gpus = gpus;
}

/* How the GPU comes to see what other devices write: in order (100), by itself not (0); by which flushes (1, the host's). */
void fake_remote_writes(int ordering, int flushes_by) { state.ordering = ordering; state.flushes_by = flushes_by; }
void fake_hold(bool still) { held = still; }

void fake_unify(bool unified) { state.unified = unified; }

unsigned fake_violations(char *first, size_t room) {
    if (room) snprintf(first, room, "%s", first_violation);
    return violations;
}

static uint64_t host_memory(void);

uint64_t fake_count(const char *what) {
    if (!strcmp(what, "handles")) return state.handles;
    if (!strcmp(what, "buffers")) return state.buffers;
    if (!strcmp(what, "batches")) return state.batches;
    if (!strcmp(what, "submitted")) return state.submitted;
    if (!strcmp(what, "batch_longest")) return state.batch_longest;
    if (!strcmp(what, "copies")) return state.copies;
    if (!strcmp(what, "allocated")) return state.allocated;
    if (!strcmp(what, "modules")) return state.modules;
    if (!strcmp(what, "kernels")) return state.kernels;
    if (!strcmp(what, "host_bytes")) return state.host_bytes;
    if (!strcmp(what, "flushes")) return state.flushes;
    if (!strcmp(what, "pinned")) return gdr_count();
    if (!strcmp(what, "pageable")) return state.pageable;
    if (!strcmp(what, "host_memory")) return host_memory();
    if (!strcmp(what, "driver_opens")) return state.driver_opens;
    if (!strcmp(what, "driver_closes")) return state.driver_closes;
    return ~0ull;
}

/* ---- memory ---- */

static struct { CUdeviceptr base; size_t length; bool synchronous; } memory[MAX];

static struct { char *base; size_t length; } words[MAX]; /* host memory that kernels may write */

static bool is_word(uint64_t at, size_t length) {
    for (unsigned i = 0; i < MAX; i++)
        if (words[i].base && at >= (uintptr_t)words[i].base && at + length <= (uintptr_t)words[i].base + words[i].length) return true;
    return false;
}

/* The bytes of all that cuMemHostAlloc gave and nobody has freed. */
static uint64_t host_memory(void) {
    uint64_t bytes = 0;
    for (unsigned i = 0; i < MAX; i++)
        if (words[i].base) bytes += words[i].length;
    return bytes;
}

static struct { char *base; size_t length; } locks[MAX]; /* host memory that was page-locked where it was */

static bool is_locked(uint64_t at, size_t length) {
    for (unsigned i = 0; i < MAX; i++)
        if (locks[i].base && at >= (uintptr_t)locks[i].base && at + length <= (uintptr_t)locks[i].base + locks[i].length) return true;
    return is_word(at, length);
}

bool allocated(CUdeviceptr at, size_t length) {
    if (is_word(at, length)) return true;
    if (state.unified && at < FAR) return true;
    for (unsigned i = 0; i < MAX; i++)
        if (memory[i].base && at >= memory[i].base && at + length <= memory[i].base + memory[i].length) return true;
    return false;
}

char *near(CUdeviceptr at) { return (char *)(uintptr_t)(at < FAR ? at : at - FAR); }

/* ---- streams and events ---- */

enum Kind { COPY_IN, COPY_OUT, COPY, ZERO, SUM, RECORD, WAIT };
/* Whether such a step reads memory of the GPU, and whether it writes such memory. */
static bool reads(enum Kind kind) { return kind == COPY_OUT || kind == COPY || kind == SUM; }
static bool writes(enum Kind kind) { return kind == COPY_IN || kind == COPY || kind == ZERO; }
struct Event { uint64_t recorded, happened; bool destroyed; };
struct Step {
    enum Kind kind;
    uint64_t from, to;
    size_t length;
    struct Event *event;
    uint64_t ticket;
    void *owned;
    struct Step *next;
};
struct Stream { struct Step *head, *tail; bool destroyed; };
static struct Stream *streams[MAX];
static unsigned stream_count;

struct Transfer {
    bool used, write;
    uint64_t memory;
    size_t length;
    off_t offset;
    int file;
    void *cookie;
};
struct Batch { struct Transfer transfers[128]; unsigned capacity; bool destroyed, cancelled; };
static struct Batch *batches[MAX];
static unsigned batch_count;

bool overlap(uint64_t a, size_t n, uint64_t b, size_t m) { return a < b + m && b < a + n; }

/* A copy that happens now: no transfer may be on its way that writes what it touches, or reads what it writes. */
static void check_copy(const struct Step *s) {
    for (unsigned i = 0; i < batch_count; i++) {
        if (batches[i]->destroyed) continue;
        for (unsigned k = 0; k < 128; k++) {
            const struct Transfer *t = &batches[i]->transfers[k];
            if (!t->used) continue;
            if (writes(s->kind) && overlap(s->to, s->length, t->memory, t->length))
                violated("a copy writes what an SSD uses", s->to, s->length);
            if (reads(s->kind) && !t->write && overlap(s->from, s->length, t->memory, t->length))
                violated("a copy reads what an SSD writes", s->from, s->length);
        }
    }
}

/* A transfer that is submitted now: no copy may be on its way that it depends on or that depends on its memory. */
static void check_transfer(uint64_t at, size_t length, bool write) {
    for (unsigned i = 0; i < stream_count; i++)
        for (const struct Step *s = streams[i]->head; s; s = s->next) {
            if (writes(s->kind) && overlap(s->to, s->length, at, length))
                violated("an SSD is given memory that a copy still writes", at, length);
            if (reads(s->kind) && !write && overlap(s->from, s->length, at, length))
                violated("an SSD writes memory that a copy still reads", at, length);
        }
    for (unsigned i = 0; i < batch_count; i++) {
        if (batches[i]->destroyed) continue;
        for (unsigned k = 0; k < 128; k++) {
            const struct Transfer *t = &batches[i]->transfers[k];
            if (t->used && !(write && t->write) && overlap(at, length, t->memory, t->length))
                violated("two transfers use the same memory", at, length);
        }
    }
}

/* What the checksum kernel computes. */
static uint32_t crc32c(const unsigned char *data, size_t length) {
    static uint32_t table[256];
    if (!table[1])
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t entry = i;
            for (int bit = 0; bit < 8; bit++) entry = (entry >> 1) ^ (entry & 1 ? 0x82F63B78u : 0);
            table[i] = entry;
        }
    uint32_t crc = ~0u;
    while (length--) crc = (crc >> 8) ^ table[(crc ^ *data++) & 0xff];
    return ~crc;
}

/* The first step of a stream happens, if it can; answers whether it did. */
static bool step(struct Stream *stream) {
    struct Step *s = stream->head;
    if (!s) return false;
    if (s->kind == WAIT && s->event->happened < s->ticket) return false;
    if (s->kind == RECORD) s->event->happened = s->ticket;
    if (reads(s->kind) || writes(s->kind)) {
        bool from_there = !reads(s->kind) || allocated(s->from, s->length);
        bool to_there = s->kind == SUM ? allocated(s->to, 4) : !writes(s->kind) || allocated(s->to, s->length);
        if (!from_there) violated("a copy reads freed memory", s->from, s->length);
        if (!to_there) violated("a copy writes freed memory", s->to, s->length);
        check_copy(s);
        char *from = s->kind == COPY_IN ? (char *)(uintptr_t)s->from : near(s->from);
        char *to = s->kind == COPY_OUT ? (char *)(uintptr_t)s->to : near(s->to);
        if (!from_there || !to_there) ;
        else if (s->kind == ZERO) memset(to, 0, s->length);
        else if (s->kind == SUM) { uint32_t sum = crc32c((unsigned char *)from, s->length); memcpy(to, &sum, sizeof sum); }
        else memcpy(to, from, s->length);
        if (s->kind == SUM) state.kernels++;
        else if (s->kind != ZERO && !s->owned) state.copies++;
        if (!s->owned && (s->kind == COPY_IN || s->kind == COPY_OUT)) {
            state.host_bytes += s->length;
            if (!is_locked(s->kind == COPY_IN ? s->from : s->to, s->length)) state.pageable += s->length;
            if (from_there && to_there && planned("flip")) to[0] ^= 1; /* on the link */
        }
    }
    stream->head = s->next;
    if (!stream->head) stream->tail = NULL;
    free(s->owned);
    free(s);
    return true;
}

/* Some time passes: now and then one stream that can, whichever, does one step. */
static void tick(void) {
    if (held || stream_count == 0 || chance() % (laziness + 1)) return;
    unsigned first = chance() % stream_count;
    for (unsigned i = 0; i < stream_count; i++)
        if (step(streams[(first + i) % stream_count])) return;
}

static void append(struct Stream *stream, struct Step step_) {
    struct Step *s = malloc(sizeof *s);
    *s = step_; s->next = NULL;
    if (stream->tail) stream->tail->next = s; else stream->head = s;
    stream->tail = s;
}

static struct Stream default_stream;

/* Everything that a stream waits for happens, then everything in it. */
static void drain(struct Stream *stream) {
    while (stream->head) {
        if (step(stream)) continue;
        bool moved = false;
        for (unsigned i = 0; i < stream_count; i++) moved |= step(streams[i]);
        if (!moved) return;
    }
}

#define LOCKED(expression) ({ pthread_mutex_lock(&fake_lock); __typeof__(expression) _a = (expression); pthread_mutex_unlock(&fake_lock); _a; })

/* ---- libcuda ---- */

CUresult cuInit(unsigned flags) { (void)flags; return planned("cuInit"); }
CUresult cuDriverGetVersion(int *version) { *version = 12020; return OK; }
CUresult cuDeviceGetCount(int *count) { *count = state.gpus; return OK; }
CUresult cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal < state.gpus ? OK : 101; }
CUresult cuDeviceGetName(char *name, int room, int device) { (void)device; snprintf(name, room, "Fake GPU"); return OK; }
CUresult cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 33 ? 0x3b + device : attribute == 117 ? state.flushes_by : attribute == 118 ? state.ordering : 0;
    return OK;
}
CUresult cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)(uintptr_t)(device + 1); return planned("retain"); }
CUresult cuDevicePrimaryCtxRelease_v2(int device) { (void)device; return OK; }
CUresult cuCtxSetCurrent(void *context) { (void)context; return OK; }
CUresult cuCtxSynchronize(void) {
    pthread_mutex_lock(&fake_lock);
    for (unsigned i = 0; i < stream_count; i++) drain(streams[i]);
    pthread_mutex_unlock(&fake_lock);
    return OK;
}
CUresult cuMemGetInfo_v2(size_t *free_, size_t *all) { *free_ = 1u << 30; *all = 1u << 30; return OK; }

CUresult cuMemAlloc_v2(CUdeviceptr *at, size_t length) {
    int code = LOCKED(planned("alloc"));
    if (code) return code;
    void *host = aligned_alloc(65536, (length + 65535) / 65536 * 65536);
    if (!host) return NO_MEMORY;
    memset(host, 0xDB, length);
    pthread_mutex_lock(&fake_lock);
    *at = (CUdeviceptr)(uintptr_t)host + FAR;
    for (unsigned i = 0; i < MAX; i++)
        if (!memory[i].base) { memory[i].base = *at; memory[i].length = length; memory[i].synchronous = false; break; }
    state.allocated++;
    pthread_mutex_unlock(&fake_lock);
    return OK;
}

CUresult cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr at) {
    if (attribute != 6) return INVALID;
    int code = LOCKED(planned("attribute"));
    for (unsigned i = 0; i < MAX && !code; i++)
        if (memory[i].base && at >= memory[i].base && at < memory[i].base + memory[i].length)
            memory[i].synchronous = *(const unsigned *)value;
    return code;
}
bool is_synchronous(uint64_t at) {
    for (unsigned i = 0; i < MAX; i++)
        if (memory[i].base && at >= memory[i].base && at < memory[i].base + memory[i].length) return memory[i].synchronous;
    return false;
}
CUresult cuFlushGPUDirectRDMAWrites(int target, int scope) {
    if (target != 0 || scope != 100) return INVALID;
    int code = LOCKED(planned("flush"));
    if (!code) LOCKED(state.flushes++);
    return code;
}

CUresult cuMemFree_v2(CUdeviceptr at) {
    pthread_mutex_lock(&fake_lock);
    for (unsigned i = 0; i < MAX; i++)
        if (memory[i].base == at) {
            for (unsigned b = 0; b < batch_count; b++)
                for (unsigned k = 0; k < 128 && !batches[b]->destroyed; k++) {
                    const struct Transfer *t = &batches[b]->transfers[k];
                    if (t->used && overlap(at, memory[i].length, t->memory, t->length))
                        violated("memory is freed that an SSD uses", t->memory, t->length);
                }
            if (is_pinned(at, memory[i].length)) violated("memory is freed that is pinned", at, memory[i].length);
            memory[i].base = 0;
            state.allocated--;
            free(near(at));
        }
    pthread_mutex_unlock(&fake_lock);
    return OK;
}

CUresult cuMemHostRegister_v2(void *at, size_t length, unsigned flags) {
    (void)flags;
    char *base = at;
    pthread_mutex_lock(&fake_lock);
    int code = planned("lock"), place = -1;
    for (int i = 0; i < MAX; i++) {
        if (!locks[i].base) place = i;
        else if (base < locks[i].base + locks[i].length && locks[i].base < base + length && !code) code = ALREADY_LOCKED;
    }
    if (!code && place >= 0) { locks[place].base = base; locks[place].length = length; }
    pthread_mutex_unlock(&fake_lock);
    return code;
}
CUresult cuMemHostUnregister(void *at) {
    int code = NOT_LOCKED;
    pthread_mutex_lock(&fake_lock);
    for (int i = 0; i < MAX; i++)
        if (locks[i].base == at) { locks[i].base = NULL; code = OK; }
    pthread_mutex_unlock(&fake_lock);
    return code;
}

/* As the driver does it from memory that is not page-locked: it takes the bytes, and they are there some time later. */
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t length) {
    if (!LOCKED(allocated(to, length))) return INVALID;
    void *taken = malloc(length);
    memcpy(taken, from, length);
    pthread_mutex_lock(&fake_lock);
    append(&default_stream, (struct Step){ .kind = COPY_IN, .from = (uintptr_t)taken, .to = to, .length = length, .owned = taken });
    pthread_mutex_unlock(&fake_lock);
    return OK;
}
CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t length) {
    if (!LOCKED(allocated(from, length))) return INVALID;
    memcpy(to, near(from), length);
    return OK;
}

static CUresult put(struct Stream *stream, enum Kind kind, uint64_t from, uint64_t to, size_t length) {
    pthread_mutex_lock(&fake_lock);
    int code = planned(kind == COPY_IN ? "copy_in" : kind == COPY_OUT ? "copy_out" : kind == COPY ? "copy" : "");
    if (!code) append(stream ? stream : &default_stream, (struct Step){ .kind = kind, .from = from, .to = to, .length = length });
    pthread_mutex_unlock(&fake_lock);
    return code;
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t length, struct Stream *stream) { return put(stream, COPY_IN, (uintptr_t)from, to, length); }
CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t length, struct Stream *stream) { return put(stream, COPY_OUT, from, (uintptr_t)to, length); }
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t length, struct Stream *stream) { return put(stream, COPY, from, to, length); }

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t length, struct Stream *stream) {
    return value ? INVALID : put(stream, ZERO, 0, to, length);
}

CUresult cuMemHostAlloc(void **at, size_t length, unsigned flags) {
    (void)flags;
    pthread_mutex_lock(&fake_lock);
    int code = planned("host_alloc");
    if (!code) {
        *at = calloc(1, length);
        if (!*at) code = NO_MEMORY;
    }
    if (!code) {
        for (unsigned i = 0; i < MAX; i++)
            if (!words[i].base) { words[i].base = *at; words[i].length = length; break; }
        state.allocated++;
    }
    pthread_mutex_unlock(&fake_lock);
    return code;
}
CUresult cuMemFreeHost(void *at) {
    pthread_mutex_lock(&fake_lock);
    for (unsigned i = 0; i < MAX; i++)
        if (words[i].base == at) { words[i].base = NULL; state.allocated--; free(at); }
    pthread_mutex_unlock(&fake_lock);
    return OK;
}

/* The one kernel there is, whatever the module says. */
CUresult cuModuleLoadData(void **module, const void *image) {
    int code = LOCKED(planned("module"));
    if (!code && !strstr(image, ".entry crc32c_units")) code = 500;
    if (!code) { *module = &state.modules; LOCKED(state.modules++); }
    return code;
}
CUresult cuModuleGetFunction(void **function, void *module, const char *name) {
    *function = module;
    return strcmp(name, "crc32c_units") ? 500 : OK;
}
CUresult cuModuleUnload(void *module) { (void)module; LOCKED(state.modules--); return OK; }
CUresult cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                        struct Stream *stream, void **arguments, void **extra) {
    (void)function; (void)shared; (void)extra;
    uint64_t data = *(uint64_t *)arguments[0], length = *(uint64_t *)arguments[1], sums = *(uint64_t *)arguments[3];
    unsigned unit = *(unsigned *)arguments[2];
    int code = LOCKED(planned("launch"));
    if (code) return code;
    if (!unit || x != (length + unit - 1) / unit || y != 1 || z != 1 || bx != 256 || by != 1 || bz != 1) return INVALID;
    for (uint64_t at = 0; at < length && !code; at += unit, sums += 4)
        code = put(stream, SUM, data + at, sums, length - at < unit ? length - at : unit);
    return code;
}

CUresult cuStreamCreate(struct Stream **stream, unsigned flags) {
    (void)flags;
    pthread_mutex_lock(&fake_lock);
    *stream = calloc(1, sizeof **stream);
    if (stream_count < MAX) streams[stream_count++] = *stream;
    pthread_mutex_unlock(&fake_lock);
    return OK;
}
CUresult cuStreamDestroy_v2(struct Stream *stream) {
    pthread_mutex_lock(&fake_lock);
    drain(stream);
    for (unsigned i = 0; i < stream_count; i++)
        if (streams[i] == stream) streams[i] = streams[--stream_count];
    pthread_mutex_unlock(&fake_lock);
    return OK;
}
CUresult cuStreamSynchronize(struct Stream *stream) {
    pthread_mutex_lock(&fake_lock);
    int code = planned("synchronize");
    if (!code) drain(stream ? stream : &default_stream);
    pthread_mutex_unlock(&fake_lock);
    return code;
}
CUresult cuStreamWaitEvent(struct Stream *stream, struct Event *event, unsigned flags) {
    (void)flags;
    pthread_mutex_lock(&fake_lock);
    append(stream, (struct Step){ .kind = WAIT, .event = event, .ticket = event->recorded });
    pthread_mutex_unlock(&fake_lock);
    return OK;
}
CUresult cuEventCreate(struct Event **event, unsigned flags) { (void)flags; *event = calloc(1, sizeof **event); return OK; }
CUresult cuEventDestroy_v2(struct Event *event) { (void)event; return OK; } /* Steps may still name it. */
CUresult cuEventRecord(struct Event *event, struct Stream *stream) {
    pthread_mutex_lock(&fake_lock);
    int code = planned("record");
    if (!code) append(stream, (struct Step){ .kind = RECORD, .event = event, .ticket = ++event->recorded });
    pthread_mutex_unlock(&fake_lock);
    return code;
}
CUresult cuEventQuery(struct Event *event) {
    pthread_mutex_lock(&fake_lock);
    int code = planned("query");
    tick();
    if (!code) code = event->happened >= event->recorded ? OK : NOT_READY;
    pthread_mutex_unlock(&fake_lock);
    return code;
}
CUresult cuEventSynchronize(struct Event *event) {
    bool happened = false;
    while (!happened) { /* Time passes for others meanwhile. */
        pthread_mutex_lock(&fake_lock);
        tick();
        happened = event->happened >= event->recorded;
        pthread_mutex_unlock(&fake_lock);
        sched_yield();
    }
    return OK;
}
CUresult cuGetErrorName(CUresult code, const char **name) { (void)code; *name = "FAKE"; return OK; }
CUresult cuGetErrorString(CUresult code, const char **text) { (void)code; *text = "fake"; return OK; }

/* ---- libcufile ---- */

typedef struct { int code, cuda; } Answer;
static Answer answer(int code) {
    /* Numbers below cuFile's own are CUDA's. */
    return code > 0 && code < 5000 ? (Answer){ 5011, code } : (Answer){ code, 0 };
}

struct Properties {
    unsigned major, minor; size_t poll_threshold, direct_io_max; unsigned status, control;
    unsigned features, cache, per_buffer, pinned, batch_max, batch_timeout;
};
struct Description { unsigned kind; union { int file; void *handle; } u; const void *operations; };
struct Handle { int file; bool registered; };
struct Entry {
    unsigned mode; void *memory; int64_t file_offset, memory_offset; size_t length; struct Handle *file;
    unsigned opcode; void *cookie;
};
struct Told { void *cookie; unsigned status; ssize_t moved; };

static struct { uint64_t base; size_t length; } buffers[MAX];

static bool registered(uint64_t at, size_t length) {
    for (unsigned i = 0; i < MAX; i++)
        if (buffers[i].base && at >= buffers[i].base && at + length <= buffers[i].base + buffers[i].length) return true;
    return false;
}

Answer cuFileDriverOpen(void) {
    pthread_mutex_lock(&fake_lock);
    int code = planned("driver_open");
    if (!code && state.driver_open) code = 5026;
    if (!code) { state.driver_open = true; state.driver_opens++; }
    pthread_mutex_unlock(&fake_lock);
    return answer(code);
}
Answer cuFileDriverClose_v2(void) { state.driver_open = false; state.driver_closes++; return answer(0); }
Answer cuFileGetVersion(int *version) { *version = 1150; return answer(0); }
Answer cuFileDriverGetProperties(struct Properties *p) {
    *p = (struct Properties){ .major = state.major, .minor = state.minor, .direct_io_max = 16384, .status = state.status,
        .control = state.allow_compat ? 2 : 0, .features = state.features, .pinned = 1 << 20, .batch_max = state.batch_max };
    return answer(planned("properties"));
}
Answer cuFileGetParameterBool(unsigned parameter, bool *value) {
    *value = parameter == 1 ? state.allow_compat : parameter == 2 ? state.force_compat : state.p2pdma;
    return answer(0);
}
Answer cuFileSetParameterBool(unsigned parameter, bool value) {
    if (state.driver_open) return answer(5026);
    if (parameter == 1) state.allow_compat = value;
    return answer(0);
}
Answer cuFileHandleRegister(struct Handle **handle, struct Description *description) {
    pthread_mutex_lock(&fake_lock);
    int code = planned("handle_register");
    if (!code) {
        *handle = malloc(sizeof **handle);
        **handle = (struct Handle){ .file = description->u.file, .registered = true };
        state.handles++;
    }
    pthread_mutex_unlock(&fake_lock);
    return answer(code);
}
void cuFileHandleDeregister(struct Handle *handle) { handle->registered = false; state.handles--; } /* Leaked: a use after shows. */
Answer cuFileBufRegister(const void *at, size_t length, int flags) {
    (void)flags;
    pthread_mutex_lock(&fake_lock);
    int code = planned("buffer_register");
    if (!code && !allocated((uintptr_t)at, length)) code = 5012;
    if (!code && registered((uintptr_t)at, length)) code = 5023;
    if (!code) {
        for (unsigned i = 0; i < MAX; i++)
            if (!buffers[i].base) { buffers[i].base = (uintptr_t)at; buffers[i].length = length; break; }
        state.buffers++;
    }
    pthread_mutex_unlock(&fake_lock);
    return answer(code);
}
Answer cuFileBufDeregister(const void *at) {
    pthread_mutex_lock(&fake_lock);
    for (unsigned i = 0; i < MAX; i++)
        if (buffers[i].base == (uintptr_t)at) {
            for (unsigned b = 0; b < batch_count; b++)
                for (unsigned k = 0; k < 128 && !batches[b]->destroyed; k++)
                    if (batches[b]->transfers[k].used && overlap(buffers[i].base, buffers[i].length,
                            batches[b]->transfers[k].memory, batches[b]->transfers[k].length))
                        violated("memory is deregistered that an SSD uses", buffers[i].base, buffers[i].length);
            buffers[i].base = 0; state.buffers--;
        }
    pthread_mutex_unlock(&fake_lock);
    return answer(0);
}

/* The bytes really move: through a buffer that O_DIRECT takes. */
static ssize_t move(const struct Transfer *t) {
    void *bounce = aligned_alloc(4096, (t->length + 4095) / 4096 * 4096);
    ssize_t moved;
    if (t->write) {
        memcpy(bounce, near(t->memory), t->length);
        moved = pwrite(t->file, bounce, t->length, t->offset);
    } else {
        moved = pread(t->file, bounce, t->length, t->offset);
        if (moved > 0) memcpy(near(t->memory), bounce, moved);
    }
    if (moved < 0) moved = -errno;
    free(bounce);
    return moved;
}

ssize_t cuFileRead(struct Handle *file, void *base, size_t length, off_t offset, off_t into) {
    int code = LOCKED(planned("probe"));
    if (code) return -code;
    struct Transfer t = { .memory = (uintptr_t)base + into, .length = length, .offset = offset, .file = file->file };
    if (!LOCKED(registered(t.memory, length))) violated("an unregistered read", t.memory, length);
    return move(&t);
}

Answer cuFileBatchIOSetUp(struct Batch **batch, unsigned capacity) {
    pthread_mutex_lock(&fake_lock);
    int code = planned("batch_set_up");
    if (!code && (capacity == 0 || capacity > state.batch_max)) code = 5022;
    if (!code) {
        *batch = calloc(1, sizeof **batch);
        (*batch)->capacity = capacity;
        if (batch_count < MAX) batches[batch_count++] = *batch; else violated("too many batches", 0, 0);
        state.batches++;
    }
    pthread_mutex_unlock(&fake_lock);
    return answer(code);
}

Answer cuFileBatchIOSubmit(struct Batch *batch, unsigned count, struct Entry *entries, unsigned flags) {
    (void)flags;
    pthread_mutex_lock(&fake_lock);
    int code = planned("batch_submit");
    if (!code && count > batch->capacity) { code = 5022; violated("a batch beyond its limit", 0, count); }
    for (unsigned i = 0; i < count && !code; i++) {
        struct Entry *e = &entries[i];
        uint64_t at = (uintptr_t)e->memory + e->memory_offset;
        struct Transfer *t = &batch->transfers[i];
        if (t->used) violated("a batch is used again before it ended", at, e->length);
        if (!e->file->registered) violated("a file that is not registered", at, e->length);
        if (!registered(at, e->length)) violated("memory that is not registered", at, e->length);
        if (at % 4096 || e->file_offset % 4096 || e->length % 4096) violated("an unaligned transfer", at, e->length);
        check_transfer(at, e->length, e->opcode == 1);
        *t = (struct Transfer){ .used = true, .write = e->opcode == 1, .memory = at, .length = e->length,
            .offset = e->file_offset, .file = e->file->file, .cookie = e->cookie };
        state.submitted++;
    }
    if (!code) { batch->cancelled = false; if (count > state.batch_longest) state.batch_longest = count; }
    pthread_mutex_unlock(&fake_lock);
    return answer(code);
}

Answer cuFileBatchIOGetStatus(struct Batch *batch, unsigned min, unsigned *count, struct Told *told, struct timespec *timeout) {
    (void)min; (void)timeout;
    pthread_mutex_lock(&fake_lock);
    int code = planned("batch_status");
    tick();
    unsigned room = *count, found = 0;
    unsigned first = chance() % 128;
    for (unsigned i = 0; i < 128 && found < room && !code; i++) {
        struct Transfer *t = &batch->transfers[(first + i) % 128];
        if (!t->used || (!batch->cancelled && chance() % (laziness + 1))) continue;
        struct Told *it = &told[found++];
        int failure = planned(t->write ? "write" : "read");
        it->cookie = t->cookie;
        if (batch->cancelled && chance() % 2) { it->status = 8; it->moved = 0; }
        else if (failure == -1) { it->status = 0x10; it->moved = t->length / 2 / 4096 * 4096; }
        else if (failure == -2) { it->moved = move(t); it->status = 0x10; near(t->memory)[0] ^= 1; } /* a flip on the way */
        else if (failure == ETIMEDOUT) { it->status = 0x20; it->moved = 0; }
        else if (failure) { it->status = 0x40; it->moved = -failure; }
        else { it->moved = move(t); it->status = it->moved < 0 ? 0x40 : 0x10; }
        t->used = false;
    }
    *count = found;
    pthread_mutex_unlock(&fake_lock);
    return answer(code);
}
Answer cuFileBatchIOCancel(struct Batch *batch) {
    pthread_mutex_lock(&fake_lock);
    int code = planned("batch_cancel");
    if (!code) batch->cancelled = true;
    pthread_mutex_unlock(&fake_lock);
    return answer(code);
}
void cuFileBatchIODestroy(struct Batch *batch) {
    pthread_mutex_lock(&fake_lock);
    for (unsigned k = 0; k < 128; k++)
        if (batch->transfers[k].used) violated("a batch is destroyed on its way", batch->transfers[k].memory, 0);
    batch->destroyed = true;
    state.batches--;
    for (unsigned i = 0; i < batch_count; i++)
        if (batches[i] == batch) { batches[i] = batches[--batch_count]; break; }
    pthread_mutex_unlock(&fake_lock);
}
