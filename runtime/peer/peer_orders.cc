// What this rank asks of others: put, accumulate, get, and averages of pairs.
#include <algorithm>
#include <cstring>

#include "runtime/peer/orders.h"

namespace horon {

Task PeerEngine::Run(Running& running) {
  return running.window().staged() != nullptr ? RunStaged(running) : RunOnHost(running);
}

Task PeerEngine::RunOnHost(Running& running) {
  if (!running.order.with_mutex || running.order.kind == OrderKind::kLock) {
    Task task = RunLocked(running);
    co_return co_await task;
  }
  Task locking = LockAll(running);
  HORON_CO_TRY(co_await locking);
  Task task = RunLocked(running);
  const Status status = co_await task;
  Task unlocking = UnlockAll(running);
  HORON_CO_TRY(co_await unlocking);
  co_return status;
}

Task PeerEngine::RunLocked(Running& running) {
  const OrderKind kind = running.order.kind;
  const bool locks = kind == OrderKind::kLock || kind == OrderKind::kUnlock;
  if (kind == OrderKind::kRound) LoadInput(running.order);
  if (!locks && MayTakeOwed(running.order)) {
    running.paid = !running.window().owed.empty();
    HORON_CO_TRY(TakeOwed(running.window()));
  }
  Task task;
  switch (kind) {
    case OrderKind::kPut:
    case OrderKind::kAdd:
      task = Give(running);
      break;
    case OrderKind::kGet:
      task = Get(running);
      break;
    case OrderKind::kUpdate:
      task = Update(running);
      break;
    case OrderKind::kLock:
      task = LockAll(running);
      break;
    case OrderKind::kUnlock:
      task = UnlockAll(running);
      break;
    case OrderKind::kPublish:
      task = Publish(running);
      break;
    case OrderKind::kPair:
      task = PairUp(running);
      break;
    case OrderKind::kRound:
      task = MixRound(running);
      break;
    case OrderKind::kStep:
      Step(running);
      co_return Status::Ok();
  }
  co_return co_await task;
}

// --- what a late rank leaves open

// Not while another order counts on the values as they are, as a part that is given away does: it
// stays owed. Of a window on a GPU orders follow each other.
bool PeerEngine::MayTakeOwed(const Order& order) {
  const Window& window = *order.window;
  return window.staged() != nullptr || window.changing.load() == (order.changes() ? 1 : 0);
}

Status PeerEngine::TakeOwed(Window& window) {
  std::vector<std::function<Status()>> owed;
  owed.swap(window.owed);
  for (const auto& one : owed) HORON_TRY(one());
  return Status::Ok();
}

// The order does not wait for it any longer. What it has to add in the end, the window's next order
// does: `answered` if the question was done there, `lost` if that rank is gone. Freed, nothing.
void PeerEngine::LeaveOpen(Running& running, int rank, const std::shared_ptr<Question>& question,
                           std::function<Status(Window&)> answered,
                           std::function<Status(Window&)> lost) {
  running.LeaveOpen(rank);
  question->settled = [this, rank, question = question.get(), answered = std::move(answered),
                       lost = std::move(lost),
                       window = std::weak_ptr<Window>(running.order.window)] {
    const Shared still = window.lock();
    if (!still) return;
    const bool done = question->status.ok() && question->reply.refused == 0;
    if (done) CountSent(rank, *still);
    const auto& add = done ? answered : lost;
    if (add) still->owed.push_back([add, one = still.get()] { return add(*one); });
  };
}

// --- put and accumulate

Task PeerEngine::Give(Running& running) {
  Order& order = running.order;
  Window& window = running.window();
  if (order.if_asked) {
    Task offering = Offer(running);
    HORON_CO_TRY(co_await offering);
  }
  SharedCopy copy;
  std::vector<std::pair<int, std::shared_ptr<Question>>> asked;
  const PeerKind kind = order.kind == OrderKind::kPut ? PeerKind::kPut : PeerKind::kAdd;
  for (const auto& [rank, weight] : order.ranks) {
    if (window.near(rank) != nullptr || running.Out(rank)) continue;
    if (!copy) {
      Result<SharedCopy> made = CopyOf(window);
      HORON_CO_TRY(made.status());
      copy = made.value();
    }
    asked.emplace_back(
        rank,
        Ask(window, rank,
            {.kind = kind, .weight = weight, .share = window.share, .carry = order.carry ? 1u : 0u},
            running.deadline, copy));
  }
  if (!order.if_asked) {
    Task giving = GiveAllNear(running);
    HORON_CO_TRY(co_await giving);
  }
  for (const auto& [rank, question] : asked) {
    co_await Until(*question);
    if (question->status.code() == Code::kInvalidArgument) co_return question->status;
    if (question->status.ok()) {
      CountSent(rank, window);
      continue;
    }
    running.Miss(rank);
    if (question->open)
      LeaveOpen(running, rank, question, nullptr,
                order.self_weight < 1 ? BackFrom(*question) : nullptr);
  }
  ScaleOwn(running);
  Task publishing = Publish(running);
  co_return co_await publishing;
}

Task PeerEngine::GiveAllNear(Running& running) {
  for (const auto& [rank, weight] : running.order.ranks) {
    if (running.window().near(rank) == nullptr || running.Out(rank)) continue;
    Task giving = GiveNear(running, rank, weight);
    HORON_CO_TRY(co_await giving);
  }
  co_return Status::Ok();
}

// Keeps what nobody has asked for: more would wait where the last part is not taken. Those near are
// given theirs; to the others nothing has gone when this is over, and they have their time for it.
Task PeerEngine::Offer(Running& running) {
  Window& window = running.window();
  std::vector<std::pair<int, std::shared_ptr<Question>>> offered;
  for (const auto& [rank, weight] : running.order.ranks) {
    const Window::Near* near = window.near(rank);
    if (near == nullptr) {
      offered.emplace_back(rank,
                           Ask(window, rank, {.kind = PeerKind::kOffer}, running.deadline));
    } else if (!Gone(rank) && !near->memory->slot(near->my_slot).head().asked.exchange(false)) {
      running.Keep(rank);
    }
  }
  Task giving = GiveAllNear(running);
  HORON_CO_TRY(co_await giving);
  for (const auto& [rank, question] : offered) {
    co_await Until(*question);
    if (question->status.code() == Code::kInvalidArgument) co_return question->status;
    if (!question->status.ok()) running.Miss(rank);
    if (question->status.ok() && question->reply.refused == kNotAsked) running.Keep(rank);
  }
  unasked_.Add(static_cast<int64_t>(running.kept.size()));
  running.deadline = Clock::now() + patience_;
  co_return Status::Ok();
}

Task PeerEngine::GiveNear(Running& running, int rank, double weight) {
  Window& window = running.window();
  const Window::Near* near = window.near(rank);
  const Slot slot = near->memory->slot(near->my_slot);
  const PeerHeader header{
      .kind = running.order.kind == OrderKind::kPut ? PeerKind::kPut : PeerKind::kAdd,
      .weight = weight,
      .share = window.share,
      .carry = running.order.carry ? 1u : 0u};
  while (!Gone(rank) && !running.Late()) {
    if (Deliver(header, window, slot, window.values())) {
      CountSent(rank, window);
      co_return Status::Ok();
    }
    NextCycle next(*this);
    co_await Until(next);
  }
  running.Miss(rank);
  co_return Status::Ok();
}

// How a part that was given away, to a rank that is gone, comes back.
std::function<Status(Window&)> PeerEngine::BackFrom(const Question& question) {
  return [head = question.header, values = question.values](Window& window) {
    CombineInto(window.shape().dtype, 1, window.values(), head.weight, values->data(),
                window.values(), window.count());
    if (head.carry != 0) window.share = window.share + head.weight * head.share;
    return Status::Ok();
  };
}

// Where parts of the values were given away, those that did not go stay here.
void PeerEngine::ScaleOwn(Running& running) {
  const Order& order = running.order;
  Window& window = running.window();
  double keep = order.self_weight;
  for (const auto& [rank, weight] : order.ranks) {
    const bool missed = running.Missed(rank) && !running.LeftOpen(rank);
    if (order.self_weight < 1 && (missed || running.Kept(rank))) keep += weight;
  }
  if (keep == 1) return;
  ScaleInto(window.shape().dtype, keep, window.values(), window.values(), window.count());
  if (order.carry) window.share = window.share * keep;
}

Task PeerEngine::Publish(Running& running) {
  Window& window = running.window();
  if (!window.shape().gets) co_return Status::Ok();
  const Slot slot = window.published();
  for (;;) {
    if (const SlotLock lock(slot); lock.held()) {
      if (window.bytes() > 0)
        std::memcpy(slot.values(), window.values(), static_cast<size_t>(window.bytes()));
      slot.head().share = window.share;
      slot.head().wiped = false;
      co_return Status::Ok();
    }
    if (running.Late()) co_return Status::Ok();  // a reader is stopped: it reads what was there
    NextCycle next(*this);
    co_await Until(next);
  }
}

// --- get

Task PeerEngine::Get(Running& running) {
  Window& window = running.window();
  Task publishing = Publish(running);
  HORON_CO_TRY(co_await publishing);
  std::vector<std::pair<size_t, std::shared_ptr<Question>>> asked;
  const auto& ranks = running.order.ranks;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (window.near(ranks[i].first) != nullptr || running.Missed(ranks[i].first)) continue;
    asked.emplace_back(i, Ask(window, ranks[i].first, {.kind = PeerKind::kGet}, running.deadline,
                              nullptr, window.bytes()));
  }
  for (const auto& [rank, weight] : ranks) {
    if (window.near(rank) == nullptr || running.Missed(rank)) continue;
    Task getting = GetNear(running, rank, weight);
    HORON_CO_TRY(co_await getting);
  }
  for (const auto& [i, question] : asked) {
    co_await Until(*question);
    if (question->status.code() == Code::kInvalidArgument) co_return question->status;
    Task keeping = KeepAnswer(running, ranks[i].first, ranks[i].second, *question);
    HORON_CO_TRY(co_await keeping);
  }
  co_return Status::Ok();
}

