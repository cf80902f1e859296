/* What torch has for each kind of device, for one that it knows by name and has nothing for: streams and events, which
 * are those of gds/fake. So the bridge's C++ asks torch for them as it does where there is a GPU.
 *
 * And an allocator of host memory, in which that device's tensors are: it says what is allocated and what is freed. */
#include <Python.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <set>
#include <unordered_map>

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;

constexpr auto KIND = c10::DeviceType::FPGA;
constexpr int NOT_READY = 600;

struct Cuda {
    int (*cuStreamCreate)(void **, unsigned);
    int (*cuStreamWaitEvent)(void *, void *, unsigned);
    int (*cuStreamSynchronize)(void *);
    int (*cuEventCreate)(void **, unsigned);
    int (*cuEventDestroy_v2)(void *);
    int (*cuEventRecord)(void *, void *);
    int (*cuEventQuery)(void *);
    int (*cuEventSynchronize)(void *);
    int (*cuCtxSynchronize)();
    void (*fake_reach)(void *, unsigned, const void *);
    void (*fake_give)(const void *, uint64_t, size_t);
    int (*cuEventElapsedTime)(float *, void *, void *);
    bool (*fake_is_clocked)();
    void (*fake_spend)(uint64_t);
    uint64_t (*fake_now)();
} cuda;

std::atomic<void *> current{nullptr}, deaf{nullptr};  // streams: that ops are launched on, and one that never waits
std::atomic<bool> computes_at_launch{true};
std::mutex mutex;  // of the next ones
std::set<void *> pool, waited;                  // streams of nobody's; events that streams wait for and that had not happened
std::set<std::pair<const void *, void *>> told;  // memory, and a stream that uses it
int early = 0;

void require(int code) { TORCH_CHECK(code == 0, "CUDA error: ", code); }

/* What may wait has not Python's lock, as with torch's own functions. */
template <class Function>
void without_gil(Function function) {
    int code;
    PyThreadState *thread = PyGILState_Check() ? PyEval_SaveThread() : nullptr;
    code = function();
    if (thread) PyEval_RestoreThread(thread);
    require(code);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
    static void *handle(const Stream &stream) { return reinterpret_cast<void *>(stream.id()); }
    static Stream named(void *handle) {
        return Stream(Stream::UNSAFE, Device(KIND, 0), reinterpret_cast<c10::StreamId>(handle));
    }

    c10::DeviceType type() const override { return KIND; }
    Device exchangeDevice(Device) const override { return Device(KIND, 0); }
    Device getDevice() const override { return Device(KIND, 0); }
    void setDevice(Device) const override {}
    void uncheckedSetDevice(Device) const noexcept override {}
    DeviceIndex deviceCount() const noexcept override { return 0; }  // torch asks each kind, and needs nothing of this
    Stream exchangeStream(Stream stream) const override { return named(current.exchange(handle(stream))); }
    /* Torch asks for it since 2.11: before there is nothing that it could override. */
    void *getStreamNativeHandle(const Stream stream) const { return handle(stream); }

    /* The processor computes an op when it is launched: all is there that the stream waits for. */
    Stream getStream(Device) const override {
        if (computes_at_launch) cuda.fake_reach(current, 0, nullptr);
        return named(current);
    }

    Stream getStreamFromGlobalPool(Device, bool) const override {
        void *made;
        require(cuda.cuStreamCreate(&made, 0));
        std::lock_guard lock(mutex);
        pool.insert(made);
        return named(made);
    }

    void record(void **event, const Stream &stream, const DeviceIndex, const c10::EventFlag) const override {
        if (!*event) require(cuda.cuEventCreate(event, 0));
        require(cuda.cuEventRecord(*event, handle(stream)));
    }

    void block(void *event, const Stream &stream) const override {
        if (handle(stream) == deaf) return;
        require(cuda.cuStreamWaitEvent(handle(stream), event, 0));
        if (!is_programs(stream) || queryEvent(event)) return;
        {
            std::lock_guard lock(mutex);
            early += waited.insert(event).second;
        }
        /* Memory that is freed is gone at once: what is fetched is there when streams have been told to wait. */
        if (computes_at_launch) cuda.fake_reach(handle(stream), 0, nullptr);
    }

    static bool is_programs(const Stream &stream) {
        std::lock_guard lock(mutex);
        return pool.count(handle(stream)) == 0;
    }

    bool queryEvent(void *event) const override {
        int code = cuda.cuEventQuery(event);
        if (code != NOT_READY) require(code);
        return code == 0;
    }

    void destroyEvent(void *event, const DeviceIndex) const noexcept override {
        cuda.cuEventDestroy_v2(event);
        std::lock_guard lock(mutex);
        waited.erase(event);
    }

    void synchronizeEvent(void *event) const override {
        without_gil([&] { return cuda.cuEventSynchronize(event); });
    }
    void synchronizeDevice(const DeviceIndex) const override { without_gil(cuda.cuCtxSynchronize); }

    /* By the fake's clock. Where that does not run, every op takes the same time: `Event.OP_MILLISECONDS`. */
    double elapsedTime(void *begin, void *end, const DeviceIndex) const override {
        if (!cuda.fake_is_clocked()) return 3.0;
        float milliseconds;
        require(cuda.cuEventElapsedTime(&milliseconds, begin, end));
        return milliseconds;
    }

    void recordDataPtrOnStream(const c10::DataPtr &memory, const Stream &stream) const override {
        std::lock_guard lock(mutex);
        told.emplace(memory.get(), handle(stream));
    }
};

