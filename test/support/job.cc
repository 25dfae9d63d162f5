#include "test/support/job.h"

#include <memory>

#include "test/support/world.h"

namespace horon::test {
namespace {

constexpr Layout kLayouts[] = {{1, 0, true}, {2, 0, true},  {3, 0, true},  {4, 0, true},
                               {5, 0, true}, {3, 0, false}, {5, 0, false}, {3, 1, true},
                               {4, 2, true}, {3, 2, true},  {5, 3, true},  {4, 2, false}};

void RunInAWorld(const Layout& layout, std::vector<Item>& items) {
  WorldOptions options;
  options.local_size = layout.local_size;
  options.lanes = layout.lanes;
  options.configure = [](Config& config) { config.fusion_bytes = kFusionBytes; };
  World(layout.size, options).Run([&](Rank& me) { RunItems(me.runtime(), items); });
}

JobPlace& Place() {
  static JobPlace place{
      [] { return std::vector<Layout>(std::begin(kLayouts), std::end(kLayouts)); },
      []() -> std::span<const int64_t> { return kCounts; }, RunInAWorld};
  return place;
}

}  // namespace

void SetJobPlace(const JobPlace& place) { Place() = place; }
std::vector<Layout> JobLayouts() { return Place().layouts(); }
std::span<const int64_t> JobCounts() { return Place().counts(); }

// Submits all items on this rank, beginning at another one than the other ranks do, and waits for
// all.
void RunItems(Runtime& runtime, std::vector<Item>& items) {
  Rank me(runtime);
  const auto rank = static_cast<size_t>(me.rank());
  std::vector<std::shared_ptr<Work>> works(items.size());
  for (size_t turn = 0; turn < items.size(); ++turn) {
    const size_t i = (turn + rank * 7) % items.size();
    Item& item = items[i];
    Request request = item.tensor.requests[rank];
    request.name = item.tensor.name;
    request.op = item.op;
    // Every second tensor gets its output from the Work.
    OpOutput& output = item.outputs[rank];
    if (i % 2 == 0) output.bytes.resize(item.tensor.inputs[rank].size());
    const auto work = me.Submit(request, item.tensor.inputs[rank].data(),
                                i % 2 == 0 ? output.bytes.data() : nullptr);
    item.statuses[rank] = work.status();
    if (work.ok()) works[i] = work.value();
  }
  for (size_t i = 0; i < items.size(); ++i) {
    if (!works[i]) continue;
    Item& item = items[i];
    item.statuses[rank] = me.Wait(*works[i]);
    const Output& from = works[i]->outputs()[0];
    OpOutput& output = item.outputs[rank];
    if (!item.statuses[rank].ok() || from.owned.data() == nullptr) continue;
    const int64_t bytes = CountOf(from.shape()) * SizeOf(item.tensor.requests[rank].dtype);
    output = {from.shape(), Bytes(from.data, from.data + bytes), from.received_splits};
  }
}

std::string Describe(const Layout& layout) {
  return std::to_string(layout.size) + " ranks, local size " + std::to_string(layout.local_size) +
         (layout.lanes ? "" : ", no lanes") + (layout.blocks ? ", blocks reduced by MPI" : "");
}

std::string Describe(const Item& item) {
  return item.op + " of " + std::string(NameOf(item.dtype())) + " " +
         ToString(item.tensor.requests[0].shape);
}

void RunJob(const Layout& layout, std::vector<Item>& items) {
  for (size_t i = 0; i < items.size(); ++i) {
    items[i].tensor.Named("t" + std::to_string(i));
    items[i].outputs.resize(static_cast<size_t>(layout.size));
    items[i].statuses.resize(static_cast<size_t>(layout.size));
  }
  Place().run(layout, items);
}

std::vector<Values> InputsOf(DataType dtype, int size, int64_t count) {
  std::vector<Values> inputs;
  for (int rank = 0; rank < size; ++rank) inputs.push_back(SmallValues(dtype, rank, count));
  return inputs;
}

std::string FailureOf(const Item& item) {
  for (size_t rank = 0; rank < item.statuses.size(); ++rank) {
    const Status& status = item.statuses[rank];
    if (status.ok()) continue;
    return Describe(item) + " on rank " + std::to_string(rank) + ": " + status.message();
  }
  return "";
}

bool SameBitsEverywhere(const Item& item) {
  for (const OpOutput& output : item.outputs) {
    if (output.bytes != item.outputs[0].bytes) return false;
  }
  return true;
}

}  // namespace horon::test
