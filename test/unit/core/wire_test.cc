#include "runtime/core/wire.h"

#include <algorithm>
#include <bit>
#include <random>

#include "runtime/core/wire_parts.h"
#include "test/support/catch.h"

namespace horon {
namespace {

Request Sample(int i) {
  Request r;
  r.name = "layer." + std::to_string(i) + ".weight";
  r.op = "broadcast:root=1";
  r.dtype = DataType::kBFloat16;
  r.device = {DeviceKind::kCuda, 3};
  r.shape = {i, 0, int64_t{1} << 40};
  r.prescale = 0.25;
  r.postscale = -3.0;
  r.process_set = 7;
  r.group = "g";
  r.group_size = 5;
  r.group_hash = 0xdeadbeefcafe;
  r.round = 99;
  r.splits = {1, 2, 3};
  r.weights = {0.5, 0.125};
  return r;
}

Report SampleReport(CacheIds bits) {
  Report report;
  report.number = 4;
  report.heard = 12;
  report.leaving = report.ask = report.describe = true;
  report.activity = Activity{2, 1, 77, {"0/a", "1/b"}, "0/c", 1234, "at a.py:3 in f"};
  report.given_up = "rank 1 raised ValueError: bad batch";
  report.unlock = true;
  report.uneven = uint64_t{5} << 40;
  report.started = 1 << 20;
  report.clock = -99;
  report.bits = std::move(bits);
  for (int i = 0; i < 4; ++i) report.requests.push_back(Sample(i));
  return report;
}

Decision SampleDecision() {
  Decision decision;
  decision.sequence = 41;
  decision.tuning = {1 << 20, 4096, 1 << 18, false};
  decision.evicted = {3, 900};
  decision.left = {1, 0};
  decision.inquire = decision.may_lock = decision.stop = true;
  decision.resume = 17;
  decision.uneven = 23;
  decision.lost = 1;
  decision.lost_because = "rank 1 has not answered for 30 s";
  decision.description = {"", "tensor 'a'"};
  decision.timeline = TimelineOrder{3, true, true, 10, 20, "/tmp/t.json", "id", -5, 17};
  decision.clocks = {{1, 2, 3}, {0, -4, 5}};
  decision.clock_told = 6;
  decision.order = {7, 8, 9, 0, 1, 0, 0, 1000000, 999999, 1000000};
  for (int i = 0; i < 3; ++i) {
    Verdict v;
    v.cache_id = static_cast<uint64_t>(i);
    v.process_set = i;
    v.name = "n" + std::to_string(i);
    if (i == 1) v.status = Status::InvalidArgument("ranks [0] and [1] differ");
    v.agreed.sizes = {i, -1};
    v.only_rank = i - 1;
    if (i == 2) v.joined = {0, 1}, v.stand_in = Sample(7);
    v.kept = i != 1;
    decision.verdicts.push_back(v);
  }
  return decision;
}

TEST_CASE("a report comes back as it was sent, whatever its cache ids") {
  CacheIds dense, sparse = {1, 1000000, uint64_t{1} << 62};
  for (uint64_t i = 100; i < 300; ++i) dense.push_back(i);
  CacheIds gaps = dense;
  gaps.erase(gaps.begin() + 5);
  for (const auto& bits : {CacheIds{}, CacheIds{7}, dense, gaps, sparse}) {
    const Report report = SampleReport(bits);
    const auto back = DecodeReport(Encode(report));
    REQUIRE(back.ok());
    CHECK(back.value().number == 4);
    CHECK(back.value().heard == 12);
    CHECK(back.value().leaving);
    CHECK(back.value().ask);
    CHECK(back.value().describe);
    CHECK(back.value().activity == report.activity);
    CHECK(back.value().given_up == report.given_up);
    CHECK(back.value().unlock);
    CHECK(back.value().uneven == report.uneven);
    CHECK(back.value().started == report.started);
    CHECK(back.value().clock == report.clock);
    CHECK(back.value().bits == bits);
    CHECK(back.value().requests == report.requests);
  }
  const auto size = [](const CacheIds& bits) { return Encode(SampleReport(bits)).size(); };
  const size_t none = size({});
  CHECK(size({7}) == none + 2);          // first one and number
  CHECK(size(dense) == none + 4);        // the same, in two bytes each
  CHECK(size(gaps) == size(dense) + 2);  // a byte of length less, three of another run
  CacheIds every_second;
  for (uint64_t i = 100; i < 500; i += 2) every_second.push_back(i);
  CHECK(size(every_second) < none + 64);  // bits, not numbers
}

TEST_CASE("cache ids that come twice count once, and those at the end of all numbers are refused") {
  const auto back = DecodeReport(Encode(SampleReport({1, 1, 1, 200})));
  REQUIRE(back.ok());
  CHECK(back.value().bits == CacheIds{1, 200});
  CHECK(Encode(back.value()) == Encode(SampleReport({1, 1, 1, 200})));
  const uint64_t last = UINT64_MAX - 64;
  CHECK(DecodeReport(Encode(SampleReport({last}))).ok());
  CHECK(DecodeReport(Encode(SampleReport({1, last}))).ok());
  CHECK_FALSE(DecodeReport(Encode(SampleReport({1, last + 1}))).ok());
  CHECK_FALSE(DecodeReport(Encode(SampleReport({last, last + 64}))).ok());
}

TEST_CASE("a bundle gives back each rank's reports in order, and refuses ranks that are none") {
  const WireBytes first(3, std::byte{7}), second(5, std::byte{9}), none;
  Bundle bundle;
  CHECK(bundle.empty());
  const RecycledVector<RankReport> reports = {{2, first},  {0, none},   {0, first}, {1, first},
                                              {2, second}, {1, second}, {0, first}};
  for (const auto& [rank, report] : reports) bundle.Add(rank, report);
  WireBytes bytes = bundle.Take();
  CHECK(bundle.empty());
  CHECK(bundle.Take().empty());
  const auto back = DecodeBundle(bytes, 3);
  REQUIRE(back.ok());
  CHECK(back.value() == reports);
  CHECK_FALSE(DecodeBundle(bytes, 2).ok());
  bytes.pop_back();
  CHECK_FALSE(DecodeBundle(bytes, 3).ok());
}

TEST_CASE("what all ranks of a node say alike travels once") {
  const WireBytes report = Encode(SampleReport({1, 2, 3}));
  Bundle bundle;
  for (int rank = 8; rank < 16; ++rank) bundle.Add(rank, report);
  const WireBytes bytes = bundle.Take();
  CHECK(bytes.size() == report.size() + 4 * sizeof(int32_t));  // first rank and number
  CHECK(DecodeBundle(bytes, 16).value().size() == 8);
}

TEST_CASE("a rank may say the same more often than there are ranks") {
  const RecycledVector<RankReport> reports(5, {1, Encode(SampleReport({1, 2, 3}))});
  Bundle bundle;
  for (const auto& [rank, report] : reports) bundle.Add(rank, report);
  const auto back = DecodeBundle(bundle.Take(), 2);
  REQUIRE(back.ok());
  CHECK(back.value() == reports);
}

TEST_CASE("a decision comes back as it was sent") {
  const Decision decision = SampleDecision();
  const auto back = DecodeDecision(Encode(decision), 2);
  REQUIRE(back.ok());
  CHECK(back.value().sequence == 41);
  CHECK(back.value().evicted == decision.evicted);
  CHECK(back.value().left == decision.left);
  CHECK(back.value().order == decision.order);
  REQUIRE(back.value().verdicts.size() == 3);
  for (size_t i = 0; i < 3; ++i) {
    const Verdict &a = decision.verdicts[i], &b = back.value().verdicts[i];
    CHECK(a.cache_id == b.cache_id);
    CHECK(a.process_set == b.process_set);
    CHECK(a.name == b.name);
    CHECK(a.status.code() == b.status.code());
    CHECK(a.status.message() == b.status.message());
    CHECK(a.agreed == b.agreed);
    CHECK(a.only_rank == b.only_rank);
    CHECK(a.joined == b.joined);
    CHECK(a.stand_in == b.stand_in);
    CHECK(a.kept == b.kept);
  }
  CHECK(back.value().inquire);
  CHECK(back.value().may_lock);
  CHECK(back.value().stop);
  CHECK(back.value().resume == 17);
  CHECK(back.value().uneven == 23);
  CHECK(back.value().lost == 1);
  CHECK(back.value().lost_because == decision.lost_because);
  CHECK(back.value().description == decision.description);
  CHECK(back.value().timeline == decision.timeline);
  CHECK(back.value().clocks == decision.clocks);
  CHECK(back.value().clock_told == 6);
  CHECK(back.value().tuning == decision.tuning);
}

TEST_CASE("sizes of a tuning that cannot be are refused") {
  for (const Tuning& wrong :
       {Tuning{-1, 0, 0, true}, Tuning{0, -1, 0, true}, Tuning{0, 0, -1, true}}) {
    Decision decision;
    decision.tuning = wrong;
    CHECK_FALSE(DecodeDecision(Encode(decision), 2).ok());
  }
}

TEST_CASE("a step in the usual order is a few bytes, and no length is believed") {
  Decision decision;
  for (uint64_t id = 1; id <= 1000; ++id) decision.order.push_back(id);
  const size_t least = Encode(Decision()).size();
  CHECK(Encode(decision).size() == least + 3);
  WireBytes bytes = Encode(decision);
  bool refused = false;
  for (size_t at = 0; at < bytes.size(); ++at) {  // wherever the run's length is
    WireBytes broken = bytes;
    broken[at] = std::byte{0xff};  // and seven bytes more of it
    broken.insert(broken.begin() + static_cast<std::ptrdiff_t>(at) + 1, 6, std::byte{0xff});
    broken.insert(broken.begin() + static_cast<std::ptrdiff_t>(at) + 7, std::byte{0x7f});
    const auto back = DecodeDecision(broken, 2);
    refused = refused || !back.ok();
    if (back.ok()) CHECK(back.value().order.size() <= (1u << 22));
  }
  CHECK(refused);
}

TEST_CASE("numbers of few bytes come back, and too many bytes are refused") {
  for (const uint64_t value : {uint64_t{0}, uint64_t{127}, uint64_t{128}, uint64_t{300},
                               uint64_t{1} << 35, UINT64_MAX}) {
    WireWriter out;
    out.Varint(value);
    const WireBytes bytes = out.Take();
    const auto bits = std::max<size_t>(1, static_cast<size_t>(std::bit_width(value)));
    CHECK(bytes.size() == (bits + 6) / 7);
    WireReader in(bytes);
    CHECK(in.Varint() == value);
    CHECK(in.Finish().ok());
    WireReader cut({bytes.data(), bytes.size() - 1});
    cut.Varint();
    CHECK_FALSE(cut.Finish().ok());
  }
  const WireBytes endless(11, std::byte{0xff});
  WireReader in(endless);
  in.Varint();
  CHECK_FALSE(in.Finish().ok());
}

TEST_CASE("a bitmap of ids beyond the last one is refused") {
  WireWriter out;
  out.Number(uint8_t{1});  // a bitmap
  out.Varint(UINT64_MAX - 63);
  out.Numbers(std::vector<uint64_t>{1});
  const WireBytes bytes = out.Take();
  WireReader in(bytes);
  ReadIds(in);
  CHECK_FALSE(in.Finish().ok());
}

TEST_CASE("a rank that does not exist is refused") {
  CHECK_FALSE(DecodeDecision(Encode(SampleDecision()), 1).ok());
}

TEST_CASE("every truncation is refused, and so are bytes behind the end") {
  const auto report = Encode(SampleReport({5, 6}));
  const auto decision = Encode(SampleDecision());
  for (size_t n = 0; n < report.size(); ++n)
    CHECK_FALSE(DecodeReport(std::span(report).first(n)).ok());
  for (size_t n = 0; n < decision.size(); ++n)
    CHECK_FALSE(DecodeDecision(std::span(decision).first(n), 2).ok());
  auto longer = report;
  longer.push_back(std::byte{0});
  CHECK_FALSE(DecodeReport(longer).ok());
}

// Under the address sanitizer this is what shows that no length is trusted. Lengths of four billion
// must not be allocated either: the test would run out of memory.
TEST_CASE("random bytes and random damage give a message or a status, never more") {
  std::mt19937 random(7);
  const auto report = Encode(SampleReport({5, 6, 70}));
  const auto decision = Encode(SampleDecision());
  int decoded = 0;
  for (int i = 0; i < 40000; ++i) {  // libFuzzer does more, in test/fuzz
    WireBytes bytes;
    if (i % 4 == 0) {
      bytes.resize(random() % 200);
      for (auto& b : bytes) b = static_cast<std::byte>(random());
    } else {
      bytes = i % 4 == 1 ? report : decision;
      for (int hits = 1 + static_cast<int>(random() % 4); hits > 0; --hits)
        bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    }
    decoded += DecodeReport(bytes).ok() ? 1 : 0;
    decoded += DecodeDecision(bytes, 4).ok() ? 1 : 0;
  }
  CHECK(decoded > 0);  // damage inside a name is still a message
}

}  // namespace
}  // namespace horon
