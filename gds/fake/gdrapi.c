/* gdrcopy over the fake CUDA: the symbols of libgdrapi that we use. What it maps is the host memory behind the fake GPU's,
 * so that a simulated SSD which writes there writes the GPU's memory. It refuses what gdrdrv would, fails when a test has
 * planned it ("gdr_open", "gdr_pin", "gdr_map", "gdr_info"), and counts what nobody may do. */
#include "fake.h"

#include <errno.h>
#include <stdlib.h>

#define PAGE 65536ull
#define PINS 64

typedef struct { unsigned long h; } Handle;
struct Session { unsigned pins; };
struct Info {
    uint64_t first, mapped;
    uint32_t page;
    uint64_t cycles;
    uint32_t cycles_per_ms;
    unsigned mapped_now : 1, write_combined : 1;
    int mapping_type;
};

static struct { struct Session *session; uint64_t at; size_t length; bool mapped; } pins[PINS];
static unsigned sessions;

bool is_pinned(uint64_t at, size_t length) {
    for (unsigned i = 0; i < PINS; i++)
        if (pins[i].session && overlap(at, length, pins[i].at, pins[i].length)) return true;
    return false;
}

uint64_t gdr_count(void) {
    uint64_t count = sessions;
    for (unsigned i = 0; i < PINS; i++)
        if (pins[i].session) count += 1 + pins[i].mapped;
    return count;
}

/* The pin behind a handle, if it is one of this session's. */
static int pin_of(struct Session *session, Handle handle) {
    bool known = handle.h >= 1 && handle.h <= PINS && session && pins[handle.h - 1].session == session;
    if (!known) violated("a handle that gdrcopy did not give", handle.h, 0);
    return known ? (int)handle.h - 1 : -1;
}

struct Session *gdr_open(void) {
    pthread_mutex_lock(&fake_lock);
    struct Session *session = planned("gdr_open") ? NULL : calloc(1, sizeof *session);
    if (session) sessions++;
    pthread_mutex_unlock(&fake_lock);
    return session;
}

int gdr_close(struct Session *session) {
    pthread_mutex_lock(&fake_lock);
    if (session->pins) violated("gdrcopy is closed with memory pinned", 0, session->pins);
    sessions--;
    free(session);
    pthread_mutex_unlock(&fake_lock);
    return 0;
}

int gdr_pin_buffer(struct Session *session, unsigned long at, size_t length, uint64_t token, uint32_t space, Handle *handle) {
    (void)token; (void)space;
    pthread_mutex_lock(&fake_lock);
    int code = planned("gdr_pin"), place = -1;
    for (int i = 0; i < PINS && place < 0; i++)
        if (!pins[i].session) place = i;
    if (!code && (place < 0 || !length || !allocated(at, length))) code = EINVAL;
    if (!code) {
        if (at % PAGE || length % PAGE) violated("pages are pinned in part", at, length);
        if (!is_synchronous(at)) violated("memory is pinned whose copies are not synchronous", at, length);
        pins[place].session = session; pins[place].at = at; pins[place].length = length; pins[place].mapped = false;
        session->pins++;
        handle->h = place + 1;
    }
    pthread_mutex_unlock(&fake_lock);
    return code;
}

int gdr_unpin_buffer(struct Session *session, Handle handle) {
    pthread_mutex_lock(&fake_lock);
    int pin = pin_of(session, handle);
    if (pin >= 0) {
        if (pins[pin].mapped) violated("memory is unpinned that is mapped", pins[pin].at, pins[pin].length);
        pins[pin].session = NULL;
        session->pins--;
    }
    pthread_mutex_unlock(&fake_lock);
    return pin < 0 ? EINVAL : 0;
}

int gdr_map(struct Session *session, Handle handle, void **at, size_t length) {
    pthread_mutex_lock(&fake_lock);
    int code = planned("gdr_map"), pin = pin_of(session, handle);
    if (!code && (pin < 0 || pins[pin].mapped || length > pins[pin].length)) code = EINVAL;
    if (!code) { pins[pin].mapped = true; *at = near(pins[pin].at); }
    pthread_mutex_unlock(&fake_lock);
    return code;
}

int gdr_unmap(struct Session *session, Handle handle, void *at, size_t length) {
    pthread_mutex_lock(&fake_lock);
    int pin = pin_of(session, handle);
    bool right = pin >= 0 && pins[pin].mapped && at == near(pins[pin].at) && length <= pins[pin].length;
    if (!right) violated("what was not mapped is unmapped", (uintptr_t)at, length);
    else pins[pin].mapped = false;
    pthread_mutex_unlock(&fake_lock);
    return right ? 0 : EINVAL;
}

/* Planned with -1 it says that it has mapped from a page further on. */
int gdr_get_info_v2(struct Session *session, Handle handle, struct Info *info) {
    pthread_mutex_lock(&fake_lock);
    int code = planned("gdr_info"), pin = pin_of(session, handle);
    uint64_t shift = code == -1 ? PAGE : 0;
    if (code == -1) code = 0;
    if (!code && pin < 0) code = EINVAL;
    if (!code)
        *info = (struct Info){ .first = pins[pin].at + shift, .mapped = pins[pin].length, .page = PAGE,
            .mapped_now = pins[pin].mapped, .write_combined = 1, .mapping_type = 1 };
    pthread_mutex_unlock(&fake_lock);
    return code;
}

void gdr_runtime_get_version(int *major, int *minor) { *major = 2; *minor = 5; }
