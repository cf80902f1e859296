// CUDA's allocator of torch while an arena is open: large blocks come from the arena, and all else is handed on.
//
// It is a library of its own, built where it is first wanted: it needs CUDA's headers and torch for CUDA, and what an
// allocator has to have differs from version to version of torch. Torch asks the allocator at a pointer that it exports
// (c10::cuda::CUDACachingAllocator::allocator). What is allocated for captured graphs and for pools of the program's,
// and what has no tensor, stays torch's own.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include <atomic>

namespace {

using c10::DataPtr;
using c10::DeviceIndex;
using c10::MempoolId_t;
using c10::cuda::CUDAStream;
using namespace c10::cuda::CUDACachingAllocator;

// Functions of the bridge's module.
struct Arena {
  void* (*allocate)(size_t);  // null: the allocator beneath is to be asked
  bool (*use)(const void*, void*);  // a stream uses memory; whether it is the arena's
  void (*ended)(void*);  // the deleter
} arena;

class ArenaInFrontOfCuda final : public CUDAAllocator {
 public:
  CUDAAllocator* beneath = nullptr;
  std::atomic<DeviceIndex> device{-1};  // whose memory the arena has; below zero: it is closed

  DataPtr allocate(size_t size) override {
    if (device >= 0 && pools_ == 0 && c10::cuda::current_device() == device)
      if (void* memory = arena.allocate(size)) return {memory, memory, arena.ended, c10::Device(c10::kCUDA, device)};
    return beneath->allocate(size);
  }
  DataPtr allocateWithAddress(size_t size, void* address) override {
    return beneath->allocateWithAddress(size, address);
  }
  bool is_simple_data_ptr(const DataPtr& memory) const override {
    return memory.get_deleter() == arena.ended || beneath->is_simple_data_ptr(memory);
  }
  c10::DeleterFnPtr raw_deleter() const override { return arena.ended; }
  void copy_data(void* to, const void* from, size_t size) const override { beneath->copy_data(to, from, size); }

  void recordStream(const DataPtr& memory, CUDAStream stream) override {
    if (!arena.use(memory.get(), stream.stream())) beneath->recordStream(memory, stream);
  }

  void beginAllocateToPool(DeviceIndex on, MempoolId_t pool, std::function<bool(cudaStream_t)> filter) override {
    beneath->beginAllocateToPool(on, pool, std::move(filter));
    ++pools_;
  }
  void endAllocateToPool(DeviceIndex on, MempoolId_t pool) override {
    beneath->endAllocateToPool(on, pool);
    --pools_;
  }

  ShareableHandle shareIpcHandle(void* memory) override {
    refuse(memory);
    return beneath->shareIpcHandle(memory);
  }
  void* getBaseAllocation(void* memory, size_t* size) override {
    refuse(memory);
    return beneath->getBaseAllocation(memory, size);
  }

  // Copies memory between two GPUs by the driver where it is mapped, as one alone has access to that.
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, size_t count, cudaStream_t stream,
                          bool p2p) override {
    bool is_ours = to_device != from_device && (arena.use(to, stream) || arena.use(from, stream));
    if (is_ours) return cudaMemcpyPeerAsync(to, to_device, from, from_device, count, stream);
    return beneath->memcpyAsync(to, to_device, from, from_device, count, stream, p2p);
  }

