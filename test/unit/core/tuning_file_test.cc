#include "runtime/core/tuning_file.h"

#include "test/support/catch.h"

namespace horon {
namespace {

TEST_CASE("a tuning is read as it was written") {
  for (const Tuning& tuning : {Tuning(), Tuning{0, 4096, 1 << 20, false}}) {
    const Result<Tuning> read = ParseTuning("# kept\n\n" + TuningText(tuning));
    REQUIRE(read.ok());
    CHECK(read.value() == tuning);
  }
}

TEST_CASE("what is no tuning is refused with its line") {
  const std::string good = TuningText(Tuning());
  for (const std::string& bad : {good + "chunk=1\n", good + "fusion_bytes=1\n", good + "x\n",
                                 std::string("fusion_bytes=-1\n"), std::string("fusion_bytes=1k\n"),
                                 std::string("fusion_bytes=\n"), std::string("hierarchical=2\n"),
                                 std::string("chunk_bytes=9999999999999999999999\n")}) {
    const Result<Tuning> read = ParseTuning(bad);
    REQUIRE(!read.ok());
    CHECK(read.status().code() == Code::kInvalidArgument);
    CHECK(read.status().message().find("line ") == 0);
  }
  CHECK(ParseTuning("fusion_bytes=1\n").status().message() == "it does not say chunk_bytes");
  CHECK(!ParseTuning("").ok());
}

}  // namespace
}  // namespace horon
