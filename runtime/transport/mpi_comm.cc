#include "runtime/transport/mpi_comm.h"

#include <algorithm>
#include <thread>

#include "runtime/transport/mpi_calls.h"

namespace horon {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kLargestTag = (1 << 27) - 1;  // that Horon uses
constexpr int64_t kSpoilt = -1;             // in place of a number of messages

// Keeps the making of different sets apart. Below 2^15, which every MPI allows as a tag.
int TagOf(const std::vector<int>& ranks) {
  uint32_t hash = 2166136261u;
  for (const int rank : ranks) hash = (hash ^ static_cast<uint32_t>(rank)) * 16777619u;
  return static_cast<int>((hash ^ (hash >> 15)) & 0x7fffu);
}

int CreateGroup(MPI_Comm comm, const std::vector<int>& ranks, MPI_Comm* made) {
  MPI_Group all = MPI_GROUP_NULL, some = MPI_GROUP_NULL;
  int code = MPI_Comm_group(comm, &all);
  if (code == MPI_SUCCESS)
    code = MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &some);
  if (code == MPI_SUCCESS) code = MPI_Comm_create_group(comm, some, TagOf(ranks), made);
  if (some != MPI_GROUP_NULL) MPI_Group_free(&some);
  if (all != MPI_GROUP_NULL) MPI_Group_free(&all);
  if (code == MPI_SUCCESS) MPI_Comm_set_errhandler(*made, MPI_ERRORS_RETURN);
  return code;
}

// What is lent to MPI while the ranks meet. It outlives a meeting that is given up: MPI may still
// write here.
struct Lent {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Comm comm = MPI_COMM_NULL;
  std::vector<int64_t> mine, theirs;
};

Status AwaitLent(std::unique_ptr<Lent>& lent, Clock::time_point deadline,
                 const Patience& patience) {
  const Status status = Await(lent->request, deadline, "meeting", patience);
  if (lent->request != MPI_REQUEST_NULL) lent.release();
  return status;
}

}  // namespace

// --- one communicator

MpiComm::MpiComm(MPI_Comm comm) : comm_(comm) {
  int size = 0;
  MPI_Comm_rank(comm, &rank_);
  MPI_Comm_size(comm, &size);
  sent_.resize(static_cast<size_t>(size));
  received_.resize(sent_.size());
}

void MpiComm::Make(const std::vector<int>& ranks) {
  if (static_cast<int>(ranks.size()) == size() || sets_.contains(ranks)) return;
  const auto made = sets_[ranks] = std::make_shared<Made>();
  making_.push_back(made);
  auto make = [made, comm = comm_, ranks] {
    made->code = CreateGroup(comm, ranks, &made->comm);
    made->done.store(true, std::memory_order_release);
  };
  int level = MPI_THREAD_SINGLE;
  MPI_Query_thread(&level);
  if (level == MPI_THREAD_MULTIPLE) {
    std::thread(std::move(make)).detach();
  } else {
    make();
  }
}

Result<MPI_Comm> MpiComm::Of(const std::vector<int>& ranks) {
  if (static_cast<int>(ranks.size()) == size()) return comm_;
  const auto found = sets_.find(ranks);
  if (found == sets_.end() || !found->second->done.load(std::memory_order_acquire))
    return MPI_Comm{MPI_COMM_NULL};
  const std::shared_ptr<Made>& made = found->second;
  if (made->code == MPI_SUCCESS) return made->comm;
  Spoil();
  return Status::Unavailable("MPI made no communicator of " + std::to_string(ranks.size()) +
                             " ranks: " + DescribeMpiError(made->code));
}

bool MpiComm::Look() {
  return std::erase_if(making_, [](const auto& made) {
           return made->done.load(std::memory_order_acquire);
         }) > 0;
}

// One message, if there is one. Messages of one sender are found in the order they were sent, so
// none of the next life can come before the last of the old one.
Result<bool> MpiComm::DropFrom(int peer) {
  int found = 0;
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status status;
  HORON_TRY(Check(MPI_Improbe(peer, MPI_ANY_TAG, comm_, &found, &message, &status),
                  "looking for messages"));
  if (found == 0) return false;
  MPI_Count bytes = 0;
  MPI_Get_elements_x(&status, MPI_BYTE, &bytes);
  std::vector<std::byte> dropped(static_cast<size_t>(bytes));
  HORON_TRY(Check(MPI_Mrecv(dropped.data(), static_cast<int>(bytes), MPI_BYTE, &message, &status),
                  "dropping a message"));
  CountReceived(peer);
  return true;
}

