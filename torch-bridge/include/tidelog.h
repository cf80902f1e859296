/* Tidelog: NVMe SSDs as if they were memory. The C ABI of libtidelog.
 *
 * Generated from torch-bridge/src/abi by cbindgen; do not edit.
 *
 * Every function may be called from any thread. What functions answer is one of the codes below: zero
 * and above a state, below zero an error whose text tide_last_error gives, on the thread that got
 * it. Handles are numbers: a stale or foreign one is an error, never undefined behaviour. After fork()
 * those of the parent answer TIDE_FORKED in the child.
 */

#ifndef TIDELOG_H
#define TIDELOG_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Done; nothing is asked of the caller.
 */
#define TIDE_READY 0

/**
 * Take requests with `tide_session_next_action`, then call `tide_session_resume`. Never where the
 * session has callbacks.
 */
#define TIDE_ACTION 1

/**
 * Transfers are in flight: call `tide_session_wait`, or `tide_ticket_wait` again. Of a session's
 * functions never where it has callbacks.
 */
#define TIDE_WAITING 2

/**
 * An argument was wrong; nothing happened.
 */
#define TIDE_INVALID_ARGUMENT -1

/**
 * The pool cannot be formatted, opened, read or written, for none of the reasons that have codes
 * of their own.
 */
#define TIDE_POOL_FAILED -2

/**
 * A device failed a transfer (I/O error).
 */
#define TIDE_DEVICE_FAILED -3

/**
 * One op's storages exceed the budget.
 */
#define TIDE_BUDGET_EXCEEDED -4

/**
 * The handle belongs to the parent of this forked process.
 */
#define TIDE_FORKED -5

/**
 * No such handle: closed already, or never given out.
 */
#define TIDE_STALE_HANDLE -6

/**
 * An internal error was caught at the boundary.
 */
#define TIDE_PANICKED -7

/**
 * The pool has no tensor of this name.
 */
#define TIDE_NOT_FOUND -8

/**
 * The pool has no room for it; delete something and try again.
 */
#define TIDE_FULL -9

/**
 * Status: another process or host has the share or the device.
 */
#define TIDE_HELD -10

/**
 * The range is not within the tensor; nothing was read.
 */
#define TIDE_OUT_OF_RANGE -11

/**
 * A device gave back other bytes than were written, twice: they are lost.
 */
#define TIDE_CHECKSUM -12

/**
 * The transfer was cancelled before its end.
 */
#define TIDE_CANCELLED -13

/**
 * The pool is open for reading only; nothing happened.
 */
#define TIDE_READ_ONLY -14

/**
 * An op around this one has, or is in the middle of moving, what it needs: it can run when that
 * has ended. Or another thread is in the middle of a call of the session.
 */
#define TIDE_BUSY -15

/**
 * Status of callbacks that end the function which calls them, because of Ctrl-C for one. What was
 * asked for is asked for again.
 */
#define TIDE_INTERRUPTED -16

/**
 * "No storage" where an error is about none.
 */
#define TIDE_NO_STORAGE UINT32_MAX

/**
 * The version of this header: functions and fields are added with the second number (the first
 * while that is 0), and nothing that stands is changed before the first one.
 */
#define TIDE_VERSION_MAJOR 0

/**
 * Minor version of the C ABI.
 */
#define TIDE_VERSION_MINOR 2

/**
 * Patch version of the C ABI: corrections.
 */
#define TIDE_VERSION_PATCH 0

/**
 * Flag of a transfer: it goes before those that are not urgent.
 */
#define TIDE_URGENT 1

/**
 * Flag of a put: it has as many copies as a durable tensor of the pool, for a seal to keep.
 */
#define TIDE_AS_DURABLE 2

/**
 * Timeout of a wait without one: until the end, however long that takes. As an `int` it is -1.
 */
#define TIDE_FOREVER UINT32_MAX

/**
 * Keep the storage alive and return its address: its bytes are about to be copied out. Return 0 if
 * it cannot move now: it is not asked for again before the next op.
 */
#define TIDE_EVICT 1

/**
 * Free the storage's memory and guard it: its bytes are in the log, or in host memory.
 */
#define TIDE_RELEASE 2

/**
 * Allocate the storage's memory, keep it alive and guarded, and return its address: its bytes are
 * coming. Return 0 if there is no memory: other storages leave and it is asked again; where none
 * is left that could leave, the op that needs it fails.
 */
#define TIDE_ALLOCATE 3

/**
 * Lift the guard: the storage is resident, no transfer touches it.
 */
#define TIDE_SETTLE 4

/**
 * Request to evict a part, as `TIDE_EVICT` is for a storage; it begins where
 * `tide_session_part_begin` says: return the address of that part. Others of its parts may be out,
 * and those bytes are somewhere in memory all the same.
 */
#define TIDE_EVICT_PART 5

/**
 * Guard the storage, and give back the pages of this part alone. The others keep theirs, whether
 * in memory or on their way, so the storage keeps its address.
 */
#define TIDE_RELEASE_PART 6

/**
 * Keep the storage alive and guarded, and return the address of the part: its bytes are coming.
 */
#define TIDE_ALLOCATE_PART 7

/**
 * No transfer touches this part. Unless `size` is `TIDE_PARTS_AWAY` all parts are in memory: lift
 * the guard.
 */
#define TIDE_SETTLE_PART 8

/**
 * All parts of the storage are in memory.
 */
#define TIDE_PARTS_RESIDENT 0

/**
 * State of parts of which a copy has the bytes of one at least.
 */
#define TIDE_PARTS_COPIED 1

/**
 * All are in memory, and one at least is being copied out.
 */
#define TIDE_PARTS_LEAVING 2

/**
 * One at least is out, or its bytes are not there yet.
 */
#define TIDE_PARTS_AWAY 3

/**
 * Least number of storages for the framework where plans may move parts of storages; lower numbers
 * are the session's own.
 */
#define TIDE_PART_NUMBERS 4096

/**
 * Flag in an element of `uses`: the op writes the storage.
 */
#define TIDE_MODIFIES 2147483648

/**
 * Cause of a span: kernels ran.
 */
#define TIDE_TIME_KERNELS 0

/**
 * Cause of a span: it waited for a copy out, or for the memory of one.
 */
#define TIDE_TIME_COPIES_OUT 3

/**
 * Cause of a span: it waited for a copy in.
 */
#define TIDE_TIME_COPIES_IN 4

/**
 * Cause of a span: the thread was in the allocator, or waited there.
 */
#define TIDE_TIME_ALLOCATOR 8

/**
 * Cause of a span of a GPU's: nothing was launched. What the thread did then is the cause.
 */
#define TIDE_TIME_NOT_LAUNCHED 255

/**
 * Clock of a span: the GPU's.
 */
#define TIDE_CLOCK_GPU 0

/**
 * Clock of a span: that of the thread that calls the session.
 */
#define TIDE_CLOCK_THREAD 1

/**
 * Flag in the `storage` of a birth: its memory is not the framework's own and must stay.
 */
#define TIDE_UNMOVABLE 4294967296

/**
 * Options to open a pool.
 */
