// Faults on purpose, for the fault matrix (test/python/fault_matrix.py): HORON_FAULT=reduce:kill:3
// makes this process die at its third pass of the named place. One load where nothing is armed.
//
// A process dies as a whole, so what is armed belongs to the process; horon_init arms it before any
// thread of the runtime exists.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "runtime/base/status.h"

namespace horon {

enum class FaultPhase : uint8_t {
  kNone = 0,
  kInit,
  kNegotiate,
  kLeave,
  kCopyIn,
  kReduce,
  kCopyOut,
  kMessage,
  kShutdown
};

// "<phase>:<action>[:<n-th pass>[:<fifo>]]"; empty: nothing. Actions: kill, stop, segv, exit0,
// exit7, and hold=<fifo>: opens <fifo> for writing, then <fifo>.go for reading, which a test opens
// when it has done what it wants to do meanwhile. With a fifo at the end two processes meet there
// before they strike, so that they do it at once; whoever comes alone strikes after half a second.
// Phases: init, negotiate, copy_in, reduce, copy_out, shutdown; leave: while a schedule is locked
// the rank asks to leave it, or says how far it has come; message: one is sent, or a piece of a
// large one comes through shared memory; and lent: reduce on the program's first thread, where a
// waiting call does the work.
Status ArmFault(const std::string& plan);

namespace fault {
inline std::atomic<FaultPhase> armed{FaultPhase::kNone};
void Strike();
}  // namespace fault

inline void FaultPoint(FaultPhase phase) {
  if (fault::armed.load(std::memory_order_relaxed) == phase) [[unlikely]]
    fault::Strike();
}

}  // namespace horon
