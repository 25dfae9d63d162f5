#include "runtime/base/utf8.h"

#include <string>

#include "test/support/catch.h"

namespace horon::test {
namespace {

TEST_CASE("a text is cut between characters") {
  const std::string text = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z";  // 1, 2, 3, 4, 1 bytes
  const size_t kept[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 11, 11};
  for (size_t most = 0; most < std::size(kept); ++most)
    CHECK(Shortened(text, most) == text.substr(0, kept[most]));
}

TEST_CASE("bytes that are no text are cut all the same") {
  const std::string bytes(20, '\x80');
  CHECK(Shortened(bytes, 10).size() == 10);
  CHECK(Shortened(bytes, 3).size() == 3);
  CHECK(Shortened("", 3).empty());
}

TEST_CASE("a sentence shows that it was cut") {
  CHECK(ShortenedSentence("as it is", 8) == "as it is");
  CHECK(ShortenedSentence("as it was", 8) == "as it...");
  CHECK(ShortenedSentence("viel l\xc3\xa4nger", 10) == "viel l...");
  CHECK(ShortenedSentence("cut", 3) == "cut");
  CHECK(ShortenedSentence("cuts", 3) == "...");
}

}  // namespace
}  // namespace horon::test