typedef struct tide_pool_options {
  /**
   * `sizeof` this struct: tells which version of it the caller was built with.
   */
  uint64_t size;
  /**
   * Devices of the pool, separated by commas: directories, files or block devices. `\,` is a
   * comma that is part of a name, and `\\` a backslash.
   */
  const char *devices;
  /**
   * "auto", "uring", "uring-cmd" or "posix"; where a GPU is named also "gds" and "gds-compat".
   */
  const char *data_path;
  /**
   * Bytes of staging buffers.
   */
  uint64_t staging;
  /**
   * Bytes of the pool where Tidelog makes the files of directories; 0 lets it choose.
   */
  uint64_t pool_size;
  /**
   * The share of the pool to own.
   */
  uint32_t share;
  /**
   * Non-zero allows a file system without `O_DIRECT`.
   */
  uint8_t buffered;
  /**
   * CUDA's number of the GPU whose memory `tide_put_gpu` and `tide_get_gpu` name, plus one; 0:
   * none.
   */
  uint8_t gpu;
  /**
   * Address of the GPU's memory that transfers by "gds" read and write in place, without a copy,
   * from multiples of 4 KiB on: an arena of `cuMemAlloc`'s. It stays allocated until
   * `tide_pool_close` has returned. What cuFile refuses to register is copied like other memory
   * (the data path's notes in the statistics say why). 0: none.
   */
  uint64_t arena;
  /**
   * The bytes.
   */
  uint64_t arena_bytes;
  /**
   * Non-zero refuses a pool that is not there. Otherwise one is made where none of its devices
   * exists; and where a file system is not mounted, its directory is empty, and the pool would
   * be made on another disk.
   */
  uint64_t must_exist;
  /**
   * Non-zero opens a pool that is there for reading, and writes nothing to its devices. Several
   * processes may have a share open like that; while one has, nobody opens it to write. Puts,
   * deletions and batches return `TIDE_READ_ONLY`.
   */
  uint64_t read_only;
  /**
   * Non-zero leaves the files of a pool that is made sparse: no space of them is reserved, and a
   * write fails once the file system is full. Otherwise all is; with zeroes, where the file
   * system cannot reserve, which takes as long as it takes to write them.
   */
  uint64_t sparse;
  /**
   * Non-zero opens a pool of which one device is missing, if it may have tensors with two
   * copies: those are whole, and the pool goes on without the device, which is stale from then
   * on. Otherwise that is an error which says what is missing.
   */
  uint64_t degraded;
} tide_pool_options;

/**
 * Options to open a session.
 */
typedef struct tide_session_options {
  /**
   * `sizeof` this struct: tells which version of it the caller was built with.
   */
  uint64_t size;
  /**
   * Devices of the pool, separated by commas: directories, files or block devices. `\,` is a
   * comma that is part of a name, and `\\` a backslash.
   */
  const char *devices;
  /**
   * "auto", "uring", "uring-cmd" or "posix"; where a GPU is named also "gds" and "gds-compat".
   */
  const char *data_path;
  /**
   * Bytes of storages and staging that may be in memory at once.
   */
  uint64_t budget;
  /**
   * Bytes of staging buffers, part of the budget.
   */
  uint64_t staging;
  /**
   * The most page-locked host memory that takes a GPU's storages before SSDs do; 0: none. All of
   * it is allocated when the session opens, and freed when it closes. Without a GPU it must be
   * 0.
   */
  uint64_t host_memory;
  /**
   * Bytes of the pool where Tidelog makes the files of directories; 0 lets it choose.
   */
  uint64_t pool_size;
  /**
   * The share of the pool to own.
   */
  uint32_t share;
  /**
   * Non-zero allows a file system without `O_DIRECT`.
   */
  uint8_t buffered;
  /**
   * Non-zero never makes a plan.
   */
  uint8_t reactive;
  /**
   * Planner: 1 the published algorithm, 2 Tidelog's own; 0 leaves the choice to Tidelog.
   */
  uint8_t policy;
  /**
   * Device of the storages: CUDA's number of the GPU plus one; 0: in host memory.
   */
  uint8_t gpu;
  /**
   * Non-zero refuses a pool that is not there. Otherwise one is made where none of its devices
   * exists; and where a file system is not mounted, its directory is empty, and the pool would
   * be made on another disk.
   */
  uint64_t must_exist;
  /**
   * Number of shares of a pool that is made, one for each process that will own one; 0: one.
   */
  uint64_t share_count;
  /**
   * Non-zero leaves the files of a pool that is made sparse: no space of them is reserved, and a
   * write fails once the file system is full. Otherwise all is; with zeroes, where the file
   * system cannot reserve, which takes as long as it takes to write them.
   */
  uint64_t sparse;
  /**
   * Non-zero goes on where one device of a pool with two copies is missing: the pool must be
   * there, and is degraded until the device is replaced.
   */
  uint64_t degraded;
} tide_session_options;

/**
 * A storage that came into being.
 */
typedef struct tide_birth {
  /**
   * The storage's number, plus `TIDE_UNMOVABLE` where its memory must stay; below
   * `TIDE_MODIFIES`, chosen by the caller: small, and not that of another live storage.
   */
  uint64_t storage;
  /**
   * The bytes.
   */
  uint64_t size;
  /**
   * The op's index times 65,536 plus the output slot; an index of 0xFFFFFFFF is outside a step.
   */
  uint64_t place;
} tide_birth;

/**
 * A request to a caller without callbacks, who alone can free and allocate a storage's memory.
 */
typedef struct tide_action {
  /**
   * Hand back to `tide_session_action_done`.
   */
  uint64_t sequence;
  /**
   * Bytes of the storage, or of the part; for `TIDE_SETTLE` non-zero where there is a copy of
   * the same bytes, for `TIDE_SETTLE_PART` one of `TIDE_PARTS_RESIDENT` to `TIDE_PARTS_AWAY`.
   */
  uint64_t size;
  /**
   * `TIDE_EVICT`, `TIDE_RELEASE`, `TIDE_ALLOCATE` or `TIDE_SETTLE`; once
   * `tide_session_use_parts` was called, also one of those of a part.
   */
  uint32_t kind;
  /**
   * The storage's number.
   */
  uint32_t storage;
} tide_action;

/**
 * Span of a step.
 */
typedef struct tide_step_span {
  /**
   * Time at which it began: nanoseconds before it is reported.
   */
  uint64_t began_ago;
  /**
   * Time at which it ended: nanoseconds before it is reported.
   */
  uint64_t ended_ago;
  /**
   * `TIDE_TIME_...`
   */
  uint32_t cause;
  /**
   * `TIDE_CLOCK_...`
   */
  uint32_t clock;
} tide_step_span;

/**
 * A part of the model that a step runs twice, as activation checkpointing does: ops of the first
 * run and of the second one, each from its first to before its last.
 */
typedef struct tide_region {
  /**
   * The first op of the first run.
   */
  uint32_t first_begin;
  /**
   * End of the first run.
   */
  uint32_t first_end;
  /**
   * The first op of the second run, which may end before the first run did.
   */
  uint32_t again_begin;
  /**
   * End of the second run.
   */
  uint32_t again_end;
} tide_region;

/**
 * Two ops of a step, the later of which writes the bytes that the first one wrote.
 */
typedef struct tide_same_writes {
  /**
   * The op that wrote them first.
   */
  uint32_t first;
  /**
   * The op that writes them again.
   */
  uint32_t later;
} tide_same_writes;

/**
 * The bytes that a callback is about: a storage, or a part of it.
 */
typedef struct tide_bytes {
  /**
   * Start of the bytes in the storage. Of a part: a multiple of 2 MiB.
   */
  uint64_t begin;
  /**
   * Number of bytes.
   */
  uint64_t length;
  /**
   * The storage's number.
   */
  uint32_t storage;
  /**
   * Non-zero for a part. Others of its parts may be out, or in flight. Only after
   * `tide_session_use_parts`.
   */
  uint32_t is_part;
} tide_bytes;

/**
 * Memory that a callback passes. The callback is called with zeros in it.
 */