Task PeerEngine::GetNear(Running& running, int rank, double weight) {
  Window& window = running.window();
  const Slot theirs = window.near(rank)->memory->slot(0);
  while (!Gone(rank) && !running.Late()) {
    if (const SlotLock lock(theirs); lock.held() && !theirs.head().wiped) {
      const PeerHeader header{.kind = PeerKind::kPut,
                              .weight = weight,
                              .share = theirs.head().share,
                              .carry = running.order.carry ? 1u : 0u};
      if (Deliver(header, window, window.slot(rank), theirs.values())) co_return Status::Ok();
    }
    NextCycle next(*this);
    co_await Until(next);
  }
  running.Miss(rank);
  co_return Status::Ok();
}

Task PeerEngine::KeepAnswer(Running& running, int rank, double weight, Question& asked) {
  Window& window = running.window();
  const PeerHeader header{.kind = PeerKind::kPut,
                          .weight = weight,
                          .share = asked.reply.share,
                          .carry = running.order.carry ? 1u : 0u};
  while (asked.status.ok() && !running.Late()) {
    if (Deliver(header, window, window.slot(rank), asked.answer.data())) co_return Status::Ok();
    NextCycle next(*this);
    co_await Until(next);
  }
  running.Miss(rank);
  co_return Status::Ok();
}

