#include "ops/adasum/exchange.h"

#include <algorithm>
#include <utility>

namespace horon::adasum {
namespace {

constexpr int64_t kInFlight = 4;

int64_t Chunks(int64_t count, int64_t chunk) { return (count + chunk - 1) / chunk; }

}  // namespace

Task Exchange(Communicator& comm, int peer, int64_t chunk, Flow out, Flow in) {
  Transfer receives[kInFlight], sends[kInFlight];
  const int64_t incoming = Chunks(in.count, chunk), outgoing = Chunks(out.count, chunk);
  RecycledVector<Span> places;  // of a chunk; chunks take no memory of their own
  const auto lay = [&places](const Flow& flow, int64_t from, int64_t to) -> std::span<const Span> {
    places.clear();
    flow.lay(from, to, &places);
    return places;
  };
  int64_t opened = 0;  // chunks whose receive is posted
  for (int64_t k = 0; k < std::max(incoming, outgoing); ++k) {
    for (; opened < std::min(incoming, k + kInFlight); ++opened) {
      const int64_t from = opened * chunk, to = std::min(from + chunk, in.count);
      HORON_CO_TRY(comm.Receive(receives[opened % kInFlight], peer, lay(in, from, to)));
    }
    if (k < outgoing) {
      Transfer& send = sends[k % kInFlight];
      HORON_CO_TRY(co_await Finished(send));  // the chunk that had this place before
      const int64_t from = k * chunk, to = std::min(from + chunk, out.count);
      out.work(from, to);
      HORON_CO_TRY(comm.Send(send, peer, lay(out, from, to)));
    }
    if (k < incoming) {
      HORON_CO_TRY(co_await Finished(receives[k % kInFlight]));
      in.work(k * chunk, std::min((k + 1) * chunk, in.count));
    }
  }
  for (Transfer& send : sends) HORON_CO_TRY(co_await Finished(send));
  co_return Status::Ok();
}

}  // namespace horon::adasum