typedef struct tide_memory {
  /**
   * Address of the bytes, on the session's GPU if it has one. 0: there is none, or they cannot
   * move now.
   */
  uint64_t address;
  /**
   * The `CUevent` after which the memory may be touched: behind the last kernel so far that
   * writes an evicted storage, or that uses what the memory of an allocated one was before.
   * Null: at once.
   */
  void *after;
  /**
   * Event of an allocation on a GPU: the `CUevent` that the library records behind the last
   * copy. The storage may be settled or released before it has happened, and every stream that
   * uses the bytes or the memory waits for it. It may be the event that `after` is. Null: the
   * storage is settled once its bytes are there. Of an eviction on a GPU, the same for what is
   * copied out: the event that `after` is, which the library records behind the last look at the
   * memory. Null: the storage is released once that was.
   */
  void *landed;
  /**
   * Event of an eviction on a GPU: a `CUevent` behind the last kernel that is known to use the
   * storage, where that is earlier than `after`. Bytes that are written are read from then on.
   * They are compared with the memory from `after` on, before its release: what a kernel wrote
   * that nobody knew of is written again. Null: all waits for `after`.
   */
  void *last_use;
} tide_memory;

/**
 * Writes to `memory` where these bytes of the storage are.
 */
typedef int32_t (*tide_memory_callback)(void *context,
                                        const struct tide_bytes *bytes,
                                        struct tide_memory *memory);

/**
 * Frees the memory of these bytes.
 */
typedef int32_t (*tide_release_callback)(void *context, const struct tide_bytes *bytes);

/**
 * Takes these bytes back: no transfer touches them.
 */
typedef int32_t (*tide_settle_callback)(void *context,
                                        const struct tide_bytes *bytes,
                                        uint64_t state);

/**
 * Is called before or after a wait.
 */
typedef int32_t (*tide_wait_callback)(void *context);

/**
 * Callbacks of a session, called while one of its functions runs, on the thread that called the
 * function.
 *
 * A callback returns 0 or more where it has done what it is for. Below 0 it ends the function,
 * which returns that number: `TIDE_INTERRUPTED` for Ctrl-C. What it was asked for is asked for
 * again by the next call, so what it had done by then must do no harm when it is done twice. It
 * may call every function of the library. Ops that it begins are inside the one that waits: see
 * `tide_session_nest`. It must not unwind (C++ exceptions) or jump out (`longjmp`).
 */
typedef struct tide_session_callbacks {
  /**
   * `sizeof` this struct: tells which version of it the caller was built with.
   */
  uint64_t size;
  /**
   * The first argument of each.
   */
  void *context;
  /**
   * The bytes are about to be copied out: keep them alive. Address 0: they cannot move now, and
   * are not asked for again before the next op. Others of the storage's parts may be out, and
   * those bytes are somewhere in memory all the same.
   */
  tide_memory_callback evict;
  /**
   * The bytes are in the log, or in host memory: free their memory and guard the storage. Of a
   * part give back its pages alone: the others keep theirs, whether in memory or in flight, so
   * the storage keeps its address.
   */
  tide_release_callback release;
  /**
   * The bytes are coming: allocate memory, keep it alive and guarded. Address 0: there is no
   * memory. Other storages leave and it is asked again; where none is left that could leave, the
   * op that needs it fails.
   */
  tide_memory_callback allocate;
  /**
   * The bytes are in memory, and no transfer touches them. `state` says where all bytes of the
   * storage are, `TIDE_PARTS_RESIDENT` to `TIDE_PARTS_AWAY`. Unless it is `TIDE_PARTS_AWAY`,
   * lift the guard.
   */
  tide_settle_callback settle;
  /**
   * The thread is about to wait: a caller whose threads share a lock gives it up. Returns how
   * many milliseconds to wait at most; no wait is longer than 50, which is also what null means.
   * 0: uses that the caller reported by `tide_session_async_use` may wait for the caller; what
   * waits for them alone is refused, as by `tide_session_resume_or_refuse`.
   */
  tide_wait_callback wait_begins;
  /**
   * The wait has ended: the place to take the lock again, and to look for Ctrl-C. Null: nothing
   * is called.
   */
  tide_wait_callback wait_ends;
} tide_session_callbacks;

/**
 * A tensor's id in the log. Zeroes stand for none.
 */
typedef struct tide_tensor {
  /**
   * The high half.
   */
  uint64_t high;
  /**
   * The low half.
   */
  uint64_t low;
} tide_tensor;

/**
 * The version of the library, as text: "0.2.0".
 */
const char *tide_version(void);

/**
 * The text of this thread's last error, written to `buffer` (at most `capacity` bytes with the
 * closing NUL), and in `storage`, unless null, the storage it is about or `TIDE_NO_STORAGE`.
 * Returns the text's length.
 *
 * # Safety
 * `buffer` is null or has `capacity` bytes; `storage` is null or points to one `uint32_t`.
 */
size_t tide_last_error(char *buffer, size_t capacity, uint32_t *storage);

/**
 * Opens a share of a pool, formatting it first where its devices are fresh directories, unless it
 * must exist.
 *
 * # Safety
 * `options` points to options as long as their `size` says, whose texts are NUL-terminated; `pool`
 * points to one `uint64_t`. An arena that the options name stays allocated until the pool is
 * closed.
 */
int32_t tide_pool_open(const struct tide_pool_options *options, uint64_t *pool);

/**
 * Closes a pool: waits for its transfers and releases the share. Of one that
 * `tide_session_pool` gave out only the handle ends.
 */
int32_t tide_pool_close(uint64_t pool);

/**
 * Closes, as `tide_pool_close` does, waiting at most `timeout_ms` for devices: transfers in flight
 * end as stopped then, commits that were begun are in doubt until the pool is opened again, and
 * the call returns half a second later at most. Devices that may still do something keep their
 * memory and the share until the process ends, which the error says. `TIDE_FOREVER` is
 * `tide_pool_close`.
 */
int32_t tide_pool_close_within(uint64_t pool, uint32_t timeout_ms);

/**
 * Adds 1 to the caller's eventfd(2) `fd` whenever a put, a get or a commit of this pool has ended,
 * for those that are begun from now on: so epoll, and whatever is built on it, can wait for
 * transfers. Which one it was, `tide_ticket_wait_any` says. It takes the place of an earlier one,
 * which is signalled no more; -1: none. The library keeps a duplicate until the pool is closed, so
 * `fd` may be closed at any time. Several pools may have the same one.
 *
 * # Safety
 * `fd` is -1 or a file descriptor of this process that nobody closes during the call.
 */
int32_t tide_pool_eventfd(uint64_t pool, int32_t fd);

/**
 * Figures of the pool since it was opened as JSON, written to `buffer`: `data_path` and `why_not`
 * a better one; `pool` with `capacity`, `live`, of that `sealed` by seals alone, `dead`, `free`
 * and `index` in bytes; `devices` with `reads`, `writes`, `flushes`, `bytes_read`,
 * `bytes_written` and `errors` of each, `checksum_retries` (reads whose checksum did not match the
 * first time), `checksum_failures` (nor the second), `in_flight`, the `latency` of `read`, `write`
 * and `flush` (`usual_ns`, `recent_ns`; null before the first), and `slow`: how far it is off its
 * own history, null if it is not; `endurance` as the devices count it; `scrubbed` with `tensors`,
 * `bytes` and `damaged`: what scrubs and `tide_verify` have found. Returns the text's length, 0
 * for an error.
 *
 * # Safety
 * `buffer` is null or has `capacity` bytes.
 */
size_t tide_pool_stats(uint64_t pool, char *buffer, size_t capacity);

/**
 * The names of the durable tensors as JSON, `["name", ...]`, written to `buffer`; null for one
 * that has none. Returns the text's length, 0 for an error.
 *
 * # Safety
 * `buffer` is null or has `capacity` bytes.
 */
