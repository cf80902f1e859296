/* A GPU and cuFile that are not there: the symbols of libcuda and libcufile that we use, over host memory.
 *
 * What the real ones leave open happens here on purpose, from a seed: a copy is done only some time after it was put
 * into its stream, streams overtake each other, the transfers of a batch end late and in any order. Time passes only
 * when somebody asks (an event's state, a batch's state). Device pointers are no host addresses: a host that follows
 * one crashes. Every transfer and every copy is checked against all others that are on their way over the same bytes;
 * a race is counted, with the first one's description, and so is every other misuse. */
#ifndef TIDELOG_FAKE_H
#define TIDELOG_FAKE_H
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef int CUresult;
typedef uint64_t CUdeviceptr;
enum { OK = 0, INVALID = 1, NO_MEMORY = 2, NO_CONTEXT = 201, BAD_HANDLE = 400, NOT_READY = 600, ALREADY_LOCKED = 712, NOT_LOCKED = 713,
    CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, CAPTURED_EVENT = 907 };

/* Device addresses are host addresses with this added: no canonical address, so nobody follows one by mistake. */
#define FAR 0x4000000000000000ull
#define MAX 1024

#pragma GCC visibility push(hidden)

extern pthread_mutex_t fake_lock;
#define LOCKED(expression) ({ pthread_mutex_lock(&fake_lock); __typeof__(expression) _a = (expression); pthread_mutex_unlock(&fake_lock); _a; })

/* ---- plan.c: what tests set and read ---- */

extern struct State {
    unsigned status, features, major, minor, batch_max, driver_opens, driver_closes;
    unsigned driver_open_calls; /* also those that failed */
    bool configured_compat;  /* what cufile.json says of compat mode; it is allowed there unless somebody forbids it */
    int allow_compat;        /* what a program set, or -1 */
    bool force_compat, p2pdma, driver_open;
    unsigned p2p_flags;      /* of NVMe, by the call that newer libraries have */
    int gpus;
    bool unified; /* host addresses are device addresses too: for frameworks whose tensors are really in host memory */
    int ordering, flushes_by; /* how other devices' writes come to be seen: CUDA's numbers */
    unsigned flushes;
    unsigned entered, handles_made; /* contexts that threads were put into; files that were taken */
    unsigned handles, buffers, batches, submitted, batch_longest, copies, allocated, modules, modules_loaded, kernels;
    uint64_t host_bytes; /* that streams copied between the GPU and the host */
    uint64_t pageable;   /* of these, to or from host memory that is not page-locked */
    int broken;          /* the error that stays, or 0 */
    uint64_t hangs;      /* the inode of a file of whose transfers nothing is answered, or 0 */
    unsigned urgent_streams; /* that were made, and whose kernels go before others */
    unsigned waits;      /* calls that wait for the GPU by themselves */
    uint64_t idle_ns, busy_ns, clocked; /* of kernels' streams, where a clock runs; how many kernels ran there */
} state;
extern unsigned laziness; /* a step does nothing this many times out of (this + 1) */
extern bool held;         /* time stands still */
extern struct Event *held_event; /* what is before this does not end */

uint64_t chance(void);
/* The code that a planned failure of this call returns, or 0. The lock is held. */
int planned(const char *what);
void violated(const char *what, uint64_t at, uint64_t length);

/* ---- memory.c: what is allocated, page-locked and pinned ---- */

extern struct Allocation { CUdeviceptr base; size_t length; bool synchronous; void *context; } memory[MAX];
struct Range { char *base; size_t length; bool is_mapped; };
extern struct Range words[MAX]; /* host memory that kernels may write */
extern struct Range locks[MAX]; /* host memory that was page-locked where it was */

bool is_locked(uint64_t at, size_t length);
/* Whether an allocation of the GPU's holds these bytes, and whether its copies were told to be synchronous. */
bool allocated(CUdeviceptr at, size_t length);
bool is_synchronous(CUdeviceptr at);
/* The bytes of all that cuMemHostAlloc gave and nobody has freed. */
uint64_t host_memory_bytes(void);
/* Where the host has what the GPU has at this address. */
char *near(CUdeviceptr at);
bool overlap(uint64_t a, size_t n, uint64_t b, size_t m);

/* ---- mapping.c: memory that is mapped at addresses which were reserved ---- */

