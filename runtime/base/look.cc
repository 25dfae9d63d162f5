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
thread_local Looker* looker_now = nullptr;

}  // namespace

Look SetLook(Look look) { return std::exchange(looking, Looking{look, false, {}}).look; }

std::chrono::nanoseconds UntilLook(std::chrono::nanoseconds limit) {
  return looking.look == nullptr ? limit : std::min<std::chrono::nanoseconds>(limit, kEvery);
}

Status GoOn(Looker* looker) {
  if (looking.look == nullptr) return Status::Ok();
  if (!looking.over && Clock::now() >= looking.next) {
    Looker* const outer = std::exchange(looker_now, looker);
    looking.over = looking.look() != 0;  // may call Horon, and so SetLook
    looker_now = outer;
    if (looker != nullptr) looker->TurnsBack();
    looking.next = Clock::now() + kAtMostEvery;
  }
  return looking.over ? Status::Aborted("the program broke this call off") : Status::Ok();
}

void LookWorks() {
  if (looker_now != nullptr) looker_now->TurnsAway();
}

}  // namespace horon
