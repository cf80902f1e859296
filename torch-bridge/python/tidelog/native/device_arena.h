// Memory of a GPU out of an arena of the library's (`tide_gpu_arena_open`), for torch's allocator while a block runs.
//
// Torch asks its allocator of a kind of device, which is replaced meanwhile: large blocks come from the arena, all else
// is handed on. A block goes back to where it came from by its own deleter, also after the offload block has ended.
// Streams are ordered by the arena: who gets memory waits on the GPU for what uses it still.
//
// The deleter and the allocator are called by any thread, with Python's lock or without it.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <tidelog.h>
#include <unistd.h>

#include <atomic>
#include <optional>
#include <vector>

#include "step_clock.h"
#include "use_marks.h"

namespace tidelog {

// The driver's handle of a stream. Torch tells it since 2.11; before, that of a kind without a backend is its number.
template <class Stream>
void* handle_of(const Stream& stream) {
  if constexpr (requires { stream.native_handle(); })
    return stream.native_handle();
  else
    return reinterpret_cast<void*>(stream.id());
}

// Functions of the library.
struct ArenaCalls {
  decltype(&tide_gpu_arena_allocate) allocate = nullptr;
  decltype(&tide_gpu_arena_use) use = nullptr;
  decltype(&tide_gpu_arena_free) free = nullptr;
  decltype(&tide_gpu_arena_free_part) free_part = nullptr;
  decltype(&tide_gpu_arena_allocate_part) allocate_part = nullptr;
};

class DeviceArena {
 public:
  // Has blocks of at least `least` bytes come from this arena from here on. `place`: where torch has them;
  // `device`: whose streams there are.
  static void open(uint64_t arena, uint64_t least, const ArenaCalls& calls, c10::Device place, c10::Device device) {
    calls_ = calls;
    process_ = getpid();
    least_ = least;
    place_ = place;
    device_ = device;
    guard_.emplace(device.type());
    arrivals_ = guard_->getStreamFromGlobalPool(device);
    is_paused_ = false;
    arena_ = arena;
  }

  // Ends that.
  static void close() { arena_ = 0; }

  // Has nothing come from it until the opposite: what a program makes in a pause is none of the block's.
  static void pause(bool on) { is_paused_ = on; }

  // A block that the current stream uses, and may write. Null: another allocator is to be asked.
  static c10::DataPtr allocate(size_t size) {
    if (!gives(size)) return null();
    StepClock::Marked marked(TIDE_TIME_COPIES_OUT);  // the stream waits for who had the memory
    StepClock::Allocating allocating;
    void* stream = handle_of(guard_->getStream(device_));
    return allocate(size, stream, stream);
  }

  // A block that the current stream uses, but for a copy first, in a stream of its own: that may write it behind
  // `event`, and is not held up by what the current stream does. Null: as above.
  static c10::DataPtr allocate_for_copy(size_t size, EventPtr& event) {
    if (!gives(size)) return null();
    c10::DataPtr memory = allocate(size, handle_of(*arrivals_), handle_of(guard_->getStream(device_)));
    if (memory) event = event_on(*arrivals_);
    return memory;
  }

  // Returns whether memory is a block of an arena's.
  static bool has(const c10::DataPtr& memory) { return memory && memory.get_deleter() == &ended; }

  // Notes that a stream uses memory, if it is a block of an arena's.
  static bool use(const void* memory, void* stream) {
    return calls_.use != nullptr && memory != nullptr && is_own_process() &&
           calls_.use(reinterpret_cast<uint64_t>(memory), stream) > 0;
  }

  // Frees a block that is used still, before an event, by these streams or whatever else.
  static void free_behind(c10::DataPtr memory, const c10::Event& event, const std::vector<c10::Stream>& streams) {
    std::vector<uint64_t> covered{reinterpret_cast<uint64_t>(handle_of(*arrivals_))};
    for (const c10::Stream& stream : streams) covered.push_back(reinterpret_cast<uint64_t>(handle_of(stream)));
    auto address = reinterpret_cast<uint64_t>(memory.release_context());
    calls_.free(address, covered.data(), covered.size(), event.eventId());
  }

