// What this rank does when another one asks, and the mutexes that it keeps for them.
#include <algorithm>

#include "runtime/peer/orders.h"
#include "runtime/peer/round_slot.h"

namespace horon {

PeerEngine::Shared PeerEngine::WindowOf(const PeerHeader& header) const {
  MutexLock lock(mutex_);
  for (const auto& [name, window] : windows_) {
    if (window->set() == header.set && window->epoch() == header.epoch) return window;
  }
  return nullptr;
}

int64_t PeerEngine::Expected(int from, const PeerHeader& header) {
  const Shared window = WindowOf(header);
  if (!window) return -1;
  const bool round = header.kind == PeerKind::kRound;
  if (round != (window->shape().rounds != nullptr)) return -1;
  if (header.kind == PeerKind::kPropose) return window->staged() ? -1 : window->bytes();
  if (header.kind == PeerKind::kOffer) return window->slot_of(from) > 0 ? 0 : -1;
  if (!round && header.kind != PeerKind::kPut && header.kind != PeerKind::kAdd) return 0;
  return window->slot_of(from) > 0 ? window->bytes() : -1;
}

// A round's message that its slot can take comes right into it: nobody reads a slot that is free.
std::shared_ptr<std::byte> PeerEngine::Place(int from, const PeerHeader& header) {
  const Shared window = header.kind == PeerKind::kRound ? WindowOf(header) : nullptr;
  if (!window || !RoundSlot(window->slot(from)).Takes(header.tensor_round)) return nullptr;
  return {window, window->slot(from).values()};
}

std::optional<Answerer::Answer> PeerEngine::Do(int from, const PeerHeader& header,
                                               const std::byte* values) {
  const Shared window = WindowOf(header);
  if (!window)
    return Answer{.refused = kNoSuchWindow};  // freed while the last piece was on its way
  switch (header.kind) {
    case PeerKind::kPut:
    case PeerKind::kAdd:
      if (!Deliver(header, *window, window->slot(from), values)) return std::nullopt;
      return Answer{};
    case PeerKind::kOffer:
      return Answer{.refused = window->slot(from).head().asked.exchange(false) ? 0 : kNotAsked};
    case PeerKind::kRound:
      return TakeMessage(header, RoundSlot(window->slot(from)), values);
    case PeerKind::kGet: {
      if (!window->shape().gets) return Answer{.refused = kNoSuchWindow};
      std::optional<Answer> answer = Read(*window);
      if (answer && !answer->refused) CountSent(from, *window);
      return answer;
    }
    case PeerKind::kPropose: {
      const int64_t begun = Stamp();
      CountSent(from, *window);
      Answer answer = Average(header, *window, values);
      if (begun > 0) Note(*window, "ANSWER: " + std::to_string(from), begun);
      return answer;
    }
    case PeerKind::kLock:
      AddWaiter(*window, from);
      return Answer{};
    case PeerKind::kUnlock:
      Unlock(*window, from);
      return Answer{};
    default: {  // a grant; who asks no longer does not want it
      const auto mine = window->my_locks.find(from);
      if (mine == window->my_locks.end()) return Answer{.refused = kNoSuchWindow};
      mine->second = true;
      return Answer{};
    }
  }
}

// Of a round. It waits until the last one was mixed.
std::optional<Answerer::Answer> PeerEngine::TakeMessage(const PeerHeader& header,
                                                        const RoundSlot& slot,
                                                        const std::byte* values) {
  switch (slot.TryPut(header.tensor_round, header.share, values)) {
    case RoundSlot::Put::kFull:
      return std::nullopt;
    case RoundSlot::Put::kLate:
      return Answer{.refused = kTooLate, .tensor_round = slot.next()};
    default:
      return Answer{};
  }
}

std::optional<Answerer::Answer> PeerEngine::Read(Window& window) {
  const SlotLock lock(window.published());
  if (!lock.held()) {
    looks_again_ = true;
    return std::nullopt;
  }
  Result<Buffer> room = fabric_->host_pool->Take(window.bytes());
  if (!room.ok()) return Answer{.refused = kNoSuchWindow};
  auto copy =
      std::make_shared<ValuesCopy>(std::move(room).value(), window.published().values());
  copy->data();  // while the slot is held
  return Answer{.share = window.published().head().share, .values = std::move(copy)};
}

// The values as they were go back, and both ranks add the same difference, with opposite signs.
Answerer::Answer PeerEngine::Average(const PeerHeader& header, Window& window,
                                     const std::byte* values) {
  const Result<SharedCopy> before = CopyOf(window);
  if (!before.ok()) return {.refused = kNoSuchWindow};
  const std::byte* mine = before.value()->data();
  if (!AddDifference(window, header.weight, values, mine).ok()) return {.refused = kNoSuchWindow};
  ++window.averages;
  pairs_.Add();
  return {.values = before.value()};
}

// --- mutexes: in the order in which they are asked for

void PeerEngine::AddWaiter(Window& window, int rank) {
  window.lock_waiters.push_back(rank);
  GrantNext(window);
}

// Or asks no longer.
void PeerEngine::Unlock(Window& window, int rank) {
  std::erase(window.lock_waiters, rank);
  if (window.lock_holder != rank) return;
  window.lock_holder = -1;
  GrantNext(window);
}

void PeerEngine::GrantNext(Window& window) {
  if (window.lock_holder >= 0 || window.lock_waiters.empty()) return;
  const int rank = window.lock_holder = window.lock_waiters.front();
  window.lock_waiters.pop_front();
  if (rank == me()) {
    window.my_locks[rank] = true;
  } else {
    MutexLock lock(mutex_);
    grants_.push_back({windows_.at(window.shape().name), rank, nullptr});
  }
}

// Of holders that have died. Who waits and has died cannot be told that it has one.
void PeerEngine::FreeMutexes() {
  RecycledVector<Shared> windows;
  {
    MutexLock lock(mutex_);
    for (const auto& [name, window] : windows_) windows.push_back(window);
  }
  for (const Shared& window : windows) {
    const int holder = window->lock_holder;
    if (holder >= 0 && holder != me() && Gone(holder)) Unlock(*window, holder);
  }
}

// Who cannot be told, or does not want it, has the mutex no longer.
void PeerEngine::KeepGrants() {
  std::vector<Grant> grants;
  grants.swap(grants_);
  for (Grant& grant : grants) {
    if (!grant.told)
      grant.told =
          Ask(*grant.window, grant.rank, {.kind = PeerKind::kGrant}, Clock::now() + patience_);
    if (!grant.told->done) {
      grants_.push_back(grant);
    } else if (!grant.told->status.ok()) {
      Unlock(*grant.window, grant.rank);
    }
  }
}

}  // namespace horon
