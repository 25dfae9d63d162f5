// Every kernel of the GPU against the host's: the same bits, but for dots, which are added in
// another order, and the payload of a NaN.
#include <cmath>
#include <random>

#include "test/gpu/gpu_device.h"

namespace horon {
namespace {

using test::Bytes;
using test::OnDevice;
using test::Values;

constexpr DataType kFloats[] = {DataType::kFloat16, DataType::kBFloat16, DataType::kFloat32,
                                DataType::kFloat64};
constexpr int64_t kCounts[] = {0, 1, 15, 4096, 4097, 100'003};

// Any bits at all; for bool 0 and 1.
Bytes RandomBits(DataType dtype, int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  Bytes bytes(static_cast<size_t>(count * SizeOf(dtype)));
  for (std::byte& b : bytes) b = static_cast<std::byte>(random() & 0xff);
  if (dtype == DataType::kBool)
    for (std::byte& b : bytes) b &= std::byte{1};
  return bytes;
}

// NaNs count as one value.
bool SameElements(DataType dtype, const Bytes& a, const Bytes& b) {
  if (a == b) return true;
  if (!IsFloat(dtype)) return false;
  const Values x = test::Decode(dtype, a), y = test::Decode(dtype, b);
  const auto element = static_cast<size_t>(SizeOf(dtype));
  for (size_t i = 0; i < x.size(); ++i) {
    const bool bits = std::memcmp(a.data() + i * element, b.data() + i * element, element) == 0;
    if (!bits && !(std::isnan(x[i]) && std::isnan(y[i]))) return false;
  }
  return true;
}

std::unique_ptr<Stream> NewStream() { return test::the_gpu->MakeStream().value(); }

void CheckMove(DataType from, DataType to, double scale, int64_t shift) {
  INFO(NameOf(from) << " to " << NameOf(to) << " x " << scale << ", shifted by " << shift);
  const auto stream = NewStream();
  std::vector<std::unique_ptr<OnDevice>> inputs, outputs;
  std::vector<Bytes> host_in, host_out;
  std::vector<Piece> on_device, on_host;
  for (const int64_t count : kCounts) {
    host_in.push_back(RandomBits(from, count, static_cast<unsigned>(count)));
    host_out.emplace_back(static_cast<size_t>(count * SizeOf(to)));
    inputs.push_back(std::make_unique<OnDevice>(*stream, host_in.back(), shift * SizeOf(from)));
    outputs.push_back(std::make_unique<OnDevice>(*stream, host_out.back(), 0));
    on_device.push_back({inputs.back()->data(), outputs.back()->data(), count});
  }
  for (size_t i = 0; i < host_in.size(); ++i)
    on_host.push_back({host_in[i].data(), host_out[i].data(), kCounts[i]});
  REQUIRE(stream->Move(from, to, scale, on_device).ok());
  MoveAll(from, to, scale, on_host);
  for (size_t i = 0; i < host_out.size(); ++i)
    REQUIRE(SameElements(to, outputs[i]->Get(), host_out[i]));
}

TEST_CASE("segments are moved, scaled and converted as on the host") {
  for (const DataType dtype : test::kAllTypes) {
    for (const int64_t shift : {0, 1}) {
      CheckMove(dtype, dtype, 1.0, shift);
      if (dtype != DataType::kBool) CheckMove(dtype, dtype, 0.3, shift);
    }
  }
  for (const DataType from : kFloats) {
    for (const DataType to : kFloats) CheckMove(from, to, 0.3, 0);
  }
}

TEST_CASE("more segments than a table of arguments holds") {
  const auto stream = NewStream();
  const Bytes bytes = RandomBits(DataType::kFloat32, 3000, 1);
  OnDevice in(*stream, bytes), out(*stream, Bytes(bytes.size()));
  std::vector<Piece> pieces;  // each element alone, in reverse
  for (int64_t i = 0; i < 3000; ++i)
    pieces.push_back({in.data() + 4 * i, out.data() + 4 * (2999 - i), 1});
  REQUIRE(stream->Move(DataType::kFloat32, DataType::kFloat32, 1.0, pieces).ok());
  const Bytes result = out.Get();
  for (size_t i = 0; i < 3000; ++i)
    REQUIRE(std::memcmp(result.data() + 4 * (2999 - i), bytes.data() + 4 * i, 4) == 0);
}

TEST_CASE("inputs are reduced as on the host") {
  for (const DataType dtype : test::kAllTypes) {
    for (const auto kind :
         {ReduceKind::kSum, ReduceKind::kMin, ReduceKind::kMax, ReduceKind::kProduct}) {
      for (const int64_t count : kCounts) {
        for (const size_t inputs : {size_t{1}, size_t{2}, size_t{5}}) {
          const double scale = dtype == DataType::kBool || count % 2 == 0 ? 1.0 : 0.25;
          const auto stream = NewStream();
          std::vector<Bytes> host;
          std::vector<std::unique_ptr<OnDevice>> device;
          std::vector<const std::byte*> at, of_host;
          for (size_t i = 0; i < inputs; ++i) {
            host.push_back(RandomBits(dtype, count, static_cast<unsigned>(i)));
            device.push_back(std::make_unique<OnDevice>(*stream, host.back()));
            at.push_back(device.back()->data());
          }
          for (const Bytes& bytes : host) of_host.push_back(bytes.data());
          Bytes expected(static_cast<size_t>(count * SizeOf(dtype)));
          ReduceInto(kind, dtype, scale, of_host, expected.data(), count);
          REQUIRE(stream->Reduce(kind, dtype, scale, at, device[0]->data(), count).ok());
          INFO(NameOf(dtype) << " kind " << static_cast<int>(kind) << ", " << inputs << " x "
                             << count);
          REQUIRE(SameElements(dtype, device[0]->Get(), expected));
        }
      }
    }
  }
}

// Pairs of all the counts, of values between -1 and 1.
struct PairCase {
  std::vector<Bytes> x, y, out;
  std::vector<std::unique_ptr<OnDevice>> dx, dy, dout;
  std::vector<Pair> on_host, on_device;
  PairCase(Stream& stream, DataType dtype) {
    for (const int64_t count : kCounts) {
      x.push_back(test::Encode(dtype, test::Fractions(0, count)));
      y.push_back(test::Encode(dtype, test::Fractions(1, count)));
      out.emplace_back(x.back().size());
    }
    for (size_t i = 0; i < x.size(); ++i) {
      dx.push_back(std::make_unique<OnDevice>(stream, x[i]));
      dy.push_back(std::make_unique<OnDevice>(stream, y[i], i % 2 * 8));
      dout.push_back(std::make_unique<OnDevice>(stream, out[i]));
      const double a = 0.7 + static_cast<double>(i), b = -0.4;
      on_host.push_back({x[i].data(), y[i].data(), out[i].data(), kCounts[i], a, b});
      on_device.push_back({dx[i]->data(), dy[i]->data(), dout[i]->data(), kCounts[i], a, b});
    }
  }
};

TEST_CASE("dots are those of the host, and the same in every run") {
  for (const DataType dtype : kFloats) {
    const auto stream = NewStream();
    PairCase pairs(*stream, dtype);
    std::vector<Dots> expected(pairs.on_host.size());
    DotAll(dtype, pairs.on_host, expected.data());
    const Bytes none(expected.size() * sizeof(Dots));
    OnDevice sums(*stream, none);
    Bytes first;
    for (int run = 0; run < 3; ++run) {
      auto* const to = reinterpret_cast<Dots*>(sums.data());
      REQUIRE(stream->Dot(dtype, pairs.on_device, to).ok());
      const Bytes bytes = sums.Get();
      if (run == 0) first = bytes;
      REQUIRE(bytes == first);
    }
    std::vector<Dots> result(expected.size());
    std::memcpy(result.data(), first.data(), first.size());
    for (size_t i = 0; i < result.size(); ++i) {
      const double tolerance = 1e-12 * (1.0 + expected[i].aa + expected[i].bb);
      INFO(NameOf(dtype) << " x " << kCounts[i]);
      REQUIRE(std::fabs(result[i].ab - expected[i].ab) <= tolerance);
      REQUIRE(std::fabs(result[i].aa - expected[i].aa) <= tolerance);
      REQUIRE(std::fabs(result[i].bb - expected[i].bb) <= tolerance);
    }
  }
}

TEST_CASE("pairs are combined, and inputs mixed, as on the host") {
  for (const DataType dtype : kFloats) {
    const auto stream = NewStream();
    PairCase pairs(*stream, dtype);
    CombineAll(dtype, pairs.on_host);
    REQUIRE(stream->Combine(dtype, pairs.on_device).ok());
    for (size_t i = 0; i < pairs.out.size(); ++i)
      REQUIRE(SameElements(dtype, pairs.dout[i]->Get(), pairs.out[i]));
    const double weights[] = {0.5, 0.3, 0.2};
    for (size_t i = 0; i < pairs.out.size(); ++i) {
      const std::byte* host[] = {pairs.x[i].data(), pairs.y[i].data(), pairs.out[i].data()};
      const std::byte* device[] = {pairs.dx[i]->data(), pairs.dy[i]->data(), pairs.dout[i]->data()};
      MixInto(dtype, weights, host, pairs.out[i].data(), kCounts[i]);
      REQUIRE(stream->Mix(dtype, weights, device, pairs.dout[i]->data(), kCounts[i]).ok());
      REQUIRE(SameElements(dtype, pairs.dout[i]->Get(), pairs.out[i]));
    }
  }
}

TEST_CASE("a stream waits for another one's event, and not the host") {
  const auto first = NewStream(), second = NewStream();
  const Bytes bytes = RandomBits(DataType::kFloat32, 1 << 20, 3);
  OnDevice in(*first, bytes), middle(*first, Bytes(bytes.size())),
      out(*second, Bytes(bytes.size()));
  const auto size = static_cast<int64_t>(bytes.size());
  for (int round = 0; round < 50; ++round) {
    REQUIRE(first->Copy(middle.data(), in.data(), size).ok());
    REQUIRE(first->Record().value()->HoldBack(second->native()).ok());
    REQUIRE(second->Copy(out.data(), middle.data(), size).ok());
    REQUIRE(second->Record().value()->HoldBack(first->native()).ok());
  }
  REQUIRE(out.Get() == bytes);
}

}  // namespace
}  // namespace horon
