/* Kernels of a framework whose tensors are in host memory. They lag: a kernel is computed when it is launched, by the
 * processor, and what it has written is taken away again until its turn comes in its stream. Whoever looks before sees
 * older bytes. At its turn everything that it has read must be as it was: else a real one would have computed from other
 * bytes. */
#include "fake.h"
#include <stdlib.h>
#include <string.h>

struct Span { uint64_t at; size_t length; const char *before; }; /* `before`: the bytes that were there, or NULL */
struct Read { uint64_t at; size_t length; uint64_t hash; };
struct Written { uint64_t at; size_t length; char *before, *bytes; };
struct Kernel {
    unsigned reads, writes;
    uint64_t number;
    struct Read read[32];
    struct Written written[32];
};
static uint64_t launched;

static uint64_t hash_of(uint64_t at, size_t length) {
    const unsigned char *bytes = (const unsigned char *)(uintptr_t)at;
    uint64_t hash = length, word;
    for (; length >= 8; length -= 8, bytes += 8) { memcpy(&word, bytes, 8); hash = (hash ^ word) * 0x9E3779B97F4A7C15ull; hash ^= hash >> 29; }
    while (length--) hash = (hash ^ *bytes++) * 0x9E3779B97F4A7C15ull;
    return hash;
}

static char *taken(const char *from, size_t length) {
    char *bytes = malloc(length ? length : 1);
    memcpy(bytes, from, length);
    return bytes;
}

void run_kernel(struct Kernel *kernel) {
    for (unsigned i = 0; i < kernel->reads; i++) {
        struct Read *r = &kernel->read[i];
        if (used_by_ssd(r->at, r->length, true)) violated("a kernel reads what an SSD writes", r->at, r->length);
        if (hash_of(r->at, r->length) != r->hash) violated("what a kernel reads has changed before its turn", r->at, r->length);
    }
    for (unsigned i = 0; i < kernel->writes; i++) {
        struct Written *w = &kernel->written[i];
        if (used_by_ssd(w->at, w->length, false)) violated("a kernel writes what an SSD uses", w->at, w->length);
        char *to = (char *)(uintptr_t)w->at;
        if (!w->before) memcpy(to, w->bytes, w->length);
        for (size_t at = 0; w->before && at < w->length; at++)
            if (w->before[at] != w->bytes[at]) to[at] = w->bytes[at];
    }
}

void forget_kernel(struct Kernel *kernel) {
    for (unsigned i = 0; kernel && i < kernel->writes; i++) { free(kernel->written[i].before); free(kernel->written[i].bytes); }
    free(kernel);
}

/* A kernel was launched that takes `ns` by the clock. Its inputs are as it has read them; its outputs are computed, and
 * those with `before` had these bytes. Answers its number. */
uint64_t fake_kernel(struct Stream *stream, uint64_t ns, unsigned reads, const struct Span *read, unsigned writes,
                     const struct Span *written) {
    if (reads > 32 || writes > 32) return 0;
    struct Kernel *kernel = calloc(1, sizeof *kernel);
    kernel->reads = reads; kernel->writes = writes;
    for (unsigned i = 0; i < writes; i++) {
        const struct Span *s = &written[i];
        char *at = (char *)(uintptr_t)s->at;
        kernel->written[i] = (struct Written){ s->at, s->length, s->before ? taken(s->before, s->length) : NULL, taken(at, s->length) };
        if (s->before) memcpy(at, s->before, s->length);
        else memset(at, 0xDB, s->length);
    }
    for (unsigned i = 0; i < reads; i++)
        kernel->read[i] = (struct Read){ read[i].at, read[i].length, hash_of(read[i].at, read[i].length) };
    pthread_mutex_lock(&fake_lock);
    kernel->number = ++launched;
    append(stream, (struct Step){ .kind = KERNEL, .length = ns, .kernel = kernel });
    pthread_mutex_unlock(&fake_lock);
    return kernel->number;
}

/* Whether a step touches any of these bytes. */
static bool touches(const struct Step *s, uint64_t at, size_t length) {
    const struct Kernel *k = s->kernel;
    for (unsigned i = 0; k && i < k->reads; i++)
        if (overlap(k->read[i].at, k->read[i].length, at, length)) return true;
    for (unsigned i = 0; k && i < k->writes; i++)
        if (overlap(k->written[i].at, k->written[i].length, at, length)) return true;
    size_t written = s->kind == SUM ? 4 * s->parts : s->length;
    return !k && s->length && (overlap(s->to, written, at, length) || overlap(s->from, s->length, at, length));
}