size_t tide_pool_list(uint64_t pool, char *buffer, size_t capacity);

/**
 * The bytes that the share's tensors may take, in `capacity`, and how many of them are free, in
 * `free`; each may be null. Bytes of deleted tensors are free once their segment is reclaimed,
 * which a put that needs them waits for.
 *
 * # Safety
 * Each is null or points to one `uint64_t`.
 */
int32_t tide_pool_capacity(uint64_t pool, uint64_t *capacity, uint64_t *free);

/**
 * Reads every tensor of the share and compares it with its checksums; `damaged` is how many have
 * lost bytes. Which, and where on which device, `tide_pool_stats` lists under `scrubbed`. Nothing
 * is repaired: there is one copy. It returns at the end, which takes as long as reading everything
 * does; other threads use the pool meanwhile.
 *
 * # Safety
 * `damaged` points to one `uint64_t`.
 */
int32_t tide_pool_scrub(uint64_t pool, uint64_t *damaged);

/**
 * Writes `length` bytes as the scratch tensor `name`, replacing an older version once complete.
 * The memory belongs to the library until `tide_ticket_released` says otherwise, also after
 * `tide_ticket_drop`.
 *
 * # Safety
 * `name` is NUL-terminated; `address` has `length` bytes that nobody writes until the ticket is
 * released; `ticket` points to one `uint64_t`.
 */
int32_t tide_put(uint64_t pool,
                 const char *name,
                 const void *address,
                 uint64_t length,
                 uint32_t flags,
                 uint64_t *ticket);

/**
 * Reads `length` bytes from `offset` of the tensor `name` into `address`, checksums verified.
 *
 * # Safety
 * `name` is NUL-terminated; `address` has `length` bytes that nobody else touches until the ticket
 * is released; `ticket` points to one `uint64_t`.
 */
int32_t tide_get(uint64_t pool,
                 const char *name,
                 uint64_t offset,
                 void *address,
                 uint64_t length,
                 uint32_t flags,
                 uint64_t *ticket);

/**
 * Forgets the scratch tensor `name`; its space is free once no transfer reads it.
 *
 * # Safety
 * `name` is NUL-terminated.
 */
int32_t tide_delete(uint64_t pool, const char *name);

/**
 * The length of the tensor `name`, in `length`.
 *
 * # Safety
 * `name` is NUL-terminated; `length` points to one `uint64_t`.
 */
int32_t tide_length(uint64_t pool, const char *name, uint64_t *length);

/**
 * Reads the tensor `name`, scratch or durable, and compares it with its checksums: `TIDE_READY`
 * where it is whole, `TIDE_CHECKSUM` or `TIDE_DEVICE_FAILED` where bytes are lost. It returns at
 * the end; `tide_last_error` says how much is lost and where.
 *
 * # Safety
 * `name` is NUL-terminated.
 */
int32_t tide_verify(uint64_t pool, const char *name);

/**
 * Waits at most `timeout_ms` for a ticket: `TIDE_READY` once its transfer or commit succeeded,
 * `TIDE_WAITING` while it has not ended, an error once it failed. A time-out of 0 only looks,
 * `TIDE_FOREVER` waits for the end.
 */
int32_t tide_ticket_wait(uint64_t ticket, uint32_t timeout_ms);

/**
 * Waits at most `timeout_ms` until one of `count` tickets has ended, well or not: `TIDE_READY`,
 * and in `index` which, the first of them in the list; `TIDE_WAITING` if none has. How it ended
 * `tide_ticket_wait` says; take it out of the list then, or it is found again. The tickets may be
 * of several pools. Nothing spins and no thread is started.
 *
 * # Safety
 * `tickets` has `count` items; `index` points to one `size_t`.
 */
int32_t tide_ticket_wait_any(const uint64_t *tickets,
                             size_t count,
                             uint32_t timeout_ms,
                             size_t *index);

/**
 * Stops a transfer as soon as its pieces in flight are back. Its ticket then ends with an error. A
 * commit that was started cannot be stopped: `TIDE_INVALID_ARGUMENT`.
 */
int32_t tide_ticket_cancel(uint64_t ticket);

/**
 * 1 once no device and no copy touches the transfer's memory any more, 0 before. Always 1 for a
 * commit, which has no memory of the caller's.
 */
int32_t tide_ticket_released(uint64_t ticket);

/**
 * Forgets a ticket. Its transfer or commit goes on, and its memory stays in use until it ends: to
 * know when, keep the ticket until it is released.
 */
int32_t tide_ticket_drop(uint64_t ticket);

/**
 * Begins a batch of durable tensors: what it holds appears whole with its commit, or not at all.
 *
 * # Safety
 * `batch` points to one `uint64_t`.
 */
int32_t tide_batch_begin(uint64_t pool, uint64_t *batch);

/**
 * Adds a durable tensor to a batch. Its bytes go through staging memory: the call returns when the
 * memory is the caller's again, which takes as long as the devices do where there is more than
 * staging holds.
 *
 * # Safety
 * `name` is NUL-terminated; `address` has `length` bytes that nobody writes during the call.
 */
int32_t tide_batch_put(uint64_t batch, const char *name, const void *address, uint64_t length);

/**
 * Adds the deletion of a durable tensor to a batch.
 *
 * # Safety
 * `name` is NUL-terminated.
 */
int32_t tide_batch_delete(uint64_t batch, const char *name);

/**
 * Commits a batch and ends it, whatever the answer: on `TIDE_READY` everything in it is on the
 * media.
 */
int32_t tide_batch_commit(uint64_t batch);

/**
 * Starts a commit, as `tide_batch_commit` does, without waiting: everything in the batch is on the
 * media once the ticket is ready. Commits become durable in the order in which they were started,
 * and those that are in flight together share their flushes. A commit that was started cannot be
 * cancelled, and closing the pool waits for it.
 *
 * # Safety
 * `ticket` points to one `uint64_t`.
 */
int32_t tide_batch_start_commit(uint64_t batch, uint64_t *ticket);

/**
 * Drops a batch: nothing in it happens.
 */
int32_t tide_batch_drop(uint64_t batch);

/**
 * Puts, as `tide_put` does, from the memory of the GPU that the pool was opened for. The bytes are
 * read once `after`, a `CUevent` recorded behind the kernels that make them, has happened; null:
 * at once.
 *
 * # Safety
 * `name` is NUL-terminated. `address` has `length` bytes on the GPU, which stay allocated, and
 * which nobody writes after `after`, until the ticket is released; `after` is null or an event
 * that stays open as long. `ticket` points to one `uint64_t`.
 */
int32_t tide_put_gpu(uint64_t pool,
                     const char *name,
                     uint64_t address,
                     uint64_t length,
                     void *after,
                     uint32_t flags,
                     uint64_t *ticket);

/**
 * Gets, as `tide_get` does, into the memory of the GPU that the pool was opened for, written once
 * `after` has happened: the last kernel that uses what was there before; null: at once. With
 * `landed` the ticket is ready, and released, as soon as the copies are on their way: that event
 * was then recorded behind them, and every stream that uses the bytes waits for it. Null: ready
 * when they are there.
 *
 * # Safety
 * `name` is NUL-terminated. `address` has `length` bytes on the GPU, which stay allocated, and
 * which nobody else touches after `after`, until the ticket is released and `landed` has happened;
 * both are null or events that stay open until the release. `ticket` points to one `uint64_t`.
 */
int32_t tide_get_gpu(uint64_t pool,
                     const char *name,
                     uint64_t offset,
                     uint64_t address,
                     uint64_t length,
                     void *after,
                     void *landed,
                     uint32_t flags,
                     uint64_t *ticket);

