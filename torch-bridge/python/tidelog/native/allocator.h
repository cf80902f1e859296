// Torch's allocator of host memory: it gets its memory from the library's arena, which keeps freed pages for the next
// tensors (`tide_memory_keep`).
#pragma once

#include <c10/core/CPUAllocator.h>
#include <tidelog.h>

namespace tidelog {

class ArenaAllocator final : public c10::Allocator {
 public:
  using Allocate = decltype(&tide_memory_allocate);
  using Free = decltype(&tide_memory_free);

  // Makes this torch's allocator for the rest of the process: what it has allocated is freed by it. Returns whether
  // torch asks it.
  static bool use(Allocate allocate, Free free) {
    allocate_ = allocate;
    free_ = free;
    static auto* allocator = new ArenaAllocator;  // never destroyed: storages outlive everything
    c10::SetCPUAllocator(allocator, PRIORITY);
    return c10::GetCPUAllocator() == allocator;  // one of a higher priority stays
  }

  c10::DataPtr allocate(size_t size) override {
    void* memory = nullptr;
    if (size != 0 && allocate_(&memory, ALIGNMENT, size) != 0) {
      c10::profiledCPUMemoryReporter().OutOfMemory(size);
      TORCH_CHECK_WITH(Error, false, "tidelog's allocator: can't allocate memory: you tried to allocate ", size,
                       " bytes.");
    }
    if (memory != nullptr) c10::profiledCPUMemoryReporter().New(memory, size);
    return {memory, memory, &ended, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &ended; }

  void copy_data(void* destination, const void* source, size_t size) const override {
    default_copy_data(destination, source, size);
  }

 private:
  static void ended(void* memory) {
    if (memory == nullptr) return;
    c10::profiledCPUMemoryReporter().Delete(memory);
    free_(memory);
  }

  static constexpr uint8_t PRIORITY = 100;   // above torch's own; it only ever rises
  static constexpr size_t ALIGNMENT = 64;    // as torch's own allocator has it
  static inline Allocate allocate_ = nullptr;
  static inline Free free_ = nullptr;
};

}  // namespace tidelog
