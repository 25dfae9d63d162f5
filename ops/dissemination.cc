// "dissemination[:hierarchical=1]": one-peer gossip. In round t of a tensor, participant i of n
// sends its value to (i + 2^(t mod K)) mod n, K = ceil(log2 n), receives from (i - 2^(t mod K)) mod
// n, and takes the mean of the two. Floating dtypes.
//
// The mean over the participants is conserved; for n = 2^K all have it exactly after K rounds.
// Participants are ranks; with hierarchical=1 they are nodes, which first average inside.
// A tensor's round is counted here, call by call; a caller that counts itself gives Request::round
// > 0. Sent per rank and round: S, in one message for all tensors of a bucket that are in the same
// round. Source: Assran et al., Stochastic Gradient Push, ICML 2019 (one-peer exponential graph).
#include <bit>
#include <map>

#include "ops/hierarchical.h"
#include "ops/rounds.h"

namespace horon {
namespace {

// How far the partner of round `round` is among n participants. n >= 2.
int DistanceOf(int64_t round, int participants) {
  const int period = std::bit_width(static_cast<unsigned>(participants - 1));
  return 1 << (round % period);
}

// own = scale * (own + what the partner had) / 2, for all spans in one message.
Task MeetPartner(Communicator& comm, std::vector<Span> own, DataType dtype, int distance,
                 double scale) {
  int64_t bytes = 0;
  for (const Span& span : own) bytes += span.bytes;
  if (bytes == 0) co_return Status::Ok();
  auto received = comm.pool().Take(bytes);
  if (!received.ok()) co_return received.status();
  const std::byte* theirs = received.value().data();
  const int to = (comm.rank() + distance) % comm.size();
  const int from = (comm.rank() - distance + comm.size()) % comm.size();
  Transfer in, out;
  HORON_CO_TRY(comm.Receive(in, from, Span{received.value().data(), bytes}));
  HORON_CO_TRY(comm.Send(out, to, own));
  HORON_CO_TRY(co_await Finished(in));
  HORON_CO_TRY(co_await Finished(out));
  for (const Span& span : own) {
    CombineInto(dtype, 0.5 * scale, span.data, 0.5 * scale, theirs, span.data,
                span.bytes / SizeOf(dtype));
    theirs += span.bytes;
  }
  co_return Status::Ok();
}

class Dissemination final : public Op {
 public:
  explicit Dissemination(bool hierarchical) : hierarchical_(hierarchical) {}

  Status CheckAlone(const Request& request) const override { return CheckFloating(request); }

  Result<Agreement> Check(std::span<const Request* const> by_rank,
                          std::span<const int> ranks) const override {
    HORON_TRY(CheckFloatingAlike(by_rank, ranks));
    return Agreement{};
  }

  bool fusable() const override { return true; }
  bool fills_output() const override { return true; }
  std::vector<WhenLate> late_choices() const override {
    return {WhenLate::kKeep, WhenLate::kFail};
  }

  Task Run(Stage& stage) override {
    HORON_CO_TRY(PrepareOutputs(stage));
    const Communicator& comm = stage.comm();
    const int participants = hierarchical_ ? static_cast<int>(comm.nodes().size()) : comm.size();
    std::map<int, std::vector<size_t>> by_distance;  // the same on every rank: rounds are
    const std::vector<int64_t> rounds = TakeRounds(stage);
    for (size_t i = 0; i < rounds.size(); ++i)
      by_distance[participants > 1 ? DistanceOf(rounds[i], participants) : 0].push_back(i);
    for (const auto& [distance, which] : by_distance) {
      if (hierarchical_) {
        HORON_CO_TRY(co_await BetweenNodes(stage, which, distance));
      } else {
        HORON_CO_TRY(co_await BetweenRanks(stage, which, distance));
      }
    }
    co_return Status::Ok();
  }

  void Skip(Stage& stage) override { TakeRounds(stage); }

 private:
  static Task BetweenRanks(Stage& stage, std::vector<size_t> which, int distance) {
    std::vector<Span> own;
    // Alone, nobody is met and everything is scaled here.
    const double scale = distance == 0 ? stage.prescale() * stage.postscale() : stage.prescale();
    for (const size_t i : which) {
      const Segment& segment = stage.segments()[i];
      ScaleInto(stage.dtype(), scale, segment.input, segment.output, segment.count);
      own.push_back({segment.output, segment.count * SizeOf(stage.dtype())});
    }
    if (distance == 0) co_return Status::Ok();
    co_return co_await MeetPartner(stage.comm(), own, stage.dtype(), distance, stage.postscale());
  }

  static Task BetweenNodes(Stage& stage, std::vector<size_t> which, int distance) {
    const DataType dtype = stage.dtype();
    NodeStep between = [dtype, distance](Communicator& across, std::byte* part, int64_t count) {
      // On a single node the block stays as it is.
      const int64_t bytes = distance == 0 ? 0 : count * SizeOf(dtype);
      return MeetPartner(across, {Span{part, bytes}}, dtype, distance, 1.0);
    };
    co_return co_await OverNodes(stage, which, /*average=*/true, between);
  }

  bool hierarchical_;
};

Result<std::unique_ptr<Op>> MakeDissemination(OpArguments& arguments) {
  HORON_ASSIGN(const int64_t hierarchical, arguments.Integer("hierarchical", 0));
  if (hierarchical != 0 && hierarchical != 1) return arguments.Wrong("hierarchical must be 0 or 1");
  return std::unique_ptr<Op>(std::make_unique<Dissemination>(hierarchical == 1));
}

const OpRegistrar kDissemination{"dissemination", MakeDissemination};

}  // namespace
}  // namespace horon
