// How near the kernels come to the memory of the GPU: pack and unpack of a model's gradients beside
// a plain copy, Adasum's dots beside a kernel that only reads, and the same by cuBLAS; Adasum in
// all its types.
#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "runtime/device/cublas_library.h"
#include "test/bench/gpu/gpu_bench.h"
#include "test/bench/gpu/loops.h"

namespace horon::bench {
namespace {

constexpr int kRounds = 50;
constexpr std::chrono::milliseconds kWarmUp{200};  // until the clocks are up
constexpr DataType kType = DataType::kFloat32;

// The sizes of ResNet-50's 161 gradients.
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

using Enqueue = std::function<Status()>;

void RunRounds(Stream& stream, const Enqueue& enqueue, int rounds) {
  for (int i = 0; i < rounds; ++i) Must(enqueue(), "enqueue");
  const SharedEvent event = Must(stream.Record(), "record");
  while (!Must(event->Done(), "ask")) std::this_thread::yield();
}

double SecondsOf(Stream& stream, const Enqueue& enqueue) {
  RunRounds(stream, enqueue, 5);
  const auto begin = std::chrono::steady_clock::now();
  RunRounds(stream, enqueue, kRounds);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / kRounds;
}

void WarmUp(Stream& stream, const Enqueue& enqueue) {
  const auto end = std::chrono::steady_clock::now() + kWarmUp;
  while (std::chrono::steady_clock::now() < end) RunRounds(stream, enqueue, kRounds);
}

// Kernels that are launched: those of the graph that the stream is captured into meanwhile.
size_t LaunchesOf(Stream& stream, const Enqueue& enqueue) {
  auto* const native = static_cast<cudaStream_t>(stream.native());
  Must(cudaStreamBeginCapture(native, cudaStreamCaptureModeRelaxed), "capture");
  Must(enqueue(), "enqueue");
  cudaGraph_t graph = nullptr;
  Must(cudaStreamEndCapture(native, &graph), "capture");
  size_t count = 0;
  Must(cudaGraphGetNodes(graph, nullptr, &count), "count");
  std::vector<cudaGraphNode_t> nodes(count);
  Must(cudaGraphGetNodes(graph, nodes.data(), &count), "list");
  const auto kernels = std::count_if(nodes.begin(), nodes.end(), [](cudaGraphNode_t node) {
    cudaGraphNodeType type{};
    Must(cudaGraphNodeGetType(node, &type), "ask for a type");
    return type == cudaGraphNodeTypeKernel;
  });
  cudaGraphDestroy(graph);
  return static_cast<size_t>(kernels);
}

void Print(const std::string& set, const char* what, double bytes, double seconds,
           size_t launches) {
  std::printf("{\"name\": \"%s, %s\", \"seconds\": %.9f, \"bytes\": %.0f, \"launches\": %zu}\n",
              set.c_str(), what, seconds, bytes, launches);
}

void Measure(Stream& stream, const std::string& set, const char* what, double bytes,
             const Enqueue& enqueue) {
  const double seconds = SecondsOf(stream, enqueue);  // first: what is opened late is open then
  Print(set, what, bytes, seconds, LaunchesOf(stream, enqueue));
}

// A model's gradients on the device, and what is made of them.
struct Tensors {
  Tensors(Gpu& gpu, const std::vector<int64_t>& counts, DataType dtype = kType)
      : memory(gpu.MakeMemory()) {
    const int64_t size = SizeOf(dtype);
    int64_t room = 0;
    for (const int64_t count : counts) room += (count * size + 255) / 256 * 256;
    room_ = room;
    both = Must(memory->Allocate(2 * room_), "allocate");
    std::byte *tensor = both, *block = both + room;
    sums = reinterpret_cast<Dots*>(
        Must(memory->Allocate(static_cast<int64_t>(counts.size() * sizeof(Dots))), "allocate"));
    for (const int64_t count : counts) {
      pack.push_back({tensor, block, count});
      unpack.push_back({block, tensor, count});
      pairs.push_back({tensor, block, block, count, 0.5, 0.5});
      tensor += (count * size + 255) / 256 * 256;
      block += (count * size + 15) / 16 * 16;
      bytes += count * size;
    }
  }
  ~Tensors() {
    memory->Free(both, room());
    memory->Free(reinterpret_cast<std::byte*>(sums), 0);
  }
  Tensors(const Tensors&) = delete;
  Tensors& operator=(const Tensors&) = delete;

