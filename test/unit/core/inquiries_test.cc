#include "runtime/core/inquiries.h"

#include <latch>
#include <thread>

#include "test/support/catch.h"

namespace horon {
namespace {

TEST_CASE("where a program is comes from a thread of its own, with the next answer") {
  Inquiries inquiries;
  inquiries.Ask();
  CHECK(inquiries.Answer().empty());  // nobody there who could say
  std::latch told(1);
  std::thread thread([&] {
    for (int i = 1; inquiries.Await(); ++i) {
      inquiries.Tell("at line " + std::to_string(i));
      if (i == 1) told.count_down();
    }
  });
  told.wait();
  CHECK(inquiries.Answer() == "at line 1");
  inquiries.Close();  // also while it waits
  thread.join();
  CHECK_FALSE(inquiries.Await());
}

TEST_CASE("a question that stays open says that native code does not let it be answered") {
  Inquiries inquiries;
  inquiries.Ask();
  CHECK(inquiries.Await());  // and no answer
  const auto asked = std::chrono::steady_clock::now();
  std::string answer;
  while (answer.empty() && std::chrono::steady_clock::now() - asked < std::chrono::seconds(60)) {
    answer = inquiries.Answer();
    std::this_thread::yield();
  }
  CHECK(std::chrono::steady_clock::now() - asked >= Inquiries::kPatience - std::chrono::seconds(1));
  CHECK(answer.find("native code") != std::string::npos);
  inquiries.Tell("at line 7");
  inquiries.Ask();
  CHECK(inquiries.Answer() == "at line 7");  // the new question is young
}

}  // namespace
}  // namespace horon
