// What the messages of negotiation carry of a timeline: orders to it, and what rank 0's clock says.
// Part of wire.cc.
#pragma once

#include <vector>

#include "runtime/core/wire.h"
#include "runtime/core/wire_bytes.h"

namespace horon {

inline void Write(WireWriter& out, const TimelineOrder& order) {
  out.Number(order.number);
  out.Number(static_cast<uint8_t>(order.begin));
  out.Number(static_cast<uint8_t>(order.mark_cycles));
  out.Number(order.first_step);
  out.Number(order.end_step);
  out.Text(order.path);
  out.Text(order.id);
  out.Number(order.epoch);
  out.Number(order.epoch_us);
}

inline TimelineOrder ReadTimelineOrder(WireReader& in) {
  TimelineOrder order;
  order.number = in.Number<uint64_t>();
  order.begin = in.Number<uint8_t>() != 0;
  order.mark_cycles = in.Number<uint8_t>() != 0;
  order.first_step = in.Number<uint64_t>();
  order.end_step = in.Number<uint64_t>();
  order.path = in.Text();
  order.id = in.Text();
  order.epoch = in.Number<int64_t>();
  order.epoch_us = in.Number<int64_t>();
  return order;
}

inline constexpr size_t kClockAnswerBytes = 20;

inline void Write(WireWriter& out, const std::vector<ClockAnswer>& clocks, int64_t told) {
  out.Number(static_cast<uint32_t>(clocks.size()));
  for (const ClockAnswer& answer : clocks) {
    out.Number(answer.rank);
    out.Number(answer.asked);
    out.Number(answer.heard);
  }
  out.Number(told);
}

inline void ReadClocks(WireReader& in, int ranks, Decision& decision) {
  decision.clocks.resize(in.Count(kClockAnswerBytes));
  for (ClockAnswer& answer : decision.clocks) {
    answer.rank = in.Number<int32_t>();
    if (answer.rank < 0 || answer.rank >= ranks) in.Fail("a rank is out of range");
    answer.asked = in.Number<int64_t>();
    answer.heard = in.Number<int64_t>();
  }
  decision.clock_told = in.Number<int64_t>();
}

}  // namespace horon
