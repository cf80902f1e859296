/* A disk of a given rate: files of one folder are read and written no faster, reads and writes each at that rate,
 * whatever else the machine does. It is loaded with LD_PRELOAD (slow_disk.py). What io_uring does goes past it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum way { READ, WRITE, WAYS };

static const char *folder;
static double bytes_per_second;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int64_t free_from[WAYS]; /* when all that was asked for before is done, each way */

__attribute__((constructor)) static void begin(void) {
    folder = getenv("TIDETEST_SLOW_FOLDER");
    const char *rate = getenv("TIDETEST_SLOW_RATE");
    bytes_per_second = rate ? atof(rate) : 0;
    if (bytes_per_second <= 0) folder = NULL;
}

static int is_ours(int file) {
    char link[64], path[4096];
    if (!folder) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path);
    return length >= (ssize_t)strlen(folder) && !strncmp(path, folder, strlen(folder));
}

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* When a transfer ends that is asked for now: behind those before it. Who wakes up late delays no other. */
static int64_t end_of(int file, enum way way, size_t length) {
    if (!is_ours(file)) return 0;
    pthread_mutex_lock(&lock);
    int64_t begins = now();
    if (begins < free_from[way]) begins = free_from[way];
    int64_t ends = free_from[way] = begins + (int64_t)((double)length * 1e9 / bytes_per_second);
    pthread_mutex_unlock(&lock);
    return ends;
}

static ssize_t until(int64_t end, ssize_t result) {
    struct timespec time = {end / 1000000000, end % 1000000000};
    while (end && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL)) continue;
    return result;
}

#define THE_REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t pread(int file, void *bytes, size_t length, off_t offset) {
    int64_t end = end_of(file, READ, length);
    return until(end, THE_REAL(pread)(file, bytes, length, offset));
}

ssize_t pread64(int file, void *bytes, size_t length, off_t offset) { return pread(file, bytes, length, offset); }

ssize_t pwrite(int file, const void *bytes, size_t length, off_t offset) {
    int64_t end = end_of(file, WRITE, length);
    return until(end, THE_REAL(pwrite)(file, bytes, length, offset));
}

ssize_t pwrite64(int file, const void *bytes, size_t length, off_t offset) { return pwrite(file, bytes, length, offset); }

/* Tidelog's writes have one part. */
ssize_t pwritev2(int file, const struct iovec *parts, int count, off_t offset, int flags) {
    if (count != 1) abort();
    int64_t end = end_of(file, WRITE, parts->iov_len);
    return until(end, THE_REAL(pwritev2)(file, parts, count, offset, flags));
}

ssize_t pwritev64v2(int file, const struct iovec *parts, int count, off_t offset, int flags) {
    return pwritev2(file, parts, count, offset, flags);
}
