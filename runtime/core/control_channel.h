// ControlChannel: whole messages of any length between the coordinator and a rank, over the
// transport that reaches it. Cuts them into frames of at most kFrameBytes on tag 0 and puts them
// together again. Never blocks. Holder of the baton only.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/counters.h"
#include "runtime/core/wire_bytes.h"
#include "runtime/transport/transport.h"

namespace horon {

class ControlChannel {
 public:
  static constexpr int64_t kFrameBytes = 8 << 10;
  static constexpr uint64_t kMostBytes = uint64_t{1} << 30;

  // Counts what it sends in "negotiation.<transport>.messages" and ".bytes".
  ControlChannel(Transport& transport, int peer, Counters& counters);

  const Transport& transport() const { return *transport_; }
  void Send(WireBytes message);
  // Call when the transport made progress. kUnavailable when the peer is gone.
  Status Advance();
  // The next whole message, if one has come.
  std::optional<WireBytes> Receive();
  bool sending() const { return !outgoing_.empty(); }
  // The peer sends nothing more; what is to be sent to it still goes.
  void CloseReceiving() {
    receive_.Cancel();
    closed_ = true;
  }

 private:
  Status Tell();
  Status Hear();
  Status StartFrame();
  Status PostReceive();
  Status TakeFrame();

  Transport* transport_;
  int peer_;
  Counter& messages_;
  Counter& bytes_;
  std::deque<WireBytes, Recycling<WireBytes>> outgoing_;  // the first is on its way
  size_t sent_ = 0;                                       // bytes of the first that were posted
  uint64_t send_header_ = 0;
  uint64_t receive_header_ = 0;  // bytes of the whole message, in every frame
  std::vector<std::byte> frame_;
  WireBytes partial_;
  std::deque<WireBytes, Recycling<WireBytes>> arrived_;
  bool receiving_ = false, closed_ = false;
  Transfer send_, receive_;  // last: cancelled before the buffers go
};

}  // namespace horon
