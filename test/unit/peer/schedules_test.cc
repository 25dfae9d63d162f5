// Questions and averages of pairs in every order in which messages can arrive: a bounded model
// check of the real Link and PeerEngine. Ranks share one thread; what they send lies in a net until
// the schedule says what arrives next, is lost, or arrives twice.
#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <optional>

#include "runtime/device/memory.h"
#include "runtime/peer/peer_engine.h"
#include "test/support/catch.h"

namespace horon {
namespace {

// Tries every sequence of choices, one a run, depth first.
class Schedules {
 public:
  size_t Choose(size_t options) {
    if (depth_ == path_.size()) path_.push_back({0, options});
    return path_[depth_++].taken;
  }
  // Whether there is another run.
  bool Next() {
    ++runs;
    depth_ = 0;
    while (!path_.empty() && path_.back().taken + 1 == path_.back().options) path_.pop_back();
    if (path_.empty()) return false;
    ++path_.back().taken;
    return true;
  }
  int64_t runs = 0;

 private:
  struct Choice {
    size_t taken, options;
  };
  std::vector<Choice> path_;
  size_t depth_ = 0;
};

// Messages on their way, and who waits for one. Between two ranks they stay in their order.
class Net {
 public:
  using Way = std::pair<int, int>;  // from, to

  std::vector<Way> ways() const {  // on which something can arrive
    std::vector<Way> found;
    for (const auto& [way, messages] : flying_)
      if (!messages.empty() && expected_.contains(way)) found.push_back(way);
    return found;
  }
  void Send(Way way, std::vector<std::byte> message) { flying_[way].push_back(std::move(message)); }
  void Expect(Way way, Transfer& transfer) { expected_[way] = &transfer; }
  void Forget(const Transfer& transfer) {
    std::erase_if(expected_, [&](const auto& one) { return one.second == &transfer; });
  }
  void Lose(Way way) { flying_[way].pop_front(); }
  // `again`: it stays, too.
  void Arrive(Way way, bool again) {
    Transfer* const transfer = expected_.at(way);
    expected_.erase(way);
    const std::vector<std::byte>& message = flying_[way].front();
    const Span& room = transfer->spans[0];
    REQUIRE(static_cast<int64_t>(message.size()) <= room.bytes);
    std::memcpy(room.data, message.data(), message.size());
    transfer->bytes = static_cast<int64_t>(message.size());
    transfer->transport = nullptr;
    transfer->done = true;
    if (!again) Lose(way);
  }

 private:
  std::map<Way, std::deque<std::vector<std::byte>>> flying_;
  std::map<Way, Transfer*> expected_;
};

// One rank's end of it.
class End final : public Transport {
 public:
  End(Net& net, int rank) : net_(net), rank_(rank) {}
  std::string_view name() const override { return "net"; }
  bool Reaches(int) const override { return true; }
  Status Post(Transfer& transfer) override {
    transfer.done = transfer.direction == Transfer::Direction::kSend;
    if (transfer.done) {
      std::vector<std::byte> message;
      for (const Span& span : transfer.spans)
        message.insert(message.end(), span.data, span.data + span.bytes);
      net_.Send({rank_, transfer.peer}, std::move(message));
    } else {
      transfer.transport = this;
      net_.Expect({transfer.peer, rank_}, transfer);
    }
    return Status::Ok();
  }
  Result<bool> Progress() override { return false; }
  void Cancel(Transfer& transfer) override { net_.Forget(transfer); }

 private:
  Net& net_;
  int rank_;
};

std::shared_ptr<Pool> HostPool() { return std::make_shared<Pool>(MakeHostMemory()); }

// --- averages of pairs, with the whole engine

class PairRank {
 public:
  PairRank(Net& net, int rank, int size, std::shared_ptr<WindowMemory> memory)
      : end_(net, rank), value_(static_cast<float>(1 << (4 * rank))) {
    fabric_.rank = rank;
    fabric_.topology = Topology::Blocks(size, 1);
    fabric_.route.assign(static_cast<size_t>(size), &end_);
    fabric_.host_pool = HostPool();
    engine_.emplace(fabric_, nullptr, std::chrono::hours(1), counters_);
    WindowShape shape;
    shape.name = "w";
    shape.shape = {1};
    for (int other = 0; other < size; ++other)
      if (other != rank) shape.in.push_back(other);
    shape.out = shape.in;
    window_ = std::make_shared<Window>(shape, reinterpret_cast<std::byte*>(&value_),
                                       std::move(memory), 1);
    REQUIRE(engine_->Open(window_).ok());
    Settle();
  }
  void Begin(int with) {
    ++begun_;
    Order order;
    order.kind = OrderKind::kPair;
    order.window = window_;
    order.ranks = {{with, 0.5}};
    order.done = [this](const Status& status, const std::vector<int64_t>& unreached, SharedEvent) {
      if (status.ok() && unreached.empty()) ++ended_;
    };
    REQUIRE(engine_->Submit(std::move(order)).ok());
    Settle();
  }
  void Settle() {
    while (engine_->Advance()) {
    }
  }
  float value() const { return value_; }
  bool through() const { return begun_ == ended_; }
  int64_t averages() { return counters_["pair.averages"].value(); }

