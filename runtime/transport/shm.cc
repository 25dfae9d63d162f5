#include "runtime/transport/shm.h"

#include <algorithm>

#include "runtime/base/check.h"

namespace horon {
namespace {

constexpr int64_t kDataBytes = 64 << 10;  // at most so much of a large message in one packet

constexpr int kMostOwedFor = 500;  // rounds: a busy holder does not keep a sleeper waiting

std::string TooLong(int peer, Tag tag, int64_t bytes, int64_t room) {
  return "rank " + std::to_string(peer) + " sent " + std::to_string(bytes) + " bytes (tag " +
         std::to_string(tag) + ") where " + std::to_string(room) + " were expected";
}

}  // namespace

ShmTransport::ShmTransport(std::shared_ptr<SharedSegment> segment, std::vector<int> members,
                           int local_rank, std::string name)
    : segment_(std::move(segment)),
      members_(std::move(members)),
      local_rank_(local_rank),
      name_(std::move(name)) {
  const int64_t capacity = segment_->shape().ring_bytes;
  owed_.resize(members_.size());
  for (int i = 0; i < static_cast<int>(members_.size()); ++i) {
    local_of_[members_[static_cast<size_t>(i)]] = i;
    peers_.push_back(
        i == local_rank_
            ? nullptr
            : std::make_unique<Peer>(members_[static_cast<size_t>(i)],
                                     RingWriter(segment_->ring(local_rank_, i),
                                                segment_->ring_bytes(local_rank_, i), capacity),
                                     RingReader(segment_->ring(i, local_rank_),
                                                segment_->ring_bytes(i, local_rank_), capacity)));
  }
}

ShmTransport::~ShmTransport() { FailAll(Status::Aborted("the transport was closed")); }

// A sleeping lender is a user who waits: woken at once. A background thread: see doorbell.h.
void ShmTransport::Ring(int local) {
  const uint32_t who = segment_->rank(local).bell.Ring(Doorbell::kLender);
  if ((who & Doorbell::kAnyBackground) == 0) return;
  owed_[static_cast<size_t>(local)] = true;
  owed_for_ = std::max(owed_for_, 1);
}

void ShmTransport::Flush() {
  if (owed_for_ == 0) return;
  owed_for_ = 0;
  for (size_t i = 0; i < owed_.size(); ++i) {
    if (!owed_[i]) continue;
    owed_[i] = false;
    // Read meanwhile by a lender that came and went? Then there is nothing to wake for.
    const RingWords& words = segment_->ring(local_rank_, static_cast<int>(i));
    if (words.tail.load(std::memory_order_acquire) != words.head.load(std::memory_order_relaxed))
      segment_->rank(static_cast<int>(i)).bell.Ring();
  }
}

bool ShmTransport::Reaches(int peer) const {
  const auto it = local_of_.find(peer);
  return it != local_of_.end() && it->second != local_rank_;
}

void ShmTransport::Finish(Transfer& transfer, Status status, int64_t bytes) {
  transfer.status = std::move(status);
  transfer.bytes = bytes;
  transfer.done = true;
  transfer.transport = nullptr;
}

Status ShmTransport::Post(Transfer& transfer) {
  HORON_TRY(failure_);
  const auto it = local_of_.find(transfer.peer);
  if (it == local_of_.end() || it->second == local_rank_) {
    return Status::Internal("rank " + std::to_string(transfer.peer) + " is not on this node");
  }
  Peer& peer = *peers_[static_cast<size_t>(it->second)];
  transfer.done = false;
  transfer.status = Status::Ok();
  transfer.bytes = 0;
  transfer.transport = this;
  if (transfer.direction == Transfer::Direction::kSend) {
    peer.starting.push_back(&transfer);
    if (ProgressSends(peer)) Ring(it->second);
  } else {
    PostReceive(peer, transfer);
  }
  return Status::Ok();
}

void ShmTransport::PostReceive(Peer& peer, Transfer& transfer) {
  const auto it = std::find_if(peer.unexpected.begin(), peer.unexpected.end(),
                               [&](const Unexpected& u) { return u.tag == transfer.tag; });
  if (it == peer.unexpected.end()) {
    peer.receives.push_back(&transfer);
    return;
  }
  Unexpected message = std::move(*it);
  peer.unexpected.erase(it);
  if (message.announced) {
    Grant(peer, transfer, message.id, message.bytes);
    return;
  }
  const int64_t room = TotalBytes(transfer.spans);
  if (message.bytes > room) {
    Finish(transfer, Status::Internal(TooLong(peer.rank, message.tag, message.bytes, room)), 0);
    return;
  }
  SpanCursor at;
  const std::byte* from = message.payload.data();
  ForNext(transfer.spans, at, message.bytes, [&](std::byte* to, int64_t n) {
    std::memcpy(to, from, static_cast<size_t>(n));
    from += n;
  });
  Finish(transfer, Status::Ok(), message.bytes);
}

// A message that is too long is granted all the same and dropped, so that its sender is not left
// waiting.
void ShmTransport::Grant(Peer& peer, Transfer& transfer, uint64_t id, int64_t bytes) {
  const int64_t room = TotalBytes(transfer.spans);
  Streaming incoming;
  incoming.bytes = bytes;
  if (bytes > room) {
    Finish(transfer, Status::Internal(TooLong(peer.rank, transfer.tag, bytes, room)), 0);
  } else {
    incoming.transfer = &transfer;
    transfer.scratch[0] = id;
  }
  peer.incoming[id] = incoming;
  peer.replies.push_back({Kind::kGrant, transfer.tag, 0, id});
  ProgressSends(peer);
  Ring(local_of_[peer.rank]);
}

Status ShmTransport::CheckDeaths() {
  if (segment_->deaths().load(std::memory_order_acquire) == 0) return Status::Ok();
  for (int i = 0; i < static_cast<int>(members_.size()); ++i) {
    RankWords& words = segment_->rank(i);
    if (words.state.load(std::memory_order_acquire) != static_cast<uint32_t>(RankState::kDead))
      continue;
    if (i == local_rank_)
      return Status::Unavailable("the other ranks have given this one up: " +
                                 std::string(words.death));
    return Status::Unavailable(words.death[0] != '\0'
                                   ? std::string(words.death)
                                   : "rank " + std::to_string(members_[static_cast<size_t>(i)]) +
                                         " died");
  }
  return Status::Ok();
}

void ShmTransport::FailAll(const Status& status) {
  for (auto& peer : peers_) {
    if (!peer) continue;
    for (Transfer* t : peer->starting) Finish(*t, status, 0);
    for (auto& [id, t] : peer->announced) Finish(*t, status, 0);
    for (auto& [id, s] : peer->streaming) {
      if (s.transfer != nullptr) Finish(*s.transfer, status, s.moved);
    }
    for (Transfer* t : peer->receives) Finish(*t, status, 0);
    for (auto& [id, s] : peer->incoming) {
      if (s.transfer != nullptr) Finish(*s.transfer, status, s.moved);
    }
    peer->starting.clear();
    peer->announced.clear();
    peer->streaming.clear();
    peer->receives.clear();
    peer->incoming.clear();
  }
}

Result<bool> ShmTransport::Progress() {
  HORON_TRY(failure_);
  bool moved = false;
  for (size_t i = 0; i < peers_.size(); ++i) {
    if (!peers_[i]) continue;
    bool was_full = false;
    HORON_ASSIGN(const bool received, ProgressReceives(*peers_[i], &was_full));
    const bool sent = ProgressSends(*peers_[i]);
    if (was_full) segment_->rank(static_cast<int>(i)).bell.Ring();  // it may wait for room
    if (sent) Ring(static_cast<int>(i));
    moved = moved || received || sent;
  }
  if (owed_for_ > 0 && ++owed_for_ > kMostOwedFor) Flush();
  // After the rings were read: what a rank sent before it died still counts.
  Status status = CheckDeaths();
  if (!status.ok()) {
    failure_ = status;
    FailAll(status);
    return status;
  }
  return moved;
}

// Grants first (they let the other side go on), then new messages in order, then bulk.
bool ShmTransport::ProgressSends(Peer& peer) {
  bool moved = false;
  constexpr int64_t kHeader = sizeof(Packet);
  while (!peer.replies.empty() && peer.writer.room_now() >= kHeader) {
    peer.writer.Write(&peer.replies.front(), kHeader);
    peer.writer.Publish();
    peer.replies.pop_front();
    moved = true;
  }
  if (!peer.replies.empty()) return moved;
  while (!peer.starting.empty() && WriteStart(peer, *peer.starting.front())) {
    peer.starting.pop_front();
    moved = true;
  }
  // Bounded per call, as a fast reader could keep this going while others wait.
  for (int budget = 8; budget > 0 && !peer.streaming.empty() && WriteData(peer); --budget)
    moved = true;
  return moved;
}

bool ShmTransport::WriteStart(Peer& peer, Transfer& transfer) {
  const int64_t bytes = TotalBytes(transfer.spans);
  const bool eager = bytes <= kEagerBytes;
  Packet packet{eager ? Kind::kEager : Kind::kAnnounce, transfer.tag, bytes, 0};
  if (peer.writer.room_now() < static_cast<int64_t>(sizeof(Packet)) + (eager ? bytes : 0))
    return false;
  if (!eager) {
    packet.id = peer.next_id++;
    transfer.scratch[0] = packet.id;
    peer.announced[packet.id] = &transfer;
  }
  peer.writer.Write(&packet, sizeof(Packet));
  if (eager) {
    for (const Span& span : transfer.spans) peer.writer.Write(span.data, span.bytes);
  }
  peer.writer.Publish();
  if (eager) Finish(transfer, Status::Ok(), bytes);
  return true;
}

bool ShmTransport::WriteData(Peer& peer) {
  auto& [id, stream] = peer.streaming.front();
  const int64_t room = peer.writer.room_now() - static_cast<int64_t>(sizeof(Packet));
  const int64_t left = stream.bytes - stream.moved;
  const int64_t most = std::min(kDataBytes, segment_->shape().ring_bytes / 4);
  const int64_t n = std::min(left, most);
  if (room < n) return false;
  Packet packet{stream.transfer == nullptr ? Kind::kAbandon : Kind::kData, 0,
                stream.transfer == nullptr ? 0 : n, id};
  peer.writer.Write(&packet, sizeof(Packet));
  if (stream.transfer != nullptr) {
    ForNext(stream.transfer->spans, stream.at, n,
            [&](std::byte* from, int64_t bytes) { peer.writer.Write(from, bytes); });
    stream.moved += n;
  }
  peer.writer.Publish();
  if (stream.transfer == nullptr || stream.moved == stream.bytes) {
    if (stream.transfer != nullptr) Finish(*stream.transfer, Status::Ok(), stream.bytes);
    peer.streaming.pop_front();
  }
  return true;
}

// *was_full: whether the writer may have found no room at any time during this.
Result<bool> ShmTransport::ProgressReceives(Peer& peer, bool* was_full) {
  bool moved = false;
  // Bounded per call: a peer that never stops sending must not keep the others waiting.
  for (int budget = 64; budget > 0; --budget) {
    const int64_t available = peer.reader.available();
    if (available < static_cast<int64_t>(sizeof(Packet))) break;
    *was_full = *was_full || available >= segment_->shape().ring_bytes / 4;
    Packet packet{};
    peer.reader.Read(&packet, sizeof(Packet));
    HORON_TRY(ReadPacket(peer, packet));
    peer.reader.Free();
    moved = true;
  }
  return moved;
}

Status ShmTransport::ReadPacket(Peer& peer, const Packet& packet) {
  const bool carries = packet.kind == Kind::kEager || packet.kind == Kind::kData;
  if (packet.bytes < 0 || (carries && packet.bytes > peer.reader.available())) {
    return Status::Internal("rank " + std::to_string(peer.rank) +
                            " wrote a broken message into shared memory");
  }
  switch (packet.kind) {
    case Kind::kEager:
      return ReadEager(peer, packet);
    case Kind::kData:
      return ReadData(peer, packet);
    case Kind::kAnnounce:
      if (Transfer* receive = TakeReceive(peer, packet.tag)) {
        Grant(peer, *receive, packet.id, packet.bytes);
      } else {
        peer.unexpected.push_back({packet.tag, true, packet.id, packet.bytes, {}});
      }
      return Status::Ok();
    case Kind::kGrant: {
      const auto it = peer.announced.find(packet.id);
      Streaming stream;
      if (it != peer.announced.end()) {
        stream.transfer = it->second;
        stream.bytes = TotalBytes(it->second->spans);
        peer.announced.erase(it);
      }
      peer.streaming.emplace_back(packet.id, stream);  // a cancelled one is written as kAbandon
      return Status::Ok();
    }
    case Kind::kAbandon: {
      const auto it = peer.incoming.find(packet.id);
      if (it == peer.incoming.end()) return Status::Ok();
      if (it->second.transfer != nullptr) {
        Finish(*it->second.transfer,
               Status::Aborted("rank " + std::to_string(peer.rank) + " took its message back"), 0);
      }
      peer.incoming.erase(it);
      return Status::Ok();
    }
  }
  return Status::Internal("rank " + std::to_string(peer.rank) +
                          " wrote an unknown message into shared memory");
}

Transfer* ShmTransport::TakeReceive(Peer& peer, Tag tag) {
  const auto it = std::find_if(peer.receives.begin(), peer.receives.end(),
                               [&](Transfer* t) { return t->tag == tag; });
  if (it == peer.receives.end()) return nullptr;
  Transfer* transfer = *it;
  peer.receives.erase(it);
  return transfer;
}

Status ShmTransport::ReadEager(Peer& peer, const Packet& packet) {
  Transfer* receive = TakeReceive(peer, packet.tag);
  if (receive == nullptr) {
    Unexpected message{packet.tag, false, 0, packet.bytes,
                       std::vector<std::byte>(static_cast<size_t>(packet.bytes))};
    peer.reader.Read(message.payload.data(), packet.bytes);
    peer.unexpected.push_back(std::move(message));
    return Status::Ok();
  }
  const int64_t room = TotalBytes(receive->spans);
  if (packet.bytes > room) {
    peer.reader.Skip(packet.bytes);
    Finish(*receive, Status::Internal(TooLong(peer.rank, packet.tag, packet.bytes, room)), 0);
    return Status::Ok();
  }
  SpanCursor at;
  ForNext(receive->spans, at, packet.bytes,
          [&](std::byte* to, int64_t n) { peer.reader.Read(to, n); });
  Finish(*receive, Status::Ok(), packet.bytes);
  return Status::Ok();
}

Status ShmTransport::ReadData(Peer& peer, const Packet& packet) {
  const auto it = peer.incoming.find(packet.id);
  if (it == peer.incoming.end() || packet.bytes > it->second.bytes - it->second.moved) {
    return Status::Internal("rank " + std::to_string(peer.rank) +
                            " sent bytes that belong to no message");
  }
  Streaming& stream = it->second;
  if (stream.transfer == nullptr) {
    peer.reader.Skip(packet.bytes);
  } else {
    ForNext(stream.transfer->spans, stream.at, packet.bytes,
            [&](std::byte* to, int64_t n) { peer.reader.Read(to, n); });
  }
  stream.moved += packet.bytes;
  if (stream.moved == stream.bytes) {
    if (stream.transfer != nullptr) Finish(*stream.transfer, Status::Ok(), stream.bytes);
    peer.incoming.erase(it);
  }
  return Status::Ok();
}

void ShmTransport::Cancel(Transfer& transfer) {
  Peer& peer = *peers_[static_cast<size_t>(local_of_[transfer.peer])];
  std::erase(peer.starting, &transfer);
  std::erase(peer.receives, &transfer);
  std::erase_if(peer.announced, [&](const auto& item) { return item.second == &transfer; });
  for (auto& [id, stream] : peer.streaming) {
    if (stream.transfer == &transfer) stream.transfer = nullptr;
  }
  for (auto& [id, stream] : peer.incoming) {
    if (stream.transfer == &transfer) stream.transfer = nullptr;
  }
  Finish(transfer, Status::Aborted("cancelled"), 0);
}

}  // namespace horon
