// libFuzzer on everything that is decoded: negotiation's messages, op specs, values of variables,
// windows' rows and messages, the file of a tuning, the packets of a shared-memory ring and of the
// sockets to the launcher and between a node's ranks, letters between nodes, and the messages of
// top-k. The first byte chooses the decoder. Whatever decodes must come back the same when it is
// encoded and decoded again; nothing may crash, hang or take memory that the bytes do not justify.
//
// Built with clang by CTest (fuzz); by hand: see the command in test/CMakeLists.txt.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "ops/compression/topk_code.h"
#include "runtime/base/config.h"
#include "runtime/base/log.h"
#include "runtime/core/node_letter.h"
#include "runtime/core/tuning_file.h"
#include "runtime/core/wire.h"
#include "runtime/op/op.h"
#include "runtime/peer/peer_wire.h"
#include "runtime/peer/window_row.h"
#include "runtime/transport/packets.h"
#include "runtime/transport/ring.h"
#include "runtime/transport/shm.h"

namespace horon {

// Ops that run have something to say; here none does, and spdlog is left out.
void Log(LogLevel, std::string_view, const std::string&) {}

namespace {

constexpr int kRanks = 5;

void Require(bool holds) {
  if (!holds) std::abort();
}

// What comes back from its own encoding encodes to the same bytes.
template <typename Decoded, typename Decode>
void RoundTrip(const Result<Decoded>& first, Decode&& decode) {
  if (!first.ok()) {
    Require(!first.status().message().empty());
    return;
  }
  const auto bytes = Encode(first.value());
  const auto second = decode(bytes);
  Require(second.ok());
  Require(Encode(second.value()) == bytes);
}

void Bundled(std::span<const std::byte> bytes) {
  const auto first = DecodeBundle(bytes, kRanks);
  if (!first.ok()) return;
  Bundle again;
  for (const auto& [rank, report] : first.value()) again.Add(rank, report);
  const auto second = DecodeBundle(again.Take(), kRanks);
  Require(second.ok() && second.value() == first.value());
}

// A variable's value: an error that names the variable, or a setting.
void Variable(const std::string& text) {
  const size_t which = text.empty() ? 0 : static_cast<unsigned char>(text[0]);
  const auto knobs = Knobs();
  const std::string name = std::string("HORON_") + knobs[which % knobs.size()].name;
  const std::string value = text.empty() ? "" : text.substr(1);
  const auto config = ReadConfig(
      [&](const char* asked) -> const char* { return asked == name ? value.c_str() : nullptr; });
  Require(config.ok() || config.status().message().find(name) != std::string::npos);
}

std::vector<int64_t> Numbers(std::span<const std::byte> bytes) {
  std::vector<int64_t> numbers(bytes.size() / sizeof(int64_t));
  if (!numbers.empty()) std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(int64_t));
  return numbers;
}

// What passes can be received: its piece lies in the message that it claims to be of.
void Piece(std::span<const std::byte> bytes) {
  PeerHeader header;
  std::memcpy(&header, bytes.data(), std::min(bytes.size(), sizeof(header)));
  const auto received = static_cast<int64_t>(bytes.size());
  if (!CheckPiece(header, received).ok()) return;
  Require(header.piece_bytes >= 0 && header.piece_bytes <= kPieceBytes && header.offset >= 0 &&
          header.offset <= header.total_bytes - header.piece_bytes);
}

void TuningFile(const std::string& text) {
  const auto first = ParseTuning(text);
  if (!first.ok()) return Require(!first.status().message().empty());
  const auto second = ParseTuning(TuningText(first.value()));
  Require(second.ok() && second.value() == first.value());
}

// What another rank of the node may have written, also one that has gone mad: with one receive
// posted and one large send announced, for what it says to meet something.
void RingPackets(std::span<const std::byte> bytes) {
  static const SegmentShape shape = SegmentShape::For(2, 4096, 4096);
  auto segment = SharedSegment::InProcess(shape);
  Require(segment.ok());
  ShmTransport mine(segment.value(), {0, 1}, 0, "shm");
  std::vector<std::byte> in(64), out(1 << 16);
  Transfer receive, send;
  receive.direction = Transfer::Direction::kReceive;
  send.direction = Transfer::Direction::kSend;
  receive.peer = send.peer = 1;
  receive.tag = send.tag = 7;
  receive.spans = {{in.data(), static_cast<int64_t>(in.size())}};
  send.spans = {{out.data(), static_cast<int64_t>(out.size())}};
  Require(mine.Post(receive).ok() && mine.Post(send).ok());
  RingWriter theirs(segment.value()->ring(1, 0), segment.value()->ring_bytes(1, 0),
                    shape.ring_bytes);
  const auto count = std::min<int64_t>(static_cast<int64_t>(bytes.size()), theirs.room_now());
  theirs.Write(bytes.data(), count);
  theirs.Publish();
  for (int look = 0; look < 8; ++look) {
    if (!mine.Progress().ok()) break;
  }
  if (!receive.done) receive.Cancel();
  if (!send.done) send.Cancel();
}

// What launcher and neighbours say in the beginning and at the end.
void SocketPacket(const std::string& text) {
  for (const std::string word : {"dead", "segment", "hello"}) {
    const auto first = ReadTold(text, word);
    if (!first) continue;
    const auto number = std::to_string(first->number);
    const auto second = ReadTold(word + " " + number + " " + first->rest, word);
    Require(second && second->number == first->number && second->rest == first->rest);
    Require(text.ends_with(first->rest));
  }
}

// A table of its own for every spec: one that lives on would keep them all. What is found, is found
// again.
void OpSpec(const std::string& text) {
  OpTable ops;
  const auto first = ops.Find(text);
  if (!first.ok()) return Require(!first.status().message().empty());
  const auto second = ops.Find(text);
  Require(second.ok() && second.value() == first.value());
}

// Another rank's message of top-k: as long as all ranks know it to be, whatever is in it. The first
// bytes choose the type of the values and the sizes. On the heap, so that its end is watched.
void TopkMessage(std::span<const std::byte> bytes) {
  constexpr DataType kValues[] = {DataType::kFloat32, DataType::kFloat16, DataType::kBFloat16};
  if (bytes.size() < 3) return;
  const auto values = kValues[std::to_integer<size_t>(bytes[0]) % 3];
  const auto n = std::to_integer<int64_t>(bytes[1]) + 1;
  const auto k = std::min(std::to_integer<int64_t>(bytes[2]), n);
  bytes = bytes.subspan(3);
  std::vector<std::byte> message(static_cast<size_t>(topk::MessageBytes(k, values)));
  std::copy_n(bytes.begin(), std::min(bytes.size(), message.size()), message.begin());
  std::vector<float> sum(static_cast<size_t>(n));
  const Status status = topk::AddDecoded(message.data(), k, values, sum.data(), n);
  Require(status.ok() || !status.message().empty());
}

}  // namespace
}  // namespace horon

