// How near the kernels come to the memory of the GPU: pack and unpack of a model's gradients as a
// share of a plain copy, and Adasum's dots as a share of what is read, by the kernels and by
// cuBLAS. Prints a table; without a GPU it says why and ends with 77.
#include <chrono>
#include <cstdio>
#include <functional>
#include <thread>
#include <vector>

#include "runtime/gpu_plugin.h"

namespace {

using namespace horon;  // NOLINT: a program of one file

constexpr int kRounds = 50;

// The sizes of ResNet-50's 161 gradients, rounded: what its stages repeat.
std::vector<int64_t> Resnet50() {
  std::vector<int64_t> counts = {9408, 64, 64};
  const struct {
    int blocks;
    int64_t in, width;
  } stages[] = {{3, 64, 64}, {4, 256, 128}, {6, 512, 256}, {3, 1024, 512}};
  for (const auto& stage : stages) {
    int64_t in = stage.in;
    for (int block = 0; block < stage.blocks; ++block) {
      const int64_t w = stage.width;
      for (const int64_t count : {in * w, w, w, 9 * w * w, w, w, 4 * w * w, 4 * w, 4 * w})
        counts.push_back(count);
      if (block == 0)
        for (const int64_t count : {in * 4 * w, 4 * w, 4 * w}) counts.push_back(count);
      in = 4 * w;
    }
  }
  counts.push_back(2048 * 1000);
  counts.push_back(1000);
  return counts;
}

// BERT-base: embeddings, 12 layers, pooler.
std::vector<int64_t> BertBase() {
  constexpr int64_t kHidden = 768;
  std::vector<int64_t> counts = {30522 * kHidden, 512 * kHidden, 2 * kHidden, kHidden, kHidden};
  for (int layer = 0; layer < 12; ++layer) {
    for (int i = 0; i < 4; ++i) {
      counts.push_back(kHidden * kHidden);
      counts.push_back(kHidden);
    }
    for (const int64_t count : {kHidden, kHidden, 4 * kHidden * kHidden, 4 * kHidden,
                                4 * kHidden * kHidden, kHidden, kHidden, kHidden})
      counts.push_back(count);
  }
  counts.push_back(kHidden * kHidden);
  counts.push_back(kHidden);
  return counts;
}

double SecondsOf(Stream& stream, const std::function<Status()>& enqueue) {
  const auto run = [&](int rounds) {
    for (int i = 0; i < rounds; ++i) {
      const Status status = enqueue();
      if (!status.ok()) std::printf("%s\n", status.message().c_str());
    }
    const SharedEvent event = stream.Record().value();
    while (!event->Done().value()) std::this_thread::yield();
  };
  run(5);
  const auto begin = std::chrono::steady_clock::now();
  run(kRounds);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / kRounds;
}

void Line(const char* set, const char* what, double bytes, double seconds, double reference) {
  const double rate = bytes / seconds / 1e9;
  std::printf("| %s | %s | %.1f us | %.0f GB/s | %.0f %% |\n", set, what, seconds * 1e6, rate,
              reference > 0 ? 100 * rate / reference : 100.0);
}

// Adasum's two passes by cuBLAS, a call or two for each tensor, beside the kernels of one pass.
void MeasureCublas(Gpu& gpu, const char* name, const std::vector<Pair>& pairs, Dots* sums,
                   double bytes, double reference) {
  const auto made = gpu.MakeStream(PairKernels::kCublas);
  if (!made.ok()) {
    std::printf("| %s | dots and combination by cuBLAS | not measured: %s | | |\n", name,
                made.status().message().c_str());
    return;
  }
  Stream& stream = *made.value();
  constexpr DataType kType = DataType::kFloat32;
  Line(name, "dots of all pairs, by cuBLAS", bytes,
       SecondsOf(stream, [&] { return stream.Dot(kType, pairs, sums); }), reference);
  Line(name, "combination of all pairs, by cuBLAS", 1.5 * bytes,
       SecondsOf(stream, [&] { return stream.Combine(kType, pairs); }), reference);
}

// A dense product by cuBLAS, of the shape that a low-rank compression needs: a gradient of 4096 x
// 1024 with a matrix of 4 columns.
void MeasureProduct(Gpu& gpu) {
  const auto made = gpu.MakeStream(PairKernels::kCublas);
  if (!made.ok()) return;  // said above
  constexpr int64_t kRows = 4096, kColumns = 1024, kRank = 4;
  const auto memory = gpu.MakeMemory();
  std::byte* const a = memory->Allocate(kRows * kColumns * 4).value();
  std::byte* const b = memory->Allocate(kColumns * kRank * 4).value();
  std::byte* const c = memory->Allocate(kRows * kRank * 4).value();
  const MatrixProduct product{DataType::kFloat32, false, kRows, kRank, kColumns, a, b, c};
  Stream& stream = *made.value();
  Line("4096 x 1024", "product with 1024 x 4, by cuBLAS",
       4.0 * (kRows * kColumns + kColumns * kRank + kRows * kRank),
       SecondsOf(stream, [&] { return stream.Multiply(product); }), 0);
  for (std::byte* data : {a, b, c}) memory->Free(data, 0);
}

void Measure(Gpu& gpu, const char* name, const std::vector<int64_t>& counts) {
  const auto stream = gpu.MakeStream(PairKernels::kFused).value();
  const auto memory = gpu.MakeMemory();
  int64_t bytes = 0;
  for (const int64_t count : counts) bytes += (count * 4 + 255) / 256 * 256;
  std::byte* const tensors = memory->Allocate(bytes).value();
  std::byte* const block = memory->Allocate(bytes).value();
  auto* const sums =
      reinterpret_cast<Dots*>(memory->Allocate(static_cast<int64_t>(counts.size() * 24)).value());
  std::vector<Piece> pack, unpack;
  std::vector<Pair> pairs;
  int64_t at = 0, packed = 0, moved = 0;
  for (const int64_t count : counts) {
    pack.push_back({tensors + at, block + packed, count});
    unpack.push_back({block + packed, tensors + at, count});
    pairs.push_back({tensors + at, block + packed, block + packed, count, 0.5, 0.5});
    at += (count * 4 + 255) / 256 * 256;
    packed += (count * 4 + 15) / 16 * 16;
    moved += count * 4;
  }
  constexpr DataType kType = DataType::kFloat32;
  const double both = 2.0 * static_cast<double>(moved);
  const double copy = SecondsOf(*stream, [&] { return stream->Copy(block, tensors, moved); });
  const double reference = both / copy / 1e9;
  Line(name, "copy of as many bytes", both, copy, 0);
  Line(name, "pack, scaled", both,
       SecondsOf(*stream, [&] { return stream->Move(kType, kType, 0.5, pack); }), reference);
  Line(name, "unpack", both,
       SecondsOf(*stream, [&] { return stream->Move(kType, kType, 1.0, unpack); }), reference);
  Line(name, "dots of all pairs", both,
       SecondsOf(*stream, [&] { return stream->Dot(kType, pairs, sums); }), reference);
  Line(name, "combination of all pairs", 1.5 * both,
       SecondsOf(*stream, [&] { return stream->Combine(kType, pairs); }), reference);
  MeasureCublas(gpu, name, pairs, sums, both, reference);
  for (std::byte* data : {tensors, block}) memory->Free(data, bytes);
  memory->Free(reinterpret_cast<std::byte*>(sums), 0);
}

}  // namespace

int main() {
  GpuPlugin plugin;
  const auto config = ReadConfig();  // HORON_CUBLAS_LIB, say
  const auto driver = plugin.Open(config.ok() ? config.value() : Config{});
  if (!driver.ok()) {
    std::printf("not measured: %s\n", driver.status().message().c_str());
    return 77;
  }
  const auto gpu = driver.value()->Open(0);
  if (!gpu.ok()) {
    std::printf("not measured: %s\n", gpu.status().message().c_str());
    return 1;
  }
  std::printf("%s, %s; %s\n\n", gpu.value()->name().c_str(), driver.value()->version().c_str(),
              driver.value()->cublas().text.c_str());
  std::printf("| tensors | what | time | bytes moved | of the copy |\n|---|---|---|---|---|\n");
  Measure(*gpu.value(), "ResNet-50", Resnet50());
  Measure(*gpu.value(), "BERT-base", BertBase());
  MeasureProduct(*gpu.value());
  return 0;
}
