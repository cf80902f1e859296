/* Virtual time: kernels, copies, checksums and waits take what a test says, by a clock of their own. What machine this runs
 * on, and what else runs there, makes no difference.
 *
 * Time stands still as long as any thread of the process works. When all of them sleep, a thread of the fake lets it pass to
 * the next moment at which one of those that wait here goes on, and wakes that one alone. So what threads do takes no time,
 * but for what they say that it takes (`fake_spend`) and for being woken.
 *
 * One kernel runs at a time, one copy each way, and one checksum, which stops a kernel if its stream is an urgent one. A
 * copy has another rate while bytes go the other way, too. Memory that is mapped elsewhere takes its time where it is
 * unmapped.
 *
 * Bytes are not moved: memory of any size takes no room here as long as nobody writes it, and every checksum is the same.
 *
 * A process that has this library loaded first (LD_PRELOAD) has this time for its monotonic clock and its sleeps. That clock is
 * ahead of the kernel's, so that waits with a time-out are waits without one. */
#define _GNU_SOURCE
#include "fake.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NEVER (~0ull)
#define SECOND 1000000000ull

/* Bytes a second, and ns. */
struct Rates {
    uint64_t out, back, out_beside, back_beside; /* of copies, alone and while bytes go the other way */
    uint64_t sums;
    uint64_t copy, launch, wake_up, remap; /* of a copy beside its bytes, until a kernel begins, until a thread goes on, of a granule */
};
static struct Rates rates;
static bool is_on;
static uint64_t now, ahead; /* since it was turned on; of the monotonic clock when that was */
static unsigned turned_on;

bool is_virtual(void) { return is_on; }
uint64_t virtual_now(void) { return now; }

/* ---- what the GPU does ---- */

enum { OUT, BACK, COMPUTES, SUMS, ENGINES };
/* Of a copy, what is left is its bytes times a second's nanoseconds; else it is nanoseconds. */
static struct Engine { struct Stream *stream; uint64_t left; } engines[ENGINES];
static uint64_t order;

static int engine_of(enum Kind kind) {
    return kind == COPY_OUT ? OUT : kind == COPY_IN ? BACK : kind == KERNEL ? COMPUTES : kind == SUM ? SUMS : ENGINES;
}

static uint64_t rate_of(int engine) {
    if (engine == OUT) return engines[BACK].stream ? rates.out_beside : rates.out;
    if (engine == BACK) return engines[OUT].stream ? rates.back_beside : rates.back;
    /* A checksum stops the kernel that runs. */
    return engine == COMPUTES && engines[SUMS].stream ? 0 : 1;
}

static uint64_t work_of(const struct Step *s) {
    switch (s->kind) {
    case COPY_OUT: return s->length * SECOND + rates.copy * rates.out;
    case COPY_IN: return s->length * SECOND + rates.copy * rates.back;
    case SUM: return s->length * SECOND / rates.sums + 1;
    default: return s->length ? s->length : 1;
    }
}

static struct Stream *stream_at(unsigned place) { return place < stream_count ? streams[place] : &default_stream; }

/* Steps that take no time happen. Returns whether any did. */
static bool pass(struct Stream *stream) {
    bool passed = false;
    for (struct Step *s; (s = stream->head); passed = true) {
        if (engine_of(s->kind) < ENGINES) {
            if (!s->order) s->order = ++order;
            return passed;
        }
        if (s->kind == RECORD && s->event != held_event) s->event->happened_at = now;
        if (!advance(stream)) return passed;
    }
    return passed;
}

/* The stream whose turn it is at an engine, or NULL. */
static struct Stream *next_at(int engine) {
    struct Stream *first = NULL;
    for (unsigned i = 0; i <= stream_count; i++) {
        struct Stream *stream = stream_at(i);
        const struct Step *s = stream->head;
        if (s && s->order && engine_of(s->kind) == engine && (!first || s->order < first->head->order)) first = stream;
    }
    return first;
}

static void begin(int engine) {
    struct Stream *stream = engines[engine].stream ? NULL : next_at(engine);
    if (!stream) return;
    const struct Step *s = stream->head;
    if (engine == COMPUTES && (engines[SUMS].stream || s->appended_at + rates.launch > now)) return;
    if (engine == SUMS && engines[COMPUTES].stream && !stream->is_urgent) return;
    if (engine == COMPUTES && stream->computes) state.idle_ns += now - stream->computed_at;
    engines[engine] = (struct Engine){ stream, work_of(s) };
}

/* All happens that takes no time from here on, and what can begin begins. */
static void go_on(void) {
    for (bool passed = !held; passed;) {
        passed = false;
        for (unsigned i = 0; i <= stream_count; i++) passed |= pass(stream_at(i));
    }
    /* A checksum goes before a kernel. */
    for (int engine = ENGINES - 1; engine >= 0 && !held; engine--) begin(engine);
}

static uint64_t left_of(int engine) {
    uint64_t rate = rate_of(engine), left = engines[engine].left;
    return !engines[engine].stream || !rate ? NEVER : (left + rate - 1) / rate;
}