// Ops register themselves: none are there if their files were not linked.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  horon::Require(!horon::RegisteredOps().empty());
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace horon;  // NOLINT
  if (size == 0) return 0;
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0]) {  // the older inputs that are kept have smaller ones
    case 0xf0:
      RoundTrip(DecodeWindowRow(Numbers(bytes)), [](auto n) { return DecodeWindowRow(n); });
      return 0;
    case 0xf1:
      Piece(bytes);
      return 0;
    case 0xf2:
      TuningFile(text);
      return 0;
    case 0xf3:
      RingPackets(bytes);
      return 0;
    case 0xf4:
      TopkMessage(bytes);
      return 0;
    case 0xf5:
      SocketPacket(text);
      return 0;
    case 0xf6:
      RoundTrip(DecodeNodeLetter(bytes, kRanks), [](auto b) { return DecodeNodeLetter(b, kRanks); });
      return 0;
    default:
      break;
  }
  switch (data[0] % 5) {
    case 0:
      RoundTrip(DecodeReport(bytes), [](auto b) { return DecodeReport(b); });
      break;
    case 1:
      RoundTrip(DecodeDecision(bytes, kRanks), [](auto b) { return DecodeDecision(b, kRanks); });
      break;
    case 2:
      Bundled(bytes);
      break;
    case 3:
      OpSpec(text);
      break;
    default:
      Variable(text);
  }
  return 0;
}