  int64_t room() const { return 2 * room_; }  // of both

  std::unique_ptr<Memory> memory;
  std::byte* both = nullptr;
  Dots* sums = nullptr;
  std::vector<Piece> pack, unpack;
  std::vector<Pair> pairs;
  int64_t bytes = 0;

 private:
  int64_t room_ = 0;
};

// One call of cuBLAS for each tensor, which gives one of a pair's three products.
void MeasureOneCallEach(Gpu& gpu, const CublasLibrary& cublas, const std::string& set,
                        const Tensors& tensors) {
  const auto stream = Must(gpu.MakeStream(PairKernels::kFused), "make a stream");
  CublasHandle* handle = nullptr;
  Must(cublas.Check(cublas.Create(&handle), "be started"), "cuBLAS");
  Must(cublas.Check(cublas.SetStream(handle, stream->native()), "take a stream"), "cuBLAS");
  Must(cublas.Check(cublas.SetPointerMode(handle, kCublasDevicePointers), "take pointers"),
       "cuBLAS");
  Measure(*stream, set, "one product of each pair, a call of cuBLAS each",
          2.0 * static_cast<double>(tensors.bytes), [&] {
            for (size_t i = 0; i < tensors.pairs.size(); ++i) {
              const Pair& pair = tensors.pairs[i];
              HORON_TRY(cublas.Check(
                  cublas.DotEx(handle, pair.count, pair.x, kCublasF32, 1, pair.y, kCublasF32, 1,
                               &tensors.sums[i].ab, kCublasF32, kCublasF32),
                  "multiply vectors"));
            }
            return Status::Ok();
          });
  cublas.Destroy(handle);
}

// Adasum's two passes as HORON_ADASUM_KERNEL=cublas computes them.
void MeasureCublas(Gpu& gpu, const CublasLibrary& cublas, const std::string& set,
                   const Tensors& tensors, DataType dtype) {
  if (!cublas.ok()) return PrintMissing(set + ", by cuBLAS", cublas.found.text);
  const auto stream = Must(gpu.MakeStream(PairKernels::kCublas), "make a stream");
  const double read = 2.0 * static_cast<double>(tensors.bytes);
  Measure(*stream, set, "dots of all pairs, by cuBLAS", read,
          [&] { return stream->Dot(dtype, tensors.pairs, tensors.sums); });
  Measure(*stream, set, "combination of all pairs, by cuBLAS", 1.5 * read,
          [&] { return stream->Combine(dtype, tensors.pairs); });
}

// What the kernels are measured beside.
Status CopyOnce(Stream& stream, const Tensors& tensors) {
  return stream.Copy(tensors.both + tensors.bytes, tensors.both, tensors.bytes);
}
Status ReadOnce(Stream& stream, const Tensors& tensors) {
  int* const never = reinterpret_cast<int*>(tensors.sums);
  auto* const native = static_cast<cudaStream_t>(stream.native());
  Must(ReadAll(tensors.both, 2 * tensors.bytes, never, native), "read");
  return Status::Ok();
}

// They are measured before the kernels, when the clocks are up, and once more after them, and the
// faster counts: what the rest is compared with is not to flatter it.
class References {
 public:
  References(Stream& stream, const Tensors& tensors)
      : copy_([&] { return CopyOnce(stream, tensors); }),
        read_([&] { return ReadOnce(stream, tensors); }),
        stream_(stream) {
    WarmUp(stream, copy_);
    copied_ = SecondsOf(stream, copy_);
    was_read_ = SecondsOf(stream, read_);
  }
  void Print(const std::string& set, double both) const {
    bench::Print(set, "copy", both, std::min(copied_, SecondsOf(stream_, copy_)),
                 LaunchesOf(stream_, copy_));
    bench::Print(set, "read", both, std::min(was_read_, SecondsOf(stream_, read_)),
                 LaunchesOf(stream_, read_));
  }