/* When something ends or begins, if nothing else happens. */
static uint64_t next_change(void) {
    uint64_t next = NEVER;
    for (int engine = 0; engine < ENGINES; engine++)
        if (left_of(engine) != NEVER && now + left_of(engine) < next) next = now + left_of(engine);
    struct Stream *waiting = engines[COMPUTES].stream || engines[SUMS].stream ? NULL : next_at(COMPUTES);
    uint64_t launched = waiting ? waiting->head->appended_at + rates.launch : NEVER;
    return waiting && launched > now && launched < next ? launched : next;
}

static void end(int engine) {
    struct Stream *stream = engines[engine].stream;
    if (engine == COMPUTES) {
        state.busy_ns += stream->head->length;
        state.clocked++;
        stream->computes = true;
        stream->computed_at = now;
    }
    engines[engine].stream = NULL;
    advance(stream);
}

static void pass_to(uint64_t then) {
    uint64_t rate[ENGINES];
    for (int engine = 0; engine < ENGINES; engine++) rate[engine] = rate_of(engine);
    uint64_t part = then - now;
    now = then;
    for (int engine = 0; engine < ENGINES; engine++) {
        struct Engine *one = &engines[engine];
        if (!one->stream || !rate[engine]) continue;
        /* No further than to the next change: an end is reached, and never passed. */
        one->left = one->left / rate[engine] < part ? 0 : one->left - rate[engine] * part;
    }
    for (int engine = 0; engine < ENGINES; engine++)
        if (engines[engine].stream && !engines[engine].left) end(engine);
    go_on();
}

void virtual_keep_up(void) { go_on(); }

void virtual_abandon(void) { memset(engines, 0, sizeof engines); }

/* ---- who waits for it ---- */

struct Sleeper {
    pthread_cond_t wake;
    uint64_t until;            /* NEVER: for something else */
    const struct Event *event; /* that it is recorded so often */
    uint64_t ticket;
    const struct Stream *stream; /* that all of it has happened */
    bool all;                    /* of all streams */
    bool is_woken;
    struct Sleeper *next;
};
static struct Sleeper *sleepers; /* the first that came first */
static pthread_cond_t somebody_sleeps = PTHREAD_COND_INITIALIZER;
static pid_t program; /* the thread that has turned it on */

static bool all_happened(void) {
    for (unsigned i = 0; i <= stream_count; i++)
        if (stream_at(i)->head) return false;
    return true;
}

static bool is_due(const struct Sleeper *one) {
    if (state.broken) return true;
    if (one->event) return one->event->happened >= one->ticket;
    if (one->stream) return !one->stream->head;
    return one->all ? all_happened() : one->until <= now;
}

/* The lock is held, and given up meanwhile. Returns whether time had to pass. */
static bool sleep_here(struct Sleeper one) {
    go_on();
    if (is_due(&one)) return false;
    pthread_cond_init(&one.wake, NULL);
    struct Sleeper **last = &sleepers;
    while (*last) last = &(*last)->next;
    *last = &one;
    pthread_cond_signal(&somebody_sleeps);
    while (!one.is_woken && is_on) pthread_cond_wait(&one.wake, &fake_lock);
    for (last = &sleepers; *last != &one; last = &(*last)->next) {}
    *last = one.next;
    pthread_cond_destroy(&one.wake);
    return true;
}

static void spend(uint64_t ns) {
    if (ns && is_on) sleep_here((struct Sleeper){ .until = now + ns });
}

/* The lock is held. */
void virtual_wait_for_event(const struct Event *event) {
    if (sleep_here((struct Sleeper){ .until = NEVER, .event = event, .ticket = event->recorded })) spend(rates.wake_up);
}
void virtual_wait_for_stream(const struct Stream *stream) {
    if (sleep_here((struct Sleeper){ .until = NEVER, .stream = stream, .all = !stream })) spend(rates.wake_up);
}
void virtual_remap(void) {
    if (gettid() == program) spend(rates.remap);
}

/* What the calling thread does takes so long. */
void fake_spend(uint64_t ns) {
    pthread_mutex_lock(&fake_lock);
    spend(ns);
    pthread_mutex_unlock(&fake_lock);
}

/* The thread that launches waits until no more than so many kernels have not run. */
void fake_launch_ahead(struct Stream *stream, unsigned kernels) {
    pthread_mutex_lock(&fake_lock);
    for (;;) {
        unsigned count = 0;
        for (const struct Step *s = stream->head; s; s = s->next) count += s->kind == KERNEL;
        if (!is_on || count <= kernels) break;
        uint64_t next = next_change();
        if (next == NEVER) break;
        sleep_here((struct Sleeper){ .until = next > now ? next : now + 1 });
    }
    pthread_mutex_unlock(&fake_lock);
}

/* ---- when it passes ---- */

enum { THREADS_MAX = 256 };
struct Thread { pid_t id; uint64_t worked; };

static uint64_t worked(pid_t thread) {
    struct timespec time = { 0 };
    syscall(SYS_clock_gettime, (~(clockid_t)thread << 3) | 6, &time);
    return time.tv_sec * SECOND + time.tv_nsec;
}

