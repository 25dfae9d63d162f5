#include "runtime/core/control_channel.h"

#include <algorithm>

namespace horon {

ControlChannel::ControlChannel(Transport& transport, int peer, Counters& counters)
    : transport_(&transport),
      peer_(peer),
      messages_(counters["negotiation." + std::string(transport.name()) + ".messages"]),
      bytes_(counters["negotiation." + std::string(transport.name()) + ".bytes"]),
      frame_(static_cast<size_t>(kFrameBytes)) {}

void ControlChannel::Send(WireBytes message) {
  messages_.Add();
  bytes_.Add(static_cast<int64_t>(message.size()));
  outgoing_.push_back(std::move(message));
}

Status ControlChannel::StartFrame() {
  WireBytes& message = outgoing_.front();
  send_header_ = message.size();
  const size_t n = std::min(message.size() - sent_, static_cast<size_t>(kFrameBytes));
  send_.direction = Transfer::Direction::kSend;
  send_.peer = peer_;
  send_.tag = kControlTag;
  send_.spans = {{reinterpret_cast<std::byte*>(&send_header_), sizeof(send_header_)},
                 {message.data() + sent_, static_cast<int64_t>(n)}};
  sent_ += n;
  return transport_->Post(send_);
}

Status ControlChannel::PostReceive() {
  receive_.direction = Transfer::Direction::kReceive;
  receive_.peer = peer_;
  receive_.tag = kControlTag;
  receive_.spans = {{reinterpret_cast<std::byte*>(&receive_header_), sizeof(receive_header_)},
                    {frame_.data(), kFrameBytes}};
  receiving_ = true;
  return transport_->Post(receive_);
}

Status ControlChannel::TakeFrame() {
  receiving_ = false;
  HORON_TRY(receive_.status);
  const int64_t n = receive_.bytes - static_cast<int64_t>(sizeof(receive_header_));
  if (n < 0 || receive_header_ > kMostBytes ||
      partial_.size() + static_cast<size_t>(n) > receive_header_) {
    return Status::Internal("rank " + std::to_string(peer_) + " sent a broken control frame");
  }
  partial_.insert(partial_.end(), frame_.begin(), frame_.begin() + n);
  if (partial_.size() == receive_header_) arrived_.push_back(std::exchange(partial_, {}));
  return Status::Ok();
}

// What has come counts also where nothing can be sent any more.
Status ControlChannel::Advance() {
  const Status told = Tell();
  HORON_TRY(Hear());
  return told;
}

Status ControlChannel::Tell() {
  while (!outgoing_.empty() && send_.done) {
    HORON_TRY(send_.status);
    if (sent_ == outgoing_.front().size() && sent_ > 0) {
      outgoing_.pop_front();
      sent_ = 0;
      continue;
    }
    HORON_TRY(StartFrame());
  }
  return Status::Ok();
}

Status ControlChannel::Hear() {
  while (!closed_) {
    if (receiving_ && !receive_.done) return Status::Ok();
    if (receiving_) HORON_TRY(TakeFrame());
    HORON_TRY(PostReceive());
  }
  return Status::Ok();
}

std::optional<WireBytes> ControlChannel::Receive() {
  if (arrived_.empty()) return std::nullopt;
  WireBytes message = std::move(arrived_.front());
  arrived_.pop_front();
  return message;
}

}  // namespace horon