  // Frees a part of a block that is used still, before an event. Null: nothing uses it.
  static void free_part(uint64_t address, uint64_t begin, uint64_t length, const EventPtr& event) {
    calls_.free_part(address, begin, length, event ? event->eventId() : nullptr);
  }

  // Allocates memory for a part of a block that was freed, for a copy: as `allocate_for_copy`. Null: there is none.
  static EventPtr allocate_part(uint64_t address, uint64_t begin, uint64_t length) {
    if (calls_.allocate_part(address, begin, length, handle_of(*arrivals_)) != 1) return nullptr;
    return event_on(*arrivals_);
  }

  // Deleter of blocks, and of what the allocator beneath gives where torch has but the address.
  static void ended(void* memory) {
    if (memory == nullptr || !is_own_process()) return;  // a child of fork has copies of its parent's
    if (calls_.free(reinterpret_cast<uint64_t>(memory), nullptr, 0, nullptr) == 0) beneath_ended_(memory);
  }

  // Sets who frees memory that is no arena's.
  static void set_beneath(c10::DeleterFnPtr ended) { beneath_ended_ = ended; }

  // Returns whether memory that has this deleter is an allocator's, as that is while an arena is open.
  static bool is_allocators(c10::DeleterFnPtr deleter) { return deleter == &ended || deleter == beneath_ended_; }

 private:
  static bool gives(size_t size) { return arena_ != 0 && size >= least_ && !is_paused_; }

  static c10::DataPtr null() { return {nullptr, place_}; }

  static c10::DataPtr allocate(size_t size, void* waits, void* uses) {
    uint64_t address = 0;
    if (!is_own_process() || calls_.allocate(arena_, size, waits, uses, &address) != 1) return null();
    auto* memory = reinterpret_cast<void*>(address);
    return {memory, memory, &ended, place_};
  }

  static bool is_own_process() { return getpid() == process_; }

  static inline std::atomic<uint64_t> arena_{0};
  static inline std::atomic<bool> is_paused_{false};
  static inline uint64_t least_ = 0;
  static inline ArenaCalls calls_;
  static inline pid_t process_ = 0;
  static inline c10::Device place_{c10::DeviceType::CPU}, device_{c10::DeviceType::CPU};
  static inline std::optional<c10::impl::VirtualGuardImpl> guard_;
  static inline std::optional<c10::Stream> arrivals_;  // waits for memory that copies write
  static inline c10::DeleterFnPtr beneath_ended_ = nullptr;
};

// Torch's allocator of one kind of device while an arena is open, by the seam that every kind has. CUDA's has one of
// its own besides (cuda_allocator.cpp).
class ArenaInFront final : public c10::Allocator {
 public:
  static void install(c10::DeviceType kind) {
    auto& it = all();
    c10::Allocator* now = c10::GetAllocator(kind);
    if (now == &it) return;
    it.beneath_ = now;
    it.kind_ = kind;
    DeviceArena::set_beneath(now->raw_deleter());
    c10::SetAllocator(kind, &it, PRIORITY);
  }

  // Ends that. Another allocator that was put in front of it meanwhile stays there.
  static void remove() {
    auto& it = all();
    if (it.beneath_ != nullptr && c10::GetAllocator(it.kind_) == &it)
      c10::SetAllocator(it.kind_, it.beneath_, PRIORITY);
  }

  c10::DataPtr allocate(size_t size) override {
    if (c10::DataPtr memory = DeviceArena::allocate(size)) return memory;
    return beneath_->allocate(size);
  }

  c10::DeleterFnPtr raw_deleter() const override { return &DeviceArena::ended; }

  void copy_data(void* to, const void* from, size_t size) const override { beneath_->copy_data(to, from, size); }

 private:
  static ArenaInFront& all() {
    static auto* it = new ArenaInFront;  // never destroyed: storages outlive everything
    return *it;
  }

  static constexpr uint8_t PRIORITY = 100;  // as of the host's allocator of ours: the last one is asked
  c10::Allocator* beneath_ = nullptr;
  c10::DeviceType kind_ = c10::DeviceType::CPU;
};

}  // namespace tidelog
