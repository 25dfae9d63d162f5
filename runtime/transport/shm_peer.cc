#include "runtime/transport/shm_peer.h"

#include <algorithm>

#include "runtime/base/fault.h"

namespace horon {
namespace {

constexpr int64_t kDataBytes = 64 << 10;   // at most so much of a large message in one packet
constexpr size_t kMostShown = 256;         // spans of a message that is shown where it lies
constexpr int64_t kPullBytes = 256 << 10;  // read at once, before others come to their turn

std::string TooLong(int peer, Tag tag, int64_t bytes, int64_t room) {
  return "rank " + std::to_string(peer) + " sent " + std::to_string(bytes) + " bytes (tag " +
         std::to_string(tag) + ") where " + std::to_string(room) + " were expected";
}

// Whether they hold so many bytes in all, whatever was written into the ring.
bool AddUp(std::span<const Span> spans, int64_t bytes) {
  for (const Span& span : spans) {
    if (span.bytes < 0 || span.bytes > bytes) return false;
    bytes -= span.bytes;
  }
  return bytes == 0;
}

void Finish(Transfer& transfer, Status status, int64_t bytes) {
  transfer.status = std::move(status);
  transfer.bytes = bytes;
  transfer.done = true;
  transfer.transport = nullptr;
}

}  // namespace

ShmPeer::ShmPeer(SharedSegment& segment, ShmBells& bells, int me, int local, int rank, bool direct,
                 Counter* read)
    : rank_(rank),
      local_(local),
      direct_(direct),
      my_revoked_(&segment.ring(me, local).revoked),
      their_revoked_(&segment.ring(local, me).revoked),
      memory_(segment.rank(local)),
      read_(read),
      ring_bytes_(segment.shape().ring_bytes),
      bells_(&bells),
      writer_(segment.ring(me, local), segment.ring_bytes(me, local), ring_bytes_),
      reader_(segment.ring(local, me), segment.ring_bytes(local, me), ring_bytes_) {}

void ShmPeer::PostSend(Transfer& transfer) {
  starting_.push_back(&transfer);
  if (ProgressSends()) bells_->Ring(local_);
}

bool ShmPeer::HasUnexpected(Tag tag) const {
  return std::any_of(unexpected_.begin(), unexpected_.end(),
                     [&](const Unexpected& u) { return u.tag == tag; });
}

void ShmPeer::PostReceive(Transfer& transfer) {
  const auto it = std::find_if(unexpected_.begin(), unexpected_.end(),
                               [&](const Unexpected& u) { return u.tag == transfer.tag; });
  if (it == unexpected_.end()) {
    receives_.push_back(&transfer);
    return;
  }
  Unexpected message = std::move(*it);
  unexpected_.erase(it);
  if (message.announced) {
    Accept(transfer, message.id, message.bytes, std::move(message.shown));
    return;
  }
  const int64_t room = TotalBytes(transfer.spans);
  if (message.bytes > room) {
    Finish(transfer, Status::Internal(TooLong(rank_, message.tag, message.bytes, room)), 0);
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
void ShmPeer::Accept(Transfer& transfer, uint64_t id, int64_t bytes, Shown shown) {
  const int64_t room = TotalBytes(transfer.spans);
  Streaming& incoming = incoming_[id] = {};
  incoming.bytes = bytes;
  if (bytes > room) {
    Finish(transfer, Status::Internal(TooLong(rank_, transfer.tag, bytes, room)), 0);
  } else {
    incoming.transfer = &transfer;
    transfer.scratch[0] = id;
    if (!shown.spans.empty() && direct_ && memory_.readable()) {
      incoming.shown = std::move(shown);
      pulling_.push_back(id);
      return;
    }
  }
  replies_.push_back({Kind::kGrant, transfer.tag, 0, id});
  ProgressSends();
  bells_->Ring(local_);
}

bool ShmPeer::Pull() {
  if (pulling_.empty()) return false;
  FaultPoint(FaultPhase::kMessage);
  const uint64_t id = pulling_.front();
  Streaming& stream = incoming_.at(id);
  const int64_t n = std::min(stream.bytes - stream.moved, kPullBytes);
  if (stream.transfer != nullptr && n > 0) {
    const bool read = Intact(stream.shown) && memory_.Read(stream.shown.spans, stream.shown_at,
                                                           stream.transfer->spans, stream.at, n);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (!read || !Intact(stream.shown)) {
      AskAgain(id, stream);
      return true;
    }
    stream.moved += n;
    if (stream.moved < stream.bytes) return true;
  }
  // Whoever is done may leave: not before the sender can hear that it is, too.
  if (!replies_.empty() || writer_.room_now() < static_cast<int64_t>(sizeof(Packet))) return false;
  if (stream.transfer != nullptr) {
    Finish(*stream.transfer, Status::Ok(), stream.bytes);
    if (read_ != nullptr) read_->Add(stream.bytes);
  }
  replies_.push_back({Kind::kTaken, 0, 0, id});
  pulling_.pop_front();
  incoming_.erase(id);
  return true;
}

// The sender has taken nothing back since it showed this.
bool ShmPeer::Intact(const Shown& shown) const {
  return their_revoked_->load(std::memory_order_relaxed) == shown.revoked;
}

// By the ring, from the start; taken back, it is abandoned there.
void ShmPeer::AskAgain(uint64_t id, Streaming& stream) {
  pulling_.pop_front();
  stream.moved = 0;
  stream.at = {};
  replies_.push_back({Kind::kGrant, stream.transfer->tag, 0, id});
}

// Before memory goes back that the peer may be reading.
void ShmPeer::Revoke() {
  my_revoked_->fetch_add(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

// Grants first (they let the other side go on), then new messages in order, then bulk.
bool ShmPeer::ProgressSends() {
  bool moved = false;
  constexpr int64_t kHeader = sizeof(Packet);
  while (!replies_.empty() && writer_.room_now() >= kHeader) {
    writer_.Write(&replies_.front(), kHeader);
    writer_.Publish();
    replies_.pop_front();
    moved = true;
  }
  if (!replies_.empty()) return moved;
  while (!starting_.empty() && WriteStart(*starting_.front())) {
    starting_.pop_front();
    moved = true;
  }
  // Bounded per call, as a fast reader could keep this going while others wait.
  for (int budget = 8; budget > 0 && !streaming_.empty() && WriteData(); --budget) moved = true;
  return moved;
}

bool ShmPeer::WriteStart(Transfer& transfer) {
  const int64_t bytes = TotalBytes(transfer.spans);
  const bool eager = bytes <= kEagerBytes;
  Packet packet{eager ? Kind::kEager : Kind::kAnnounce, transfer.tag, bytes, 0};
  const auto most =
      std::min<size_t>(kMostShown, static_cast<size_t>(ring_bytes_) / 4 / sizeof(Span));
  if (direct_ && bytes >= kShownBytes && transfer.spans.size() <= most) {
    packet.shown = static_cast<uint32_t>(transfer.spans.size());
    packet.revoked = my_revoked_->load(std::memory_order_relaxed);
  }
  const auto shown = static_cast<int64_t>(packet.shown * sizeof(Span));
  if (writer_.room_now() < static_cast<int64_t>(sizeof(Packet)) + (eager ? bytes : shown))
    return false;
  if (!eager) {
    packet.id = next_id_++;
    transfer.scratch[0] = packet.id;
    announced_[packet.id] = &transfer;
  }
  writer_.Write(&packet, sizeof(Packet));
  writer_.Write(transfer.spans.data(), shown);
  if (eager) {
    for (const Span& span : transfer.spans) writer_.Write(span.data, span.bytes);
  }
  writer_.Publish();
  if (eager) Finish(transfer, Status::Ok(), bytes);
  return true;
}

bool ShmPeer::WriteData() {
  auto& [id, stream] = streaming_.front();
  const int64_t room = writer_.room_now() - static_cast<int64_t>(sizeof(Packet));
  const int64_t left = stream.bytes - stream.moved;
  const int64_t most = std::min(kDataBytes, ring_bytes_ / 4);
  const int64_t n = std::min(left, most);
  if (room < n) return false;
  Packet packet{stream.transfer == nullptr ? Kind::kAbandon : Kind::kData, 0,
                stream.transfer == nullptr ? 0 : n, id};
  writer_.Write(&packet, sizeof(Packet));
  if (stream.transfer != nullptr) {
    ForNext(stream.transfer->spans, stream.at, n,
            [&](std::byte* from, int64_t bytes) { writer_.Write(from, bytes); });
    stream.moved += n;
  }
  writer_.Publish();
  if (stream.transfer == nullptr || stream.moved == stream.bytes) {
    if (stream.transfer != nullptr) Finish(*stream.transfer, Status::Ok(), stream.bytes);
    streaming_.pop_front();
  }
  return true;
}

Result<bool> ShmPeer::ProgressReceives(bool* was_full) {
  bool moved = false;
  // Bounded per call: a peer that never stops sending must not keep the others waiting.
  for (int budget = 64; budget > 0; --budget) {
    const int64_t available = reader_.available();
    if (available < static_cast<int64_t>(sizeof(Packet))) break;
    *was_full = *was_full || available >= ring_bytes_ / 4;
    Packet packet{};
    reader_.Read(&packet, sizeof(Packet));
    HORON_TRY(ReadPacket(packet));
    reader_.Free();
    moved = true;
  }
  heard_ = moved;
  return moved;
}

bool ShmPeer::silent() {
  return !heard_ && reader_.available() < static_cast<int64_t>(sizeof(Packet));
}

Status ShmPeer::ReadPacket(const Packet& packet) {
  const bool carries = packet.kind == Kind::kEager || packet.kind == Kind::kData;
  const auto shown = static_cast<int64_t>(packet.shown * sizeof(Span));
  if (packet.bytes < 0 || shown > reader_.available() || packet.shown > kMostShown ||
      (carries && packet.bytes > reader_.available())) {
    return Status::Internal("rank " + std::to_string(rank_) +
                            " wrote a broken message into shared memory");
  }
  switch (packet.kind) {
    case Kind::kEager:
      return ReadEager(packet);
    case Kind::kAnnounce:
      return ReadAnnounce(packet);
    case Kind::kGrant:
      return ReadGrant(packet);
    case Kind::kData:
      return ReadData(packet);
    case Kind::kAbandon:
      return ReadAbandon(packet);
    case Kind::kTaken:
      ReadTaken(packet);
      return Status::Ok();
  }
  return Status::Internal("rank " + std::to_string(rank_) +
                          " wrote an unknown message into shared memory");
}

Transfer* ShmPeer::TakeReceive(Tag tag) {
  const auto it =
      std::find_if(receives_.begin(), receives_.end(), [&](Transfer* t) { return t->tag == tag; });
  if (it == receives_.end()) return nullptr;
  Transfer* transfer = *it;
  receives_.erase(it);
  return transfer;
}

Status ShmPeer::ReadEager(const Packet& packet) {
  Transfer* receive = TakeReceive(packet.tag);
  if (receive == nullptr) {
    Unexpected message{packet.tag,
                       false,
                       0,
                       packet.bytes,
                       RecycledVector<std::byte>(static_cast<size_t>(packet.bytes)),
                       {}};
    reader_.Read(message.payload.data(), packet.bytes);
    unexpected_.push_back(std::move(message));
    return Status::Ok();
  }
  const int64_t room = TotalBytes(receive->spans);
  if (packet.bytes > room) {
    reader_.Skip(packet.bytes);
    Finish(*receive, Status::Internal(TooLong(rank_, packet.tag, packet.bytes, room)), 0);
    return Status::Ok();
  }
  SpanCursor at;
  ForNext(receive->spans, at, packet.bytes, [&](std::byte* to, int64_t n) { reader_.Read(to, n); });
  Finish(*receive, Status::Ok(), packet.bytes);
  return Status::Ok();
}

Status ShmPeer::ReadAnnounce(const Packet& packet) {
  Shown shown{RecycledVector<Span>(packet.shown), packet.revoked};
  reader_.Read(shown.spans.data(), static_cast<int64_t>(packet.shown * sizeof(Span)));
  if (packet.shown > 0 && !AddUp(shown.spans, packet.bytes))
    return Status::Internal("rank " + std::to_string(rank_) +
                            " shows a message of another length than it announces");
  if (Transfer* receive = TakeReceive(packet.tag)) {
    Accept(*receive, packet.id, packet.bytes, std::move(shown));
  } else {
    unexpected_.push_back({packet.tag, true, packet.id, packet.bytes, {}, std::move(shown)});
  }
  return Status::Ok();
}

Status ShmPeer::ReadGrant(const Packet& packet) {
  const auto it = announced_.find(packet.id);
  Streaming stream;
  if (it != announced_.end()) {
    stream.transfer = it->second;
    stream.bytes = TotalBytes(it->second->spans);
    announced_.erase(it);
  }
  streaming_.emplace_back(packet.id, stream);  // a cancelled one is written as kAbandon
  return Status::Ok();
}

Status ShmPeer::ReadData(const Packet& packet) {
  FaultPoint(FaultPhase::kMessage);
  const auto it = incoming_.find(packet.id);
  if (it == incoming_.end() || packet.bytes > it->second.bytes - it->second.moved) {
    return Status::Internal("rank " + std::to_string(rank_) +
                            " sent bytes that belong to no message");
  }
  Streaming& stream = it->second;
  if (stream.transfer == nullptr) {
    reader_.Skip(packet.bytes);
  } else {
    ForNext(stream.transfer->spans, stream.at, packet.bytes,
            [&](std::byte* to, int64_t n) { reader_.Read(to, n); });
  }
  stream.moved += packet.bytes;
  if (stream.moved == stream.bytes) {
    if (stream.transfer != nullptr) Finish(*stream.transfer, Status::Ok(), stream.bytes);
    incoming_.erase(it);
  }
  return Status::Ok();
}

Status ShmPeer::ReadAbandon(const Packet& packet) {
  const auto it = incoming_.find(packet.id);
  if (it == incoming_.end()) return Status::Ok();
  if (it->second.transfer != nullptr) {
    Finish(*it->second.transfer,
           Status::Aborted("rank " + std::to_string(rank_) + " took its message back"), 0);
  }
  incoming_.erase(it);
  return Status::Ok();
}

void ShmPeer::ReadTaken(const Packet& packet) {
  const auto it = announced_.find(packet.id);
  if (it == announced_.end()) return;  // taken back
  Finish(*it->second, Status::Ok(), TotalBytes(it->second->spans));
  announced_.erase(it);
}

void ShmPeer::Cancel(Transfer& transfer) {
  std::erase(starting_, &transfer);
  std::erase(receives_, &transfer);
  if (std::erase_if(announced_, [&](const auto& item) { return item.second == &transfer; }) > 0)
    Revoke();
  for (auto& [id, stream] : streaming_) {
    if (stream.transfer == &transfer) stream.transfer = nullptr;
  }
  for (auto& [id, stream] : incoming_) {
    if (stream.transfer == &transfer) stream.transfer = nullptr;
  }
  Finish(transfer, Status::Aborted("cancelled"), 0);
}

void ShmPeer::FailAll(const Status& status) {
  if (!announced_.empty()) Revoke();
  for (Transfer* t : starting_) Finish(*t, status, 0);
  for (auto& [id, t] : announced_) Finish(*t, status, 0);
  for (Transfer* t : receives_) Finish(*t, status, 0);
  starting_.clear();
  announced_.clear();
  receives_.clear();
  const auto fail = [&status](Streaming& stream) {
    if (stream.transfer != nullptr) Finish(*stream.transfer, status, stream.moved);
    stream.transfer = nullptr;
  };
  for (auto& [id, stream] : streaming_) fail(stream);
  for (auto& [id, stream] : incoming_) fail(stream);
}

}  // namespace horon
