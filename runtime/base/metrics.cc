#include "runtime/base/metrics.h"

#include <algorithm>
#include <map>
#include <string_view>

namespace horon {
namespace {

constexpr MetricFamily kFamilies[] = {
    {"negotiation.*.requests", "way", "Requests that this rank reported in full."},
    {"negotiation.*.bits", "way", "Requests that this rank reported as a cache id."},
    {"negotiation.*.responses", "way", "Verdicts that came by name."},
    {"negotiation.*.cached_responses", "way", "Verdicts that came by cache id."},
    {"negotiation.*.messages", "way", "Control messages that this rank sent."},
    {"negotiation.*.bytes", "way", "Bytes of control messages that this rank sent."},
    {"executor.buckets", nullptr, "Buckets started."},
    {"executor.tensors", nullptr, "Tensors in the buckets started."},
    {"executor.bytes", nullptr, "Bytes in the buckets started."},
    {"fusion.tensors", nullptr, "Tensors that shared a bucket and were sent as messages."},
    {"fusion.bytes", nullptr, "Bytes that shared a bucket and were sent as messages."},
    {"schedule.locks", nullptr, "Schedules that were locked."},
    {"schedule.tensors", nullptr, "Tensors that ran in a locked schedule."},
    {"schedule.messages", nullptr, "Messages between nodes that the locked schedule's gate sent alone."},
    {"schedule.carried", nullptr, "Messages of the gate that brought the beginning of a batch along."},
    {"timeline.events", nullptr, "Events that the timeline took."},
    {"timeline.dropped", nullptr, "Events for which the timeline's ring had no room."},
    {"lane.in_place", nullptr, "Buckets that a node reduced where the tensors lie."},
    {"lane.swapped", nullptr, "Rows of buckets that ranks of a node swapped in pairs, or showed all others."},
    {"lane.past_caches", nullptr, "Chunks packed past the caches, as others' are far."},
    {"cores.moves", nullptr, "Times that a rank went to a core with fewer ranks."},
    {"pool.bytes", nullptr, "Bytes of host memory that are held to be used again.", true},
    {"pool.taken_bytes", nullptr, "Bytes of them that are in use.", true},
    {"shm.read_bytes", nullptr, "Bytes of messages read out of another rank's memory."},
    {"mpi.messages", nullptr, "Messages given to MPI."},
    {"mpi.bytes", nullptr, "Bytes of the messages given to MPI."},
    {"mpi.collectives", nullptr, "Collective calls given to MPI."},
    {"mpi.thread_multiple", nullptr, "Whether threads of the program may call MPI, too.", true},
    {"autotune.samples", nullptr, "Samples of steps that were measured to tune the job."},
    {"autotune.settings", nullptr, "Settings that were tried to tune the job."},
    {"explain.ns.*", "part", "Nanoseconds of this rank, by what passed in them."},
    {"explain.waits", nullptr, "Times that the program waited for a work."},
    {"explain.buckets", nullptr, "Buckets since a tensor came for the second time."},
    {"explain.tensors", nullptr, "Tensors that came again."},
    {"explain.bytes", nullptr, "Bytes of tensors that came again."},
    {"explain.locked", nullptr, "Tensors that came again in a locked schedule."},
    {"explain.distinct", nullptr, "Names of tensors that came again."},
    {"explain.distinct_bytes", nullptr, "Bytes of tensors that came again, each counted once."},
    {"gpu.buckets.*", "way", "Buckets of GPU tensors."},
    {"gpu.buckets_on_callers_streams", nullptr, "Buckets that ran on the stream of who waited."},
    {"gpu.submits_that_launched", nullptr, "Submits that ran the cycle, as nobody else did."},
    {"gpu.exchanges.direct", nullptr, "Exchanges that MPI took from the memory of GPUs."},
    {"window.given", nullptr, "Values of windows that this rank gave to others."},
    {"window.unasked", nullptr, "Parts that this rank kept, as who was to have them had not asked."},
    {"window.overwritten", nullptr, "Values put over what nobody had taken."},
    {"window.taken", nullptr, "Deliveries that updates of windows found."},
    {"window.unchanged", nullptr, "Values mixed again because nothing new had come."},
    {"window.staleness.*", "age", "Deliveries taken, by the updates before that found nothing."},
    {"pair.averages", nullptr, "Averages of pairs that this rank took part in."},
    {"pair.lost", nullptr, "Averages of pairs that came to nothing."},
    {"pair.staleness.*", "age", "Steps, by the averages of pairs since the last step."},
    {"round.mixed", nullptr, "Rounds of gossip between peers that this rank mixed."},
    {"round.folded", nullptr, "Links left out of a round of gossip between peers."},
    {"round.late", nullptr, "Messages of rounds that were over."},
    {"gossip.kept", nullptr, "Tensors kept as they are, as a rank was late for their round."},
    {"gossip.bytes.to.*", "peer", "Bytes of values that negotiated gossip sent to a rank."},
    {"gossip.staleness.*", "age", "Overlapped exchanges taken in, by the steps since their start."},
    {"gossip.consensus.nano", nullptr, "Consensus distance as last computed, 1e-9.", true},
    {"gossip.weights.nano", nullptr, "Sum of push-sum weights as last computed, 1e-9.", true},
    {"peer.bytes.to.*", "peer", "Bytes of windows that went to a rank and arrived."},
    {"peer.unreached", nullptr, "Ranks that orders to windows did not reach."},
    {"peer.silences", nullptr, "Times that a peer fell silent."},
    {"peer.resent", nullptr, "Questions that were sent again for want of an answer."},
    {"peer.dropped", nullptr, "Messages of peers that fitted nothing and were not taken."},
    {"peer.late", nullptr, "Answers that came after their limit."},
};

// What stands for the '*', if the pattern fits.
bool Fits(std::string_view pattern, std::string_view name, std::string_view& value) {
  const size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == name;
  const std::string_view before = pattern.substr(0, star), after = pattern.substr(star + 1);
  if (name.size() < before.size() + after.size()) return false;
  value = name.substr(before.size(), name.size() - before.size() - after.size());
  return name.starts_with(before) && name.ends_with(after) && !value.empty() &&
         value.find('.') == std::string_view::npos;
}

std::string Escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

std::string NameOfFamily(std::string_view counter, bool gauge) {
  std::string name = "horon";
  for (size_t begin = 0; begin <= counter.size();) {
    const size_t end = std::min(counter.find('.', begin), counter.size());
    const std::string_view word = counter.substr(begin, end - begin);
    if (word != "*") (name += '_') += word;
    begin = end + 1;
  }
  const auto allowed = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  };
  std::replace_if(name.begin(), name.end(), [&](char c) { return !allowed(c); }, '_');
  return name + (gauge ? "" : "_total");
}

struct Written {
  std::string head, rows;
};
using Families = std::map<std::string, Written>;

void AddRow(Families& families, const MetricFamily& family, const std::string& labels,
            int64_t value) {
  const std::string name = NameOfFamily(family.counter, family.gauge);
  Written& written = families[name];
  if (written.head.empty())
    written.head = "# HELP " + name + " " + family.help + "\n# TYPE " + name +
                   (family.gauge ? " gauge\n" : " counter\n");
  written.rows += name + "{" + labels + "} " + std::to_string(value) + "\n";
}

void AddCounter(Families& families, const std::string& counter, std::string labels, int64_t value) {
  std::string_view found;
  for (const MetricFamily& family : kFamilies) {
    if (!Fits(family.counter, counter, found)) continue;
    if (family.label != nullptr) ((labels += ",") += family.label) += "=\"" + Escaped(found) + "\"";
    AddRow(families, family, labels, value);
    return;
  }
  AddRow(families, {counter.c_str(), nullptr, "Not described."}, labels, value);
}

}  // namespace

std::span<const MetricFamily> MetricFamilies() { return kFamilies; }

std::string MetricsText(const CounterRows& counters, const MetricsOf& of) {
  const std::string labels =
      "rank=\"" + std::to_string(of.rank) + "\",host=\"" + Escaped(of.host) + "\"";
  Families families;
  AddRow(families, {"running", nullptr, "Whether this rank is in a job.", true}, labels,
         of.running ? 1 : 0);
  AddRow(families, {"ranks", nullptr, "Ranks of its job.", true}, labels, of.size);
  for (const auto& [counter, value] : counters) AddCounter(families, counter, labels, value);
  std::string text;
  for (const auto& [name, written] : families) (text += written.head) += written.rows;
  return text;
}

}  // namespace horon