 private:
  End end_;
  float value_;
  Fabric fabric_;
  Counters counters_;
  int begun_ = 0, ended_ = 0;
  std::shared_ptr<Window> window_;
  std::optional<PeerEngine> engine_;
};

// Everybody's averages, in any order of beginnings and arrivals, of which so many come twice. The
// values are powers of 16, far enough apart that no half is ever rounded: sums are exact.
int64_t TryPairs(const std::vector<std::vector<int>>& turns, int twice) {
  const int size = static_cast<int>(turns.size());
  std::vector<std::shared_ptr<WindowMemory>> memory;
  for (int rank = 0; rank < size; ++rank)
    memory.push_back(WindowMemory::Make(size, sizeof(float)).value());
  Schedules schedules;
  do {
    Net net;
    std::deque<PairRank> ranks;
    for (int rank = 0; rank < size; ++rank)
      ranks.emplace_back(net, rank, size, memory[static_cast<size_t>(rank)]);
    std::vector<size_t> next(turns.size());
    int64_t pairs = 0;
    for (int left = twice;;) {
      std::vector<size_t> begins;
      for (size_t rank = 0; rank < turns.size(); ++rank)
        if (next[rank] < turns[rank].size()) begins.push_back(rank);
      const auto ways = net.ways();
      if (begins.empty() && ways.empty()) break;
      const size_t chosen = schedules.Choose(begins.size() + ways.size());
      if (chosen < begins.size()) {
        const size_t rank = begins[chosen];
        ranks[rank].Begin(turns[rank][next[rank]++]);
        ++pairs;
        continue;
      }
      const auto way = ways[chosen - begins.size()];
      const bool again = left > 0 && schedules.Choose(2) == 1;
      left -= again ? 1 : 0;
      net.Arrive(way, again);
      ranks[static_cast<size_t>(way.second)].Settle();
    }
    float sum = 0, all = 0;
    int64_t averages = 0;
    bool through = true;
    for (int rank = 0; rank < size; ++rank) {
      PairRank& one = ranks[static_cast<size_t>(rank)];
      sum += one.value();
      all += static_cast<float>(1 << (4 * rank));
      averages += one.averages();
      through = through && one.through();
    }
    if (!through || sum != all || averages != 2 * pairs) {
      FAIL("run " << schedules.runs << ": through " << through << ", sum " << sum << " of " << all
                  << ", " << averages << " halves of " << pairs << " averages");
    }
  } while (schedules.Next());
  return schedules.runs;
}

TEST_CASE("averages of pairs end, and keep the sum, in every order of messages", "[peer]") {
  CHECK(TryPairs({{1}, {2}, {0}}, 0) == 1680);  // a ring: each waits for the next one
  TryPairs({{1, 1}, {0, 0}}, 0);                // both ends of an edge begin
  TryPairs({{1}, {0}}, 2);
  TryPairs({{1, 2}, {2}, {}}, 1);
  TryPairs({{1}, {2}, {3}, {}}, 0);
}

// --- questions that are lost

constexpr std::chrono::hours kPatience{1};

// Answers each question with its weight, and counts. One that waits for its own answer first is a
// mistake that the schedules must find.
class Side final : public Answerer {
 public:
  Side(Net& net, int rank, bool waits) : end_(net, rank), pool_(HostPool()), waits_(waits) {}
  Link& to(int peer) {
    auto& link = links_[peer];
    if (!link) link.emplace(peer, end_, *pool_, kPatience, counters_);
    return *link;
  }
  void Ask(int peer, double weight, Link::Clock::time_point now) {
    asked_.push_back(std::make_shared<Question>());
    asked_.back()->header.kind = PeerKind::kLock;
    asked_.back()->header.weight = weight;
    asked_.back()->deadline = now + kPatience;
    asked_.back()->counts = true;
    to(peer).Ask(asked_.back());
  }
  void Settle(Link::Clock::time_point now) {
    for (bool moved = true; moved;) {
      moved = false;
      for (auto& [peer, link] : links_) moved = link->Progress(*this, now) || moved;
    }
  }
  int64_t Expected(int, const PeerHeader&) override { return 0; }
  std::optional<Answer> Do(int from, const PeerHeader& header, const std::byte*) override {
    if (waits_ && !through()) return std::nullopt;
    done[from].push_back(header.weight);
    return Answer{.share = header.weight};
  }
  bool through() const {
    return std::all_of(asked_.begin(), asked_.end(), [](const auto& one) {
      return one->done && !one->open && one->status.ok() &&
             one->reply.share == one->header.weight;
    });
  }
  std::map<int, std::vector<double>> done;  // by rank: what it asked, in order

