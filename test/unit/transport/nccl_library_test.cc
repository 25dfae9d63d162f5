// What is said of an NCCL that cannot be used. Those that can need no GPU to be found, but are
// large: they are tested where there is a GPU.
#include "runtime/transport/nccl_library.h"

#include <filesystem>
#include <fstream>

#include "test/support/catch.h"
#include "test/support/folder.h"

namespace horon {
namespace {

std::string Beside(const std::string& name) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
}

TEST_CASE("an NCCL that is too old is named, with what it lacks") {
  GpuLibraryPaths paths;
  paths.nccl = Beside("libhoron_old_nccl.so");
  const NcclLibrary nccl = OpenNccl(paths);
  REQUIRE(!nccl.ok());
  for (const char* word : {"NCCL 2.10.3 in /", "is too old: 2.18.0 is the least", "ncclAllReduce"})
    REQUIRE(nccl.found.text.find(word) != std::string::npos);
}

TEST_CASE("an NCCL that lacks functions is named with them, whatever its version") {
  GpuLibraryPaths paths;
  paths.nccl = Beside("libhoron_partial_nccl.so");
  const NcclLibrary nccl = OpenNccl(paths);
  REQUIRE(!nccl.ok());
  for (const char* word : {"NCCL 2.23.4 in /", "is not whole: it has no ncclCommInitRankConfig, "})
    REQUIRE(nccl.found.text.find(word) != std::string::npos);
  for (const char* word : {"too old", "ncclGetUniqueId"})
    REQUIRE(nccl.found.text.find(word) == std::string::npos);
}

TEST_CASE("packages below any of the prefixes bring NCCL") {
  const test::Folder folder;
  const std::filesystem::path root = folder / "base";
  const std::filesystem::path lib = root / "lib/python3.99/site-packages/nvidia/nccl/lib";
  std::filesystem::create_directories(lib);
  std::filesystem::copy_file(Beside("libhoron_old_nccl.so"), lib / "libnccl.so.2");
  GpuLibraryPaths paths;
  paths.python_prefix = "/nowhere::" + root.string();
  const NcclLibrary nccl = OpenNccl(paths);
  CAPTURE(nccl.found.text);
  REQUIRE(nccl.found.text.find("NCCL 2.10.3 in " + lib.string()) != std::string::npos);
}

TEST_CASE("a path that is no NCCL is not replaced by another one") {
  GpuLibraryPaths paths;
  paths.nccl = "/nowhere/libnccl.so.2";
  const NcclLibrary nccl = OpenNccl(paths);
  REQUIRE(!nccl.ok());
  REQUIRE(nccl.found.text.find("/nowhere/libnccl.so.2") != std::string::npos);
  REQUIRE(nccl.found.text.find("HORON_NCCL_LIB") != std::string::npos);
}

TEST_CASE("a library that is not NCCL is not taken for it") {
  GpuLibraryPaths paths;
  paths.nccl = "libm.so.6";
  REQUIRE(OpenNccl(paths).found.text.find("it has no ncclGetVersion") != std::string::npos);
}

}  // namespace
}  // namespace horon
