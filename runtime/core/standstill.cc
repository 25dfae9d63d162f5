#include "runtime/core/standstill.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace horon {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kQuiet{5000}, kAwaited{1000}, kLeast{2000}, kMost{10000};

}  // namespace

std::string KernelsView(int thread) {
  const std::string folder = "/proc/self/task/" + std::to_string(thread) + "/";
  std::string name, stat, where;
  std::getline(std::ifstream(folder + "comm"), name);
  std::getline(std::ifstream(folder + "stat"), stat);
  std::getline(std::ifstream(folder + "wchan"), where);
  const size_t end = stat.rfind(')');
  const char state = end != std::string::npos && end + 2 < stat.size() ? stat[end + 2] : '?';
  std::string view = "thread " + std::to_string(thread) + " (" + name + ") ";
  view += state == 'R'   ? "computes"
          : state == 'T' ? "is stopped"
          : state == 't' ? "is held by a debugger"
                         : "sleeps";
  if (state != 'R' && where.size() > 1) view += " in the kernel's " + where;
  return view;
}

milliseconds Standstill::Patience(milliseconds silence) {
  return silence.count() > 0 ? std::clamp(silence / 3, kLeast, kMost) : kMost;
}

Standstill::Standstill(milliseconds silence) : patience_(Patience(silence)) {}

bool Standstill::See(const Look& look) {
  const bool unmoved = look.awaited && awaited_ && look.cycles == cycles_;
  if (!unmoved) {
    since_ = look.now;
    said_ = false;
  }
  awaited_ = look.awaited;
  cycles_ = look.cycles;
  standing_ = std::chrono::duration_cast<milliseconds>(look.now - since_);
  return unmoved;
}

bool Standstill::MustSay(bool urgent) {
  if (said_ || (standing_ < patience_ && !urgent)) return false;
  return said_ = true;
}

milliseconds Standstill::next() const { return awaited_ ? kAwaited : kQuiet; }

std::string DescribeStandstill(milliseconds standing, int thread, const Activity& activity) {
  std::string waits;
  for (const std::string& key : activity.waits) waits += (waits.empty() ? "" : ", ") + key;
  std::string sentence = "the runtime has not moved for " +
                         std::to_string(standing.count() / 1000) + " s: " + KernelsView(thread) +
                         "; the program waits for " + waits;
  if (!activity.last.empty()) {
    sentence += ", and submitted " + activity.last + " last, " +
                std::to_string(activity.last_ms / 1000) + " s ago";
  }
  return sentence + ". gdb -p " + std::to_string(getpid()) +
         " shows where; other ranks hear of it when they miss its answers";
}

}  // namespace horon
