/* CUDA's virtual memory: addresses that are reserved, and memory that is mapped there, by granules. What is not mapped
 * has no pages here: whoever touches it crashes, and a copy that would is counted as a misuse. */
#define _GNU_SOURCE
#include "fake.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static size_t granule = (size_t)2 << 20;
static uint64_t creations, unmappings; /* calls so far */

enum Place { NOTHING, MAPPED, ACCESSIBLE };
struct Reservation {
    char *base, *all; /* and what the system gave, to align it */
    size_t length, all_length, granule;
    unsigned char *places; /* of each granule */
    uint64_t *memory;      /* and what is mapped there */
};
static struct Reservation reservations[MAX];
/* Memory that was made: while it has a handle or is mapped. */
struct Made { size_t length; bool has_handle; unsigned mappings; };
static struct Made made[1 << 14];
static uint64_t capacity = ~0ull;

struct Properties { unsigned type, handles, place; int device; void *windows; unsigned char flags[8]; };
struct Access { unsigned place; int device; unsigned flags; };

/* How much memory may be made; what there is already stays. */
void fake_capacity(uint64_t bytes) { LOCKED(capacity = bytes); }
void forget_capacity(void) { capacity = ~0ull; granule = (size_t)2 << 20; }
/* The granule of what is reserved and made from here on: small ones are for tests whose tensors are small. */
void fake_granule(uint64_t bytes) { LOCKED(granule = bytes); }
uint64_t creation_count(void) { return creations; }
uint64_t unmapping_count(void) { return unmappings; }

uint64_t made_bytes(void) {
    uint64_t bytes = 0;
    for (unsigned i = 0; i < sizeof made / sizeof *made; i++) bytes += made[i].length;
    return bytes;
}

static struct Reservation *reserved(CUdeviceptr at) {
    for (unsigned i = 0; i < MAX; i++) {
        struct Reservation *r = &reservations[i];
        if (r->base && near(at) >= r->base && near(at) < r->base + r->length) return r;
    }
    return NULL;
}

static bool are(const struct Reservation *r, CUdeviceptr at, size_t length, enum Place place) {
    size_t first = (near(at) - r->base) / r->granule, end = (near(at) - r->base + length + r->granule - 1) / r->granule;
    if (end * r->granule > r->length) return false;
    for (size_t i = first; i < end; i++)
        if (r->places[i] != place) return false;
    return true;
}

bool is_reserved(CUdeviceptr at) { return reserved(at) != NULL; }
bool is_accessible(CUdeviceptr at, size_t length) {
    const struct Reservation *r = reserved(at);
    return r && are(r, at, length, ACCESSIBLE);
}

static bool is_aligned(const struct Reservation *r, CUdeviceptr at, size_t length) {
    return length && (uintptr_t)near(at) % r->granule == 0 && length % r->granule == 0;
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const struct Properties *asked, unsigned option) {
    (void)option;
    *granularity = granule;
    int code = LOCKED(planned("granularity"));
    return code ? code : asked->type == 1 && asked->place == 1 ? OK : INVALID;
}

CUresult cuMemAddressReserve(CUdeviceptr *at, size_t length, size_t alignment, CUdeviceptr wish, unsigned long long flags) {
    (void)alignment; (void)wish;
    if (flags || !length || length % granule) return INVALID;
    pthread_mutex_lock(&fake_lock);
    int code = planned("reserve");
    struct Reservation *r = reservations;
    while (r < reservations + MAX && r->base) r++;
    char *all = code || r == reservations + MAX ? MAP_FAILED
        : mmap(NULL, length + granule, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!code && all == MAP_FAILED) code = NO_MEMORY;
    if (!code) {
        char *base = all + (granule - (uintptr_t)all % granule) % granule;
        *r = (struct Reservation){ base, all, length, length + granule, granule, calloc(length / granule, 1), calloc(length / granule, sizeof *r->memory) };
        *at = (CUdeviceptr)(uintptr_t)base + (state.unified ? 0 : FAR);
        state.allocated++;
    }
    pthread_mutex_unlock(&fake_lock);
    return code;
}
CUresult cuMemAddressFree(CUdeviceptr at, size_t length) {
    pthread_mutex_lock(&fake_lock);
    struct Reservation *r = reserved(at);
    int code = r && near(at) == r->base && length == r->length && are(r, at, length, NOTHING) ? OK : INVALID;
    if (code) violated("addresses are freed that are no reservation, or where memory is mapped", at, length);
    else {
        munmap(r->all, r->all_length);
        free(r->places); free(r->memory);
        r->base = NULL;
        state.allocated--;
    }
    pthread_mutex_unlock(&fake_lock);
    return code;
}

