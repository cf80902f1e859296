/* The symbols of libcuda that we use. */
#define _GNU_SOURCE
#include "fake.h"
#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

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
/* The context that a thread is in, or none. Whatever works in a context asks for one, as the driver does; not so where a
 * framework is played whose tensors are in host memory, for it has none. */
static __thread void *current;
#ifdef CUFILE_OLDER
/* This library is a cuFile alone: contexts are those of the driver that the process has. */
bool in_context(void) {
    void *context = NULL;
    CUresult (*get)(void **) = (CUresult (*)(void **))dlsym(RTLD_DEFAULT, "cuCtxGetCurrent");
    return get && get(&context) == OK && context;
}
#else
bool in_context(void) { return current || state.unified; }
#endif
void leave_context(void) { current = NULL; }
CUresult cuCtxSetCurrent(void *context) { current = context; LOCKED(state.entered++); return OK; }
CUresult cuCtxGetCurrent(void **context) { *context = current; return OK; }
/* An error that stays: from then on each call in a context answers it, and nothing runs. */
#define IN_CONTEXT if (!in_context()) return NO_CONTEXT; if (state.broken) return state.broken
/* The same for a call that may spoil a capture, and for one that moreover waits for the GPU by itself. */
#define UNSAFE IN_CONTEXT; if (if_unsafe() != OK) return CAPTURE_UNSUPPORTED
#define WAITS UNSAFE; wait_for_gpu()
CUresult cuCtxSynchronize(void) {
    UNSAFE;
    pthread_mutex_lock(&fake_lock);
    for (unsigned i = 0; i < stream_count; i++) drain(streams[i]);
    pthread_mutex_unlock(&fake_lock);
    return OK;
}
/* Of memory in which there are no bytes there is as much as on a large GPU. */
CUresult cuMemGetInfo_v2(size_t *free_, size_t *all) { *free_ = *all = (size_t)(is_virtual() ? 140 : 1) << 30; return OK; }

#define ALIGNED 512
CUresult cuMemAlloc_v2(CUdeviceptr *at, size_t length) {
    WAITS;
    int code = LOCKED(planned("alloc"));
    if (code) return code;
    /* Small allocations share pages: nothing beyond 512 bytes is promised. */
    char *host = aligned_alloc(65536, (length + ALIGNED + 65535) / 65536 * 65536);
    if (!host) return NO_MEMORY;
    memset(host += ALIGNED, 0xDB, length);
    pthread_mutex_lock(&fake_lock);
    *at = (CUdeviceptr)(uintptr_t)host + FAR;
    for (unsigned i = 0; i < MAX; i++)
        if (!memory[i].base) { memory[i] = (struct Allocation){ .base = *at, .length = length, .context = current }; break; }
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
CUresult cuFlushGPUDirectRDMAWrites(int target, int scope) {
    IN_CONTEXT;
    if (target != 0 || scope != 100) return INVALID;
    int code = LOCKED(planned("flush"));
    if (!code) LOCKED(state.flushes++);
    return code;
}

CUresult cuMemFree_v2(CUdeviceptr at) {
    WAITS;
    pthread_mutex_lock(&fake_lock);
    for (unsigned i = 0; i < MAX; i++)
        if (memory[i].base == at) {
            if (used_by_ssd(at, memory[i].length, false))
                violated("memory is freed that an SSD uses", at, memory[i].length);
            if (is_pinned(at, memory[i].length)) violated("memory is freed that is pinned", at, memory[i].length);
            memory[i].base = 0;
            state.allocated--;
            free(near(at) - ALIGNED);
        }
    pthread_mutex_unlock(&fake_lock);
    return OK;
}

CUresult cuMemHostRegister_v2(void *at, size_t length, unsigned flags) {
    WAITS;
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
    WAITS;
    int code = NOT_LOCKED;
    pthread_mutex_lock(&fake_lock);
    for (int i = 0; i < MAX; i++)
        if (locks[i].base == at) { locks[i].base = NULL; code = OK; }
    pthread_mutex_unlock(&fake_lock);
    return code;
}

/* As the driver does it from memory that is not page-locked: it takes the bytes, and they are there some time later. */
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t length) {
    WAITS;
    if (!LOCKED(allocated(to, length))) return INVALID;
    void *taken = malloc(length);
    memcpy(taken, from, length);
    pthread_mutex_lock(&fake_lock);
    append(&default_stream, (struct Step){ .kind = COPY_IN, .from = (uintptr_t)taken, .to = to, .length = length, .owned = taken });
    pthread_mutex_unlock(&fake_lock);
    return OK;
}
CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t length) {
    WAITS;
    if (!LOCKED(allocated(from, length))) return INVALID;
    memcpy(to, near(from), length);
    return OK;
}

