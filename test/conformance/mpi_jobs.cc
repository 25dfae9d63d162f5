// Jobs over MPI: every rank of mpirun joins as a program does and runs its part, between nodes that
// are pretended; then every rank hears what came of it on all others.
#include <cstring>
#include <string_view>

#include "runtime/join.h"
#include "test/mpi/mpi_world.h"
#include "test/support/catch.h"
#include "test/support/job.h"

namespace horon::test {
namespace {

constexpr int64_t kFew[] = {0, 17, 70'001};

bool Slow() {
  const char* const slow = EnvironmentVariable("HORON_TEST_SLOW");
  return slow != nullptr && *slow != '\0';
}

std::span<const int64_t> CountsOverMpi() {
  return Slow() ? std::span<const int64_t>(kCounts) : std::span<const int64_t>(kFew);
}

std::vector<Layout> LayoutsOverMpi() {
  const int size = World().size();
  if (size == 1) return {{1, 0, true}};
  std::vector<Layout> layouts{{size, 1, true}, {size, 1, true, true}};
  if (size > 2) layouts.push_back({size, 2, true});
  return layouts;
}

// A string, or a vector of plain numbers.
template <typename T>
void Put(const T& values, std::string& text) {
  const uint64_t count = values.size();
  text.append(reinterpret_cast<const char*>(&count), sizeof(count));
  if (count > 0)
    text.append(reinterpret_cast<const char*>(values.data()),
                count * sizeof(typename T::value_type));
}

template <typename T>
T Take(std::string_view& text) {
  uint64_t count = 0;
  std::memcpy(&count, text.data(), sizeof(count));
  text.remove_prefix(sizeof(count));
  T values(count, typename T::value_type{});
  const size_t bytes = count * sizeof(typename T::value_type);
  if (count > 0) std::memcpy(values.data(), text.data(), bytes);
  text.remove_prefix(bytes);
  return values;
}

// Collective.
void ShareResults(std::vector<Item>& items) {
  std::string mine;
  for (const Item& item : items) {
    const auto me = static_cast<size_t>(World().rank());
    const OpOutput& output = item.outputs[me];
    Put(std::vector<Code>{item.statuses[me].code()}, mine);
    Put(item.statuses[me].message(), mine);
    Put(output.shape, mine);
    Put(output.bytes, mine);
    Put(output.received, mine);
  }
  const auto texts = World().Exchange(mine, {std::chrono::seconds{60}});
  REQUIRE(texts.ok());
  for (size_t rank = 0; rank < texts.value().size(); ++rank) {
    std::string_view text = texts.value()[rank];
    for (Item& item : items) {
      const Code code = Take<std::vector<Code>>(text)[0];
      const auto message = Take<std::string>(text);
      item.statuses[rank] = code == Code::kOk ? Status::Ok() : Status(code, message);
      OpOutput& output = item.outputs[rank];
      output.shape = Take<Shape>(text);
      output.bytes = Take<Bytes>(text);
      output.received = Take<std::vector<int64_t>>(text);
    }
  }
}

void RunOverMpi(const Layout& layout, std::vector<Item>& items) {
  static ProcessState& process = *new ProcessState;  // MPI outlives this program's statics
  Config config;
  config.fusion_bytes = kFusionBytes;
  config.shm_chunk_bytes = 16 << 10;
  config.local_size = layout.local_size;
  config.deterministic = !layout.blocks;
  config.recorder_events = 0;
  Result<std::unique_ptr<Job>> job = Join(config, process);
  REQUIRE(job.status().message() == "");
  Runtime& runtime = *job.value()->runtime;
  RunItems(runtime, items);
  const bool shares = runtime.topology().local_size(runtime.rank()) > 1;
  CHECK(job.value()->transport == (layout.size == 1 ? "self" : shares ? "shm+mpi" : "mpi"));
  // The first item of elementwise jobs is a sum.
  if (layout.blocks && items[0].op == "sum")
    CHECK(runtime.counters()["mpi.collectives"].value() > 0);
  REQUIRE(EndJob(std::move(job.value())));
  ShareResults(items);
}

[[maybe_unused]] const bool set = [] {
  SetJobPlace({LayoutsOverMpi, CountsOverMpi, RunOverMpi});
  return true;
}();

}  // namespace
}  // namespace horon::test