 private:
  End end_;
  std::shared_ptr<Pool> pool_;
  Counters counters_;
  bool waits_;
  std::map<int, std::optional<Link>> links_;
  std::vector<std::shared_ptr<Question>> asked_;
};

// Each rank asks the next one so many questions; so many messages are lost, and as many come twice.
// Once nothing can arrive, so much time passes. In how many runs somebody was left waiting, or
// something was done twice or not at all.
int64_t WrongRuns(int size, int questions, int lost, bool waits,
                  std::chrono::minutes passing = std::chrono::minutes(4), int passes = 8) {
  Schedules schedules;
  int64_t wrong = 0;
  do {
    Net net;
    std::deque<Side> sides;
    auto now = Link::Clock::now();
    for (int rank = 0; rank < size; ++rank) sides.emplace_back(net, rank, waits);
    for (int rank = 0; rank < size; ++rank) {
      const int after = (rank + 1) % size;
      for (int i = 0; i < questions; ++i) sides[static_cast<size_t>(rank)].Ask(after, i + 1, now);
      sides[static_cast<size_t>(after)].to(rank);
    }
    const auto settle = [&] {
      for (Side& side : sides) side.Settle(now);
    };
    settle();
    for (int lose = lost, twice = lost, passed = 0; passed < passes;) {
      const auto ways = net.ways();
      if (ways.empty()) {
        if (std::all_of(sides.begin(), sides.end(), [](const Side& s) { return s.through(); }))
          break;
        now += passing;
        ++passed;
      } else {
        const auto way = ways[schedules.Choose(ways.size())];
        const size_t fate = schedules.Choose(1 + (lose > 0 ? 1u : 0u) + (twice > 0 ? 1u : 0u));
        const bool loses = lose > 0 && fate == 1, doubles = fate != 0 && !loses;
        lose -= loses ? 1 : 0;
        twice -= doubles ? 1 : 0;
        loses ? net.Lose(way) : net.Arrive(way, doubles);
      }
      settle();
    }
    bool right = true;
    for (int rank = 0; rank < size; ++rank) {
      Side& side = sides[static_cast<size_t>(rank)];
      std::vector<double> once;
      for (int i = 0; i < questions; ++i) once.push_back(i + 1);
      right = right && side.through() && side.done[(rank + size - 1) % size] == once;
    }
    wrong += right ? 0 : 1;
  } while (schedules.Next());
  return wrong;
}

TEST_CASE("every question is done once and answered, whatever is lost or doubled", "[peer]") {
  CHECK(WrongRuns(2, 2, 1, false) == 0);
  CHECK(WrongRuns(3, 1, 1, false) == 0);
  CHECK(WrongRuns(2, 1, 2, false) == 0);
}

TEST_CASE("a question that counts is done once, also by a rank that answers late", "[peer]") {
  constexpr std::chrono::minutes kTooLate{61};
  CHECK(WrongRuns(2, 1, 1, false, kTooLate) == 0);
  CHECK(WrongRuns(2, 1, 2, false, kTooLate) == 0);
  CHECK(WrongRuns(3, 1, 1, false, kTooLate) == 0);
}

TEST_CASE("no question waits beyond its own time for one that has more", "[peer]") {
  Net net;
  Side side(net, 0, false);
  const auto now = Link::Clock::now();
  Link& link = side.to(1);  // which never answers
  const auto ask = [&](std::chrono::minutes time) {
    auto question = std::make_shared<Question>();
    question->header.kind = PeerKind::kLock;
    question->deadline = now + time;
    link.Ask(question);
    return question;
  };
  const auto first = ask(std::chrono::minutes(50)), short_one = ask(std::chrono::minutes(20)),
             last = ask(std::chrono::minutes(60));
  side.Settle(now);
  CHECK(link.next_look() <= short_one->deadline);
  side.Settle(now + std::chrono::minutes(19));
  CHECK_FALSE(short_one->done);
  side.Settle(now + std::chrono::minutes(20));
  REQUIRE(short_one->done);
  CHECK(short_one->status.code() == Code::kUnavailable);
  CHECK_FALSE((first->done || last->done || link.lost()));
  side.Settle(now + std::chrono::minutes(50));  // nothing has come from that rank for so long
  CHECK((first->done && last->done && link.lost()));
}

TEST_CASE("the schedules find a ring of ranks that wait for each other", "[peer]") {
  // Three questions arrive in any order, no answer ever. They are looked at no more often: asked
  // again they arrive in all orders again.
  CHECK(WrongRuns(3, 1, 0, true, std::chrono::minutes(4), 1) == 6);
}

}  // namespace
}  // namespace horon