  // -- handed on
  void* raw_alloc(size_t size) override { return beneath->raw_alloc(size); }
  void* raw_alloc_with_stream(size_t size, cudaStream_t stream) override {
    return beneath->raw_alloc_with_stream(size, stream);
  }
  void raw_delete(void* memory) override { beneath->raw_delete(memory); }
  void init(int devices) override { beneath->init(devices); }
  bool initialized() override { return beneath->initialized(); }
  double getMemoryFraction(DeviceIndex on) override { return beneath->getMemoryFraction(on); }
  void setMemoryFraction(double fraction, DeviceIndex on) override { beneath->setMemoryFraction(fraction, on); }
  std::vector<StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex on) override {
    return beneath->getExpandableSegmentSizes(on);
  }
  void emptyCache(MempoolId_t pool) override { beneath->emptyCache(pool); }
  void enable(bool value) override { beneath->enable(value); }
  bool isEnabled() const override { return beneath->isEnabled(); }
  void cacheInfo(DeviceIndex on, size_t* largest) override { beneath->cacheInfo(on, largest); }
  DeviceStats getDeviceStats(DeviceIndex on) override { return beneath->getDeviceStats(on); }
  void resetAccumulatedStats(DeviceIndex on) override { beneath->resetAccumulatedStats(on); }
  void resetPeakStats(DeviceIndex on) override { beneath->resetPeakStats(on); }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex on) override { return beneath->getMemoryInfo(on); }
  SnapshotInfo snapshot(MempoolId_t pool, bool traces) override { return beneath->snapshot(pool, traces); }
  void markCaptureBegin(DeviceIndex on) override { beneath->markCaptureBegin(on); }
  void markCaptureEnd(DeviceIndex on) override { beneath->markCaptureEnd(on); }
  void releasePool(DeviceIndex on, MempoolId_t pool) override { beneath->releasePool(on, pool); }
  int getPoolUseCount(DeviceIndex on, MempoolId_t pool) override { return beneath->getPoolUseCount(on, pool); }
  void createOrIncrefPool(DeviceIndex on, MempoolId_t pool, std::shared_ptr<CUDAAllocator> allocator) override {
    beneath->createOrIncrefPool(on, pool, std::move(allocator));
  }
  void setUseOnOOM(DeviceIndex on, MempoolId_t pool, bool use) override { beneath->setUseOnOOM(on, pool, use); }
  void setNoSplit(DeviceIndex on, MempoolId_t pool) override { beneath->setNoSplit(on, pool); }
  bool checkPoolLiveAllocations(DeviceIndex on, MempoolId_t pool, const std::unordered_set<void*>& live) override {
    return beneath->checkPoolLiveAllocations(on, pool, live);
  }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override { return beneath->getIpcDevPtr(std::move(handle)); }
  bool isHistoryEnabled() override { return beneath->isHistoryEnabled(); }
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* memory) override {
    return beneath->getContextForPointer(memory);
  }
  void recordHistory(bool enabled, CreateContextFn recorder, size_t entries, RecordContext when, bool clear,
                     const std::vector<std::string>& skipped) override {
    beneath->recordHistory(enabled, recorder, entries, when, clear, skipped);
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& data) override {
    beneath->recordAnnotation(data);
  }
  void pushCompileContext(std::string& data) override { beneath->pushCompileContext(data); }
  void popCompileContext() override { beneath->popCompileContext(); }
  bool supportsUserMetadata() override { return beneath->supportsUserMetadata(); }
  void setUserMetadata(const std::string& data) override { beneath->setUserMetadata(data); }
  std::string getUserMetadata() override { return beneath->getUserMetadata(); }
  void annotateMemory(const void* memory, const std::string& data) override { beneath->annotateMemory(memory, data); }
  void attachOutOfMemoryObserver(OutOfMemoryObserver observer) override {
    beneath->attachOutOfMemoryObserver(std::move(observer));
  }
  void attachOomRejectionObserver(OomRejectionObserver observer) override {
    beneath->attachOomRejectionObserver(std::move(observer));
  }
  void attachAllocatorTraceTracker(AllocatorTraceTracker tracker) override {
    beneath->attachAllocatorTraceTracker(std::move(tracker));
  }
  void enablePeerAccess(DeviceIndex on, DeviceIndex to) override { beneath->enablePeerAccess(on, to); }
  std::shared_ptr<AllocatorState> getCheckpointState(DeviceIndex on, MempoolId_t pool) override {
    return beneath->getCheckpointState(on, pool);
  }
  CheckpointDelta setCheckpointPoolState(DeviceIndex on, std::shared_ptr<AllocatorState> state) override {
    return beneath->setCheckpointPoolState(on, std::move(state));
  }
  std::string name() override { return beneath->name(); }  // by which torch knows what it may ask for

 private:
  static void refuse(const void* memory) {
    TORCH_CHECK(!arena.use(memory, nullptr),
                "tidelog: a tensor in the arena of an offload block cannot be shared with other processes: copy it to "
                "the host, or open the block with allocator=\"torch\".");
  }

  std::atomic<int> pools_{0};  // that the program allocates from: graphs have one
};

ArenaInFrontOfCuda& in_front() {
  static auto* it = new ArenaInFrontOfCuda;  // never destroyed: storages outlive everything
  return *it;
}

}  // namespace

extern "C" {

// Has blocks on this GPU come from the arena from here on. Returns the deleter of the allocator beneath.
__attribute__((visibility("default"))) c10::DeleterFnPtr tidelog_cuda_open(int device, Arena functions) {
  auto& it = in_front();
  arena = functions;
  if (get() != &it) it.beneath = get();
  it.device = static_cast<DeviceIndex>(device);
  allocator.store(&it);
  c10::SetAllocator(c10::kCUDA, &it);
  return it.beneath->raw_deleter();
}

// Ends that. Another allocator that was put in front of it meanwhile stays there.
__attribute__((visibility("default"))) void tidelog_cuda_close() {
  auto& it = in_front();
  it.device = -1;
  CUDAAllocator* expected = &it;
  allocator.compare_exchange_strong(expected, it.beneath);
  if (c10::GetAllocator(c10::kCUDA) == &it) c10::SetAllocator(c10::kCUDA, it.beneath);
}
}
