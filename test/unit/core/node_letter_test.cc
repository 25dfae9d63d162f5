// What watch threads of different nodes write to each other.
#include "runtime/core/node_letter.h"

#include <string>

#include "runtime/core/letters.h"
#include "test/support/watched_rank.h"

namespace horon {
namespace {

NodeAnswer Full() {
  NodeAnswer answer{7, {}};
  answer.view.ranks[0];
  answer.view.ranks[3];
  Activity busy;
  busy.last = "0/x";
  busy.last_ms = 12'000;
  busy.doing = "at train.py:57 in load";
  answer.view.ranks[2] = busy;
  answer.view.notes[0] = "the runtime of rank 0 does not move";
  return answer;
}

TEST_CASE("letters between nodes come back as they were") {
  const NodeQuestion question{9, {"3/late", 4}};
  CHECK(std::get<NodeQuestion>(DecodeNodeLetter(Encode(question), 4).value()) == question);
  CHECK(std::get<NodeAnswer>(DecodeNodeLetter(Encode(Full()), 4).value()) == Full());
}

TEST_CASE("a letter that is cut off, too long or of ranks that are not there is refused") {
  for (const NodeLetter& letter : {NodeLetter(NodeQuestion{9, {"0/x", 1}}), NodeLetter(Full())}) {
    auto bytes = Encode(letter);
    for (size_t n = 0; n < bytes.size(); ++n)
      CHECK(!DecodeNodeLetter(std::span(bytes).first(n), 4).ok());
    bytes.push_back(std::byte{0});
    CHECK(!DecodeNodeLetter(bytes, 4).ok());
  }
  NodeAnswer ready, missing, noted;
  ready.view.ranks[3];
  missing.view.ranks[3] = Activity();
  noted.view.notes[3] = "x";
  for (const NodeAnswer& answer : {ready, missing, noted}) {
    CHECK(DecodeNodeLetter(Encode(answer), 4).ok());
    CHECK(!DecodeNodeLetter(Encode(answer), 3).ok());
  }
  CHECK(!DecodeNodeLetter(Encode(NodeQuestion{9, {"", 1}}), 4).ok());
  CHECK(!DecodeNodeLetter(std::vector<std::byte>(9, std::byte{3}), 4).ok());
}

TEST_CASE("an answer fits into a letter, whatever a node of 256 ranks has to say") {
  NodeAnswer answer;
  Activity busy;
  busy.last = "0/" + std::string(5000, 'n');
  busy.waits.assign(32, busy.last);
  busy.doing = std::string(1000, 'd');
  for (int rank = 0; rank < 256; ++rank) {
    answer.view.ranks[rank] = busy;
    answer.view.notes[rank] = std::string(400, 'w');
  }
  const auto bytes = Encode(answer);
  CHECK(bytes.size() <= Letters::kMostBytes);
  const auto read = std::get<NodeAnswer>(DecodeNodeLetter(bytes, 256).value());
  CHECK(read.view.ranks.size() == 256);
  CHECK(read.view.ranks.at(7)->waits.size() == 2);  // more than one
  CHECK(!read.view.ranks.at(7)->doing.empty());
  CHECK(read.view.notes.size() == 8);
}

TEST_CASE("the sentence has who submitted, who lacks it, and of whom nothing is known") {
  const auto now = std::chrono::steady_clock::time_point(std::chrono::seconds(100));
  const std::string said =
      Describe(Full().view, "0/late", {0, 1, 2, 3}, now - std::chrono::seconds(11), now, "lost:");
  CHECK(said ==
        "tensor 'late': submitted by ranks 0, 3 11 s ago; missing: rank 2 is busy; it last "
        "submitted 'x' 12 s ago; its main thread is at train.py:57 in load; lost: rank 1");
}

TEST_CASE("what is heard later counts") {
  NodeView view = Full().view, newer;
  newer.ranks[2];
  newer.ranks[1] = Activity();
  view.Add(newer);
  CHECK(!view.ranks.at(2));
  CHECK(view.ranks.at(1));
  CHECK(view.ranks.size() == 4);
  CHECK(view.notes.size() == 1);
}

}  // namespace
}  // namespace horon
