// Window: a tensor that its rank mixes by itself with what its neighbors deliver, whenever each of
// them likes. For every in-neighbor j it has a Slot B[j]; slot 0 is what the rank has published.
//
// Made by all ranks together (c_window.h), then worked on through the PeerEngine. Shape, links and
// memory stay as they are; the rest is the holder of the baton's, but for the atomics.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "runtime/base/tensor.h"
#include "runtime/peer/rounds.h"
#include "runtime/peer/window_memory.h"

namespace horon {

class StagedValues;

struct WindowShape {
  std::string name;
  DataType dtype = DataType::kFloat32;
  Shape shape;
  std::vector<int> in, out;  // global ranks, ascending: who delivers to me, and to whom I do
  bool gets = true;          // false: nobody gets from it, and so it publishes nothing
  // Of a window that mixes in rounds, and does nothing else; its slots are RoundSlots.
  std::shared_ptr<const Rounds> rounds = nullptr;
};

class Window {
 public:
  // `values` is the rank's own tensor, lent until the window is freed; `staged`, of one on a GPU,
  // has them.
  Window(WindowShape shape, std::byte* values, std::shared_ptr<WindowMemory> memory,
         uint64_t epoch, std::shared_ptr<StagedValues> staged = nullptr);

  const WindowShape& shape() const { return shape_; }
  int64_t count() const { return count_; }
  int64_t bytes() const { return bytes_; }
  uint64_t set() const { return set_; }  // a hash of what must be equal on all ranks
  uint64_t epoch() const { return epoch_; }
  std::byte* values() const { return values_; }
  StagedValues* staged() const { return staged_.get(); }  // null: the tensor lies on the host
  const std::shared_ptr<WindowMemory>& memory() const { return memory_; }

  Slot published() const { return memory_->slot(0); }
  int slot_of(int from) const;  // -1: no in-neighbor
  Slot slot(int from) const { return memory_->slot(slot_of(from)); }

  // Whether in-neighbors that give only if asked may do so once more. Any thread.
  void Ask(bool wanted) const;

  // Another rank of this node, whose memory is mapped here; null: by messages.
  struct Near {
    std::shared_ptr<WindowMemory> memory;
    int my_slot = -1;  // in it; -1: I am no in-neighbor of that rank
  };
  const Near* near(int rank) const;
  void SetNear(int rank, Near near) { near_[rank] = std::move(near); }

  std::atomic<double> share{1};  // push-sum weight of the values
  std::atomic<int> pending{0};   // orders that are not done
  std::atomic<int> changing{0};  // those of them that change the values after others got them
  std::atomic<bool> closed{false};

  // The window's mutex of this rank: who has it (-1: nobody), and who asks, in order.
  int lock_holder = -1;
  std::deque<int> lock_waiters;
  int averages = 0;               // of pairs, since the last step took the values
  std::map<int, int> quiet;       // by in-neighbor: updates that had nothing new of it
  std::atomic<int64_t> round{0};  // of the tensor: the next one
  // In- and out-neighbors of rounds that have once let the time go by: not waited for until they
  // are heard, and take what is there.
  std::set<int> unheard, stuck;
  // What the next order that changes the values adds first: who owns them may touch them until
  // then.
  std::vector<std::function<Status()>> owed;
  // Mutexes of others, or my own, that I was granted or ask for: rank -> granted.
  std::map<int, bool> my_locks;

 private:
  WindowShape shape_;
  std::shared_ptr<StagedValues> staged_;
  std::byte* values_;
  std::shared_ptr<WindowMemory> memory_;
  uint64_t epoch_;
  int64_t count_, bytes_;
  uint64_t set_;
  std::map<int, Near> near_;
};

}  // namespace horon