/**
 * Puts, as `tide_batch_put` does, from the memory of the GPU that the pool was opened for. The
 * bytes are read once `after`, a `CUevent` recorded behind the kernels that make them, has
 * happened; null: at once. No more of them is in host memory than staging holds.
 *
 * # Safety
 * `name` is NUL-terminated. `address` has `length` bytes on the GPU, which stay allocated, and
 * which nobody writes after `after`, until the call returns; `after` is null or an event that
 * stays open as long.
 */
int32_t tide_batch_put_gpu(uint64_t batch,
                           const char *name,
                           uint64_t address,
                           uint64_t length,
                           void *after);

/**
 * Opens a session: formats the pool where its devices are fresh directories, unless it must exist,
 * opens the share, starts the reactor. A pool that was made is told in the statistics (`made`).
 *
 * # Safety
 * `options` points to options as long as their `size` says, whose texts are NUL-terminated;
 * `session` points to one `uint64_t`.
 */
int32_t tide_session_open(const struct tide_session_options *options, uint64_t *session);

/**
 * Closes a session: cancels what is in flight, waits until no device or copy touches the caller's
 * memory, releases the share.
 */
int32_t tide_session_close(uint64_t session);

/**
 * The address of a `uint32_t` that is non-zero while completions wait to be processed: a cheap
 * look between ops. Null for a stale handle. It is valid until the session is closed.
 */
const void *tide_session_attention(uint64_t session);

/**
 * Changes the budget; takes effect at the next op boundary.
 */
int32_t tide_session_set_budget(uint64_t session, uint64_t budget);

/**
 * Sets how many bytes a day may go to the pool's devices from here on, padding, metadata and
 * checkpoints included; 0: as many as it takes. Plans keep to it as far as any does, and
 * `tide_session_throttle` to the rest. What was not written is there to be written for an hour.
 * Another budget forgets what was written under the one before.
 */
int32_t tide_session_set_write_budget(uint64_t session, uint64_t bytes_per_day);

/**
 * Pauses between two steps as long as the write budget asks for, at most `timeout_ms`. Returns
 * `TIDE_WAITING` where that was not long enough: call it again. A caller that begins the next step
 * instead has what is left added to the pause behind it.
 */
int32_t tide_session_throttle(uint64_t session, uint32_t timeout_ms);

/**
 * Reports storages that were born and that died. Repeating a report is harmless.
 *
 * # Safety
 * `births` has `birth_count` items and `deaths` has `death_count`.
 */
int32_t tide_session_sync(uint64_t session,
                          const struct tide_birth *births,
                          size_t birth_count,
                          const uint32_t *deaths,
                          size_t death_count);

/**
 * Names a storage for errors and reports, and says what it is for: 0 other, 1 parameter, 2
 * gradient, 3 optimizer state, 4 activation, 5 buffer.
 *
 * # Safety
 * `name` is NUL-terminated.
 */
int32_t tide_session_name(uint64_t session, uint32_t storage, uint32_t kind, const char *name);

/**
 * Reports that a storage now has another size.
 */
int32_t tide_session_resized(uint64_t session, uint32_t storage, uint64_t size);

/**
 * Reports that a resident storage was written by something that is no op.
 */
int32_t tide_session_modified(uint64_t session, uint32_t storage);

/**
 * Pins (`on` non-zero) or unpins a storage: pinned, its memory stays where it is. Pins are
 * counted.
 */
int32_t tide_session_pin(uint64_t session, uint32_t storage, int32_t on);

/**
 * An op that has ended uses the storage still, as a collective does until its `Work` is complete:
 * it stays until this is called with `on` 0. What needs its room waits. Twice is once.
 */
int32_t tide_session_async_use(uint64_t session, uint32_t storage, int32_t on);

/**
 * Asks that one storage be moved out now; ready when it is out, or when it cannot go.
 */
int32_t tide_session_evict(uint64_t session, uint32_t storage);

/**
 * Moves out all that can leave memory, for a program that leaves the device to others for a while;
 * ready when it is out. Nothing comes back, and no op or step begins, before `tide_session_go_on`.
 * An op that ran has ended. What is pinned stays. Refused where a storage that could leave is in
 * asynchronous use, and (`TIDE_BUSY`) inside another op. The session's
 * buffers in host memory are given back, too, where no GPU and no device has them locked. Where it
 * fails, or the caller gives up waiting, call `tide_session_go_on`.
 *
 * What a pause takes and moves counts to no step; births, deaths, statistics and the end of a step
 * may be reported in one.
 */
int32_t tide_session_pause(uint64_t session);

/**
 * Ends a pause. `at_once` non-zero: ready when what left by it is back, as far as the budget has
 * room beside what was born since; where there is no memory for it, an error says so, and the
 * session goes on with what came. Zero: it comes back as ops need it. Where there is no pause,
 * nothing happens but what `tide_session_settle` does.
 */
int32_t tide_session_go_on(uint64_t session, int32_t at_once);

/**
 * Marks a step: 1 begins, 0 ends one that is complete, 2 ends one that an exception cut short.
 */
int32_t tide_session_step(uint64_t session, int32_t mark);

/**
 * Begins an op: ready once its storages are resident and its outputs have room. `index` below zero
 * is outside a step.
 *
 * # Safety
 * `name` is NUL-terminated; `uses` has `use_count` items.
 */
int32_t tide_session_op_begin(uint64_t session,
                              int64_t index,
                              uint64_t fingerprint,
                              const char *name,
                              const uint32_t *uses,
                              size_t use_count,
                              uint64_t needs);

/**
 * Ends an op, its births reported: ready once the budget holds with its outputs.
 */
int32_t tide_session_op_end(uint64_t session);

/**
 * Says how many ops are around those that begin from here on, for a caller that has code of others
 * run in the middle of an op or of a request (a signal handler, a finalizer), which runs ops
 * itself. One more than before: the next op is inside the one that was begun last, which stays as
 * it is. If that runs, what it uses stays where it is, and the room that it was granted stays its
 * own; if it waits, that is interrupted. One less: what was inside is over, and what is around
 * goes on. A wait for it (for an op, or after `tide_session_op_end`, `_settle`, `_evict` or
 * `_step`) goes on by `tide_session_resume`, which also has its error, should it fit no longer;
 * where the session has callbacks, by the call that has called back. A step that begins or ends
 * has none around it.
 *
 * A request that was handed out is handed out again only where no more ops are around than there
 * were: inside of the op in which it was begun, others are. Until it is answered its storage is in
 * the hands of the caller: it makes no room for ops inside, and what it is to give up counts. Its
 * number is given to no other storage that is born inside.
 *
 * An op inside is refused with `TIDE_BUSY` where it cannot run before what is around has gone on:
 * it uses what the caller is in the middle of moving, or needs room that this, or the op around,
 * has. `tide_session_evict` returns the same where it would have to wait for that. Nothing of the
 * op has happened then, and all else goes on; the op can run when the request was answered, or the
 * op around has ended. One that does not fit beside what the op around uses exceeds the budget
 * (`TIDE_BUDGET_EXCEEDED`).
 */
int32_t tide_session_nest(uint64_t session, uint32_t depth);

/**
 * Processes what completed and evicts until the budget holds.
 */
int32_t tide_session_settle(uint64_t session);

/**
 * Looks again at what the last call waits for.
 */
int32_t tide_session_resume(uint64_t session);

/**
 * Looks again at what the last call waits for, and refuses it (`TIDE_BUDGET_EXCEEDED`) where it
 * waits for asynchronous uses alone that may themselves wait for the caller: sends and receives.
 */
int32_t tide_session_resume_or_refuse(uint64_t session);

