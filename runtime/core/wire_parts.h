// What the messages of negotiation consist of: ids, orders, texts, activities and requests, written
// and read. A reader that finds what cannot be says so in the WireReader and goes on.
//
// Part of wire.cc.
#pragma once

#include <string>
#include <vector>

#include "runtime/core/activity.h"
#include "runtime/core/wire_bytes.h"
#include "runtime/op/request.h"

namespace horon {

inline constexpr size_t kLeastRequest = 60;  // bytes

// A list in which neighbours often differ by one, as runs: first number, length, ... One that
// `stands_alone` is a run of its own each time.
template <typename T, typename Alone>
RecycledVector<T> RunsOf(const RecycledVector<T>& values, Alone stands_alone) {
  RecycledVector<T> runs;
  for (const T value : values) {
    const bool next = !runs.empty() && !stands_alone(value) &&
                      !stands_alone(runs[runs.size() - 2]) &&
                      value == runs[runs.size() - 2] + runs.back();
    if (next)
      ++runs.back();
    else
      runs.insert(runs.end(), {value, 1});
  }
  return runs;
}

void WriteIds(WireWriter& out, RecycledVector<uint64_t> ids);
RecycledVector<uint64_t> ReadIds(WireReader& in);

void WriteOrder(WireWriter& out, const RecycledVector<uint64_t>& order);
RecycledVector<uint64_t> ReadOrder(WireReader& in);

void Write(WireWriter& out, const std::vector<std::string>& texts);
std::vector<std::string> ReadTexts(WireReader& in);

void Write(WireWriter& out, const Activity& a);
Activity ReadActivity(WireReader& in);

void Write(WireWriter& out, const Request& r);
Request ReadRequest(WireReader& in);

}  // namespace horon