static bool is_asleep(pid_t thread) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
    int file = open(path, O_RDONLY);
    if (file < 0) return errno == ENOENT; /* it has ended */
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    if (length <= 0) return true;
    text[length] = 0;
    const char *name_ends = strrchr(text, ')');
    return name_ends && strchr("SZXt", name_ends[2]);
}

/* Whether no other thread works: each sleeps, and none has worked since the first was looked at. */
static bool is_quiet(void) {
    struct Thread threads[THREADS_MAX];
    unsigned count = 0;
    DIR *folder = opendir("/proc/self/task");
    if (!folder) return false;
    for (struct dirent *entry; (entry = readdir(folder)) && count < THREADS_MAX;) {
        pid_t id = atoi(entry->d_name);
        if (id > 0 && id != gettid()) threads[count++] = (struct Thread){ id, worked(id) };
    }
    closedir(folder);
    for (unsigned i = 0; i < count; i++)
        if (!is_asleep(threads[i].id)) return false;
    for (unsigned i = 0; i < count; i++)
        if (worked(threads[i].id) != threads[i].worked) return false;
    return true;
}

static struct Sleeper *first_due(void) {
    for (struct Sleeper *one = sleepers; one; one = one->next)
        if (is_due(one)) return one;
    return NULL;
}

/* Time passes until somebody who waits here goes on. */
static void let_time_pass(void) {
    for (struct Sleeper *one = sleepers; one; one = one->next)
        if (one->is_woken) return; /* it has not had the lock yet */
    struct Sleeper *due;
    while (!(due = first_due())) {
        uint64_t next = next_change();
        for (const struct Sleeper *one = sleepers; one; one = one->next)
            if (one->until < next) next = one->until;
        if (next == NEVER) return; /* for good, unless a thread does something */
        pass_to(next);
    }
    due->is_woken = true;
    pthread_cond_signal(&due->wake);
}

static void *let_pass(void *time) {
    unsigned mine = (unsigned)(uintptr_t)time;
    pthread_mutex_lock(&fake_lock);
    while (is_on && turned_on == mine) {
        if (!sleepers) { pthread_cond_wait(&somebody_sleeps, &fake_lock); continue; }
        pthread_mutex_unlock(&fake_lock);
        bool quiet = is_quiet();
        if (!quiet) syscall(SYS_sched_yield);
        pthread_mutex_lock(&fake_lock);
        if (quiet && is_on && turned_on == mine) let_time_pass();
    }
    pthread_mutex_unlock(&fake_lock);
    return NULL;
}

static uint64_t real(clockid_t clock) {
    struct timespec time;
    syscall(SYS_clock_gettime, clock, &time);
    return time.tv_sec * SECOND + time.tv_nsec;
}

/* Time is virtual from here on, and begins anew; or no longer (NULL). */
void fake_virtual(const struct Rates *asked) {
    pthread_mutex_lock(&fake_lock);
    is_on = asked != NULL;
    turned_on++;
    if (is_on) rates = *asked;
    now = order = 0;
    program = gettid();
    state.idle_ns = state.busy_ns = state.clocked = 0;
    for (unsigned i = 0; i < stream_count; i++) streams[i]->computes = false;
    virtual_abandon();
    ahead = real(CLOCK_MONOTONIC) + 30 * 24 * 3600 * SECOND;
    for (struct Sleeper *one = sleepers; one; one = one->next) pthread_cond_signal(&one->wake);
    pthread_cond_signal(&somebody_sleeps);
    pthread_t thread;
    if (is_on && pthread_create(&thread, NULL, let_pass, (void *)(uintptr_t)turned_on) == 0) pthread_detach(thread);
    pthread_mutex_unlock(&fake_lock);
}

uint64_t fake_now(void) { return LOCKED(now); }

/* ---- the clock and the sleeps of the process ---- */

static bool is_monotonic(clockid_t clock) {
    return clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_RAW || clock == CLOCK_MONOTONIC_COARSE || clock == CLOCK_BOOTTIME;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    if (!is_on || !is_monotonic(clock)) {
        long code = syscall(SYS_clock_gettime, clock, time);
        return code ? -1 : 0;
    }
    uint64_t at = ahead + __atomic_load_n(&now, __ATOMIC_RELAXED);
    *time = (struct timespec){ (time_t)(at / SECOND), (long)(at % SECOND) };
    return 0;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *time, struct timespec *rest) {
    if (!is_on || (flags && !is_monotonic(clock))) return syscall(SYS_clock_nanosleep, clock, flags, time, rest) ? errno : 0;
    uint64_t asked = time->tv_sec * SECOND + time->tv_nsec;
    pthread_mutex_lock(&fake_lock);
    spend(!flags ? asked : asked > ahead + now ? asked - ahead - now : 0);
    pthread_mutex_unlock(&fake_lock);
    return 0;
}

int nanosleep(const struct timespec *time, struct timespec *rest) {
    int code = clock_nanosleep(CLOCK_MONOTONIC, 0, time, rest);
    if (code) errno = code;
    return code ? -1 : 0;
}
