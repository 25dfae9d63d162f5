// Adasum's arithmetic by cuBLAS, against the host's kernels: with a library of the same functions
// that works on host memory, so that what Horon asks of cuBLAS is checked without a GPU. And what
// is said of a cuBLAS that cannot be used.
#include <cmath>
#include <filesystem>

#include "runtime/device/cublas_pairs.h"
#include "test/support/catch.h"
#include "test/support/fake_gpu.h"
#include "test/support/host_stream.h"
#include "test/support/reference.h"

namespace horon {
namespace {

using test::Bytes;
using test::kFloats;
using test::Values;

constexpr int64_t kCounts[] = {0, 1, 17, 1000};

std::string Beside(const std::string& name) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
}

const CublasLibrary& Fake() {
  GpuLibraryPaths paths;
  paths.cublas = Beside("libhoron_fake_cublas.so");
  static const CublasLibrary cublas = OpenCublas(paths);
  return cublas;
}

// Of sums in fp32 and two roundings instead of one.
double ToleranceOf(DataType dtype) {
  return dtype == DataType::kFloat64 ? 1e-12 : std::max(2 * test::Tolerance(dtype), 1e-5);
}

struct Vectors {
  std::vector<Bytes> x, y, out;
  explicit Vectors(DataType dtype, double scale = 1) {
    for (const int64_t count : kCounts) {
      Values a = test::Fractions(0, count), b = test::Fractions(1, count);
      for (double& value : a) value *= scale;
      x.push_back(test::Encode(dtype, a));
      y.push_back(test::Encode(dtype, b));
      out.push_back(x.back());
    }
  }
  // Where results go: 0 elsewhere, 1 over x, 2 over y.
  std::vector<Pair> Pairs(DataType dtype, int where = 0) {
    std::vector<Pair> pairs;
    for (size_t i = 0; i < x.size(); ++i) {
      std::byte* const to[] = {out[i].data(), x[i].data(), y[i].data()};
      pairs.push_back({x[i].data(), y[i].data(), to[where],
                       static_cast<int64_t>(x[i].size()) / SizeOf(dtype),
                       0.75 - static_cast<double>(i), 0.3});
    }
    return pairs;
  }
};

TEST_CASE("cuBLAS's dots are the host's, as far as fp32 adds") {
  REQUIRE(Fake().ok());
  REQUIRE(Fake().found.version == 130101);
  test::HostStream stream;
  const auto cublas = CublasPairs::Make(Fake(), stream).value();
  for (const DataType dtype : kFloats) {
    // Squares of the large ones are beyond what fp16 holds, and their sums are right.
    for (const double scale : {1.0, 100.0}) {
      INFO(NameOf(dtype) << ", scaled by " << scale);
      Vectors vectors(dtype, scale);
      const std::vector<Pair> pairs = vectors.Pairs(dtype);
      std::vector<std::byte> room(static_cast<size_t>(CublasPairs::RoomFor(pairs)),
                                  std::byte{0x7f});
      std::vector<Dots> sums(pairs.size(), Dots{7, 7, 7}), expected(pairs.size());
      REQUIRE(cublas->Dot(dtype, pairs, room.data(), sums.data()).ok());
      DotAll(dtype, pairs, expected.data());
      for (size_t i = 0; i < sums.size(); ++i) {
        const double near = 1e-5 * (expected[i].aa + expected[i].bb);
        REQUIRE(std::fabs(sums[i].ab - expected[i].ab) <= near);
        REQUIRE(std::fabs(sums[i].aa - expected[i].aa) <= near);
        REQUIRE(std::fabs(sums[i].bb - expected[i].bb) <= near);
      }
      REQUIRE(sums[0].aa == 0);
    }
  }
}

TEST_CASE("cuBLAS combines as the host does, with factors of the host's and of the device's") {
  test::HostStream stream;
  const auto cublas = CublasPairs::Make(Fake(), stream).value();
  for (const DataType dtype : kFloats) {
    for (const bool by : {false, true}) {
      for (const int where : {0, 1, 2}) {
        INFO(NameOf(dtype) << ", where " << where << (by ? ", the device's" : ""));
        Vectors ours(dtype), theirs(dtype);
        std::vector<Pair> pairs = ours.Pairs(dtype, where);
        std::vector<Coefficients> factors;
        for (Pair& pair : pairs) factors.push_back({pair.a, pair.b});
        for (size_t i = 0; i < pairs.size() && by; ++i) {
          pairs[i].by = &factors[i];
          pairs[i].a = pairs[i].b = std::nan("");
        }
        std::vector<std::byte> room(static_cast<size_t>(CublasPairs::RoomFor(pairs)));
        REQUIRE(cublas->Combine(dtype, pairs, room.data()).ok());
        const std::vector<Pair> expected = theirs.Pairs(dtype, where);
        CombineAll(dtype, expected);
        for (size_t i = 0; i < pairs.size(); ++i) {
          const auto bytes = static_cast<size_t>(pairs[i].count * SizeOf(dtype));
          const Values result = test::Decode(dtype, {pairs[i].out, bytes});
          const Values reference = test::Decode(dtype, {expected[i].out, bytes});
          for (size_t k = 0; k < result.size(); ++k)
            REQUIRE(std::fabs(result[k] - reference[k]) <= ToleranceOf(dtype) * 2);
        }
      }
    }
  }
}

TEST_CASE("cuBLAS multiplies matrices") {
  test::HostStream stream;
  const auto cublas = CublasPairs::Make(Fake(), stream).value();
  constexpr int64_t kM = 5, kN = 3, kK = 7;
  for (const DataType dtype : kFloats) {
    for (const bool transposed : {false, true}) {
      const Values a = test::Decode(dtype, test::Encode(dtype, test::Fractions(0, kM * kK)));
      const Values b = test::Decode(dtype, test::Encode(dtype, test::Fractions(1, kK * kN)));
      const Bytes in_a = test::Encode(dtype, a), in_b = test::Encode(dtype, b);
      Bytes out(static_cast<size_t>(kM * kN * SizeOf(dtype)));
      REQUIRE(
          cublas->Multiply({dtype, transposed, kM, kN, kK, in_a.data(), in_b.data(), out.data()})
              .ok());
      const Values c = test::Decode(dtype, out);
      for (int64_t row = 0; row < kM; ++row) {
        for (int64_t column = 0; column < kN; ++column) {
          double sum = 0;
          for (int64_t k = 0; k < kK; ++k) {
            const int64_t at = transposed ? row * kK + k : k * kM + row;
            sum += a[static_cast<size_t>(at)] * b[static_cast<size_t>(column * kK + k)];
          }
          REQUIRE(std::fabs(c[static_cast<size_t>(column * kM + row)] - sum) <= ToleranceOf(dtype));
        }
      }
    }
  }
  REQUIRE(cublas->Multiply({DataType::kInt32, false, 1, 1, 1}).code() == Code::kUnsupported);
}

TEST_CASE("a failure of cuBLAS says what it was doing, in its own words") {
  const Status failed = Fake().Check(static_cast<CublasAnswer>(7), "multiply vectors");
  REQUIRE(failed.code() == Code::kUnavailable);
  REQUIRE(failed.message() == "cuBLAS could not multiply vectors: an argument is wrong");
}

TEST_CASE("a cuBLAS that is too old, absent or something else is named, with what to install") {
  GpuLibraryPaths paths;
  paths.cublas = Beside("libhoron_old_cublas.so");
  const CublasLibrary old = OpenCublas(paths);
  REQUIRE(!old.ok());
  for (const char* word : {"cuBLAS 11.4.4 in /", "is too old: 12.0.0 is the least",
                           "cublasDotEx_64", "pip install nvidia-cublas", "HORON_CUBLAS_LIB"})
    REQUIRE(old.found.text.find(word) != std::string::npos);
  test::HostStream stream;
  const auto refused = CublasPairs::Make(old, stream);
  REQUIRE(refused.status().code() == Code::kUnsupported);
  paths.cublas = "/nowhere/libcublas.so";
  REQUIRE(OpenCublas(paths).found.text.find("/nowhere/libcublas.so") != std::string::npos);
  paths.cublas = "libm.so.6";
  REQUIRE(OpenCublas(paths).found.text.find("not cuBLAS") != std::string::npos);
}

TEST_CASE("who wants cuBLAS and has none hears of it when a tensor is submitted", "[gpu]") {
  test::FakeGpus gpus({23007});
  const auto wanting = gpus.Of(0, {.pairs = PairKernels::kCublas});
  const Status refused = wanting->Of({DeviceKind::kCuda, 0}).status();
  REQUIRE(refused.code() == Code::kUnsupported);
  for (const char* word : {"HORON_ADASUM_KERNEL=cublas", "no cuBLAS", "HORON_ADASUM_KERNEL=fused"})
    REQUIRE(refused.message().find(word) != std::string::npos);
  REQUIRE(gpus.Of(0)->Of({DeviceKind::kCuda, 0}).ok());
}

}  // namespace
}  // namespace horon
