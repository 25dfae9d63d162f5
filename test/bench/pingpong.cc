// How near the machine's cores are to each other just now: two threads spin on one cache line each
// and bounce a number. Prints the median round trip in nanoseconds and NEAR (below 200 ns: one
// cache between them) or FAR. On a virtual machine the answer changes within seconds, so the
// benchmarks ask again and again.
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

namespace {

constexpr int kRounds = 40;  // the median is of these
constexpr int kTrips = 500;  // round trips in each
constexpr double kNearNs = 200.0;
constexpr int kSpins = 10000;  // before yielding: with one core the other thread needs it

struct alignas(64) Line {
  std::atomic<int> value{0};
};

void Await(const Line& line, int value) {
  for (int spins = 0; line.value.load(std::memory_order_acquire) != value; ++spins) {
    if (spins >= kSpins) std::this_thread::yield();
  }
}

// The `index`th of the CPUs this process may use; false if there are fewer.
bool Pin(int index) {
  cpu_set_t allowed, one;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return false;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || index-- > 0) continue;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    return sched_setaffinity(0, sizeof one, &one) == 0;
  }
  return false;
}

double MedianRoundTrip() {
  Line ping, pong;
  std::thread answer([&] {
    Pin(1);
    for (int i = 1; i <= kRounds * kTrips; ++i) {
      Await(ping, i);
      pong.value.store(i, std::memory_order_release);
    }
  });
  Pin(0);
  std::vector<double> rounds;
  for (int r = 0; r < kRounds; ++r) {
    const auto start = std::chrono::steady_clock::now();
    for (int t = 1; t <= kTrips; ++t) {
      ping.value.store(r * kTrips + t, std::memory_order_release);
      Await(pong, r * kTrips + t);
    }
    const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - start;
    rounds.push_back(taken.count() / kTrips);
  }
  answer.join();
  std::nth_element(rounds.begin(), rounds.begin() + kRounds / 2, rounds.end());
  return rounds[kRounds / 2];
}

}  // namespace

int main() {
  const double ns = MedianRoundTrip();
  std::printf("%.0f %s\n", ns, ns < kNearNs ? "NEAR" : "FAR");
  return 0;
}
