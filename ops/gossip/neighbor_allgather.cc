// "neighbor_allgather": the rows of the call's sources (neighborhood.h), one below the other in
// the order in which the caller lists them. First dimensions may differ. The output, and the rows
// of each source, belong to the Work. Any dtype. Sent per rank: its rows to each destination, those
// of a bucket's tensors in one message.
#include <map>

#include "ops/gossip/neighborhood.h"
#include "ops/rows.h"

namespace horon {
namespace {

class NeighborAllgather final : public Op {
 public:
  Result<Agreement> Check(std::span<const Request* const> by_rank,
                          std::span<const int> ranks) const override {
    HORON_TRY(CheckCommon(by_rank, ranks, "NEIGHBOR_ALLGATHER"));
    HORON_TRY(CheckRows(by_rank, ranks, "NEIGHBOR_ALLGATHER"));
    HORON_TRY(CheckUnscaled(*by_rank[0]));
    HORON_TRY(gossip::CheckNeighborhoods(by_rank, ranks, gossip::Between::kRanks, false));
    Agreement agreed;
    for (const Request* request : by_rank) agreed.sizes.push_back(request->shape[0]);
    return agreed;
  }

  std::vector<WhenLate> late_choices() const override { return {WhenLate::kFail}; }

  bool fusable() const override { return true; }
  // Of all ranks' rows, which is more than any rank has of them, but the same everywhere.
  int64_t FusionBytes(int64_t, const Request& request, const Agreement& agreed) const override {
    return GatheredBytes(request, agreed);
  }

  Task Run(Stage& stage) override {
    Spans incoming, outgoing;  // by peer, tensor by tensor
    for (size_t i = 0; i < stage.segments().size(); ++i)
      HORON_CO_TRY(Place(stage, i, incoming, outgoing));
    Communicator& comm = stage.comm();
    std::vector<Transfer> transfers(incoming.size() + outgoing.size());
    size_t next = 0;
    for (const auto& [peer, spans] : incoming)
      HORON_CO_TRY(comm.Receive(transfers[next++], peer, spans));
    for (const auto& [peer, spans] : outgoing)
      HORON_CO_TRY(comm.Send(transfers[next++], peer, spans));
    for (Transfer& transfer : transfers) HORON_CO_TRY(co_await Finished(transfer));
    co_return Status::Ok();
  }

 private:
  using Spans = std::map<int, std::vector<Span>>;
  // Makes one tensor's output. What has no rows does not travel.
  static Status Place(Stage& stage, size_t i, Spans& incoming, Spans& outgoing) {
    const Request& request = *stage.segments()[i].request;
    const gossip::Neighborhood says = gossip::NeighborhoodOf(request);
    std::vector<int64_t> received;
    int64_t rows = 0;
    for (const gossip::Neighbor& source : says.sources) {
      received.push_back(stage.segments()[i].agreed->sizes[static_cast<size_t>(source.rank)]);
      rows += received.back();
    }
    HORON_TRY(stage.AllocateOutput(i, WithRows(request.shape, rows)));
    stage.SetReceivedSplits(i, received);
    const Segment& segment = stage.segments()[i];
    const int64_t row_bytes = RowBytes(request);
    std::byte* at = segment.output;
    for (size_t s = 0; s < received.size(); ++s) {
      const int64_t bytes = received[s] * row_bytes;
      if (bytes > 0) incoming[says.sources[s].rank].push_back({at, bytes});
      at += bytes;
    }
    // Sends only read.
    const Span own{const_cast<std::byte*>(segment.input), segment.count * SizeOf(stage.dtype())};
    for (const gossip::Neighbor& to : says.destinations) {
      if (own.bytes > 0) outgoing[to.rank].push_back(own);
      stage.CountSent(stage.comm().global(to.rank), own.bytes);
    }
    return Status::Ok();
  }
};

const OpRegistrar kNeighborAllgather{"neighbor_allgather", MakeOp<NeighborAllgather>, OpUse::kCall};

}  // namespace
}  // namespace horon