/* -- requests of a session, where time is virtual: each takes its time, and so does to be woken behind a wait -- */

struct Callbacks {  // `tide_session_callbacks`
    uint64_t size;
    void *context;
    int32_t (*evict)(void *, const void *, void *);
    int32_t (*release)(void *, const void *);
    int32_t (*allocate)(void *, const void *, void *);
    int32_t (*settle)(void *, const void *, uint8_t);
    int32_t (*wait_begins)(void *);
    int32_t (*wait_ends)(void *);
} bridge;
int32_t (*set_callbacks)(uint64_t, const void *) = nullptr;
uint64_t request_ns = 0, wake_up_ns = 0, wait_began = 0, requests = 0, waits = 0;

void request() {
    ++requests;
    cuda.fake_spend(request_ns);
}

int32_t evict(void *it, const void *bytes, void *memory) {
    request();
    return bridge.evict(it, bytes, memory);
}

int32_t release(void *it, const void *bytes) {
    request();
    return bridge.release(it, bytes);
}

int32_t allocate(void *it, const void *bytes, void *memory) {
    request();
    return bridge.allocate(it, bytes, memory);
}

int32_t wait_begins(void *it) {
    wait_began = cuda.fake_now();
    return bridge.wait_begins(it);
}

int32_t wait_ends(void *it) {
    if (cuda.fake_now() > wait_began) {
        ++waits;
        cuda.fake_spend(wake_up_ns);
    }
    return bridge.wait_ends(it);
}

/* -- memory -- */

struct Block {
    size_t size;
    c10::DeleterFnPtr free;
};

/* Returns 0 where there is memory; hears of what is allocated; hears of what is freed, before. */
std::atomic<int (*)(size_t)> asks{nullptr};
std::atomic<void (*)(void *, size_t)> gives{nullptr}, takes{nullptr};
std::atomic<bool> fills{false};
/* The bridge's arena, where a block has one. */
int (*arena_allocates)(uint64_t, uint64_t, void *, void *, uint64_t *) = nullptr;
int (*arena_frees)(uint64_t, const uint64_t *, size_t, void *) = nullptr;
std::atomic<unsigned> arena_takes{0};
c10::Allocator *beneath = nullptr;  // that of before
auto &blocks = *new std::unordered_map<void *, Block>;  // with `mutex`

void ended(void *memory) {
    Block block{};
    {
        std::lock_guard lock(mutex);
        auto found = blocks.find(memory);
        if (found != blocks.end()) {
            block = found->second;
            blocks.erase(found);
        }
    }
    /* oneDNN frees what it has kept by the allocator of that moment. */
    if (!block.free && arena_frees && arena_frees(reinterpret_cast<uint64_t>(memory), nullptr, 0, nullptr) == 1) return;
    if (!block.free) return beneath->raw_deallocate(memory);
    if (auto take = takes.load()) take(memory, block.size);
    block.free(memory);
}

struct Telling final : c10::Allocator {
    c10::DataPtr allocate(size_t size) override {
        auto ask = asks.load();
        TORCH_CHECK_WITH(OutOfMemoryError, !ask || ask(size) == 0, "CUDA out of memory. Tried to allocate ", size,
                         " bytes.");
        c10::DataPtr made = beneath->allocate(size);
        c10::DeleterFnPtr free = made.get_deleter();
        void *memory = made.release_context();
        if (!memory) return {nullptr, Device(c10::DeviceType::CPU)};
        {
            std::lock_guard lock(mutex);
            blocks[memory] = {size, free};
        }
        /* It may be what the storage had before it left, with the right bytes in it. */
        if (fills) memset(memory, 0xA5, size);
        if (auto give = gives.load()) give(memory, size);
        return {memory, memory, &ended, Device(c10::DeviceType::CPU)};
    }
    c10::DeleterFnPtr raw_deleter() const override { return &ended; }
    void copy_data(void *to, const void *from, size_t size) const override { default_copy_data(to, from, size); }
};