/**
 * Waits for a completion, at most `timeout_ms`, then looks again at what the last call waits for.
 */
int32_t tide_session_wait(uint64_t session, uint32_t timeout_ms);

/**
 * The next request: returns `TIDE_ACTION` where there is one. The same request comes again until
 * it is reported done, or until its storage has died or has to move no more. Deprecated: version
 * 0.3 has callbacks alone (`tide_session_set_callbacks`).
 *
 * # Safety
 * `action` points to one `tide_action`.
 */
int32_t tide_session_next_action(uint64_t session, struct tide_action *action);

/**
 * Reports a request as done, with the storage's address where one was asked for (0: it cannot be
 * done), or the part's. On a GPU its memory is touched only once `after`, a `CUevent`, has
 * happened: the last kernel so far that writes an evicted storage, or uses what the memory of an
 * allocated one was before. Null: at once. When a storage is settled its bytes are there, for any
 * stream.
 *
 * # Safety
 * `address` is 0 or that of the request's `size` bytes, on the session's GPU if it has one. They
 * stay alive, and for `TIDE_ALLOCATE` nobody else touches them after `after`, until the storage is
 * released or settled. So does the event.
 */
int32_t tide_session_action_done(uint64_t session,
                                 uint64_t sequence,
                                 uint64_t address,
                                 void *after);

/**
 * Completes `TIDE_ALLOCATE` on a GPU without a wait for the copies. When the storage is settled or
 * released, its bytes may still be on their way: by then the `CUevent` `landed` was recorded
 * behind them, and every stream that uses the bytes, or the memory, waits for it. It may be the
 * event that `after` is. Null: as `tide_session_action_done`.
 *
 * # Safety
 * As for `tide_session_action_done`; and nobody else touches the memory before `landed` has
 * happened, also when the storage was settled or released.
 */
int32_t tide_session_allocated(uint64_t session,
                               uint64_t sequence,
                               uint64_t address,
                               void *after,
                               void *landed);

/**
 * Figures of the session so far as JSON, written to `buffer`. Returns the text's length, 0 for a
 * stale handle.
 *
 * # Safety
 * `buffer` is null or has `capacity` bytes.
 */
size_t tide_session_stats(uint64_t session, char *buffer, size_t capacity);

/**
 * Writes the plan's simulation of a step at the pace of the last one to `buffer`, as JSON:
 * `time_ns`, `stall_ns`, `stalls`, `bytes_written`, `bytes_read`; null where the last step
 * followed no plan to its end. Simulates, which may take a while. Returns the text's length, 0 for
 * a stale handle.
 *
 * # Safety
 * `buffer` is null or has `capacity` bytes.
 */
size_t tide_session_simulate(uint64_t session, char *buffer, size_t capacity);

/**
 * Writes the HTML report to the file `path`.
 *
 * # Safety
 * `path` is NUL-terminated.
 */
int32_t tide_session_report(uint64_t session, const char *path);

/**
 * Writes the trace of the step that the plan is for to the file `path`, as docs/plan.md has it.
 * Refused before there is a plan.
 *
 * # Safety
 * `path` is NUL-terminated.
 */
int32_t tide_session_trace(uint64_t session, const char *path);

/**
 * Reports the time of each op of the step that is about to end, in nanoseconds: for ops that had
 * not run when they were reported as ended, such as kernels. Without this call the time between
 * the two reports counts.
 *
 * # Safety
 * `durations` has `count` items.
 */
int32_t tide_session_durations(uint64_t session, const uint64_t *durations, size_t count);

/**
 * Reports what the caller has seen of the last complete step, for `tide_session_stats` and
 * `tide_session_report`: spans of each clock by time, without overlap. Those of a GPU say when
 * kernels ran, when it waited, and when it had nothing to do.
 *
 * # Safety
 * `spans` has `count` items.
 */
int32_t tide_session_step_spans(uint64_t session, const struct tide_step_span *spans, size_t count);

/**
 * The step follows the plan no longer: the caller saw that it does something else.
 */
int32_t tide_session_leave_plan(uint64_t session);

/**
 * Holds the first plan: with `on` non-zero it is not followed, once ready, until this is called
 * with 0: ranks of a distributed program begin to follow theirs in the same step. Returns 1 if it
 * is ready, so that the next step can follow it; else 0.
 */
int32_t tide_session_hold_plan(uint64_t session, int32_t on);

/**
 * Lets plans move parts of storages, and the caller is asked for parts. Before any storage is
 * born. Where storages are on a GPU only those that are called divisible move in parts.
 */
int32_t tide_session_use_parts(uint64_t session);

/**
 * The memory that this storage has, and gets again when it has been out, can be given back in
 * parts: a plan may move parts of it from here on. Matters for a GPU's memory alone.
 */
int32_t tide_session_divisible(uint64_t session, uint32_t storage);

/**
 * Writes to `begin` where in its storage the part begins that the next request, which is number
 * `sequence`, is about, in bytes. A multiple of 2 MiB.
 *
 * # Safety
 * `begin` points to one `uint64_t`.
 */
int32_t tide_session_part_begin(uint64_t session, uint64_t sequence, uint64_t *begin);

/**
 * The plan's triggers: in `due` one byte per op, non-zero where a migration begins, and in `count`
 * how many; 0 while there is no plan. They stay where they are until the next step begins, which
 * may bring another plan for the same ops.
 *
 * # Safety
 * `due` points to one pointer and `count` to one `uint64_t`.
 */
int32_t tide_session_plan(uint64_t session, const uint8_t **due, uint64_t *count);

/**
 * Chooses which of these regions of the planned step are better run once, so that what they make
 * stays or moves: looked for from here on, beside the training. Refused before there is a plan.
 *
 * # Safety
 * `regions` has `count` items.
 */
int32_t tide_session_choose_regions(uint64_t session,
                                    const struct tide_region *regions,
                                    size_t count);

/**
 * Names ops of the planned step that write the same bytes, as the caller has compared them, for
 * the next `tide_session_choose_regions`: what is gathered from other ranks once more, for one.
 * What reads the bytes of either is taken to read the same. The caller compares them in later
 * steps, too.
 *
 * From the first call on, which may name none, a storage is one and the same in all of a step,
 * also where that empties it and fills it again; before, plans have each such time as a storage of
 * its own.
 *
 * # Safety
 * `pairs` has `count` items.
 */
int32_t tide_session_same_writes(uint64_t session,
                                 const struct tide_same_writes *pairs,
                                 size_t count);

/**
 * The choice that was asked for, as JSON, written to `buffer`: `once`, the regions that are better
 * run once, by their places; `best`, those that run once in the best choice, however little it
 * brings; `refused`, a list of places each with why that region cannot be; `tried` and
 * `without_room`, how many choices were looked at and how many of them the pool has no room for;
 * `own_ns`, `none_ns` and `best_ns`, what a step is expected to take with all run twice, with none
 * and with the best choice. Or `why_not` alone; null while it is being made. Returns the text's
 * length, 0 for a stale handle.
 *
 * # Safety
 * `buffer` is null or has `capacity` bytes.
 */
size_t tide_session_chosen_regions(uint64_t session, char *buffer, size_t capacity);

/**
 * Restarts learning between two steps: those to come are others. There is no plan from here on;
 * they are recorded and planned for as the first ones were.
 */
int32_t tide_session_learn_again(uint64_t session);

