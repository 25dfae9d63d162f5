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
// Looks, not more often than need be. Once the call is to end it is kAborted until the next
// SetLook.
Status GoOn();

}  // namespace horon
