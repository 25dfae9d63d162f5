// horon_share_memory and what goes with it, for horon.h.
#include "runtime/c_memory.h"

#include <algorithm>

#include "runtime/c_current.h"
#include "runtime/c_exchange.h"
#include "runtime/include/horon/horon.h"

struct horon_shared_memory {
  std::unique_ptr<horon::UserMemory> memory;
};

namespace horon {
namespace {

constexpr char kPurpose[] = "shared memory";
using Rows = std::vector<std::vector<int64_t>>;
enum Field { kBytes, kMade, kPid, kFd, kToken, kFields };

std::vector<int64_t> RowOf(int64_t bytes, const SharedMemory* memory) {
  if (memory == nullptr) return {bytes, 0, 0, 0, 0};
  const SharedMemory::Address address = memory->address();
  return {bytes, 1, address.pid, address.fd, address.token};
}

// The same verdict on all ranks.
Status Judge(const std::vector<int>& ranks, const Rows& rows) {
  const auto asks = [&](size_t i) {
    return "rank " + std::to_string(ranks[i]) + " asks for " + std::to_string(rows[i][kBytes]);
  };
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].size() != kFields) return Status::Internal("a rank described no shared memory");
    if (rows[i][kBytes] != rows[0][kBytes])
      return Status::InvalidArgument("shared memory is made by all ranks together, of one size: " +
                                     asks(0) + " bytes, " + asks(i));
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i][kMade] == 0)
      return Status::Unavailable(asks(i) + " bytes of shared memory and cannot have them");
  }
  return Status::Ok();
}

// Whether all of this node's could be mapped. `ranks`: of the set, as rows are.
bool MapNode(const Runtime& runtime, const std::vector<int>& ranks, const Rows& rows,
             SharedRegion& region) {
  const Topology& topology = runtime.topology();
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (topology.node_of(ranks[i]) != topology.node_of(runtime.rank())) continue;
    const std::vector<int64_t>& row = rows[i];
    const SharedMemory::Address address{row[kPid], row[kFd], row[kToken]};
    auto copy = SharedMemory::Map(address, row[kBytes]);
    if (copy == nullptr) return false;
    const auto local = static_cast<size_t>(topology.local_rank(ranks[i]));
    region.copies.resize(std::max(region.copies.size(), local + 1));
    region.copies[local] = std::move(copy);
  }
  return true;
}

}  // namespace

Result<std::unique_ptr<UserMemory>> UserMemory::Make(Runtime& runtime, int64_t bytes, int32_t set) {
  const ProcessSets::Ranks ranks = runtime.process_sets().Find(set);
  if (ranks == nullptr)
    return Status::InvalidArgument("there is no process set " + std::to_string(set));
  // Forked children keep what is the user's.
  auto memory = bytes < 0 ? Status::InvalidArgument("shared memory of a negative number of bytes")
                          : SharedMemory::Make(bytes, kPurpose, /*inherited=*/true);
  const auto mine = memory.ok() ? memory.value() : nullptr;
  HORON_ASSIGN(const Rows rows, Exchange(runtime, kPurpose, RowOf(bytes, mine.get()), set));
  HORON_TRY(memory.status());
  HORON_TRY(Judge(*ranks, rows));
  std::unique_ptr<UserMemory> made(new UserMemory());
  made->region_ = std::make_shared<SharedRegion>();
  SharedRegion& region = *made->region_;
  region.id = static_cast<uint64_t>(rows[0][kToken]);
  region.mine = mine->data();
  region.bytes = bytes;
  const bool mapped = MapNode(runtime, *ranks, rows, region);
  if (!mapped) region.copies = {mine};
  // Lanes ask each time whether all members can, but all ranks should be told the same.
  HORON_ASSIGN(const Rows all, Exchange(runtime, kPurpose, {mapped ? 1 : 0}, set));
  if (std::all_of(all.begin(), all.end(), [](const auto& row) { return row[0] == 1; })) {
    made->regions_ = runtime.regions();
    made->regions_->Add(made->region_);
  }
  return made;
}

UserMemory::~UserMemory() {
  if (regions_ != nullptr) regions_->Remove(*region_);
}

}  // namespace horon

using namespace horon;  // NOLINT: the functions below are C's

int horon_share_memory(int64_t bytes, int process_set, horon_shared_memory** memory, void** data,
                       int* shared) {
  return Command([&](Runtime& runtime) -> Status {
    HORON_ASSIGN(auto made, UserMemory::Make(runtime, bytes, process_set));
    *data = made->data();
    if (shared != nullptr) *shared = made->shared() ? 1 : 0;
    *memory = new horon_shared_memory{std::move(made)};
    return Status::Ok();
  });
}

void horon_shared_memory_release(horon_shared_memory* memory) {
  // A forked child leaks it: other threads' locks, memory that it has not.
  if (!Forked()) delete memory;
}
