// Taking the mutexes of other ranks. Several are taken in ascending order, so that no two ranks can
// wait for each other.
#include "runtime/peer/orders.h"

namespace horon {
namespace {

// It is so, or the time is over.
class SoonOrLate final : public Waitable {
 public:
  SoonOrLate(const bool& so, Link::Clock::time_point deadline) : so_(so), deadline_(deadline) {}
  bool Ready() override { return so_ || Link::Clock::now() >= deadline_; }

 private:
  const bool& so_;
  Link::Clock::time_point deadline_;
};

}  // namespace

Task PeerEngine::LockAll(Running& running) {
  if (running.order.kind == OrderKind::kUpdate) {
    Task own = Lock(running, me());
    HORON_CO_TRY(co_await own);
    if (!running.Missed(me())) co_return Status::Ok();
    co_return Status::Unavailable("the mutex of the window '" + running.window().shape().name +
                                  "' was not free in time");
  }
  for (const auto& [rank, weight] : running.order.ranks) {
    Task one = Lock(running, rank);
    HORON_CO_TRY(co_await one);
  }
  co_return Status::Ok();
}

Task PeerEngine::Lock(Running& running, int rank) {
  auto& mine = running.window().my_locks;
  while (mine.contains(rank) && !running.Late()) {  // another order of this rank has it
    NextCycle next(*this);
    co_await Until(next);
  }
  bool asked = !mine.contains(rank) && !running.Late();
  if (asked && rank == me()) {
    mine[rank] = false;
    AddWaiter(running.window(), rank);
  } else if (asked) {
    mine[rank] = false;
    const auto question = Ask(running.window(), rank, {.kind = PeerKind::kLock}, running.deadline);
    co_await Until(*question);
    if (question->status.code() == Code::kInvalidArgument) co_return question->status;
    asked = question->status.ok();
    if (!asked) mine.erase(rank);
  }
  if (asked) {
    SoonOrLate granted(mine[rank], running.deadline);
    co_await Until(granted);
    if (mine[rank]) co_return Status::Ok();
    Task giving_back = GiveBack(running, rank);
    HORON_CO_TRY(co_await giving_back);
  }
  running.Miss(rank);
  co_return Status::Ok();
}

Task PeerEngine::UnlockAll(Running& running) {
  if (running.order.kind == OrderKind::kUpdate) {
    Task own = GiveBack(running, me());
    co_return co_await own;
  }
  for (const auto& [rank, weight] : running.order.ranks) {
    const auto mine = running.window().my_locks.find(rank);
    if (mine == running.window().my_locks.end() || !mine->second) continue;
    Task one = GiveBack(running, rank);
    HORON_CO_TRY(co_await one);
  }
  co_return Status::Ok();
}

Task PeerEngine::GiveBack(Running& running, int rank) {
  running.window().my_locks.erase(rank);
  if (rank == me()) {
    Unlock(running.window(), rank);
    co_return Status::Ok();
  }
  // Goes on after the order, if that is late. Who cannot be told gives the mutex to somebody else
  // by himself.
  const auto question =
      Ask(running.window(), rank, {.kind = PeerKind::kUnlock}, Clock::now() + patience_);
  SoonOrLate told(question->done, running.deadline);
  co_await Until(told);
  co_return Status::Ok();
}

}  // namespace horon