bool is_reserved(CUdeviceptr at);
/* Whether memory is mapped for all of these bytes, and the GPU may use it. */
bool is_accessible(CUdeviceptr at, size_t length);
/* The bytes that were made and are mapped or have a handle. */
uint64_t made_bytes(void);
/* As much memory may be made as one likes, in granules of the usual size. */
void forget_capacity(void);
/* Calls that made memory, and that unmapped some, so far. */
uint64_t creation_count(void);
uint64_t unmapping_count(void);

/* ---- streams.c: what is on its way, and when it happens ---- */

enum Kind { COPY_IN, COPY_OUT, COPY, ZERO, SUM, RECORD, WAIT, KERNEL };
struct Event { uint64_t recorded, happened, happened_at; bool destroyed, captured; };
struct Step {
    enum Kind kind;
    uint64_t from, to;
    size_t length;
    unsigned parts; /* of a checksum */
    struct Event *event;
    uint64_t ticket;
    void *owned;
    struct Kernel *kernel;
    uint64_t appended_at; /* by the clock */
    uint64_t order;       /* in which steps came to be the first of their streams, where time is virtual */
    struct Step *next;
};
struct Stream {
    struct Step *head, *tail;
    bool destroyed, computes, is_urgent;
    uint64_t ended_at, computed_at; /* its last step and its last kernel, by the clock */
};
extern struct Stream *streams[MAX], default_stream;
extern unsigned stream_count;

struct Transfer {
    bool used, write;
    uint64_t memory;
    size_t length;
    off_t offset;
    int file;
    void *cookie;
};
/* A batch that is silent was cancelled and tells of nothing, though its transfers go on. */
struct Batch { struct Transfer transfers[128]; unsigned capacity; bool destroyed, cancelled, silent; };
extern struct Batch *batches[MAX];
extern unsigned batch_count;

/* Whether an SSD may use any of these bytes at any time; `writing`: only whether it may write them. The transfers are
 * on their way, or are some of which cuFile has said that it does not wait any longer. */
bool used_by_ssd(uint64_t at, size_t length, bool writing);
/* cuFile does not wait any longer for this transfer. */
void give_up(const struct Transfer *transfer);
void forget_given_up(void);
/* A transfer that is submitted now: no copy may be on its way that it depends on or that depends on its memory. */
void check_transfer(uint64_t at, size_t length, bool write);
/* Some time passes: now and then one stream that can, whichever, does one step. */
void tick(void);
void append(struct Stream *stream, struct Step step);
/* Its first step happens, if it can; returns whether it did. */
bool advance(struct Stream *stream);
/* Everything that a stream waits for happens, then everything in it. */
void drain(struct Stream *stream);
/* What was put into streams does not happen. */
void abandon(void);

/* ---- kernels.c: what a framework launches ---- */

/* A kernel gets its turn: what it has computed is there from now on. */
void run_kernel(struct Kernel *kernel);
void forget_kernel(struct Kernel *kernel);
/* Whether a kernel or a copy that has not had its turn touches any of these bytes. */
bool is_in_streams(uint64_t at, size_t length);

/* ---- clock.c: what things take, where a test asks for that ---- */

/* Whether the clock runs. If not, chance says what happens next. */
bool is_clocked(void);
uint64_t clock_now(void);
/* All happens that would have happened by now. */
void keep_up(void);
/* The calling thread waits for the GPU by itself, as the call's documentation says or allows. The lock is not held. */
void wait_for_gpu(void);

/* ---- virtual.c: a clock that runs only while all threads sleep ---- */

bool is_virtual(void);
uint64_t virtual_now(void);
/* All happens that has happened by now. */
void virtual_keep_up(void);
/* The thread sleeps until the event as it is recorded now has happened, or all of a stream has (NULL: of all of them). The
 * lock is held, and given up meanwhile. */
void virtual_wait_for_event(const struct Event *event);
void virtual_wait_for_stream(const struct Stream *stream);
/* A granule is mapped elsewhere. */
void virtual_remap(void);
void virtual_abandon(void);

/* ---- capture.c: a graph that is being captured ---- */

/* The error of a call that is unsafe while the calling thread may not make such; it spoils the capture. The lock is not
 * held. */
CUresult if_unsafe(void);
bool is_captured(const struct Stream *stream);
void forget_capture(void);

/* ---- cuda.c ---- */

/* Whether the calling thread is in a context. */
bool in_context(void);
/* It is in none any more. */
void leave_context(void);

/* ---- gdrapi.c ---- */

/* Whether any of these bytes is pinned for other devices. */
bool is_pinned(uint64_t at, size_t length);
/* Connections, pinned ranges and mappings that were not given back. */
uint64_t gdr_count(void);

#pragma GCC visibility pop
#endif