/**
 * Gives a session callbacks, or with null takes them from it. With them, each function of the
 * session that returns `TIDE_ACTION` or `TIDE_WAITING` without them performs all requests and
 * waits itself, and returns `TIDE_READY` or an error: `tide_session_op_begin`, `_op_end`, `_step`,
 * `_settle`, `_evict`, `_pause`, `_go_on`, `_resume`, `_resume_or_refuse` and `_wait`.
 * `tide_session_nest` returns at once all the same. No lock of the library is held while a
 * callback runs.
 *
 * One thread at a time may call these functions: another one gets `TIDE_BUSY`. So does a callback
 * that calls one of them without `tide_session_nest`.
 *
 * # Safety
 * `callbacks` is null or points to as many bytes as its `size` says; each function in it is null
 * or takes the arguments of its type, and may be called until the session is closed or gets
 * others. What a callback writes to a `tide_memory` holds as for `tide_session_action_done` and
 * `tide_session_allocated`.
 */
int32_t tide_session_set_callbacks(uint64_t session,
                                   const struct tide_session_callbacks *callbacks);

/**
 * The id that the name of a tensor stands for, in `tensor`.
 *
 * # Safety
 * `name` is NUL-terminated; `tensor` points to one `tide_tensor`.
 */
int32_t tide_tensor_named(const char *name, struct tide_tensor *tensor);

/**
 * Adds a seal to a batch: what stands under these ids now, scratch or durable, is held under the
 * name `seal` once the batch is committed, whatever happens to the tensors. What this batch has
 * put before the call stands for it, and what it has deleted does not. Nothing is copied. It takes
 * the place of a seal of the same name. A full index returns `TIDE_FULL`, and nothing has changed.
 *
 * # Safety
 * `seal` is NUL-terminated; `tensors` has `count` items.
 */
int32_t tide_batch_seal(uint64_t batch,
                        const char *seal,
                        const struct tide_tensor *tensors,
                        size_t count);

/**
 * Seals, as `tide_batch_seal` does, what the seal `from` holds under these ids; where it holds
 * nothing, of what this batch has put or stands. What `from` was made of may have changed
 * meanwhile. It must be committed; `TIDE_NOT_FOUND` where there is none.
 *
 * # Safety
 * `seal` and `from` are NUL-terminated; `tensors` has `count` items.
 */
int32_t tide_batch_seal_from(uint64_t batch,
                             const char *seal,
                             const char *from,
                             const struct tide_tensor *tensors,
                             size_t count);

/**
 * Adds the end of a seal to a batch. What it alone holds is free once the batch is committed.
 *
 * # Safety
 * `seal` is NUL-terminated.
 */
int32_t tide_batch_drop_seal(uint64_t batch, const char *seal);

/**
 * The seals as JSON, by name, written to `buffer`: of each `name`, `sealed_at` in seconds since
 * 1970, its `order` among the commits of seals of its share (0 where older software made it; a
 * clock may have been set back), `tensors` and their `bytes`, and the bytes of space that it
 * `alone` holds. Returns the text's length, 0 for an error.
 *
 * # Safety
 * `buffer` is null or has `capacity` bytes.
 */
size_t tide_pool_seals(uint64_t pool, char *buffer, size_t capacity);

/**
 * Writes the tensors of a seal to `buffer`, as JSON: of each tensor its `id` (32 hexadecimal
 * digits), its `name` or null, and its `length`. Returns the text's length, 0 for an error.
 *
 * # Safety
 * `seal` is NUL-terminated; `buffer` is null or has `capacity` bytes.
 */
size_t tide_seal_tensors(uint64_t pool, const char *seal, char *buffer, size_t capacity);

/**
 * Gets, as `tide_get` does, from a seal.
 *
 * # Safety
 * `seal` is NUL-terminated; `address` has `length` bytes that nobody else touches until the ticket
 * is released; `ticket` points to one `uint64_t`.
 */
int32_t tide_seal_get(uint64_t pool,
                      const char *seal,
                      struct tide_tensor tensor,
                      uint64_t offset,
                      void *address,
                      uint64_t length,
                      uint32_t flags,
                      uint64_t *ticket);

/**
 * Reads all that a seal holds and compares it with its checksums: `TIDE_READY` where it is whole,
 * `TIDE_CHECKSUM` where bytes are lost. It returns at the end; `tide_last_error` says which tensor
 * has lost bytes, and `tide_pool_stats` has all of them.
 *
 * # Safety
 * `seal` is NUL-terminated.
 */
int32_t tide_seal_verify(uint64_t pool, const char *seal);

/**
 * A handle of the pool in which a session's storages lie, in `pool`: for puts, batches and seals
 * beside the session. `tide_pool_close` ends the handle alone; once the session is closed it is of
 * no use.
 *
 * # Safety
 * `pool` points to one `uint64_t`.
 */
int32_t tide_session_pool(uint64_t session, uint64_t *pool);

/**
 * Writes to `tensors`, for each of `count` storages of a session, the id in the log of a copy that
 * has its bytes; zeroes where there is none: it was never written, or has changed since.
 * `addresses` and `lengths` say where the storages' memory is, 0 for those that are not in memory.
 * What is in memory is compared with its copy, by checksums and without reading that: bytes that
 * changed unseen have none, and neither has what is pinned or cannot move. With `write` not 0,
 * what is in memory, has no copy and could leave is written: it is clean from then on. Of a call
 * that fails nothing is left. Nobody changes or evicts the storages during the call.
 *
 * # Safety
 * `storages`, `addresses`, `lengths` and `tensors` have `count` items; each address that is not 0
 * has as many bytes as its length says, in host memory, which nobody writes during the call.
 */
int32_t tide_session_copies(uint64_t session,
                            const uint32_t *storages,
                            const uint64_t *addresses,
                            const uint64_t *lengths,
                            size_t count,
                            uint32_t write,
                            struct tide_tensor *tensors);

/**
 * Writes the limits of the host's memory for this process to `buffer`, as JSON: `machine`, what
 * the machine has; `limit`, the lowest limit of the control groups (of a container, say) that the
 * process is in, and `limit_file`, the kernel's file that sets it, both null where none is below
 * `machine`; `available`, what can be allocated now without swapping and below every limit. All in
 * bytes. Returns the text's length, 0 for an error.
 *
 * # Safety
 * `buffer` is null or has `capacity` bytes.
 */
size_t tide_host_memory(char *buffer, size_t capacity);

/**
 * Sets whether large allocations of `tide_memory_allocate` come from memory that is kept when it
 * is freed, so that it can be used again without page faults. With 0 all that is kept goes back to
 * the system; what is allocated stays until it is freed. It is the whole process's.
 */
int32_t tide_memory_keep(int32_t on);

/**
 * Sets whether the calling thread keeps small blocks that it frees by `tide_memory_free`, 8 MiB at
 * most, and gets them again for allocations of the same size. With 0 all of them go back to the C
 * library.
 */
void tide_memory_keep_small(int32_t on);

/**
 * Gives at least `bytes` of what is kept back to the system, or all that there is; small blocks of
 * the calling thread go back to the C library where the rest is not enough. Returns how many bytes
 * went.
 */
uint64_t tide_memory_release(uint64_t bytes);

/**
 * Holds the process at `most` bytes of resident memory that is no file's, as far as what is kept
 * goes: what is too much goes back to the system now, and from now on when an allocation takes
 * more. What others in the process have counts as it is now, so this is called again from time to
 * time. Returns by how many bytes the process would be above that if nothing were kept.
 */
uint64_t tide_memory_hold(uint64_t most);

/**
 * Returns the bytes of freed memory that are kept, for all threads, and small blocks of the
 * calling one.
 */
uint64_t tide_memory_kept(void);

/**
 * Gives the pages of a part of an allocation back to the system: its bytes are lost, and nobody
 * reads it before it is written again. Pages that it shares with what is beside it stay.
 *
 * # Safety
 * `address` is that of `length` bytes of private memory of the caller's, which nobody else reads
 * or writes meanwhile.
 */