CUresult cuMemCreate(uint64_t *handle, size_t length, const struct Properties *asked, unsigned long long flags) {
    if (flags || !length || length % granule || asked->type != 1 || asked->place != 1 || asked->device >= state.gpus) return INVALID;
    pthread_mutex_lock(&fake_lock);
    int code = planned("create");
    creations++;
    uint64_t place = 0;
    while (place < sizeof made / sizeof *made && made[place].length) place++;
    if (!code && (place == sizeof made / sizeof *made || made_bytes() + length > capacity)) code = NO_MEMORY;
    if (!code) { made[place] = (struct Made){ length, true, 0 }; *handle = place + 1; }
    pthread_mutex_unlock(&fake_lock);
    return code;
}
static void let_go(struct Made *memory) {
    if (!memory->has_handle && !memory->mappings) memory->length = 0;
}
CUresult cuMemRelease(uint64_t handle) {
    pthread_mutex_lock(&fake_lock);
    struct Made *memory = &made[handle - 1];
    int code = memory->has_handle ? OK : INVALID;
    if (code) violated("memory is released that has no handle", handle, 0);
    else { memory->has_handle = false; let_go(memory); }
    pthread_mutex_unlock(&fake_lock);
    return code;
}

CUresult cuMemMap(CUdeviceptr at, size_t length, size_t offset, uint64_t handle, unsigned long long flags) {
    pthread_mutex_lock(&fake_lock);
    struct Reservation *r = reserved(at);
    struct Made *memory = &made[handle - 1];
    int code = planned("map");
    bool fits = r && is_aligned(r, at, length) && !offset && !flags && memory->has_handle && length == memory->length;
    if (!code && !(fits && are(r, at, length, NOTHING))) {
        violated("memory is mapped where it does not fit", at, length);
        code = INVALID;
    }
    for (size_t i = 0; !code && i < length / r->granule; i++) {
        size_t place = (near(at) - r->base) / r->granule + i;
        r->places[place] = MAPPED;
        r->memory[place] = handle;
        memory->mappings++;
    }
    pthread_mutex_unlock(&fake_lock);
    return code;
}
CUresult cuMemSetAccess(CUdeviceptr at, size_t length, const struct Access *access, size_t count) {
    pthread_mutex_lock(&fake_lock);
    struct Reservation *r = reserved(at);
    int code = planned("access");
    if (!code && !(r && is_aligned(r, at, length) && count == 1 && access->place == 1 && access->flags == 3 && are(r, at, length, MAPPED))) {
        violated("access is given where no memory is mapped", at, length);
        code = INVALID;
    }
    if (!code) {
        mprotect(near(at), length, PROT_READ | PROT_WRITE);
        if (!is_virtual()) memset(near(at), 0xDB, length);
        memset(r->places + (near(at) - r->base) / r->granule, ACCESSIBLE, length / r->granule);
    }
    pthread_mutex_unlock(&fake_lock);
    return code;
}
/* Of whole mappings, which here are of one granule each. */
CUresult cuMemUnmap(CUdeviceptr at, size_t length) {
    pthread_mutex_lock(&fake_lock);
    struct Reservation *r = reserved(at);
    virtual_remap();
    int code = planned("unmap");
    unmappings++;
    if (!code && !(r && is_aligned(r, at, length) && !are(r, at, length, NOTHING))) {
        violated("memory is unmapped that is not mapped", at, length);
        code = INVALID;
    }
    if (!code && is_in_streams(at, length)) violated("memory is unmapped that something in a stream uses", at, length);
    if (!code && used_by_ssd(at, length, false)) violated("memory is unmapped that an SSD uses", at, length);
    for (size_t i = 0; !code && i < length / r->granule; i++) {
        size_t place = (near(at) - r->base) / r->granule + i;
        r->places[place] = NOTHING;
        made[r->memory[place] - 1].mappings--;
        let_go(&made[r->memory[place] - 1]);
    }
    if (!code) mmap(near(at), length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    pthread_mutex_unlock(&fake_lock);
    return code;
}
