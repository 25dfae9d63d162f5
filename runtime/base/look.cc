#include "runtime/base/look.h"

#include <algorithm>
#include <utility>

namespace horon {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kEvery{50}, kAtMostEvery{20};

struct Looking {
  Look look = nullptr;
  bool over = false;
  Clock::time_point next;
};
thread_local Looking looking;

}  // namespace

Look SetLook(Look look) { return std::exchange(looking, Looking{look, false, {}}).look; }

std::chrono::nanoseconds UntilLook(std::chrono::nanoseconds limit) {
  return looking.look == nullptr ? limit : std::min<std::chrono::nanoseconds>(limit, kEvery);
}

Status GoOn() {
  if (looking.look == nullptr) return Status::Ok();
  if (!looking.over && Clock::now() >= looking.next) {
    looking.over = looking.look() != 0;  // may call Horon, and so SetLook
    looking.next = Clock::now() + kAtMostEvery;
  }
  return looking.over ? Status::Aborted("the program broke this call off") : Status::Ok();
}

}  // namespace horon
