// How a call that blocks lets the program do what cannot wait (Python runs signal handlers between
// two of its own steps only), and how the program breaks such a call off.
//
// Of the thread that calls: who waits for long waits in pieces, and asks GoOn between them.
#pragma once

#include <chrono>

#include "runtime/base/status.h"

namespace horon {

using Look = int (*)();  // not 0: the call is to end

// What calls of this thread look at while they block; null: nothing. Gives what it was.
Look SetLook(Look look);
// `limit`, or less where there is something to look at before.
std::chrono::nanoseconds UntilLook(std::chrono::nanoseconds limit);
// What is told when a look begins to work (horon_look_works), and until when it does.
class Looker {
 public:
  virtual void TurnsAway() = 0;
  virtual void TurnsBack() = 0;

 protected:
  ~Looker() = default;
};
// Looks, not more often than need be. Once the call is to end it is kAborted until the next
// SetLook.
Status GoOn(Looker* looker = nullptr);
// The look that this thread is in is at work from here on.
void LookWorks();

}  // namespace horon
