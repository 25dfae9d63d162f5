// Metrics: a rank's counters as the text that Prometheus reads (exposition format 0.0.4).
//
// A counter's name becomes the name of a family: "executor.bytes" is horon_executor_bytes_total.
// What of a name differs from edge to edge, or from way to way, is a label, not a name:
// "peer.bytes.to.3" is horon_peer_bytes_to_total{peer="3"}. Every row has the rank and its host.
// Pure; the writer (metrics_writer.h) calls it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace horon {

struct MetricFamily {
  const char* counter;          // its name; a '*' stands for the label's value
  const char* label = nullptr;  // null: the name has no '*'
  const char* help;
  bool gauge = false;
};
std::span<const MetricFamily> MetricFamilies();

// Whose metrics they are.
struct MetricsOf {
  int rank = 0, size = 1;
  std::string host;
  bool running = true;  // false: this rank has left the job
};

using CounterRows = std::vector<std::pair<std::string, int64_t>>;  // by name
// A counter that no family knows has one of its own, without a description.
std::string MetricsText(const CounterRows& counters, const MetricsOf& of);

}  // namespace horon
