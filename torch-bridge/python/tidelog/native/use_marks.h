// Progress of the ops of a stream, for who waits for one of them and not for all that was launched later.
#pragma once

#include <c10/core/Event.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <deque>
#include <memory>

namespace tidelog {

using EventPtr = std::shared_ptr<c10::Event>;

inline EventPtr event_on(const c10::Stream& stream) {
  auto event = std::make_shared<c10::Event>(stream.device_type());
  event->record(stream);
  return event;
}

// The last op of a stream that used a storage: the stream by its place among those that are known, the op by its number
// there, from 1.
struct Use {
  size_t stream = 0;
  uint64_t op = 0;
};

// Last uses on each stream on which ops have used it. Empty: it is not known.
using LastUses = c10::SmallVector<Use, 1>;

inline void note(LastUses& uses, const Use& last) {
  auto found = std::find_if(uses.begin(), uses.end(), [&](const Use& each) { return each.stream == last.stream; });
  if (found != uses.end())
    found->op = last.op;
  else
    uses.push_back(last);
}

// The ops of one stream, and events behind some of them: few, as each costs as much as a small op.
class UseMarks {
 public:
  // An op is about to be launched. Returns its number.
  uint64_t launches(const c10::Stream& stream, bool is_known, bool none_runs) {
    // While an op is under way, what it launches yet would come behind the event.
    if (none_runs && launched_ - last_mark() >= OPS_A_MARK) {
      marks_.push_back({launched_, event_on(stream)});
      if (marks_.size() > MARKS_MAX) marks_.pop_front();
    }
    ++launched_;
    if (!is_known) last_unknown_ = launched_;
    return launched_;
  }

  // The last op of which it is not known what it used. 0: there was none.
  uint64_t last_unknown() const { return last_unknown_; }

  // The first event that is behind this op. Null: there is none yet.
  EventPtr behind(uint64_t op) const {
    auto found = std::lower_bound(marks_.begin(), marks_.end(), op,
                                  [](const Mark& mark, uint64_t number) { return mark.op < number; });
    return found != marks_.end() ? found->event : nullptr;
  }

 private:
  struct Mark {
    uint64_t op;  // the event is behind all up to this one
    EventPtr event;
  };

  uint64_t last_mark() const { return marks_.empty() ? 0 : marks_.back().op; }

  static constexpr uint64_t OPS_A_MARK = 8;
  static constexpr size_t MARKS_MAX = 128;  // a thread that is further ahead of its GPU waits for some op too many

  uint64_t launched_ = 0, last_unknown_ = 0;
  std::deque<Mark> marks_;
};

}  // namespace tidelog
