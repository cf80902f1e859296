/* Records what processes do to the files of one folder, in order: each write and flush as it begins, and as it has
 * ended. It is loaded with LD_PRELOAD, and power.py reads the log. What io_uring does goes past it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { WRITE_BEGINS = 1, FORCED_WRITE_BEGINS, FLUSH_BEGINS, ENDED };

struct entry {
    uint64_t kind, operation, file, offset, length; /* a write's bytes follow; the length of zeroes is negative */
};

static int log_file = -1;
static const char *folder;
static atomic_uint operations;

__attribute__((constructor)) static void begin(void) {
    folder = getenv("TIDETEST_RECORDED_FOLDER");
    const char *path = getenv("TIDETEST_RECORDING");
    if (folder && path) log_file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
}

/* The kernel appends each entry whole, so that entries of several processes have one order. */
static void append(const struct entry *entry, const void *bytes, size_t length) {
    struct iovec parts[] = {{(void *)entry, sizeof *entry}, {(void *)bytes, length}};
    if (writev(log_file, parts, 2) != (ssize_t)(sizeof *entry + length)) abort();
}

/* The number that its end has, too; 0 where the file is none of those that are recorded. */
static uint64_t begins(int file, enum kind kind, off_t offset, int64_t length, const void *bytes) {
    char link[64], path[4096];
    struct stat about;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t found = log_file < 0 ? -1 : readlink(link, path, sizeof path - 1);
    if (found < 0 || strncmp(path, folder, strlen(folder)) || fstat(file, &about) || !S_ISREG(about.st_mode)) return 0;
    uint64_t operation = (uint64_t)getpid() << 32 | (atomic_fetch_add(&operations, 1) + 1);
    struct entry entry = {kind, operation, about.st_ino, (uint64_t)offset, (uint64_t)length};
    append(&entry, bytes, bytes ? (size_t)length : 0);
    return operation;
}

static long ends(uint64_t operation, long result) {
    struct entry entry = {ENDED, operation, 0, 0, 0};
    if (operation && result >= 0) append(&entry, NULL, 0);
    return result;
}

#define THE_REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t pwrite(int file, const void *bytes, size_t length, off_t offset) {
    uint64_t operation = begins(file, WRITE_BEGINS, offset, (int64_t)length, bytes);
    return ends(operation, THE_REAL(pwrite)(file, bytes, length, offset));
}

ssize_t pwrite64(int file, const void *bytes, size_t length, off_t offset) { return pwrite(file, bytes, length, offset); }

/* Tidelog's writes have one part. */
ssize_t pwritev2(int file, const struct iovec *parts, int count, off_t offset, int flags) {
    if (count != 1) abort();
    enum kind kind = flags & RWF_DSYNC ? FORCED_WRITE_BEGINS : WRITE_BEGINS;
    uint64_t operation = begins(file, kind, offset, (int64_t)parts->iov_len, parts->iov_base);
    return ends(operation, THE_REAL(pwritev2)(file, parts, count, offset, flags));
}

ssize_t pwritev64v2(int file, const struct iovec *parts, int count, off_t offset, int flags) {
    return pwritev2(file, parts, count, offset, flags);
}

int fdatasync(int file) {
    uint64_t operation = begins(file, FLUSH_BEGINS, 0, 0, NULL);
    return (int)ends(operation, THE_REAL(fdatasync)(file));
}

int fsync(int file) {
    uint64_t operation = begins(file, FLUSH_BEGINS, 0, 0, NULL);
    return (int)ends(operation, THE_REAL(fsync)(file));
}

/* What is not only reserved reads as zeroes. */
int fallocate(int file, int mode, off_t offset, off_t length) {
    uint64_t operation = mode ? begins(file, WRITE_BEGINS, offset, -length, NULL) : 0;
    return (int)ends(operation, THE_REAL(fallocate)(file, mode, offset, length));
}

int fallocate64(int file, int mode, off_t offset, off_t length) { return fallocate(file, mode, offset, length); }
