// libFuzzer on everything that is decoded: negotiation's messages, op specs, values of variables,
// and the packets of a shared-memory ring. The first byte chooses the decoder. Whatever decodes
// must come back the same when it is encoded and decoded again; nothing may crash, hang or take
// memory that the bytes do not justify.
//
// Built with clang by CTest (fuzz); by hand: see the command in test/CMakeLists.txt.
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "runtime/base/config.h"
#include "runtime/core/wire.h"
#include "runtime/op/op.h"

namespace horon {
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

}  // namespace
}  // namespace horon

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace horon;  // NOLINT
  if (size == 0) return 0;
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
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
    case 3: {
      static OpTable ops;
      [[maybe_unused]] const auto op = ops.Find(text);
      break;
    }
    default:
      Variable(text);
  }
  return 0;
}