void tide_memory_decommit(void *address, uint64_t length);

/**
 * Recommits a part that is about to be written again: what is kept makes way for its pages.
 */
void tide_memory_recommit(void *address, uint64_t length);

/**
 * Allocates, as `posix_memalign` does, which it calls for what is small, and while nothing is to
 * be kept. Small sizes are rounded up to multiples of 64 bytes.
 *
 * # Safety
 * As `posix_memalign`; only `tide_memory_free` frees it.
 */
int32_t tide_memory_allocate(void **result, size_t alignment, size_t size);

/**
 * Frees, as `free` does, which it calls for all that did not come from memory that is kept.
 *
 * # Safety
 * As `free`.
 */
void tide_memory_free(void *memory);

/**
 * Writes to `granule` the unit of the parts of a GPU's memory that `tide_gpu_memory_decommit`
 * releases. `gpu` is CUDA's number of it plus one, as in the options of sessions.
 *
 * # Safety
 * `granule` points to one `uint64_t`.
 */
int32_t tide_gpu_memory_granule(uint8_t gpu, uint64_t *granule);

/**
 * Allocates memory of a GPU, of which parts can be given back while the rest stays. `managed` gets
 * a `DLManagedTensor` of `DLPack`, a row of `size` bytes on a device of the type `device_type` (2:
 * CUDA), for a framework to make a tensor of: null where the GPU has no memory left. Its deleter
 * may be called by any thread, and while kernels use the memory: see `tide_gpu_memory_take_care`.
 *
 * # Safety
 * `managed` points to one pointer.
 */
int32_t tide_gpu_memory_allocate(uint8_t gpu, uint64_t size, int32_t device_type, void **managed);

/**
 * Returns 1 if such an allocation begins at `address` and was not released by the framework; else
 * 0.
 */
int32_t tide_gpu_memory_is_live(uint64_t address);

/**
 * Gives the memory of a part of such an allocation back to the GPU: its bytes are lost, its
 * addresses stay. Both numbers are multiples of the granule, but for the end of the allocation. Of
 * what was let go of nothing is done.
 *
 * # Safety
 * Nothing that was launched uses the part any more, and nothing does before
 * `tide_gpu_memory_recommit`.
 */
int32_t tide_gpu_memory_decommit(uint64_t address, uint64_t length);

/**
 * Recommits a part that is about to be written again. Returns 1; 0 where the GPU has no memory
 * left, and then the part is as it was.
 */
int32_t tide_gpu_memory_recommit(uint64_t address, uint64_t length);

/**
 * Announces, with `on` non-zero, that somebody calls `tide_gpu_memory_take_dead` from time to
 * time: what the framework has let go of stays until then. With 0 its deleter waits for the GPU
 * and frees, as `cuMemFree` does, and so does this for what is left. It is the whole process's.
 */
int32_t tide_gpu_memory_take_care(int32_t on);

/**
 * Takes all that the framework has let go of by now. Returns a number for `tide_gpu_memory_free`,
 * or 0 where there is nothing.
 */
uint64_t tide_gpu_memory_take_dead(void);

/**
 * Frees what was taken under this number.
 *
 * # Safety
 * Whatever was launched before it was taken has happened.
 */
int32_t tide_gpu_memory_free(uint64_t taken);

/**
 * Opens an arena of at most `bytes` of a GPU's memory; `gpu` is CUDA's number of it plus one.
 * Memory is allocated from the driver when it is first wanted, and kept until the arena is closed.
 * `least` gets the size from which allocations should come from it: smaller ones would be rounded
 * up by more than themselves. `arena` gets its handle.
 *
 * # Safety
 * `least` and `arena` point to one `uint64_t` each.
 */
int32_t tide_gpu_arena_open(uint8_t gpu, uint64_t bytes, uint64_t *least, uint64_t *arena);

/**
 * Closes an arena. What is free goes back to the driver, which waits for what uses it; what is
 * allocated stays, and goes back when it is freed.
 */
int32_t tide_gpu_arena_close(uint64_t arena);

/**
 * Gives all that is free in an arena back to the driver, which waits for what uses it.
 */
int32_t tide_gpu_arena_trim(uint64_t arena);

/**
 * Allocates memory. Returns 1, and `address` gets where it begins; 0 where the arena has no room,
 * the stream is being captured, or the driver has failed: another allocator is asked then. It may
 * be written by what is put into the stream `waits` from here on, which waits on the GPU for what
 * uses it still; `uses` is a stream that uses it until it is freed. Both may be the same, and null
 * is the default stream.
 *
 * # Safety
 * `waits` and `uses` are null or a `CUstream` that is open, and `uses` as long as the memory is
 * allocated. `address` points to one `uint64_t`.
 */
int32_t tide_gpu_arena_allocate(uint64_t arena,
                                uint64_t bytes,
                                void *waits,
                                void *uses,
                                uint64_t *address);

/**
 * Notes that another stream uses the allocation at `address`, until it is freed. Returns 0 where
 * no arena has one there, else 1.
 *
 * # Safety
 * `stream` is null or a `CUstream` that is open as long as the memory is allocated.
 */
int32_t tide_gpu_arena_use(uint64_t address, void *stream);

/**
 * Frees the allocation at `address`, of whatever arena. Returns whether there was one: 1, or 0.
 * Its memory is given out again behind all that has been put into the streams that use it. An
 * event `behind` stands for the `count` streams at `covered`, and for what uses it elsewhere: then
 * only what the other streams have counts beside it.
 *
 * # Safety
 * `covered` points to `count` handles of streams. `behind` is null or an event of CUDA's that is
 * recorded and open. Nobody uses the memory but what is in those streams, and before the event.
 */
int32_t tide_gpu_arena_free(uint64_t address, const uint64_t *covered, size_t count, void *behind);

/**
 * Frees the memory of a part of the allocation at `address`: `length` bytes from `begin` on. Its
 * addresses stay the allocation's, and nobody uses them until `tide_gpu_arena_allocate_part`. The
 * memory is given out again behind the event `behind`; null: at once. Returns whether an arena has
 * such a part: 1, or 0. A part begins and ends at multiples of 2 MiB, or where the allocation
 * does.
 *
 * # Safety
 * `behind` is null or an event of CUDA's that is recorded and open. Nobody uses the part's memory
 * but what is before it.
 */
int32_t tide_gpu_arena_free_part(uint64_t address, uint64_t begin, uint64_t length, void *behind);

/**
 * Allocates memory for a part that has freed it. Returns 1; 0 where the arena has no room, or no
 * such part. It may be written by what is put into the stream `waits` from here on, which waits on
 * the GPU for what uses the memory still.
 *
 * # Safety
 * `waits` is null or a `CUstream` that is open.
 */
int32_t tide_gpu_arena_allocate_part(uint64_t address,
                                     uint64_t begin,
                                     uint64_t length,
                                     void *waits);

/**
 * Writes figures of an arena to `buffer`, as JSON, in bytes: `capacity`, what it may have;
 * `reserved`, what it has of the driver's; `allocated` and `requested`, what is allocated of that,
 * with and without rounding; since it was opened: `allocations` and those that were `declined`,
 * `made`, what came from the driver, `remapped`, what was mapped at another address,
 * `stream_waits` and `host_waits`, the uses that streams and the host waited for; and `error`, the
 * driver's error after which all is declined, or null. Returns the text's length, 0 for an error.
 *
 * # Safety
 * `buffer` is null or has `capacity` bytes.
 */
size_t tide_gpu_arena_figures(uint64_t arena, char *buffer, size_t capacity);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TIDELOG_H */
