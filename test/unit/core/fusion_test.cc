#include "runtime/core/fusion.h"

#include "test/support/catch.h"

namespace horon {
namespace {

struct Plan {
  OpTable ops;
  Entries batch;
  void Add(const std::string& name, int64_t count, const std::string& op = "sum",
           DataType dtype = DataType::kFloat32, int32_t set = 0, double prescale = 1) {
    Request request;
    request.name = name;
    request.op = op;
    request.dtype = dtype;
    request.shape = {count};
    request.process_set = set;
    request.prescale = prescale;
    batch.emplace_back();
    batch.back().what = std::make_shared<Registration>(std::move(request), ops.Find(op).value());
  }
  std::vector<std::vector<std::string>> Make(int64_t fusion_bytes) {
    std::vector<std::vector<std::string>> names;
    for (const Bucket& bucket :
         PlanFusion(std::move(batch), Tuning{.fusion_bytes = fusion_bytes})) {
      names.emplace_back();
      for (const Entry& e : bucket.entries) names.back().push_back(e.request().name);
    }
    return names;
  }
};
using Names = std::vector<std::vector<std::string>>;

TEST_CASE("small tensors share a bucket up to the threshold") {
  Plan plan;
  for (const char* name : {"a", "b", "c", "d", "e"}) plan.Add(name, 10);  // 40 bytes each
  CHECK(plan.Make(80) == Names{{"a", "b"}, {"c", "d"}, {"e"}});
}

TEST_CASE("threshold 0 leaves each alone") {
  Plan plan;
  for (const char* name : {"a", "b"}) plan.Add(name, 1);
  CHECK(plan.Make(0) == Names{{"a"}, {"b"}});
}

TEST_CASE("a tensor above the threshold has its own bucket, and later ones share again") {
  Plan plan;
  plan.Add("a", 5);
  plan.Add("huge", 1000);
  plan.Add("b", 5);
  CHECK(plan.Make(100) == Names{{"a"}, {"huge"}, {"b"}});
}

TEST_CASE("only equal ops, dtypes, sets and factors share; others are looked over") {
  Plan plan;
  plan.Add("a", 1);
  plan.Add("half", 1, "sum", DataType::kFloat16);
  plan.Add("b", 1);
  plan.Add("max", 1, "max");
  plan.Add("set", 1, "sum", DataType::kFloat32, 3);
  plan.Add("c", 1);
  plan.Add("scaled", 1, "sum", DataType::kFloat32, 0, 2);
  CHECK(plan.Make(1000) == Names{{"a", "b", "c"}, {"half"}, {"max"}, {"set"}, {"scaled"}});
}

TEST_CASE("an op that does not fuse never shares") {
  Plan plan;
  plan.Add("a", 1, "barrier");
  plan.Add("b", 1, "barrier");
  CHECK(plan.Make(1000) == Names{{"a"}, {"b"}});
}

}  // namespace
}  // namespace horon
