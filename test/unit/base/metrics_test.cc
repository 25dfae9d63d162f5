#include "runtime/base/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <set>

#include "runtime/base/descriptor.h"
#include "runtime/base/metrics_writer.h"
#include "runtime/base/replace_file.h"
#include "test/support/catch.h"
#include "test/support/folder.h"

namespace horon {
namespace {

using std::chrono::milliseconds;
using test::Folder;
using test::Text;

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("a counter becomes a family, and its edges and ways labels of one") {
  const std::string text = MetricsText({{"executor.bytes", 12},
                                        {"negotiation.mpi.bytes", 3},
                                        {"negotiation.shm.bytes", 4},
                                        {"peer.bytes.to.10", 5},
                                        {"mpi.thread_multiple", 1}},
                                       {2, 4, "a\"b\\c", true});
  const std::string of = "{rank=\"2\",host=\"a\\\"b\\\\c\"";
  CHECK(Has(text,
            "# TYPE horon_executor_bytes_total counter\nhoron_executor_bytes_total" + of + "} 12"));
  CHECK(Has(text, "horon_negotiation_bytes_total" + of + ",way=\"mpi\"} 3\n" +
                      "horon_negotiation_bytes_total" + of + ",way=\"shm\"} 4\n"));
  CHECK(Has(text, "horon_peer_bytes_to_total" + of + ",peer=\"10\"} 5\n"));
  CHECK(Has(text, "# TYPE horon_mpi_thread_multiple gauge\n"));
  CHECK(Has(text, "horon_running" + of + "} 1\n"));
  CHECK(Has(text, "horon_ranks" + of + "} 4\n"));
  CHECK_FALSE(Has(text, "Not described"));
}

TEST_CASE("a counter that nobody has described is there all the same") {
  const std::string text = MetricsText({{"new.things-4+", 7}, {"peer.bytes.to.", 1}}, {});
  CHECK(Has(text, "# HELP horon_new_things_4__total Not described.\n"));
  CHECK(Has(text, "horon_new_things_4__total{rank=\"0\",host=\"\"} 7\n"));
  CHECK(Has(text, "horon_peer_bytes_to__total{rank=\"0\",host=\"\"} 1\n"));
}

TEST_CASE("every family is described, and in the documentation") {
  const std::string docs = HORON_SOURCES "/docs/";
  const std::string text =
      Text(docs + "configuration.md") + Text(docs + "gossip.md") + Text(docs + "gpu.md");
  std::set<std::string> seen;
  for (const MetricFamily& family : MetricFamilies()) {
    const std::string name = family.counter;
    INFO(name);
    CHECK(seen.insert(name).second);
    CHECK((name.find('*') != std::string::npos) == (family.label != nullptr));
    CHECK(std::string(family.help).ends_with("."));
    const size_t star = name.find('*');
    const bool middle = star != std::string::npos && star + 1 < name.size();
    CHECK(Has(text, middle ? name.substr(name.rfind('.')) : name.substr(0, star)));
  }
}

TEST_CASE("the file is replaced, so that a reader finds a whole one") {
  const Folder folder;
  const std::string path = folder / "m.prom";
  REQUIRE(ReplaceFile("HORON_X", path, "first\n").ok());
  const Descriptor reader(open(path.c_str(), O_RDONLY));
  REQUIRE(ReplaceFile("HORON_X", path, "second, which is longer\n").ok());
  char bytes[64] = "";
  REQUIRE(read(reader.get(), bytes, sizeof(bytes)) == 6);
  CHECK(std::string(bytes) == "first\n");
  CHECK(Text(path) == "second, which is longer\n");
  CHECK(folder.files() == 1);
}

TEST_CASE("the writer writes at once, at its period, and at the end") {
  const Folder folder;
  auto counters = std::make_shared<Counters>();
  (*counters)["executor.buckets"].Add(1);
  auto writer =
      MetricsWriter::Start(folder / "r{rank}.prom", {3, 4, "h", true}, milliseconds(1), counters);
  REQUIRE(writer.ok());
  const std::string path = folder / "r3.prom", row = "horon_executor_buckets_total{rank=\"3\"";
  CHECK(Has(Text(path), row));
  (*counters)["executor.buckets"].Add(41);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!Has(Text(path), row + ",host=\"h\"} 42") && std::chrono::steady_clock::now() < until)
    std::this_thread::yield();
  CHECK(Has(Text(path), row + ",host=\"h\"} 42"));
  CHECK(Has(Text(path), "horon_running{rank=\"3\",host=\"h\"} 1\n"));
  (*counters)["executor.buckets"].Add(1);
  {
    const auto ended = std::move(writer).value();
  }
  CHECK(Has(Text(path), row + ",host=\"h\"} 43"));
  CHECK(Has(Text(path), "horon_running{rank=\"3\",host=\"h\"} 0\n"));
  CHECK(folder.files() == 1);
}

TEST_CASE("with a period of 0 it writes at the beginning and at the end only") {
  const Folder folder;
  auto counters = std::make_shared<Counters>();
  {
    const auto writer =
        MetricsWriter::Start(folder / "{rank}", {0, 1, "h", true}, milliseconds(0), counters);
    REQUIRE(writer.ok());
    CHECK(Has(Text(folder / "0"), "horon_running{rank=\"0\",host=\"h\"} 1\n"));
  }
  CHECK(Has(Text(folder / "0"), "horon_running{rank=\"0\",host=\"h\"} 0\n"));
}

TEST_CASE("a file that cannot be written is said at once, with its name") {
  const auto writer = MetricsWriter::Start("/nowhere/{rank}.prom", {7, 8, "h", true},
                                           milliseconds(10), std::make_shared<Counters>());
  REQUIRE_FALSE(writer.ok());
  CHECK(writer.status().code() == Code::kInvalidArgument);
  CHECK(writer.status().message() ==
        "HORON_METRICS_FILE: /nowhere/7.prom cannot be written: No such file or directory");
}

}  // namespace
}  // namespace horon