static CUresult put_step(struct Stream *stream, struct Step step) {
    IN_CONTEXT;
    enum Kind kind = step.kind;
    pthread_mutex_lock(&fake_lock);
    int code = planned(kind == COPY_IN ? "copy_in" : kind == COPY_OUT ? "copy_out" : kind == COPY ? "copy" : "");
    if (!code) append(stream ? stream : &default_stream, step);
    pthread_mutex_unlock(&fake_lock);
    return code;
}
static CUresult put(struct Stream *stream, enum Kind kind, uint64_t from, uint64_t to, size_t length) {
    return put_step(stream, (struct Step){ .kind = kind, .from = from, .to = to, .length = length });
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t length, struct Stream *stream) { return put(stream, COPY_IN, (uintptr_t)from, to, length); }
CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t length, struct Stream *stream) { return put(stream, COPY_OUT, from, (uintptr_t)to, length); }
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t length, struct Stream *stream) { return put(stream, COPY, from, to, length); }

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t length, struct Stream *stream) {
    return value ? INVALID : put(stream, ZERO, 0, to, length);
}

CUresult cuMemHostAlloc(void **at, size_t length, unsigned flags) {
    WAITS;
    (void)flags;
    pthread_mutex_lock(&fake_lock);
    int code = planned("host_alloc");
    if (!code) {
        *at = is_virtual() ? mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                           : calloc(1, length);
        if (!*at || *at == MAP_FAILED) code = NO_MEMORY;
    }
    if (!code) {
        for (unsigned i = 0; i < MAX; i++)
            if (!words[i].base) { words[i] = (struct Range){ *at, length, is_virtual() }; break; }
        state.allocated++;
    }
    pthread_mutex_unlock(&fake_lock);
    return code;
}
CUresult cuMemFreeHost(void *at) {
    WAITS;
    pthread_mutex_lock(&fake_lock);
    for (unsigned i = 0; i < MAX; i++)
        if (words[i].base == at) {
            words[i].base = NULL;
            state.allocated--;
            if (words[i].is_mapped) munmap(at, words[i].length); else free(at);
        }
    pthread_mutex_unlock(&fake_lock);
    return OK;
}

/* The one kernel there is, whatever the module says. */
CUresult cuModuleLoadData(void **module, const void *image) {
    WAITS;
    int code = LOCKED(planned("module"));
    if (!code && !strstr(image, ".entry crc32c_units")) code = 500;
    if (!code) { *module = &state.modules; LOCKED((state.modules++, state.modules_loaded++)); }
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
    uint64_t data = *(uint64_t *)arguments[0], length = *(uint64_t *)arguments[1], words = *(uint64_t *)arguments[4];
    unsigned unit = *(unsigned *)arguments[2], parts = *(unsigned *)arguments[3];
    int code = LOCKED(planned("launch"));
    if (code) return code;
    if (!unit || !parts || x != (length + unit - 1) / unit * parts || y != 1 || z != 1 || bx != 128 || by != 1 || bz != 1) return INVALID;
    for (uint64_t at = 0; at < length && !code; at += unit, words += 4 * parts) {
        uint64_t size = length - at < unit ? length - at : unit;
        code = put_step(stream, (struct Step){ .kind = SUM, .from = data + at, .to = words, .length = size, .parts = parts });
    }
    return code;
}

