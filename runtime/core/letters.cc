#include "runtime/core/letters.h"

#include <algorithm>
#include <utility>

namespace horon {
namespace {

constexpr std::chrono::milliseconds kLetterLook{250};
constexpr size_t kMostKept = 256;  // more stay with the transport until the watch thread has looked

}  // namespace

Letters::Letters(const Fabric& fabric, std::function<bool(int)> gone)
    : route_(&fabric.route), gone_(std::move(gone)) {
  const Topology& topology = fabric.topology;
  for (int rank = 0; rank < topology.size(); ++rank) {
    Transport* const way = fabric.route[static_cast<size_t>(rank)];
    const bool known = std::find(ways_.begin(), ways_.end(), way) != ways_.end();
    if (topology.node_of(rank) != topology.node_of(fabric.rank) && !known) ways_.push_back(way);
  }
}

void Letters::Send(std::vector<Letter> letters) {
  std::erase_if(letters, [](const Letter& letter) { return letter.bytes.size() > kMostBytes; });
  if (letters.empty()) return;
  MutexLock lock(mutex_);
  std::move(letters.begin(), letters.end(), std::back_inserter(outgoing_));
  to_send_.store(true, std::memory_order_release);
}

std::vector<Letter> Letters::Take() {
  MutexLock lock(mutex_);
  return std::exchange(arrived_, {});
}

// What a transport cannot send it says itself, with its next progress.
void Letters::PostSends() {
  std::vector<Letter> letters;
  {
    MutexLock lock(mutex_);
    letters.swap(outgoing_);
  }
  for (Letter& letter : letters) {
    if (gone_(letter.peer)) continue;
    Sending& one = sending_.emplace_back();
    one.letter = std::move(letter);
    one.transfer.direction = Transfer::Direction::kSend;
    one.transfer.peer = one.letter.peer;
    one.transfer.tag = kLetterTag;
    one.transfer.spans = {
        {one.letter.bytes.data(), static_cast<int64_t>(one.letter.bytes.size())}};
    Transport& way = *(*route_)[static_cast<size_t>(one.letter.peer)];
    if (!way.Post(one.transfer).ok()) sending_.pop_back();
  }
}

void Letters::PostReceive() {
  {
    MutexLock lock(mutex_);
    if (arrived_.size() >= kMostKept) return;
  }
  for (Transport* const way : ways_) {
    const int peer = way->Sender(kLetterTag);
    if (peer < 0) continue;
    received_.resize(kMostBytes);
    receive_.direction = Transfer::Direction::kReceive;
    receive_.peer = peer;
    receive_.tag = kLetterTag;
    receive_.spans = {{received_.data(), static_cast<int64_t>(received_.size())}};
    receiving_ = way->Post(receive_).ok();
    return;
  }
}

bool Letters::TakeReceived() {
  receiving_ = false;
  if (!receive_.status.ok()) return false;
  const auto end = received_.begin() + static_cast<std::ptrdiff_t>(receive_.bytes);
  MutexLock lock(mutex_);
  arrived_.push_back({receive_.peer, {received_.begin(), end}});
  return true;
}

bool Letters::Advance(Clock::time_point now) {
  if (ways_.empty() || closed_) return false;
  if (to_send_.exchange(false, std::memory_order_acquire)) PostSends();
  sending_.remove_if([](const Sending& one) { return one.transfer.done; });
  bool came = false;
  if (receiving_) {
    if (!receive_.done) return false;
    came = TakeReceived();
  }
  if (!came && now < look_at_) return false;  // where one was there may be more
  look_at_ = now + kLetterLook;
  PostReceive();
  return came;
}

void Letters::Close() {
  closed_ = true;
  sending_.clear();
  receive_.Cancel();
  receiving_ = false;
}

}  // namespace horon