 private:
  const Enqueue copy_, read_;
  Stream& stream_;
  double copied_ = 0, was_read_ = 0;
};

// With numbers of an ordinary size in every type.
void Fill(Stream& stream, const Tensors& tensors) {
  auto* const native = static_cast<cudaStream_t>(stream.native());
  Must(cudaMemsetAsync(tensors.both, 0x3c, static_cast<size_t>(tensors.room()), native), "fill");
}

// Adasum's two passes, and the same by cuBLAS.
void MeasureAdasum(Gpu& gpu, const CublasLibrary& cublas, Stream& stream, const std::string& set,
                   const Tensors& tensors, DataType dtype) {
  const double both = 2.0 * static_cast<double>(tensors.bytes);
  Measure(stream, set, "dots of all pairs", both,
          [&] { return stream.Dot(dtype, tensors.pairs, tensors.sums); });
  Measure(stream, set, "combination of all pairs", 1.5 * both,
          [&] { return stream.Combine(dtype, tensors.pairs); });
  MeasureCublas(gpu, cublas, set, tensors, dtype);
}

// Adasum in the other types.
void MeasureTypes(Gpu& gpu, const CublasLibrary& cublas, const std::string& set,
                  const std::vector<int64_t>& counts) {
  for (const DataType dtype : {DataType::kFloat16, DataType::kBFloat16, DataType::kFloat64}) {
    const auto stream = Must(gpu.MakeStream(PairKernels::kFused), "make a stream");
    const Tensors tensors(gpu, counts, dtype);
    Fill(*stream, tensors);
    const std::string name = set + ", " + std::string(NameOf(dtype));
    const double both = 2.0 * static_cast<double>(tensors.bytes);
    const References references(*stream, tensors);
    MeasureAdasum(gpu, cublas, *stream, name, tensors, dtype);
    references.Print(name, both);
  }
}

// Of the shape that a low-rank compression needs: a gradient with a matrix of few columns.
void MeasureProduct(Gpu& gpu, const CublasLibrary& cublas) {
  if (!cublas.ok()) return;  // said above
  constexpr int64_t kRows = 4096, kColumns = 1024, kRank = 4;
  constexpr int64_t kElements = kRows * kColumns + kColumns * kRank + kRows * kRank;
  const auto stream = Must(gpu.MakeStream(PairKernels::kCublas), "make a stream");
  const auto memory = gpu.MakeMemory();
  std::byte* const a = Must(memory->Allocate(4 * kElements), "allocate");
  std::byte* const b = a + 4 * kRows * kColumns;
  std::byte* const c = b + 4 * kColumns * kRank;
  const MatrixProduct product{kType, false, kRows, kRank, kColumns, a, b, c};
  Measure(*stream, "4096 x 1024", "product with 1024 x 4, by cuBLAS", 4.0 * kElements,
          [&] { return stream->Multiply(product); });
  memory->Free(a, 4 * kElements);
}

void MeasureSet(Gpu& gpu, const CublasLibrary& cublas, const std::string& set,
                const std::vector<int64_t>& counts) {
  const auto stream = Must(gpu.MakeStream(PairKernels::kFused), "make a stream");
  const Tensors tensors(gpu, counts);
  Fill(*stream, tensors);
  const double both = 2.0 * static_cast<double>(tensors.bytes);
  const References references(*stream, tensors);
  Measure(*stream, set, "pack, scaled", both,
          [&] { return stream->Move(kType, kType, 0.5, tensors.pack); });
  Measure(*stream, set, "unpack", both,
          [&] { return stream->Move(kType, kType, 1.0, tensors.unpack); });
  MeasureAdasum(gpu, cublas, *stream, set, tensors, kType);
  if (cublas.ok()) MeasureOneCallEach(gpu, cublas, set, tensors);
  references.Print(set, both);
}

}  // namespace

void MeasureKernels(Gpu& gpu, const GpuLibraryPaths& paths) {
  const CublasLibrary cublas = OpenCublas(paths);
  MeasureSet(gpu, cublas, "ResNet-50", Resnet50());
  MeasureSet(gpu, cublas, "BERT-base", BertBase());
  MeasureTypes(gpu, cublas, "ResNet-50", Resnet50());
  MeasureProduct(gpu, cublas);
}

}  // namespace horon::bench
