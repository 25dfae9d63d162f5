#include "runtime/transport/mpi_calls.h"

#include <future>
#include <thread>

#ifdef OPEN_MPI
// Of its fault tolerance (mpi-ext.h); not in versions before 5.
extern "C" __attribute__((weak)) int MPIX_Comm_get_failed(MPI_Comm comm, MPI_Group* failed);
#endif

namespace horon {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLook{20};  // between two looks at the losses
constexpr std::chrono::microseconds kNap{50};   // between two looks at MPI

bool Lost(const Patience& patience) { return patience.losses != nullptr && patience.losses->any(); }
bool Over(const Patience& patience) { return Lost(patience) || patience.broken_off(); }

}  // namespace

std::string DescribeMpiError(int code) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) return "error " + std::to_string(code);
  return std::string(text, static_cast<size_t>(length));
}

Status Check(int code, const char* what) {
  if (code == MPI_SUCCESS) return Status::Ok();
  return Status::Unavailable(std::string(what) + " failed: " + DescribeMpiError(code));
}

bool IsDead([[maybe_unused]] MPI_Comm comm, [[maybe_unused]] int rank) {
  bool dead = false;
#ifdef OPEN_MPI
  if (MPIX_Comm_get_failed == nullptr) return false;
  MPI_Group failed = MPI_GROUP_NULL;
  if (MPIX_Comm_get_failed(comm, &failed) != MPI_SUCCESS) return false;
  int size = 0;
  MPI_Group_size(failed, &size);
  if (size > 0) {
    MPI_Group all = MPI_GROUP_NULL;
    int place = MPI_UNDEFINED;
    MPI_Comm_group(comm, &all);
    MPI_Group_translate_ranks(all, 1, &rank, failed, &place);
    MPI_Group_free(&all);
    dead = place != MPI_UNDEFINED;
  }
  MPI_Group_free(&failed);
#endif
  return dead;
}

bool OutlivesRanks() {
#if defined(OPEN_MPI) && OMPI_MAJOR_VERSION >= 5
  int* tolerates = nullptr;
  int found = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_FT, &tolerates, &found);
  return MPIX_Comm_get_failed != nullptr && found != 0 && *tolerates != 0;
#else
  return false;
#endif
}

bool IsDeath([[maybe_unused]] int code) {
#ifdef MPI_ERR_PROC_FAILED
  int kind = MPI_SUCCESS;
  MPI_Error_class(code, &kind);
  return kind == MPI_ERR_PROC_FAILED;
#else
  return false;
#endif
}

bool IsTooLong(int code) {
  int kind = MPI_SUCCESS;
  MPI_Error_class(code, &kind);
  return kind == MPI_ERR_TRUNCATE;
}

Status Late(const char* what, const Patience& patience) {
  if (Lost(patience))
    return Status::Unavailable("while waiting for the other ranks: " + patience.losses->sentence());
  if (patience.broken_off()) return Status::Aborted("the program broke this call off");
  return Status::Unavailable(std::string("not all ranks joined in ") + what + " over MPI within " +
                             std::to_string(patience.limit.count()) + " ms (HORON_START_TIMEOUT)");
}

bool Within(const Patience& patience, std::function<void()> call) {
  const auto until = Clock::now() + patience.limit;
  auto promise = std::make_shared<std::promise<void>>();
  std::future<void> returned = promise->get_future();
  std::thread([promise, call = std::move(call)] {
    call();
    promise->set_value();
  }).detach();
  while (returned.wait_for(kLook) != std::future_status::ready) {
    if (Clock::now() >= until || Over(patience)) return false;
  }
  return true;
}

Status AwaitUntil(const std::function<Result<bool>()>& through, Clock::time_point deadline,
                  const char* what, const Patience& patience) {
  while (true) {
    HORON_ASSIGN(const bool done, through());
    if (done) return Status::Ok();
    if (Clock::now() >= deadline || Over(patience)) return Late(what, patience);
    std::this_thread::sleep_for(kNap);
  }
}

Status Await(MPI_Request& request, Clock::time_point deadline, const char* what,
             const Patience& patience) {
  const auto through = [&]() -> Result<bool> {
    int done = 0;
    HORON_TRY(Check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), what));
    return done != 0;
  };
  return AwaitUntil(through, deadline, what, patience);
}

}  // namespace horon
