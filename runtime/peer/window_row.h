// WindowRow: what each rank tells all others when they make a window together, and what all of them
// conclude from it. Pure: the same rows give the same verdict on every rank. Used by c_window.cc.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/peer/window.h"

namespace horon {

struct WindowRow {
  bool made = true;
  std::string why_not;  // where it was not
  DataType dtype = DataType::kFloat32;
  Shape shape;
  std::vector<int> in, out;  // ascending
  bool gets = true;
  std::string rounds;  // Rounds::Describe; empty: none
  WindowMemory::Address address;
};

std::vector<int64_t> Encode(const WindowRow& row);
// kInternal when the numbers are none that Encode makes.
Result<WindowRow> DecodeWindowRow(std::span<const int64_t> numbers);

// kInvalidArgument with both views when the ranks disagree about the window, or an edge is known to
// one of its ends only.
Status JudgeWindow(const std::string& name, const std::vector<WindowRow>& rows);

}  // namespace horon
