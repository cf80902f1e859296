// Memory that storages have given up, and that the GPU reads still: it is being copied out.
//
// It is in nobody's count, but in the budget: what an op or a fetch needs beyond what is free waits for the oldest of
// it, on the GPU.
#pragma once

#include <c10/core/Allocator.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "streams.h"

namespace tidelog {

class DepartingMemory {
 public:
  struct Block {
    c10::DataPtr memory;
    size_t size;
    bool is_plain;  // an allocator's: others have nothing of it
    EventPtr read;  // behind the last look at it
  };

  bool empty() const { return blocks_.empty(); }
  int64_t bytes() const { return bytes_; }

  void add(Block block) {
    bytes_ += static_cast<int64_t>(block.size);
    blocks_.push_back(std::move(block));
  }

  // The oldest block of this size that is an allocator's. Who takes it writes it once `read` has happened.
  std::optional<Block> take(size_t size) {
    auto found = std::find_if(blocks_.begin(), blocks_.end(),
                              [&](const Block& each) { return each.is_plain && each.size == size; });
    if (found == blocks_.end()) return std::nullopt;
    Block block = std::move(*found);
    blocks_.erase(found);
    bytes_ -= static_cast<int64_t>(size);
    return block;
  }

  // Frees blocks that are no longer read, and of the rest the oldest until at most `bytes` are left: what is launched
  // from then on waits.
  void keep_at_most(int64_t bytes, Streams& streams) {
    while (!blocks_.empty()) {
      const Block& oldest = blocks_.front();
      if (bytes_ > std::max<int64_t>(bytes, 0))
        streams.fetched(oldest.read, TIDE_TIME_COPIES_OUT);
      else if (!oldest.read->query())
        return;
      bytes_ -= static_cast<int64_t>(oldest.size);
      Block gone = std::move(blocks_.front());
      blocks_.pop_front();
    }
  }

  // All goes back, as no device reads any of it.
  void clear() {
    bytes_ = 0;
    std::deque<Block> gone;
    gone.swap(blocks_);
  }

 private:
  std::deque<Block> blocks_;  // in the order in which they are read
  int64_t bytes_ = 0;
};

}  // namespace tidelog