bool is_in_streams(uint64_t at, size_t length) {
    for (unsigned i = 0; i <= stream_count; i++)
        for (const struct Step *s = (i < stream_count ? streams[i] : &default_stream)->head; s; s = s->next)
            if (touches(s, at, length)) return true;
    return false;
}

/* How many steps of a stream must have happened before a kernel is computed that uses these bytes. */
static unsigned needed(const struct Stream *stream, unsigned count, const struct Span *spans) {
    unsigned steps = 0, number = 1;
    for (const struct Step *s = stream->head; s; s = s->next, number++) {
        if (s->kind == WAIT) steps = number;
        for (unsigned i = 0; i < count; i++)
            if (touches(s, spans[i].at, spans[i].length)) steps = number;
    }
    return steps;
}

static void reach(struct Stream *stream, unsigned count, const struct Span *spans) {
    for (unsigned left = needed(stream, count, spans); left; left--)
        while (stream->head && !advance(stream)) {
            bool moved = false;
            for (unsigned i = 0; i < stream_count; i++) moved |= streams[i] != stream && advance(streams[i]);
            if (!moved) return; /* held, or broken */
        }
}

/* What a kernel needs that is computed now: all that its stream waits for, and whatever comes before it there and uses
 * these bytes. Other streams go on only as far as this one waits for them. */
void fake_reach(struct Stream *stream, unsigned count, const struct Span *spans) {
    pthread_mutex_lock(&fake_lock);
    reach(stream, count, spans);
    pthread_mutex_unlock(&fake_lock);
}

static const struct Stream *user;
/* The stream in whose order memory is given out again. */
void fake_memory_is_of(const struct Stream *stream) { user = stream; }

/* Whether a stream, up to a step of it, waits for what `step` of another does. */
static bool waits_for(const struct Stream *stream, const struct Step *until, const struct Step *step, unsigned depth) {
    for (const struct Step *s = stream->head; s && s != until; s = s->next) {
        if (s == step) return true;
        for (unsigned i = 0; s->kind == WAIT && depth && i < stream_count; i++)
            for (const struct Step *r = streams[i]->head; r; r = r->next)
                if (r->kind == RECORD && r->event == s->event && r->ticket == s->ticket && waits_for(streams[i], r, step, depth - 1))
                    return true;
    }
    return false;
}

static void let_go(const struct Stream *stream, uint64_t at, size_t length, bool kernels_too) {
    struct Span span = { at, length, NULL };
    pthread_mutex_lock(&fake_lock);
    for (unsigned i = 0; i < stream_count; i++) {
        bool used = false;
        for (const struct Step *s = streams[i]->head; s; s = s->next) {
            used |= touches(s, at, length);
            if ((kernels_too || !s->kernel) && stream && touches(s, at, length) && !waits_for(stream, NULL, s, 8))
                violated("memory is given out that a copy or a kernel uses still", at, length);
        }
        if (used) reach(streams[i], 1, &span);
    }
    pthread_mutex_unlock(&fake_lock);
}

/* These bytes' memory goes: the kernels and copies that use it have had their turn, as where a stream's memory is given out
 * again in its order. That stream must wait for what others do with it. */
void fake_let_go(uint64_t at, size_t length) { let_go(user, at, length, false); }

/* Memory is given out to a stream, which must wait for all that uses it. That has had its turn then: who asked is about to
 * compute there. */
void fake_give(const struct Stream *stream, uint64_t at, size_t length) { let_go(stream, at, length, true); }

/* The number of the oldest kernel that has not had its turn; 0: there is none. */
uint64_t fake_oldest_kernel(void) {
    pthread_mutex_lock(&fake_lock);
    uint64_t oldest = 0;
    for (unsigned i = 0; i < stream_count; i++)
        for (const struct Step *s = streams[i]->head; s; s = s->next)
            if (s->kernel && (!oldest || s->kernel->number < oldest)) oldest = s->kernel->number;
    pthread_mutex_unlock(&fake_lock);
    return oldest;
}
