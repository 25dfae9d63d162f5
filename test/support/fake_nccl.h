// FakeNccl: NCCL's functions between the fake GPUs of one process, as a table like that of a real
// libnccl.so (runtime/transport/nccl_library.h), so that what Horon makes of NCCL runs without it:
// collectives are those of fake_gpu_group.cc, messages meet in pairs as NCCL's do.
//
// A test says what goes wrong and reads what was called. One at a time: C functions know no object.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "runtime/transport/nccl.h"
#include "test/support/fake_gpu.h"

namespace horon::test {

class FakeNccl {
 public:
  // From now on the GPUs' ranks reach each other through it. Outlives the ranks' runtimes.
  // `most`: what it can register.
  explicit FakeNccl(FakeGpus& gpus, MemoryRegistration most = MemoryRegistration::kTogether);
  ~FakeNccl();
  GpuNetwork& network(int rank) { return *networks_[static_cast<size_t>(rank)]; }

  // The rank's next call of a function ("AllReduce") answers this and does nothing; so do as many
  // calls as there are answers.
  void Answer(int rank, const std::string& function, NcclAnswer answer, int times = 1);
  // Calls of a function do not return, until nothing goes wrong any more.
  void Hold(int rank, const std::string& function);
  // From now on ncclCommAbort waits until the GPU rests, as freeing its memory does.
  void AbortsWait();
  // From now on no memory is registered with all ranks, as where GPUs do not reach each other.
  void MakesNoWindows();
  // What its communicators say of themselves from now on; kNcclSuccess: what is true.
  void SetState(int rank, NcclAnswer state);
  // Nothing goes wrong any more.
  void Recover();
  // What the rank has called, but for questions after its communicators' state.
  std::vector<std::string> calls(int rank) const;
  size_t times(int rank, const std::string& function) const;
  std::thread::id last_caller(int rank) const;  // the thread of the last of them
  NcclConfig config() const;     // of the last communicator
  size_t communicators() const;  // neither destroyed nor aborted

 private:
  friend struct FakeNcclCalls;

  FakeGpus& gpus_;
  const NcclLibrary& library_;
  std::vector<std::unique_ptr<GpuNetwork>> networks_;
  mutable std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::set<std::pair<int, std::string>> held_;
  std::map<int, std::thread::id> callers_;
  int inside_ = 0;  // calls that wait
  bool closing_ = false, aborts_wait_ = false, no_windows_ = false;
  std::map<int, std::map<std::string, std::deque<NcclAnswer>>> answers_;
  std::map<int, NcclAnswer> states_;
  std::map<int, std::vector<std::string>> calls_;
  NcclConfig config_;
  size_t communicators_ = 0;
  std::set<NcclComm*> made_;
};

}  // namespace horon::test
