// Calls of MPI: their errors as a Status, and waiting with a limit while the ranks meet, when there
// is no background thread yet and MPI wakes nobody. Inside the plugin. What waits is called by
// whoever calls init, the rest by anybody.
#pragma once

#include <mpi.h>

#include <chrono>
#include <functional>
#include <string>

#include "runtime/transport/mpi.h"

namespace horon {

std::string DescribeMpiError(int code);
// `what` failed, unless the code is MPI_SUCCESS.
Status Check(int code, const char* what);

// Whether MPI itself knows that a rank of the communicator is dead, where it can tell (Open MPI 5).
// Costs less than 100 ns while all live.
bool IsDead(MPI_Comm comm, int rank);
// Whether this MPI goes on between the ranks that live when one has died (Open MPI 5, started with
// `mpirun --with-ft ulfm`).
bool OutlivesRanks();
// Whether a call failed because a rank is dead; because a message was longer than its receive.
bool IsDeath(int code);
bool IsTooLong(int code);

// What to say when the others did not come in time, or one is known to be lost.
Status Late(const char* what, const Patience& patience);

// Runs `call` on a thread of its own and waits for it: for MPI calls that block and have no other
// form. A call that does not return keeps its thread, and what it captured.
// Nobody else may be inside MPI meanwhile unless it is MPI_THREAD_MULTIPLE.
bool Within(const Patience& patience, std::function<void()> call);

// Naps and calls `through` until it gives true; an error of its own, or Late, otherwise.
Status AwaitUntil(const std::function<Result<bool>()>& through,
                  std::chrono::steady_clock::time_point deadline, const char* what,
                  const Patience& patience);

// The same for a request. One that is given up stays with MPI, and so must what it was lent.
Status Await(MPI_Request& request, std::chrono::steady_clock::time_point deadline, const char* what,
             const Patience& patience);

}  // namespace horon