// --- averages of pairs

void PeerEngine::CountSent(int rank, const Window& window) {
  (*counters_)["peer.bytes.to." + std::to_string(rank)].Add(window.bytes());
}

// Waits for one rank, which waits for nobody before it answers: so no ring of ranks can wait.
Task PeerEngine::PairUp(Running& running) {
  Window& window = running.window();
  const auto [rank, weight] = running.order.ranks[0];
  const Result<SharedCopy> sent = CopyOf(window);
  HORON_CO_TRY(sent.status());
  const auto question = Ask(window, rank, {.kind = PeerKind::kPropose, .weight = weight},
                            running.deadline, sent.value(), window.bytes());
  co_await Until(*question);
  const auto average = [this, weight = weight, question](Window& here) {
    ++here.averages;
    pairs_.Add();
    return AddDifference(here, weight, question->answer.data(), question->values->data());
  };
  if (question->status.ok()) {
    CountSent(rank, window);
    co_return average(window);
  }
  if (question->open) LeaveOpen(running, rank, question, average, nullptr);
  pairs_lost_.Add();
  running.Miss(rank);
  co_return question->status.code() == Code::kInvalidArgument ? question->status : Status::Ok();
}

// A block at a time: it is still in the cache when the output takes it.
void PeerEngine::Step(Running& running) {
  constexpr int64_t kBlock = 16384;  // elements
  const Order& order = running.order;
  Window& window = running.window();
  const DataType dtype = window.shape().dtype;
  for (int64_t at = 0; at < window.count(); at += kBlock) {
    const int64_t count = std::min(kBlock, window.count() - at);
    const int64_t offset = at * SizeOf(dtype);
    std::byte* values = window.values() + offset;
    if (order.input != nullptr)
      CombineInto(dtype, 1, values, order.self_weight, order.input + offset, values, count);
    if (order.output != nullptr)
      std::memcpy(order.output + offset, values, static_cast<size_t>(count * SizeOf(dtype)));
  }
  const int age = std::min(std::exchange(window.averages, 0), 4);
  (*counters_)["pair.staleness." + std::to_string(age) + (age == 4 ? "+" : "")].Add();
}

}  // namespace horon