constexpr uint8_t PRIORITY = 100; /* of the bridge's own: the last one is asked */
auto &telling = *new Telling;

template <class Function>
void find(void *library, const char *name, Function &function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    TORCH_CHECK(function, name);
}

}  // namespace

extern "C" {

/* `path`: of the fake's library. All is as in the beginning. */
void guard_begin(const char *path) {
    void *library = dlopen(path, RTLD_NOW);
#define FIND(name) find(library, #name, cuda.name)
    FIND(cuStreamCreate), FIND(cuStreamWaitEvent), FIND(cuStreamSynchronize), FIND(cuEventCreate);
    FIND(cuEventDestroy_v2), FIND(cuEventRecord), FIND(cuEventQuery), FIND(cuEventSynchronize);
    FIND(cuCtxSynchronize), FIND(fake_reach), FIND(fake_give);
    FIND(cuEventElapsedTime), FIND(fake_is_clocked), FIND(fake_spend), FIND(fake_now);
#undef FIND
    static c10::impl::DeviceGuardImplRegistrar registrar(KIND, new Guard);
    std::lock_guard lock(mutex);
    pool.clear(), waited.clear(), told.clear();
    early = 0, computes_at_launch = true, deaf = nullptr;
}

void guard_stream(void *stream) { current = stream; }
void *guard_current() { return current; }
void guard_deafen(void *stream) { deaf = stream; }
void guard_computes_at_launch(bool at_launch) { computes_at_launch = at_launch; }

/* Fetches that ended before their bytes were there. */
int guard_early() {
    std::lock_guard lock(mutex);
    return early;
}

/* Whether the allocator was told that a stream uses this memory. */
bool guard_has_told(const void *memory, void *stream) {
    std::lock_guard lock(mutex);
    return told.count({memory, stream}) != 0;
}

/* The sessions of `set`, a function of the library, take this time from here on; a test takes what is returned for it. */
void *guard_requests_take(void *set, uint64_t request, uint64_t wake_up) {
    set_callbacks = reinterpret_cast<decltype(set_callbacks)>(set);
    request_ns = request, wake_up_ns = wake_up, requests = waits = 0;
    int32_t (*instead)(uint64_t, const void *) = [](uint64_t session, const void *given) {
        if (!given) return set_callbacks(session, given);
        bridge = *static_cast<const Callbacks *>(given);
        Callbacks all = bridge;
        all.evict = &evict, all.release = &release, all.allocate = &allocate;
        all.wait_begins = &wait_begins, all.wait_ends = &wait_ends;
        return set_callbacks(session, &all);
    };
    return reinterpret_cast<void *>(instead);
}

uint64_t guard_requests() { return requests; }
uint64_t guard_waits() { return waits; }

/* The arena's functions. What it gives to an op is looked at by `guard_arena_allocate`, as the op is computed at once; not
 * where a clock runs: copies would be over before their time. */
void guard_arena(decltype(arena_allocates) allocates, decltype(arena_frees) frees) {
    arena_allocates = allocates, arena_frees = frees;
}

/* From here on it takes so long. */
void guard_arena_takes(unsigned microseconds) { arena_takes = microseconds; }

int guard_arena_allocate(uint64_t arena, uint64_t size, void *waits, void *uses, uint64_t *address) {
    int code = arena_allocates(arena, size, waits, uses, address);
    if (arena_takes) usleep(arena_takes);
    if (code != 1 || waits != uses || cuda.fake_is_clocked()) return code;
    cuda.fake_give(waits, *address, size);
    memset(reinterpret_cast<void *>(*address), 0xA5, size);
    return code;
}

void memory_begin(int (*ask)(size_t), void (*give)(void *, size_t), void (*take)(void *, size_t), bool fill) {
    asks = ask, gives = give, takes = take, fills = fill;
    beneath = c10::GetAllocator(c10::DeviceType::CPU);
    c10::SetAllocator(c10::DeviceType::CPU, &telling, PRIORITY);
}

void memory_end() {
    asks = nullptr, gives = takes = nullptr, fills = false;
    c10::SetAllocator(c10::DeviceType::CPU, beneath, PRIORITY);
}
}
