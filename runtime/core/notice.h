// Notice: what a rank says of itself where the others of its node can read it without asking: what
// its program waits for and submitted last, and whether it has submitted what the others wait for.
//
// The watch thread posts it in the node's segment and reads those of the others (lookout.h). Rank
// 0 and the holders of the batons have no part in it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/core/activity.h"
#include "runtime/transport/segment.h"

namespace horon {

struct Notice {
  int64_t at_ms = 0;   // of the steady clock, which the ranks of a node share
  std::string where;   // what the kernel shows of the thread that runs the cycle; may be empty
  Activity activity;   // what it waits for: not all of it
  // Key of what this rank waits for in vain, or of what another node asks it for; empty: nothing.
  std::string wanted;
  int64_t calls = 0;   // the how-manieth of that name here
  std::vector<uint64_t> answers;  // by local rank: AnswerTo its wanted, or 0
  int32_t judge = -1;  // who finds out between nodes (inquest.h), as far as it has heard

  bool operator==(const Notice&) const = default;
};

// Odd: this rank has submitted it; the rest tells which question it answers. Never 0.
uint64_t AnswerTo(const Notice& asker, bool submitted);
// Each is of the local rank's own watch thread alone. What does not fit is left out.
void Post(NoticeWords& words, Notice notice);
// Any process. Empty: none yet, or its writer was stopped in the middle.
std::optional<Notice> ReadNotice(const NoticeWords& words);

}  // namespace horon
