// Ten tensors, an asynchronous average allreduce each, one wait for all: Horon from C++ through the
// C API alone. It uses nothing but horon.h and libhoron.
//
//   c++ -std=c++20 allreduce.cc -I<prefix>/include -L<prefix>/lib -lhoron -o allreduce
//   horonrun -np 4 ./allreduce
#include <horon/horon.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace {

constexpr int kTensors = 10;

// What rank r puts into element i of tensor t.
float Value(int r, int t, size_t i) {
  return static_cast<float>(r + t) + static_cast<float>(i % 7);
}

int Fail(const char* what) {
  std::fprintf(stderr, "%s: %s\n", what, horon_last_error());
  return 1;
}

// Number of elements that are not the average over all ranks.
size_t CountWrong(const std::vector<float>& tensor, int t) {
  const int size = horon_size();
  size_t wrong = 0;
  for (size_t i = 0; i < tensor.size(); ++i) {
    double sum = 0;
    for (int r = 0; r < size; ++r) sum += static_cast<double>(Value(r, t, i));
    const double want = sum / size;
    if (!(std::abs(static_cast<double>(tensor[i]) - want) <= 1e-5 * (1 + std::abs(want)))) ++wrong;
  }
  return wrong;
}

}  // namespace

int main() {
  if (horon_init() != HORON_OK) return Fail("horon_init");

  std::vector<std::vector<float>> tensors(kTensors);
  std::vector<horon_work*> works(kTensors);
  for (int t = 0; t < kTensors; ++t) {
    std::vector<float>& tensor = tensors[static_cast<size_t>(t)];
    tensor.resize(static_cast<size_t>(1000 * (t + 1) + t));
    for (size_t i = 0; i < tensor.size(); ++i) tensor[i] = Value(horon_rank(), t, i);

    const std::string name = "tensor." + std::to_string(t);
    const int64_t count = static_cast<int64_t>(tensor.size());
    horon_request request{};
    request.struct_bytes = sizeof request;
    request.name = name.c_str();
    request.op = "average";
    request.dtype = HORON_FLOAT32;
    request.device = -1;
    request.shape = &count;
    request.ndim = 1;
    request.input = tensor.data();
    request.output = tensor.data();  // in place
    if (horon_submit(&request, &works[static_cast<size_t>(t)]) != HORON_OK)
      return Fail("horon_submit");
  }

  if (horon_work_wait_all(works.data(), kTensors) != HORON_OK) return Fail("horon_work_wait_all");
  size_t wrong = 0;
  for (int t = 0; t < kTensors; ++t) {
    wrong += CountWrong(tensors[static_cast<size_t>(t)], t);
    horon_work_release(works[static_cast<size_t>(t)]);
  }
  std::printf("rank %d of %d: %d tensors averaged over %s, %zu wrong elements\n", horon_rank(),
              horon_size(), kTensors, horon_transport(), wrong);
  if (horon_shutdown() != HORON_OK) return Fail("horon_shutdown");
  return wrong == 0 ? 0 : 1;
}
