/* A framework without Python: opens a pool on two directories, moves tensors out and back, commits a
 * durable one and finds it again. Run as `roundtrip DIRECTORY DIRECTORY`; exits 0 if all of it holds. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tidelog.h"

#define TENSORS 7
#define FOREVER_MS 60000

static void fail(int line, const char *what) {
  char text[4096];
  tide_last_error(text, sizeof text, NULL);
  fprintf(stderr, "roundtrip.c:%d: %s does not hold; last error: %s\n", line, what, text);
  exit(1);
}

#define CHECK(what)              \
  do {                           \
    if (!(what))                 \
      fail(__LINE__, #what);     \
  } while (0)

/* The bytes of a tensor follow from its seed, so that a mix-up shows. */
static void fill(unsigned char *bytes, size_t length, uint64_t seed) {
  uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (size_t i = 0; i < length; i++) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    bytes[i] = (unsigned char)(state >> 32);
  }
}

static unsigned char *filled(size_t length, uint64_t seed) {
  unsigned char *bytes = malloc(length ? length : 1);
  CHECK(bytes != NULL);
  fill(bytes, length, seed);
  return bytes;
}

static void finish(uint64_t ticket) {
  CHECK(tide_ticket_wait(ticket, FOREVER_MS) == TIDE_READY);
  CHECK(tide_ticket_released(ticket) == 1);
  CHECK(tide_ticket_drop(ticket) == TIDE_READY);
}

/* An error has the code and a text that says `mentions`. */
static void check_error(int found, int expected, const char *mentions) {
  char text[4096];
  uint32_t about = 0;
  CHECK(found == expected);
  size_t length = tide_last_error(text, sizeof text, &about);
  CHECK(length > 0 && length == strlen(text));
  CHECK(strstr(text, mentions) != NULL);
  CHECK(about == TIDE_NO_STORAGE);
  char cut[8];
  CHECK(tide_last_error(cut, sizeof cut, NULL) == length);
  CHECK(strlen(cut) == sizeof cut - 1 && memcmp(cut, text, sizeof cut - 1) == 0);
}

static uint64_t open_pool(const char *devices) {
  tide_pool_options options = {.size = sizeof options};
  options.devices = devices;
  options.data_path = "auto";
  options.staging = 2 << 20;
  options.pool_size = 256 << 20;
  options.buffered = 1;
  uint64_t pool = 0;
  CHECK(tide_pool_open(&options, &pool) == TIDE_READY);
  CHECK(pool != 0);
  return pool;
}

/* Several tensors in flight at once, of sizes around blocks and stripe units. */
static void put_and_get(uint64_t pool) {
  static const size_t lengths[TENSORS] = {0, 1, 4096, 4097, 262144, 1000003, 8 << 20};
  uint64_t tickets[TENSORS];
  unsigned char *sources[TENSORS];
  unsigned char *copies[TENSORS];
  char name[32];
  for (int i = 0; i < TENSORS; i++) {
    snprintf(name, sizeof name, "tensor.%d", i);
    sources[i] = filled(lengths[i], i + 1);
    CHECK(tide_put(pool, name, sources[i], lengths[i], 0, &tickets[i]) == TIDE_READY);
  }
  for (int i = 0; i < TENSORS; i++)
    finish(tickets[i]);
  for (int i = 0; i < TENSORS; i++) {
    snprintf(name, sizeof name, "tensor.%d", i);
    uint64_t length = 1;
    CHECK(tide_length(pool, name, &length) == TIDE_READY && length == lengths[i]);
    copies[i] = calloc(1, length ? length : 1);
    CHECK(copies[i] != NULL);
    CHECK(tide_get(pool, name, 0, copies[i], length, i % 2 ? TIDE_URGENT : 0, &tickets[i]) ==
          TIDE_READY);
  }
  for (int i = 0; i < TENSORS; i++) {
    finish(tickets[i]);
    CHECK(memcmp(copies[i], sources[i], lengths[i]) == 0);
    free(copies[i]);
    free(sources[i]);
  }
}

/* Parts of a tensor, and nothing beside them. */
static void get_ranges(uint64_t pool) {
  static const uint64_t ranges[][2] = {{0, 1}, {5, 4096}, {262143, 2}, {262144, 262144}, {999999, 4}};
  unsigned char *whole = filled(1000003, 6);
  for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
    uint64_t offset = ranges[i][0], length = ranges[i][1], ticket = 0;
    unsigned char *part = malloc(length + 1);
    CHECK(part != NULL);
    part[length] = 0xA5;
    CHECK(tide_get(pool, "tensor.5", offset, part, length, TIDE_URGENT, &ticket) == TIDE_READY);
    finish(ticket);
    CHECK(memcmp(part, whole + offset, length) == 0 && part[length] == 0xA5);
    free(part);
  }
  free(whole);
}

/* A put that is called off leaves the older version or is complete; either way its memory comes back. */
static void cancel_a_put(uint64_t pool) {
  const size_t length = 8 << 20;
  unsigned char *older = filled(length, 7);
  unsigned char *newer = filled(length, 77);
  unsigned char *found = malloc(length);
  uint64_t ticket = 0;
  CHECK(found != NULL);
  CHECK(tide_put(pool, "tensor.6", newer, length, 0, &ticket) == TIDE_READY);
  CHECK(tide_ticket_cancel(ticket) == TIDE_READY);
  int ended = tide_ticket_wait(ticket, FOREVER_MS);
  if (ended != TIDE_READY)
    check_error(ended, TIDE_CANCELLED, "cancelled");
  CHECK(tide_ticket_released(ticket) == 1);
  CHECK(tide_ticket_drop(ticket) == TIDE_READY);
  CHECK(tide_get(pool, "tensor.6", 0, found, length, 0, &ticket) == TIDE_READY);
  finish(ticket);
  CHECK(memcmp(found, ended == TIDE_READY ? newer : older, length) == 0);
  free(found);
  free(newer);
  free(older);
}

