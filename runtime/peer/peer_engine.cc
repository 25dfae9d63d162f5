#include "runtime/peer/peer_engine.h"

#include <algorithm>
#include <utility>

#include "runtime/peer/accumulator.h"
#include "runtime/peer/orders.h"

namespace horon {
namespace {

constexpr std::chrono::microseconds kSlotWait{50};  // a slot's holder wakes nobody

// "PUT: 1, 3; not reached: 3"
std::string DescribeOrder(const Order& order, const std::vector<int64_t>& unreached) {
  constexpr const char* kNames[] = {"PUT",    "ACCUMULATE", "GET",  "UPDATE", "LOCK",
                                    "UNLOCK", "PUBLISH",    "PAIR", "STEP",   "ROUND"};
  std::string text = kNames[static_cast<size_t>(order.kind)];
  const char* between = ": ";
  for (const auto& [rank, weight] : order.ranks) {
    text += between + std::to_string(rank);
    between = ", ";
  }
  between = "; not reached: ";
  for (const int64_t rank : unreached) {
    text += between + std::to_string(rank);
    between = ", ";
  }
  return text;
}

}  // namespace

PeerEngine::PeerEngine(const Fabric& fabric, std::shared_ptr<SharedSegment> segment,
                       std::chrono::milliseconds patience, Counters& counters,
                       PeerRecording recording, std::function<bool(int rank)> lost)
    : fabric_(&fabric),
      segment_(std::move(segment)),
      patience_(patience),
      counters_(&counters),
      recording_(std::move(recording)),
      lost_(std::move(lost)),
      unreached_(counters["peer.unreached"]),
      given_(counters["window.given"]),
      unasked_(counters["window.unasked"]),
      overwritten_(counters["window.overwritten"]),
      taken_(counters["window.taken"]),
      unchanged_(counters["window.unchanged"]),
      pairs_(counters["pair.averages"]),
      pairs_lost_(counters["pair.lost"]),
      rounds_(counters["round.mixed"]),
      folded_(counters["round.folded"]),
      rounds_late_(counters["round.late"]) {}

PeerEngine::~PeerEngine() { FailAll(Status::Aborted("the runtime was taken down")); }

// --- user threads

Status PeerEngine::Open(const std::shared_ptr<Window>& window) {
  MutexLock lock(mutex_);
  const auto [at, added] = windows_.emplace(window->shape().name, window);
  if (!added)
    return Status::InvalidArgument("there is a window '" + at->first + "' already: free it first");
  news_.store(true, std::memory_order_release);
  return Status::Ok();
}

void PeerEngine::Close(const Window& window) {
  MutexLock lock(mutex_);
  const auto at = windows_.find(window.shape().name);
  if (at != windows_.end() && at->second.get() == &window) windows_.erase(at);
}

std::shared_ptr<Window> PeerEngine::Find(const std::string& name) const {
  MutexLock lock(mutex_);
  const auto at = windows_.find(name);
  return at != windows_.end() ? at->second : nullptr;
}

namespace {

// Whether it reads or changes the values of a host's tensor. Orders to others follow each other.
bool NeedsRest(const Order& order) {
  const bool elsewhere = order.kind == OrderKind::kUpdate && order.output != nullptr;
  const bool works = order.kind == OrderKind::kPut || order.kind == OrderKind::kAdd ||
                     order.kind == OrderKind::kUpdate || order.kind == OrderKind::kPair ||
                     order.kind == OrderKind::kStep || order.kind == OrderKind::kRound;
  return works && !elsewhere && order.window->staged() == nullptr;
}

void CountOver(const Order& order) {
  if (order.changes()) order.window->changing.fetch_sub(1);
  order.window->pending.fetch_sub(1);
}

}  // namespace

uint64_t PeerEngine::NextEpoch(const std::string& name) {
  MutexLock lock(mutex_);
  return ++epochs_[name];
}

// Counted before it is looked at whether the window is closed, and the other way round in who
// closes it: one of the two sees the other.
Status PeerEngine::Submit(Order order) {
  Window& window = *order.window;
  window.pending.fetch_add(1);
  Status refused;
  if (window.closed.load())
    refused = Status::InvalidArgument("the window '" + window.shape().name + "' was freed");
  MutexLock lock(mutex_);
  if (refused.ok()) refused = over_;
  if (refused.ok() && window.changing.load() > 0 && NeedsRest(order))
    refused = Status::InvalidArgument(
        "an order that changes the values of the window '" + window.shape().name +
        "' is under way, a round or a part that is given away: wait for it before the next one");
  if (!refused.ok()) {
    window.pending.fetch_sub(1);
    return refused;
  }
  if (order.changes()) window.changing.fetch_add(1);
  order.begun = Stamp();
  ordered_.push_back(std::move(order));
  news_.store(true, std::memory_order_release);
  return Status::Ok();
}

// --- the holder of the baton

bool PeerEngine::Advance() {
  const bool news = news_.exchange(false, std::memory_order_acq_rel);
  if (!news && links_.empty() && running_.empty()) return false;
  ++cycle_;
  looks_again_ = false;
  if (news) OpenLinks();
  if (news) StartOrders();
  bool moved = news;
  const auto now = links_.empty() ? Clock::time_point{} : Clock::now();
  links_idle_ = true;
  if (!cut_.ok()) {
    moved = ProgressCut() || moved;
    FreeMutexes();
  }
  for (auto& [rank, link] : links_) {
    moved = link->Progress(*this, now) || moved;
    links_idle_ = links_idle_ && link->idle();
  }
  KeepGrants();
  return AdvanceOrders() || moved;
}

void PeerEngine::OpenLinks() {
  MutexLock lock(mutex_);
  for (const auto& [name, window] : windows_) {
    for (const auto* side : {&window->shape().in, &window->shape().out}) {
      for (const int rank : *side) {
        auto& link = links_[rank];
        if (link) continue;
        link = std::make_unique<Link>(rank, *fabric_->route[static_cast<size_t>(rank)],
                                      *fabric_->host_pool, patience_, *counters_);
        if (!cut_.ok() && OutOfReach(rank, *link)) link->Close(cut_);
      }
    }
  }
}

void PeerEngine::StartOrders() {
  std::vector<Order> started;
  {
    MutexLock lock(mutex_);
    started.swap(ordered_);
  }
  for (Order& order : started)
    running_.push_back(std::make_unique<Running>(*this, std::move(order)));
}

bool PeerEngine::AdvanceOrders() {
  bool moved = false;
  for (auto it = running_.begin(); it != running_.end();) {
    Running& running = **it;
    moved = running.task.Advance() || moved;
    if (!running.task.done()) {
      ++it;
      continue;
    }
    const std::unique_ptr<Running> over = std::move(*it);
    it = running_.erase(it);
    const Status status = over->task.status();
    unreached_.Add(static_cast<int64_t>(over->unreached.size()));
    if (over->order.begun > 0)
      Note(over->window(), DescribeOrder(over->order, over->unreached), over->order.begun);
    const auto done = std::move(over->order.done);
    CountOver(over->order);
    done(status, std::move(over->unreached), std::move(over->order.written));
  }
  return moved;
}

PeerEngine::Clock::time_point PeerEngine::next_look() const {
  auto next = Clock::time_point::max();
  for (const auto& [rank, link] : links_) next = std::min(next, link->next_look());
  for (const auto& running : running_) next = std::min(next, running->deadline);
  return looks_again_ ? std::min(next, Clock::now() + kSlotWait) : next;
}

bool PeerEngine::Hears(const Transport& transport) const {
  return std::any_of(links_.begin(), links_.end(), [&](const auto& one) {
    return !one.second->closed() && &one.second->transport() == &transport;
  });
}

// The ranks that live stay in reach, if their transport does.
void PeerEngine::CutLinks(const Status& why) {
  if (!cut_.ok()) return;
  cut_ = why;
  links_idle_ = true;
  LeaveIfGone();
  for (auto& [rank, link] : links_) {
    if (OutOfReach(rank, *link)) {
      link->Close(why);
    } else {
      link->Renew();
      links_idle_ = links_idle_ && link->idle();
    }
  }
}

bool PeerEngine::OutOfReach(int rank, const Link& link) const {
  return !link.transport().OutlivesRanks() || Gone(rank) || Gone(me());
}

// The others have given this rank up, or it has told them to.
void PeerEngine::LeaveIfGone() {
  if (!Gone(me())) return;
  for (auto& [rank, link] : links_) link->transport().Leave();
}

// Nobody else moves messages after the job has failed.
bool PeerEngine::ProgressCut() {
  LeaveIfGone();
  bool moved = false;
  Transport* progressed = nullptr;
  Status status;
  for (auto& [rank, link] : links_) {
    if (link->closed()) continue;
    if (OutOfReach(rank, *link)) {
      link->Close(cut_);
      continue;
    }
    if (progressed != &link->transport()) {
      progressed = &link->transport();
      const Result<bool> progress = progressed->Progress();
      status = progress.status();
      moved = moved || (progress.ok() && progress.value());
    }
    if (!status.ok()) link->Close(status);
  }
  return moved;
}

void PeerEngine::FailAll(const Status& why) {
  std::vector<Order> waiting;
  {
    MutexLock lock(mutex_);
    if (over_.ok()) over_ = why;
    waiting.swap(ordered_);
  }
  if (cut_.ok()) cut_ = why;
  for (auto& [rank, link] : links_) link->Close(why);
  links_idle_ = true;
  while (!running_.empty()) {
    const std::unique_ptr<Running> over = std::move(running_.front());
    running_.pop_front();
    waiting.push_back(std::move(over->order));
  }
  for (Order& order : waiting) {
    CountOver(order);
    order.done(why, {}, nullptr);
  }
}

// --- for orders and answers

void PeerEngine::Note(const Window& window, std::string activity, int64_t begun) const {
  const int64_t now = Stamp();
  if (now > 0) recording_.note("window." + window.shape().name, std::move(activity), begun, now);
}

bool PeerEngine::Gone(int rank) const {
  if (!near(rank)) return GoneElsewhere(rank);
  if (!segment_) return false;
  const auto state = static_cast<RankState>(segment_->rank(fabric_->topology.local_rank(rank))
                                                .state.load(std::memory_order_acquire));
  return state == RankState::kDead || state == RankState::kLeft;
}

// Where no transport outlives the job, who lives there is as far away as who does not.
bool PeerEngine::GoneElsewhere(int rank) const {
  const auto link = links_.find(rank);
  if (link != links_.end() && (link->second->left() || (!cut_.ok() && link->second->closed())))
    return true;
  const Transport& way = *fabric_->route[static_cast<size_t>(rank)];
  return !cut_.ok() && way.OutlivesRanks() && (!way.Reaches(rank) || lost_(rank));
}

bool PeerEngine::Silent(const Window& window, int rank) const {
  return window.near(rank) == nullptr && links_.at(rank)->lost();
}

void PeerEngine::Ring(int rank) {
  const Topology& topology = fabric_->topology;
  if (segment_ && topology.node_of(rank) == topology.node_of(me()))
    segment_->rank(topology.local_rank(rank)).bell.Ring();
}

std::shared_ptr<Question> PeerEngine::Ask(const Window& window, int rank, PeerHeader header,
                                          Clock::time_point deadline, SharedCopy values,
                                          int64_t answer_bytes) {
  auto question = std::make_shared<Question>();
  question->deadline = deadline;
  question->counts = values != nullptr;
  header.set = window.set();
  header.epoch = window.epoch();
  header.total_bytes = values ? values->bytes() : 0;
  question->header = header;
  question->values = std::move(values);
  question->answer_bytes = answer_bytes;
  links_.at(rank)->Ask(question);
  links_idle_ = false;
  return question;
}

Result<SharedCopy> PeerEngine::CopyOf(const Window& window) {
  HORON_ASSIGN(SharedCopy copy, CopyLaterOf(window));
  copy->data();
  return copy;
}

Result<SharedCopy> PeerEngine::CopyLaterOf(const Window& window) {
  HORON_ASSIGN(Buffer room, fabric_->host_pool->Take(window.bytes()));
  return std::make_shared<ValuesCopy>(std::move(room), window.values());
}

// values += weight * (x - y)
Status PeerEngine::AddDifference(Window& window, double weight, const std::byte* x,
                                 const std::byte* y) {
  HORON_ASSIGN(Accumulator sum,
               Accumulator::Make(*fabric_->host_pool, window.shape().dtype, window.count()));
  sum.Begin(1, window.values());
  sum.AddDifference(weight, x, y);
  sum.Store(window.values());
  return Status::Ok();
}

// False while somebody else has the slot.
bool PeerEngine::Deliver(const PeerHeader& header, Window& window, const Slot& slot,
                         const std::byte* values) {
  const SlotLock lock(slot);
  if (!lock.held()) return false;
  SlotHead& head = slot.head();
  const bool adds = header.kind == PeerKind::kAdd;
  const DataType dtype = window.shape().dtype;
  if (adds && !head.empty) {
    CombineInto(dtype, 1, slot.values(), header.weight, values, slot.values(), window.count());
  } else {
    ScaleInto(dtype, header.weight, values, slot.values(), window.count());
  }
  if (header.carry != 0) head.share = (adds ? head.share : 0) + header.weight * header.share;
  head.wiped = head.empty = false;
  given_.Add();
  if (head.deliveries.fetch_add(1, std::memory_order_relaxed) > 0 && !adds) overwritten_.Add();
  return true;
}

}  // namespace horon