Status MpiComm::Drain(const std::vector<int64_t>& expected, Clock::time_point deadline,
                      const Patience& patience) {
  for (size_t peer = 0; peer < expected.size(); ++peer) {
    const auto complete = [&]() -> Result<bool> {
      while (received_[peer] < expected[peer]) {
        HORON_ASSIGN(const bool one, DropFrom(static_cast<int>(peer)));
        if (!one) return false;
      }
      return true;
    };
    HORON_TRY(AwaitUntil(complete, deadline, "collecting the last job's messages", patience));
  }
  std::fill(sent_.begin(), sent_.end(), 0);
  std::fill(received_.begin(), received_.end(), 0);
  return Status::Ok();
}

// --- those of the process

Result<std::shared_ptr<MpiComm>> MpiComms::Take(const Patience& patience) {
  const Deadline deadline = Clock::now() + patience.limit;
  if (last_ && last_->forsaken()) {
    return Status::Unavailable(
        "the job that failed in this process has left tensors with MPI; restart the job");
  }
  if (!failure_.ok()) {
    return Status::Unavailable(
        "an earlier init failed, and the ranks cannot meet over MPI again; restart the job: " +
        failure_.message());
  }
  failure_ = Meet(deadline, patience);
  HORON_TRY(failure_);
  return last_;
}

// All ranks do the same here, each time; one that gives up is out of step with the others for ever.
Status MpiComms::Meet(Deadline deadline, const Patience& patience) {
  if (meeting_ == MPI_COMM_NULL) {
    HORON_ASSIGN(meeting_, Duplicate(MPI_COMM_WORLD, deadline, patience));
  } else {
    HORON_ASSIGN(const bool again, TakeAgain(deadline, patience));
    if (again) return Status::Ok();
  }
  HORON_ASSIGN(const MPI_Comm made, Duplicate(meeting_, deadline, patience));
  last_ = std::make_shared<MpiComm>(made);
  return Status::Ok();
}

Result<MPI_Comm> MpiComms::Duplicate(MPI_Comm from, Deadline deadline, const Patience& patience) {
  auto lent = std::make_unique<Lent>();
  HORON_TRY(Check(MPI_Comm_idup(from, &lent->comm, &lent->request), "MPI_Comm_idup"));
  HORON_TRY(AwaitLent(lent, deadline, patience));
  MPI_Comm_set_errhandler(lent->comm, MPI_ERRORS_RETURN);
  int* largest_tag = nullptr;
  int found = 0;
  MPI_Comm_get_attr(lent->comm, MPI_TAG_UB, &largest_tag, &found);
  if (found != 0 && *largest_tag < kLargestTag) {
    return Status::Unsupported("this MPI carries tags up to " + std::to_string(*largest_tag) +
                               " only; Horon needs " + std::to_string(kLargestTag));
  }
  return lent->comm;
}

// Whether the last one is free on every rank; then nothing is under way on it any more.
Result<bool> MpiComms::TakeAgain(Deadline deadline, const Patience& patience) {
  if (last_) last_->Look();
  const bool free = last_ && last_->free() && last_.use_count() == 1;
  int size = 0;
  MPI_Comm_size(meeting_, &size);
  auto lent = std::make_unique<Lent>();
  lent->mine = free ? last_->sent_ : std::vector<int64_t>(static_cast<size_t>(size), kSpoilt);
  lent->theirs.resize(lent->mine.size());
  HORON_TRY(Check(MPI_Ialltoall(lent->mine.data(), 1, MPI_INT64_T, lent->theirs.data(), 1,
                                MPI_INT64_T, meeting_, &lent->request),
                  "MPI_Ialltoall"));
  HORON_TRY(AwaitLent(lent, deadline, patience));
  const std::vector<int64_t>& sent_here = lent->theirs;
  if (std::find(sent_here.begin(), sent_here.end(), kSpoilt) != sent_here.end()) return false;
  HORON_TRY(last_->Drain(sent_here, deadline, patience));
  return true;
}

}  // namespace horon