enum { LEAST_PRIORITY = 0, HIGHEST_PRIORITY = -5 };
CUresult cuCtxGetStreamPriorityRange(int *least, int *highest) {
    IN_CONTEXT;
    *least = LEAST_PRIORITY; *highest = HIGHEST_PRIORITY;
    return OK;
}
CUresult cuStreamCreateWithPriority(struct Stream **stream, unsigned flags, int priority) {
    IN_CONTEXT;
    (void)flags;
    pthread_mutex_lock(&fake_lock);
    *stream = calloc(1, sizeof **stream);
    if (stream_count < MAX) streams[stream_count++] = *stream;
    (*stream)->is_urgent = priority == HIGHEST_PRIORITY;
    state.urgent_streams += (*stream)->is_urgent;
    pthread_mutex_unlock(&fake_lock);
    return OK;
}
CUresult cuStreamCreate(struct Stream **stream, unsigned flags) { return cuStreamCreateWithPriority(stream, flags, LEAST_PRIORITY); }
CUresult cuStreamDestroy_v2(struct Stream *stream) {
    IN_CONTEXT;
    pthread_mutex_lock(&fake_lock);
    drain(stream);
    for (unsigned i = 0; i < stream_count; i++)
        if (streams[i] == stream) streams[i] = streams[--stream_count];
    pthread_mutex_unlock(&fake_lock);
    return OK;
}
CUresult cuStreamSynchronize(struct Stream *stream) {
    UNSAFE;
    pthread_mutex_lock(&fake_lock);
    int code = planned("synchronize");
    if (!code) drain(stream ? stream : &default_stream);
    pthread_mutex_unlock(&fake_lock);
    return code;
}
static bool usable(const struct Event *event) {
    if (event->destroyed) violated("an event is used that was destroyed", (uintptr_t)event, 0);
    return !event->destroyed;
}
CUresult cuStreamWaitEvent(struct Stream *stream, struct Event *event, unsigned flags) {
    IN_CONTEXT;
    (void)flags;
    pthread_mutex_lock(&fake_lock);
    int code = usable(event) ? OK : BAD_HANDLE;
    if (!code) append(stream, (struct Step){ .kind = WAIT, .event = event, .ticket = event->recorded });
    pthread_mutex_unlock(&fake_lock);
    return code;
}
CUresult cuEventCreate(struct Event **event, unsigned flags) { (void)flags; IN_CONTEXT; *event = calloc(1, sizeof **event); return OK; }
/* Steps may still name it, which is lawful: it stays, and a use after shows. */
CUresult cuEventDestroy_v2(struct Event *event) {
    IN_CONTEXT;
    return LOCKED(usable(event) ? (event->destroyed = true, OK) : BAD_HANDLE);
}
CUresult cuEventRecord(struct Event *event, struct Stream *stream) {
    IN_CONTEXT;
    pthread_mutex_lock(&fake_lock);
    int code = usable(event) ? planned("record") : BAD_HANDLE;
    if (!code) append(stream, (struct Step){ .kind = RECORD, .event = event, .ticket = ++event->recorded });
    pthread_mutex_unlock(&fake_lock);
    return code;
}
/* Between two that have happened, by the clock where one runs, and else by when their turns came. */
CUresult cuEventElapsedTime(float *milliseconds, struct Event *begin, struct Event *end) {
    IN_CONTEXT;
    pthread_mutex_lock(&fake_lock);
    int code = usable(begin) && usable(end) ? OK : BAD_HANDLE;
    if (!code && (!begin->recorded || !end->recorded)) code = BAD_HANDLE;
    if (!code && (begin->happened < begin->recorded || end->happened < end->recorded)) code = NOT_READY;
    if (!code) *milliseconds = (float)((double)(end->happened_at - begin->happened_at) / 1e6);
    pthread_mutex_unlock(&fake_lock);
    return code;
}
CUresult cuEventQuery(struct Event *event) {
    UNSAFE;
    pthread_mutex_lock(&fake_lock);
    int code = usable(event) ? planned("query") : BAD_HANDLE;
    tick();
    if (!code) code = event->captured ? CAPTURED_EVENT : event->happened >= event->recorded ? OK : NOT_READY;
    pthread_mutex_unlock(&fake_lock);
    return code;
}
CUresult cuEventSynchronize(struct Event *event) {
    UNSAFE;
    bool happened = false;
    if (is_virtual()) { /* Time passes when all sleep. */
        pthread_mutex_lock(&fake_lock);
        if (usable(event)) virtual_wait_for_event(event);
        pthread_mutex_unlock(&fake_lock);
    }
    while (!happened) { /* Time passes for others meanwhile. */
        pthread_mutex_lock(&fake_lock);
        tick();
        if (!usable(event) || state.broken) { pthread_mutex_unlock(&fake_lock); return state.broken ? state.broken : BAD_HANDLE; }
        happened = event->happened >= event->recorded;
        pthread_mutex_unlock(&fake_lock);
        sched_yield();
    }
    return OK;
}
/* As the driver has them; it knows no other number. */
CUresult cuGetErrorName(CUresult code, const char **name) {
    static const struct { CUresult code; const char *name; } names[] = {
        { 0, "CUDA_SUCCESS" }, { 1, "CUDA_ERROR_INVALID_VALUE" }, { 2, "CUDA_ERROR_OUT_OF_MEMORY" }, { 100, "CUDA_ERROR_NO_DEVICE" },
        { 101, "CUDA_ERROR_INVALID_DEVICE" }, { 201, "CUDA_ERROR_INVALID_CONTEXT" }, { 214, "CUDA_ERROR_ECC_UNCORRECTABLE" },
        { 226, "CUDA_ERROR_CONTAINED" }, { 400, "CUDA_ERROR_INVALID_HANDLE" }, { 500, "CUDA_ERROR_NOT_FOUND" }, { 600, "CUDA_ERROR_NOT_READY" },
        { 700, "CUDA_ERROR_ILLEGAL_ADDRESS" }, { 712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED" },
        { 713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED" }, { 719, "CUDA_ERROR_LAUNCH_FAILED" },
        { 801, "CUDA_ERROR_NOT_SUPPORTED" }, { 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED" },
        { 901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED" }, { 907, "CUDA_ERROR_CAPTURED_EVENT" }, { 999, "CUDA_ERROR_UNKNOWN" },
    };
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].code == code) { *name = names[i].name; return OK; }
    *name = NULL;
    return INVALID;
}
CUresult cuGetErrorString(CUresult code, const char **text) { (void)code; *text = "fake"; return OK; }
