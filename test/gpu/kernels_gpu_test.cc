// Every kernel of the GPU against the host's: the same bits, but for dots, which are added in
// another order, and the payload of a NaN.
#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>

#include "test/gpu/gpu_device.h"

namespace horon {
namespace {

using test::Bytes;
using test::kFloats;
using test::OnDevice;
using test::Values;

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

std::unique_ptr<Stream> NewStream() {
  return test::the_gpu->MakeStream(PairKernels::kFused).value();
}

// What a stream is given after this begins when the gate opens: at the end, or after a time that
// nobody who goes past it should need.
class Gate {
 public:
  explicit Gate(Stream& stream) : memory_(test::the_gpu->MakePinnedMemory()) {
    auto* const wait = reinterpret_cast<int (*)(void*, uint64_t, uint32_t, unsigned)>(
        dlsym(RTLD_DEFAULT, "cuStreamWaitValue32_v2"));
    REQUIRE(wait != nullptr);
    word_ = reinterpret_cast<std::atomic<uint32_t>*>(memory_->Allocate(kBytes).value());
    *word_ = 0;
    REQUIRE(test::the_gpu->Attach().ok());
    REQUIRE(wait(stream.native(), reinterpret_cast<uint64_t>(word_), 1, 0) == 0);
    late_ = std::thread([this] {
      std::unique_lock lock(mutex_);
      in_time_ = over_.wait_for(lock, std::chrono::seconds(10), [this] { return done_; });
      *word_ = 1;
    });
  }
  ~Gate() { Open(); }
  // Whether nothing had to wait for it so far.
  bool Open() {
    if (!late_.joinable()) return in_time_;
    {
      std::lock_guard lock(mutex_);
      done_ = true;
    }
    over_.notify_all();
    late_.join();
    return in_time_;
  }

