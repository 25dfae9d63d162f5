#include "runtime/c_window.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include "runtime/base/look.h"
#include "runtime/base/mutex.h"
#include "runtime/c_exchange.h"
#include "runtime/c_work.h"
#include "runtime/peer/round_slot.h"
#include "runtime/peer/staged_values.h"
#include "runtime/peer/window_row.h"

namespace horon {
namespace {

Status CheckNeighbors(const Runtime& runtime, std::vector<int>& ranks) {
  std::sort(ranks.begin(), ranks.end());
  const bool wrong =
      std::adjacent_find(ranks.begin(), ranks.end()) != ranks.end() ||
      std::find(ranks.begin(), ranks.end(), runtime.rank()) != ranks.end() ||
      (!ranks.empty() && (ranks[0] < 0 || ranks.back() >= runtime.topology().size()));
  if (!wrong) return Status::Ok();
  return Status::InvalidArgument(
      "neighbors in a window are different ranks between 0 and size - 1 other than one's own, "
      "not " +
      ToString(Shape(ranks.begin(), ranks.end())));
}

constexpr char kInTime[] = "allgather:late=fail";
constexpr std::chrono::microseconds kDeviceWait{50};  // the device wakes nobody

// Unless the program, or the job, ends before.
Status Arrives(const Runtime& runtime, Event& event) {
  for (;;) {
    HORON_ASSIGN(const bool done, event.Done());
    if (done) return Status::Ok();
    HORON_TRY(runtime.hopeless());
    if (runtime.lost())
      return Status::Unavailable("the job has failed while the window waited for its tensor's GPU");
    HORON_TRY(GoOn());
    std::this_thread::sleep_for(kDeviceWait);
  }
}

// What works on a tensor of a GPU, with its values where they are asked for; null for one of the
// host.
Result<std::shared_ptr<StagedValues>> Stage(Runtime& runtime, const WindowTensor& tensor,
                                            int64_t bytes, bool with_values) {
  std::shared_ptr<StagedValues> staged;
  if (tensor.device.kind == DeviceKind::kHost) return staged;
  HORON_TRY(tensor.ready.status());
  HORON_ASSIGN(std::shared_ptr<Gpu> gpu, runtime.GpuOf(tensor.device));
  HORON_ASSIGN(staged, StagedValues::Make(std::move(gpu), tensor.values, bytes));
  if (!with_values) return staged;
  HORON_ASSIGN(const SharedEvent there, staged->TakeIn(tensor.ready.value().get()));
  const Status arrived = Arrives(runtime, *there);
  if (arrived.ok()) return staged;
  // Its stream may never end, and who drops it would wait for that.
  static Mutex mutex;
  static auto* const left_behind = new std::vector<std::shared_ptr<StagedValues>>;
  MutexLock lock(mutex);
  left_behind->push_back(std::move(staged));
  return arrived;
}

// This rank's part: it answers for the window from now on.
Result<std::shared_ptr<Window>> MakePart(Runtime& runtime, WindowShape shape,
                                         const WindowTensor& tensor, bool zero, uint64_t epoch) {
  if (!IsFloat(shape.dtype))
    return Status::Unsupported("a window holds floating-point numbers, not " +
                               std::string(NameOf(shape.dtype)));
  HORON_TRY(CheckNeighbors(runtime, shape.in));
  HORON_TRY(CheckNeighbors(runtime, shape.out));
  const int64_t bytes = CountOf(shape.shape) * SizeOf(shape.dtype);
  const int slots = 1 + static_cast<int>(shape.in.size());
  HORON_ASSIGN(auto memory, WindowMemory::Make(slots, bytes));
  const bool copied = !shape.rounds && (shape.gets || !zero);  // into some slot
  HORON_ASSIGN(auto staged, Stage(runtime, tensor, bytes, copied));
  std::byte* const values = staged ? staged->values() : tensor.values;
  for (int i = 0; i < slots; ++i) {
    const Slot slot = memory->slot(i);
    slot.head().empty = i > 0 ? zero : !shape.gets;
    if (copied && !slot.head().empty && bytes > 0)
      std::memcpy(slot.values(), values, static_cast<size_t>(bytes));
  }
  memory->slot(0).head().share = 1;
  if (shape.rounds) {
    for (int i = 1; i < slots; ++i) RoundSlot(memory->slot(i)).Free(shape.rounds->first);
  }
  auto window = std::make_shared<Window>(std::move(shape), values, std::move(memory), epoch,
                                         std::move(staged));
  HORON_TRY(runtime.peers().Open(window));
  return window;
}

// Maps the neighbors of this node.
void MapNear(const Runtime& runtime, Window& window, const std::vector<WindowRow>& rows) {
  const Topology& topology = runtime.topology();
  for (const auto* side : {&window.shape().in, &window.shape().out}) {
    for (const int rank : *side) {
      if (topology.node_of(rank) != topology.node_of(runtime.rank())) continue;
      if (window.near(rank) != nullptr) continue;
      const WindowRow& row = rows[static_cast<size_t>(rank)];
      const int slots = 1 + static_cast<int>(row.in.size());
      auto memory = WindowMemory::Map(row.address, slots, window.bytes());
      if (!memory) continue;
      const auto me = std::find(row.in.begin(), row.in.end(), runtime.rank());
      window.SetNear(rank, {std::move(memory),
                            me == row.in.end() ? -1 : static_cast<int>(me - row.in.begin()) + 1});
    }
  }
}

Result<std::vector<WindowRow>> Agree(Runtime& runtime, const std::string& name,
                                     const WindowRow& mine) {
  HORON_ASSIGN(const auto numbers, Exchange(runtime, "window " + name, Encode(mine), 0, kInTime));
  std::vector<WindowRow> rows;
  for (const auto& one : numbers) {
    HORON_ASSIGN(WindowRow row, DecodeWindowRow(one));
    rows.push_back(std::move(row));
  }
  HORON_TRY(JudgeWindow(name, rows));
  return rows;
}

// Slots of the one kind are none of the other.
Status CheckKind(const Window& window, const Order& order) {
  const bool in_rounds = window.shape().rounds != nullptr;
  const bool round = order.kind == OrderKind::kRound;
  if (round == in_rounds || order.kind == OrderKind::kPublish) {
    if (!round || (order.ranks.empty() && !order.with_mutex)) return Status::Ok();
    return Status::InvalidArgument("a round names no ranks and no mutex: its graph has them");
  }
  return Status::InvalidArgument(
      "the window '" + window.shape().name +
      (in_rounds ? "' mixes in rounds, and does nothing else" : "' was made without rounds"));
}

bool IsNeighbor(const Window& window, OrderKind kind, int rank, int me) {
  const WindowShape& shape = window.shape();
  const bool in = std::binary_search(shape.in.begin(), shape.in.end(), rank);
  const bool out = std::binary_search(shape.out.begin(), shape.out.end(), rank);
  if (kind == OrderKind::kPut || kind == OrderKind::kAdd) return out;
  if (kind == OrderKind::kGet || kind == OrderKind::kUpdate) return in;
  const bool locks = kind == OrderKind::kLock || kind == OrderKind::kUnlock;
  return in || out || (locks && rank == me);
}

Status CheckOrder(const Runtime& runtime, const Order& order) {
  const Window& window = *order.window;
  const std::string name = "the window '" + window.shape().name + "'";
  HORON_TRY(CheckKind(window, order));
  for (size_t i = 0; i < order.ranks.size(); ++i) {
    const auto [rank, weight] = order.ranks[i];
    const bool twice = i > 0 && order.ranks[i - 1].first == rank;
    if (twice || !IsNeighbor(window, order.kind, rank, runtime.rank()))
      return Status::InvalidArgument(
          "rank " + std::to_string(rank) +
          (twice ? " was named twice for " : " is no such neighbor in ") + name + " of rank " +
          std::to_string(runtime.rank()));
    if (!std::isfinite(weight))
      return Status::InvalidArgument("a weight for " + name + " is no number");
  }
  if (!std::isfinite(order.self_weight))
    return Status::InvalidArgument("the own weight for " + name + " is no number");
  if (order.kind == OrderKind::kGet && !window.shape().gets)
    return Status::InvalidArgument(name + " was made without gets: it publishes nothing");
  const bool pairs = order.kind == OrderKind::kPair || order.kind == OrderKind::kStep;
  if (pairs && window.staged() != nullptr)
    return Status::Unsupported("averages of pairs change " + name +
                               " at any time: its tensor must be on the host");
  if (order.kind == OrderKind::kPair && order.ranks.size() != 1)
    return Status::InvalidArgument("an average of a pair names one rank");
  if (order.reset && order.output != nullptr)
    return Status::InvalidArgument("an update into another tensor would lose what it resets");
  if (runtime.config().gossip_time.count() <= 0)
    return Status::InvalidArgument("HORON_GOSSIP_TIMEOUT must be above 0 for windows");
  return Status::Ok();
}

}  // namespace

Result<std::shared_ptr<Window>> MakeWindow(Runtime& runtime, WindowShape shape,
                                           const WindowTensor& tensor, bool zero) {
  const std::string name = shape.name;
  WindowRow mine;
  mine.dtype = shape.dtype;
  mine.shape = shape.shape;
  mine.gets = shape.gets = shape.gets && !shape.rounds;
  if (shape.rounds) mine.rounds = shape.rounds->Describe();
  const uint64_t epoch = runtime.peers().NextEpoch(name);
  const auto window = MakePart(runtime, std::move(shape), tensor, zero, epoch);
  mine.made = window.ok();
  if (window.ok()) {
    mine.in = window.value()->shape().in;
    mine.out = window.value()->shape().out;
    mine.address = window.value()->memory()->address();
  }
  mine.why_not = window.status().message();
  const auto rows = Agree(runtime, name, mine);
  HORON_TRY(window.status());
  if (!rows.ok()) {
    runtime.peers().Close(*window.value());
    return rows.status();
  }
  MapNear(runtime, *window.value(), rows.value());
  return window;
}

Status RefuseWindow(Runtime& runtime, const std::string& name, const Status& why) {
  WindowRow mine;
  mine.made = false;
  mine.why_not = why.message();
  runtime.peers().NextEpoch(name);  // as on the ranks that make theirs
  const auto rows = Agree(runtime, name, mine);
  return why;
}

Status FreeWindow(Runtime& runtime, const std::shared_ptr<Window>& window) {
  const std::string& name = window->shape().name;
  if (runtime.peers().Find(name) != window)
    return Status::InvalidArgument("the window '" + name + "' was freed already");
  window->closed.store(true);
  const auto pending =
      Exchange(runtime, "free of window " + name, {window->pending.load()}, 0, kInTime);
  if (pending.status().code() == Code::kLate) {  // all may try again
    window->closed.store(false);
    return pending.status();
  }
  for (size_t rank = 0; pending.ok() && rank < pending.value().size(); ++rank) {
    if (pending.value()[rank] == std::vector<int64_t>{0}) continue;
    window->closed.store(false);
    return Status::InvalidArgument("the window '" + name + "' cannot be freed: rank " +
                                   std::to_string(rank) +
                                   " has not waited for all that it ordered");
  }
  // Also when a rank is lost: nobody will ask any more.
  runtime.peers().Close(*window);
  return pending.status();
}

Result<std::shared_ptr<Work>> StartOrder(Runtime& runtime, Order order, bool wake) {
  std::sort(order.ranks.begin(), order.ranks.end());
  HORON_TRY(CheckOrder(runtime, order));
  if (runtime.peers().Find(order.window->shape().name) != order.window)
    return Status::InvalidArgument("the window '" + order.window->shape().name + "' was freed");
  std::shared_ptr<Work> work = MakeWork(1);
  HORON_TRY(runtime.Submit(std::move(order), work, wake));
  return work;
}

}  // namespace horon
