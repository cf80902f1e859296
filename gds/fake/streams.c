/* Copies and events in their streams, transfers in their batches, and which of them would race. */
#define _GNU_SOURCE
#include "fake.h"
#include <sched.h>
#include <stdlib.h>
#include <string.h>

/* Whether such a step reads memory of the GPU, and whether it writes such memory. */
static bool reads(enum Kind kind) { return kind == COPY_OUT || kind == COPY || kind == SUM; }
static bool writes(enum Kind kind) { return kind == COPY_IN || kind == COPY || kind == ZERO; }
struct Stream *streams[MAX], default_stream;
unsigned stream_count;

struct Batch *batches[MAX];
unsigned batch_count;

static struct Transfer given_up[MAX];
static unsigned given_up_count;

void give_up(const struct Transfer *transfer) {
    if (given_up_count < MAX) given_up[given_up_count++] = *transfer;
    else violated("too many transfers are given up", 0, 0);
}

void forget_given_up(void) { given_up_count = 0; }

static bool uses(const struct Transfer *t, uint64_t at, size_t length, bool writing) {
    return !(writing && t->write) && overlap(at, length, t->memory, t->length);
}

bool used_by_ssd(uint64_t at, size_t length, bool writing) {
    for (unsigned i = 0; i < batch_count; i++)
        for (unsigned k = 0; k < 128 && !batches[i]->destroyed; k++)
            if (batches[i]->transfers[k].used && uses(&batches[i]->transfers[k], at, length, writing)) return true;
    for (unsigned i = 0; i < given_up_count; i++)
        if (uses(&given_up[i], at, length, writing)) return true;
    return false;
}

/* A copy that happens now: no transfer may be on its way that writes what it touches, or reads what it writes. */
static void check_copy(const struct Step *s) {
    if (writes(s->kind) && used_by_ssd(s->to, s->length, false)) violated("a copy writes what an SSD uses", s->to, s->length);
    if (reads(s->kind) && used_by_ssd(s->from, s->length, true))
        violated("a copy reads what an SSD writes", s->from, s->length);
}

void check_transfer(uint64_t at, size_t length, bool write) {
    for (unsigned i = 0; i < stream_count; i++)
        for (const struct Step *s = streams[i]->head; s; s = s->next) {
            if (writes(s->kind) && overlap(s->to, s->length, at, length))
                violated("an SSD is given memory that a copy still writes", at, length);
            if (reads(s->kind) && !write && overlap(s->from, s->length, at, length))
                violated("an SSD writes memory that a copy still reads", at, length);
        }
    /* Two may read the same. */
    if (used_by_ssd(at, length, write)) violated("two transfers use the same memory", at, length);
}

/* What the checksum kernel computes, of one unit. */
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

/* The same in parts: whatever words whose exclusive or it is. */
static void crc32c_in_parts(const unsigned char *data, size_t length, unsigned parts, char *words) {
    uint32_t rest = crc32c(data, length);
    for (unsigned part = 0; part < parts; part++) {
        uint32_t word = part + 1 < parts ? (uint32_t)chance() : rest;
        rest ^= word;
        memcpy(words + 4 * part, &word, sizeof word);
    }
}

bool advance(struct Stream *stream) {
    struct Step *s = stream->head;
    if (!s) return false;
    if (s->kind == RECORD && s->event == held_event) return false;
    if (s->kind == WAIT && s->event->happened < s->ticket) return false;
    /* A later record, in another stream, may have happened before. */
    if (s->kind == RECORD && s->event->happened < s->ticket) s->event->happened = s->ticket;
    if (s->kind == RECORD && !is_clocked()) s->event->happened_at = clock_now();
    if (s->kernel) { run_kernel(s->kernel); forget_kernel(s->kernel); }
    if (reads(s->kind) || writes(s->kind)) {
        bool from_there = !reads(s->kind) || allocated(s->from, s->length);
        bool to_there = s->kind == SUM ? allocated(s->to, 4 * s->parts) : !writes(s->kind) || allocated(s->to, s->length);
        if (!from_there) violated("a copy reads freed memory", s->from, s->length);
        if (!to_there) violated("a copy writes freed memory", s->to, s->length);
        check_copy(s);
        char *from = s->kind == COPY_IN ? (char *)(uintptr_t)s->from : near(s->from);
        char *to = s->kind == COPY_OUT ? (char *)(uintptr_t)s->to : near(s->to);
        if (!from_there || !to_there) ;
        else if (is_virtual()) { if (s->kind == SUM) memset(to, 0, 4 * s->parts); } /* there are no bytes */
        else if (s->kind == ZERO) memset(to, 0, s->length);
        else if (s->kind == SUM) crc32c_in_parts((unsigned char *)from, s->length, s->parts, to);
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

void tick(void) {
    if (is_clocked()) { keep_up(); return; }
    if (held || stream_count == 0 || chance() % (laziness + 1)) return;
    unsigned first = chance() % stream_count;
    for (unsigned i = 0; i < stream_count; i++)
        if (advance(streams[(first + i) % stream_count])) return;
}

void append(struct Stream *stream, struct Step step) {
    if (is_captured(stream)) { /* It is a node of the graph. */
        if (step.kind == RECORD) step.event->captured = true;
        free(step.owned);
        forget_kernel(step.kernel);
        return;
    }
    if (step.kind == RECORD) step.event->captured = false;
    struct Step *s = malloc(sizeof *s);
    *s = step; s->next = NULL;
    s->appended_at = is_clocked() ? clock_now() : 0;
    if (stream->tail) stream->tail->next = s; else stream->head = s;
    stream->tail = s;
    if (is_virtual()) virtual_keep_up();
}

void abandon(void) {
    virtual_abandon();
    for (unsigned i = 0; i <= stream_count; i++) {
        struct Stream *stream = i < stream_count ? streams[i] : &default_stream;
        for (struct Step *s = stream->head, *next; s; s = next) {
            next = s->next;
            free(s->owned);
            forget_kernel(s->kernel);
            free(s);
        }
        stream->head = stream->tail = NULL;
    }
}

void drain(struct Stream *stream) {
    if (is_virtual() && !held && !state.broken) virtual_wait_for_stream(stream);
    while (stream->head && is_clocked() && !is_virtual() && !held && !state.broken) { /* Others go on meanwhile. */
        keep_up();
        pthread_mutex_unlock(&fake_lock);
        sched_yield();
        pthread_mutex_lock(&fake_lock);
    }
    while (stream->head) {
        if (advance(stream)) continue;
        bool moved = false;
        for (unsigned i = 0; i < stream_count; i++) moved |= advance(streams[i]);
        if (!moved) return;
    }
}