 private:
  static constexpr int64_t kBytes = 64;
  std::unique_ptr<Memory> memory_;
  std::atomic<uint32_t>* word_ = nullptr;  // kept: the stream may look at it later
  std::mutex mutex_;
  std::condition_variable over_;
  bool done_ = false, in_time_ = false;
  std::thread late_;
};

// The first one here: each kernel is launched for the first time.
TEST_CASE("a launch waits for no other stream, and loads nothing") {
  const auto held = NewStream(), stream = NewStream();
  const Bytes bytes = RandomBits(DataType::kInt64, 1000, 1);
  OnDevice in(*stream, bytes), out(*stream, bytes), sums(*stream, Bytes(sizeof(Dots)));
  OnDevice weights(*stream, Bytes(sizeof(Coefficients))), beside(*held, bytes);
  OnDevice::Wait(*stream);
  Gate gate(*held);
  REQUIRE(held->Zero(beside.data(), 1).ok());
  const std::byte* const inputs[] = {in.data(), out.data()};
  for (const DataType dtype : test::kAllTypes) {
    const Piece piece{in.data(), out.data(), 1000};
    for (const double scale : {1.0, 0.5})
      REQUIRE(stream->Move(dtype, dtype, scale, {&piece, 1}).ok());
    for (const auto kind :
         {ReduceKind::kSum, ReduceKind::kMin, ReduceKind::kMax, ReduceKind::kProduct})
      REQUIRE(stream->Reduce(kind, dtype, 1.0, inputs, out.data(), 1000).ok());
  }
  for (const DataType dtype : kFloats) {
    const Pair pair{in.data(), out.data(), out.data(), 1000};
    const double mixed[] = {0.5, 0.5};
    auto* const dots = reinterpret_cast<Dots*>(sums.data());
    REQUIRE(stream->Dot(dtype, {&pair, 1}, dots).ok());
    REQUIRE(stream->Weigh({}, dots, 1, 1, reinterpret_cast<Coefficients*>(weights.data())).ok());
    REQUIRE(stream->Combine(dtype, {&pair, 1}).ok());
    REQUIRE(stream->Mix(dtype, mixed, inputs, out.data(), 1000).ok());
    for (const DataType to : kFloats) {
      const Piece piece{in.data(), out.data(), 500};
      if (to != dtype) REQUIRE(stream->Move(dtype, to, 1.0, {&piece, 1}).ok());
    }
  }
  OnDevice::Wait(*stream);
  REQUIRE(gate.Open());
}

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
            const int64_t shift = inputs == 5 ? SizeOf(dtype) : 0;
            device.push_back(std::make_unique<OnDevice>(*stream, host.back(), shift));
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

Dots DotsOf(DataType dtype, const Bytes& x, const Bytes& y) {
  const test::Values a = test::Decode(dtype, x), b = test::Decode(dtype, y);
  Dots sum{};
  for (size_t i = 0; i < a.size(); ++i) {
    sum.ab += a[i] * b[i];
    sum.aa += a[i] * a[i];
    sum.bb += b[i] * b[i];
  }
  return sum;
}

// What is added in fp32 before it is added in double.
bool Short(DataType dtype) { return SizeOf(dtype) == 2; }

TEST_CASE("dots are sums in double, and the same in every run") {
  for (const DataType dtype : kFloats) {
    const auto stream = NewStream();
    PairCase pairs(*stream, dtype);
    std::vector<Dots> expected;
    for (size_t i = 0; i < pairs.x.size(); ++i)
      expected.push_back(DotsOf(dtype, pairs.x[i], pairs.y[i]));
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
      const double least = Short(dtype) ? 1e-6 : 1e-12;
      const double tolerance = least * (1.0 + expected[i].aa + expected[i].bb);
      INFO(NameOf(dtype) << " x " << kCounts[i]);
      REQUIRE(std::fabs(result[i].ab - expected[i].ab) <= tolerance);
      REQUIRE(std::fabs(result[i].aa - expected[i].aa) <= tolerance);
      REQUIRE(std::fabs(result[i].bb - expected[i].bb) <= tolerance);
    }
  }
}

TEST_CASE("dots of bf16 whose products fp32 cannot hold are sums in double") {
  constexpr int64_t kCount = 10'001;
  for (const double size : {1e30, 1e-30, 1e-39}) {
    const auto stream = NewStream();
    Values values(kCount);
    for (size_t i = 0; i < values.size(); ++i) values[i] = (i % 7 == 3 ? -1.0 : 1.0) * size;
    const Bytes x = test::Encode(DataType::kBFloat16, values);
    for (size_t i = 0; i < values.size(); ++i) values[i] = (i < 5'000 ? 1.0 : 0.5) * size;
    const Bytes y = test::Encode(DataType::kBFloat16, values);
    const Dots expected = DotsOf(DataType::kBFloat16, x, y);
    OnDevice dx(*stream, x), dy(*stream, y), sum(*stream, Bytes(sizeof(Dots)));
    const Pair pair{dx.data(), dy.data(), nullptr, kCount};
    REQUIRE(stream->Dot(DataType::kBFloat16, {&pair, 1}, reinterpret_cast<Dots*>(sum.data())).ok());
    Dots result{};
    std::memcpy(&result, sum.Get().data(), sizeof result);
    INFO(size);
    REQUIRE(std::fabs(result.ab - expected.ab) <= 1e-6 * std::fabs(expected.ab));
    REQUIRE(std::fabs(result.aa - expected.aa) <= 1e-6 * expected.aa);
    REQUIRE(std::fabs(result.bb - expected.bb) <= 1e-6 * expected.bb);
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

TEST_CASE("what tensors weigh is computed as on the host, and combines them where it lies") {
  for (const DataType dtype : kFloats) {
    const auto stream = NewStream();
    PairCase pairs(*stream, dtype);
    constexpr int64_t kRows = 3;
    const auto tensors = static_cast<int64_t>(pairs.on_host.size());
    std::vector<Dots> parts;
    for (int64_t i = 0; i < kRows * tensors; ++i)
      parts.push_back({0.1 * static_cast<double>(i - 5), 1.5 + static_cast<double>(i % 7),
                       i % tensors == 2 ? 0.0 : 2.25});
    Bytes bytes(parts.size() * sizeof(Dots));
    std::memcpy(bytes.data(), parts.data(), bytes.size());
    OnDevice dots(*stream, bytes),
        weights(*stream, Bytes(static_cast<size_t>(tensors) * sizeof(Coefficients)));
    for (const ZeroPolicy zeros : {ZeroPolicy::kSum, ZeroPolicy::kMean}) {
      const Weighing how{3, 2, zeros};
      std::vector<Coefficients> expected(static_cast<size_t>(tensors));
      WeighAll(how, parts.data(), kRows, tensors, expected.data());
      auto* const by = reinterpret_cast<Coefficients*>(weights.data());
      const auto* const from = reinterpret_cast<const Dots*>(dots.data());
      REQUIRE(stream->Weigh(how, from, kRows, tensors, by).ok());
      const Bytes result = weights.Get();
      REQUIRE(std::memcmp(result.data(), expected.data(), result.size()) == 0);
      for (size_t i = 0; i < expected.size(); ++i) {
        pairs.on_host[i].by = &expected[i];
        pairs.on_device[i].by = by + i;
      }
      CombineAll(dtype, pairs.on_host);
      REQUIRE(stream->Combine(dtype, pairs.on_device).ok());
      for (size_t i = 0; i < pairs.out.size(); ++i)
        REQUIRE(SameElements(dtype, pairs.dout[i]->Get(), pairs.out[i]));
    }
  }
}

// Sums in fp32, and two roundings where the host has one.
bool NearlyEqual(DataType dtype, const Bytes& result, const Bytes& expected, double tolerance) {
  const Values a = test::Decode(dtype, result), b = test::Decode(dtype, expected);
  for (size_t i = 0; i < a.size(); ++i) {
    if (!(std::fabs(a[i] - b[i]) <= tolerance * (1 + std::fabs(b[i])))) return false;
  }
  return true;
}

std::unique_ptr<Stream> CublasStream() {
  auto made = test::the_gpu->MakeStream(PairKernels::kCublas);
  if (made.ok()) return std::move(made).value();
  REQUIRE(made.status().code() == Code::kUnsupported);
  std::printf("SKIPPED: %s\n", made.status().message().c_str());
  return nullptr;
}

TEST_CASE("by cuBLAS pairs come out as by the kernels") {
  for (const DataType dtype : kFloats) {
    const auto stream = CublasStream();
    if (!stream) return;
    INFO(NameOf(dtype));
    PairCase pairs(*stream, dtype);
    std::vector<Dots> expected(pairs.on_host.size());
    DotAll(dtype, pairs.on_host, expected.data());
    OnDevice sums(*stream, Bytes(expected.size() * sizeof(Dots)));
    REQUIRE(stream->Dot(dtype, pairs.on_device, reinterpret_cast<Dots*>(sums.data())).ok());
    std::vector<Dots> result(expected.size());
    const Bytes bytes = sums.Get();
    std::memcpy(result.data(), bytes.data(), bytes.size());
    for (size_t i = 0; i < result.size(); ++i) {
      const double near = 1e-4 * (expected[i].aa + expected[i].bb);
      REQUIRE(std::fabs(result[i].ab - expected[i].ab) <= near);
      REQUIRE(std::fabs(result[i].aa - expected[i].aa) <= near);
      REQUIRE(std::fabs(result[i].bb - expected[i].bb) <= near);
    }
    const double tolerance = std::max(2 * test::Tolerance(dtype), 1e-6);
    CombineAll(dtype, pairs.on_host);
    REQUIRE(stream->Combine(dtype, pairs.on_device).ok());
    for (size_t i = 0; i < pairs.out.size(); ++i)
      REQUIRE(NearlyEqual(dtype, pairs.dout[i]->Get(), pairs.out[i], tolerance));
    // Factors that the device knows, and the result over the second operand.
    std::vector<Coefficients> factors(pairs.on_host.size(), Coefficients{0.25, 0.5});
    Bytes known(factors.size() * sizeof(Coefficients));
    std::memcpy(known.data(), factors.data(), known.size());
    OnDevice weights(*stream, known);
    for (size_t i = 0; i < factors.size(); ++i) {
      pairs.on_host[i].by = &factors[i];
      pairs.on_device[i].by = reinterpret_cast<const Coefficients*>(weights.data()) + i;
      pairs.on_host[i].out = pairs.y[i].data();
      pairs.on_device[i].out = pairs.dy[i]->data();
    }
    CombineAll(dtype, pairs.on_host);
    REQUIRE(stream->Combine(dtype, pairs.on_device).ok());
    for (size_t i = 0; i < pairs.y.size(); ++i)
      REQUIRE(NearlyEqual(dtype, pairs.dy[i]->Get(), pairs.y[i], tolerance));
  }
}

TEST_CASE("cuBLAS multiplies matrices on the GPU") {
  constexpr int64_t kM = 65, kN = 4, kK = 130;
  for (const DataType dtype : kFloats) {
    const auto stream = CublasStream();
    if (!stream) return;
    INFO(NameOf(dtype));
    const Bytes a = test::Encode(dtype, test::Fractions(0, kM * kK));
    const Bytes b = test::Encode(dtype, test::Fractions(1, kK * kN));
    const Values x = test::Decode(dtype, a), y = test::Decode(dtype, b);
    for (const bool transposed : {false, true}) {
      OnDevice in_a(*stream, a), in_b(*stream, b),
          out(*stream, Bytes(static_cast<size_t>(kM * kN * SizeOf(dtype))));
      REQUIRE(
          stream->Multiply({dtype, transposed, kM, kN, kK, in_a.data(), in_b.data(), out.data()})
              .ok());
      Values expected;
      for (int64_t column = 0; column < kN; ++column) {
        for (int64_t row = 0; row < kM; ++row) {
          double sum = 0;
          for (int64_t k = 0; k < kK; ++k) {
            const int64_t at = transposed ? row * kK + k : k * kM + row;
            sum += x[static_cast<size_t>(at)] * y[static_cast<size_t>(column * kK + k)];
          }
          expected.push_back(sum);
        }
      }
      const Bytes reference = test::Encode(dtype, expected);
      REQUIRE(NearlyEqual(dtype, out.Get(), reference, std::max(2 * test::Tolerance(dtype), 1e-4)));
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
