/* The symbols of libcufile 1.17 that we use, and what it answers: a process without nvidia-fs or peer-to-peer DMA gets
 * 5001 where compat mode is forbidden; its setting is read as false until somebody sets it, while what its configuration
 * says is a bit of its properties; features are told when it is open. -DCUFILE_OLDER has what an older one has.
 * Its transfers move their bytes when somebody asks for their state. */
#define _GNU_SOURCE
#include "fake.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* What the structures below are of: 1.17 has the call for flags of peer-to-peer DMA, and 1.11 not. */
#ifdef CUFILE_OLDER
#define VERSION 1110
#else
#define VERSION 1170
#endif

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
struct Handle { int file; bool registered; struct Handle *next; };
static struct Handle *handles; /* also those that were given back: a use after shows */
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

static bool compat_allowed(void) { return state.allow_compat < 0 ? state.configured_compat : state.allow_compat; }
static bool direct(void) {
    return !state.force_compat && (state.major || state.p2p_flags & 1 || state.status & 1u << 11);
}

/* It has a log, in the current folder unless the environment names a file. */
static void write_log(int code) {
    const char *name = getenv("CUFILE_LOGFILE_PATH");
    FILE *log = fopen(name ? name : "cufile.log", "a");
    if (log) { fprintf(log, "cuFileDriverOpen: %d\n", code); fclose(log); }
}

Answer cuFileDriverOpen(void) {
    pthread_mutex_lock(&fake_lock);
    int code = planned("driver_open");
    state.driver_open_calls++;
    if (!code && !in_context()) code = 5047;
    if (!code && state.driver_open) code = 5026;
    if (!code && !direct() && !compat_allowed()) { code = 5001; state.allow_compat = -1; }
    if (!code) { state.driver_open = true; state.driver_opens++; }
    pthread_mutex_unlock(&fake_lock);
    write_log(code);
    leave_context(); /* It looks at every GPU, and need not come back to the one that the thread was with. */
    return answer(code);
}
Answer cuFileDriverClose_v2(void) { state.driver_open = false; state.allow_compat = -1; state.driver_closes++; return answer(0); }
Answer cuFileGetVersion(int *version) { *version = VERSION; return answer(0); }
Answer cuFileDriverGetProperties(struct Properties *p) {
    *p = (struct Properties){ .major = state.major, .minor = state.minor, .direct_io_max = 16384, .status = state.status,
        .control = compat_allowed() ? 2 : 0, .features = state.driver_open ? state.features : 0, .pinned = 1 << 20, .batch_max = state.batch_max };
    return answer(planned("properties"));
}
Answer cuFileGetParameterBool(unsigned parameter, bool *value) {
    *value = parameter == 1 ? state.allow_compat > 0 : parameter == 2 ? state.force_compat : state.p2pdma;
    return answer(0);
}
#ifndef CUFILE_OLDER
Answer cuFileDriverGetP2PFlags(unsigned kind, unsigned *flags) {
    if (!state.driver_open) return answer(5001);
    *flags = kind == 4 ? state.p2p_flags : 0;
    return answer(planned("p2p_flags"));
}
Answer cuFileSetParameterBool(unsigned parameter, bool value) {
    if (state.driver_open) return answer(5026);
    if (parameter == 1) state.allow_compat = value;
    return answer(0);
}
#endif
/* A file or a block device, open for reading and writing, and past the page cache. */
static int refused(const struct Description *description) {
    struct stat at;
    int flags = fcntl(description->u.file, F_GETFL);
    if (description->kind != 1 || flags < 0 || fstat(description->u.file, &at)) return 5022;
    if (!S_ISREG(at.st_mode) && !S_ISBLK(at.st_mode)) return 5018;
    if ((flags & O_ACCMODE) == O_WRONLY) return 5019;
    return flags & O_DIRECT ? 0 : 5020;
}
Answer cuFileHandleRegister(struct Handle **handle, struct Description *description) {
    pthread_mutex_lock(&fake_lock);
    int code = planned("handle_register");
    if (!code) code = refused(description);
    for (struct Handle *each = handles; each && !code; each = each->next)
        if (each->registered && each->file == description->u.file) code = 5028;
    if (!code) {
        *handle = malloc(sizeof **handle);
        **handle = (struct Handle){ .file = description->u.file, .registered = true, .next = handles };
        handles = *handle;
        state.handles++;
        state.handles_made++;
    }
    pthread_mutex_unlock(&fake_lock);
    return answer(code);
}
void cuFileHandleDeregister(struct Handle *handle) { handle->registered = false; state.handles--; } /* Leaked: a use after shows. */
Answer cuFileBufRegister(const void *at, size_t length, int flags) {
    (void)flags;
    pthread_mutex_lock(&fake_lock);
    int code = planned("buffer_register");
    if (!code && !in_context()) code = 5047;
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
            if (used_by_ssd(buffers[i].base, buffers[i].length, false))
                violated("memory is deregistered that an SSD uses", buffers[i].base, buffers[i].length);
            buffers[i].base = 0; state.buffers--;
        }
    pthread_mutex_unlock(&fake_lock);
    return answer(0);
}

static bool hangs(const struct Transfer *t) {
    struct stat at;
    return state.hangs && !fstat(t->file, &at) && at.st_ino == state.hangs;
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
    if (!code && !in_context()) code = 5047;
    if (code) return -code;
    struct Transfer t = { .memory = (uintptr_t)base + into, .length = length, .offset = offset, .file = file->file };
    if (t.memory % 4096 || length % 4096) violated("a read that bounces", t.memory, length);
    if (!LOCKED(registered(t.memory, length))) violated("an unregistered read", t.memory, length);
    return move(&t);
}

Answer cuFileBatchIOSetUp(struct Batch **batch, unsigned capacity) {
    pthread_mutex_lock(&fake_lock);
    int code = planned("batch_set_up");
    if (!code && !in_context()) code = 5047;
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
    if (!code && !in_context()) code = 5047;
    /* Planned, it takes the first half and fails. */
    int failure = code ? 0 : planned("batch_submit_part");
    if (failure) count = (count + 1) / 2;
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
    if (!code) { batch->cancelled = batch->silent = false; if (count > state.batch_longest) state.batch_longest = count; }
    pthread_mutex_unlock(&fake_lock);
    return answer(code ? code : failure);
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
        if (!t->used || batch->silent || (!batch->cancelled && (hangs(t) || chance() % (laziness + 1)))) continue;
        struct Told *it = &told[found++];
        int failure = planned(t->write ? "write" : "read");
        it->cookie = t->cookie;
        if (batch->cancelled && chance() % 2) { it->status = 8; it->moved = 0; }
        else if (failure == -1) { it->status = 0x10; it->moved = t->length / 2 / 4096 * 4096; }
        else if (failure == -2) { it->moved = move(t); it->status = 0x10; near(t->memory)[0] ^= 1; } /* a flip on the way */
        else if (failure == ETIMEDOUT) { it->status = 0x20; it->moved = 0; give_up(t); }
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
    if (!code) { batch->cancelled = true; batch->silent = planned("silent_cancel"); }
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