/* A dropped ticket is gone, its transfer is not. */
static void drop_a_ticket(uint64_t pool, const unsigned char *bytes, size_t length) {
  uint64_t ticket = 0, found = 0;
  CHECK(tide_put(pool, "dropped", bytes, length, 0, &ticket) == TIDE_READY);
  CHECK(tide_ticket_drop(ticket) == TIDE_READY);
  check_error(tide_ticket_wait(ticket, 0), TIDE_STALE_HANDLE, "ticket");
  check_error(tide_ticket_drop(ticket), TIDE_STALE_HANDLE, "ticket");
  while (tide_length(pool, "dropped", &found) != TIDE_READY) {
  }
  CHECK(found == length);
}

static void commit_a_batch(uint64_t pool) {
  unsigned char *bytes = filled(300000, 42);
  uint64_t batch = 0, length = 0;
  CHECK(tide_batch_begin(pool, &batch) == TIDE_READY);
  CHECK(tide_batch_put(batch, "durable", bytes, 300000) == TIDE_READY);
  CHECK(tide_batch_put(batch, "taken back", bytes, 10) == TIDE_READY);
  CHECK(tide_batch_delete(batch, "taken back") == TIDE_READY);
  memset(bytes, 0, 300000); /* the batch has its own copy */
  check_error(tide_length(pool, "durable", &length), TIDE_NOT_FOUND, "durable");
  CHECK(tide_batch_commit(batch) == TIDE_READY);
  check_error(tide_batch_commit(batch), TIDE_STALE_HANDLE, "batch");
  CHECK(tide_batch_begin(pool, &batch) == TIDE_READY);
  CHECK(tide_batch_put(batch, "never committed", bytes, 300000) == TIDE_READY);
  CHECK(tide_batch_drop(batch) == TIDE_READY);
  free(bytes);
}

static void find_the_durable_tensor(uint64_t pool) {
  unsigned char *expected = filled(300000, 42);
  unsigned char *found = malloc(300000);
  uint64_t length = 0, ticket = 0;
  CHECK(found != NULL);
  CHECK(tide_length(pool, "durable", &length) == TIDE_READY && length == 300000);
  CHECK(tide_get(pool, "durable", 0, found, length, TIDE_URGENT, &ticket) == TIDE_READY);
  finish(ticket);
  CHECK(memcmp(found, expected, length) == 0);
  CHECK(tide_length(pool, "taken back", &length) == TIDE_NOT_FOUND);
  CHECK(tide_length(pool, "never committed", &length) == TIDE_NOT_FOUND);
  CHECK(tide_length(pool, "tensor.4", &length) == TIDE_NOT_FOUND); /* scratch */
  free(found);
  free(expected);
}

static void make_mistakes(uint64_t pool) {
  unsigned char byte = 0;
  uint64_t ticket = 0;
  tide_pool_options options = {.size = sizeof options};
  check_error(tide_pool_open(NULL, &ticket), TIDE_INVALID_ARGUMENT, "options");
  check_error(tide_pool_open(&options, &ticket), TIDE_INVALID_ARGUMENT, "devices");
  options.size = 0;
  check_error(tide_pool_open(&options, &ticket), TIDE_INVALID_ARGUMENT, "sizeof");
  check_error(tide_put(pool, NULL, &byte, 1, 0, &ticket), TIDE_INVALID_ARGUMENT, "name");
  check_error(tide_put(pool, "\xff\xfe", &byte, 1, 0, &ticket), TIDE_INVALID_ARGUMENT, "UTF-8");
  check_error(tide_put(pool, "x", NULL, 1, 0, &ticket), TIDE_INVALID_ARGUMENT, "address");
  check_error(tide_get(pool, "no such", 0, &byte, 1, 0, &ticket), TIDE_NOT_FOUND, "no");
  check_error(tide_get(pool, "tensor.4", UINT64_MAX, &byte, 1, 0, &ticket), TIDE_INVALID_ARGUMENT,
              "overflow");
  check_error(tide_get(pool, "tensor.4", 262144, &byte, 1, 0, &ticket), TIDE_OUT_OF_RANGE, "within");
  check_error(tide_delete(pool, "durable"), TIDE_POOL_FAILED, "durable");
  check_error(tide_delete(pool + 1000, "x"), TIDE_STALE_HANDLE, "pool");
  CHECK(ticket == 0);
}

int main(int count, char **arguments) {
  CHECK(count == 3);
  CHECK(strlen(tide_version()) > 0);
  char devices[8192];
  int length = snprintf(devices, sizeof devices, "%s,%s", arguments[1], arguments[2]);
  CHECK(length > 0 && (size_t)length < sizeof devices);
  unsigned char *dropped = filled(4 << 20, 9);

  uint64_t pool = open_pool(devices);
  put_and_get(pool);
  get_ranges(pool);
  cancel_a_put(pool);
  drop_a_ticket(pool, dropped, 4 << 20);
  commit_a_batch(pool);
  make_mistakes(pool);
  CHECK(tide_delete(pool, "tensor.1") == TIDE_READY);
  CHECK(tide_delete(pool, "tensor.1") == TIDE_NOT_FOUND);
  CHECK(tide_pool_close(pool) == TIDE_READY);
  check_error(tide_pool_close(pool), TIDE_STALE_HANDLE, "pool");

  pool = open_pool(devices);
  find_the_durable_tensor(pool);
  CHECK(tide_pool_close(pool) == TIDE_READY);
  free(dropped);
  return 0;
}
