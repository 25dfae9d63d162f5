#include <algorithm>
#include <thread>

#include "runtime/op/op.h"
#include "test/support/catch.h"

namespace horon {
namespace {

bool Has(const Status& status, const std::string& text) {
  INFO(status.message() << " / " << text);
  return status.message().find(text) != std::string::npos;
}

TEST_CASE("a spec is a name and parameters", "[op]") {
  auto parsed = OpArguments::Parse("gossip:graph=ring,steps=-3,mix=0.25");
  REQUIRE(parsed.ok());
  OpArguments& arguments = parsed.value();
  REQUIRE(arguments.name() == "gossip");
  REQUIRE(arguments.Text("graph") == "ring");
  REQUIRE_FALSE(arguments.Text("absent").has_value());
  REQUIRE(arguments.Integer("steps", std::nullopt).value() == -3);
  REQUIRE(arguments.Integer("absent", 5).value() == 5);
  REQUIRE(arguments.Number("mix", std::nullopt).value() == 0.25);
  REQUIRE(arguments.Number("absent", 0.5).value() == 0.5);
  REQUIRE(arguments.Choice("graph", {"star", "ring"}).value() == "ring");
  REQUIRE(arguments.Choice("absent", {"star", "ring"}).value() == "star");
  REQUIRE(arguments.Finish().ok());
}

TEST_CASE("what is wrong with a spec is said with the spec", "[op]") {
  for (const char* spec :
       {"", ":a=1", "op:", "op:a", "op:a=", "op:=1", "op:a=1,", "op:a=1,a=2", "op:a=1,,b=2"}) {
    const auto parsed = OpArguments::Parse(spec);
    INFO(spec);
    REQUIRE(parsed.status().code() == Code::kInvalidArgument);
    REQUIRE(Has(parsed.status(), "in op '" + std::string(spec) + "'"));
  }
  auto arguments = OpArguments::Parse("op:n=12x,f=1.5").value();
  REQUIRE(Has(arguments.Integer("n", 1).status(),
              "in op 'op:n=12x,f=1.5': n=12x is not a whole number"));
  REQUIRE(Has(arguments.Integer("f", 1).status(), "f=1.5 is not a whole number"));
  REQUIRE(Has(arguments.Number("n", 1.0).status(), "n=12x is not a number"));
  REQUIRE(Has(arguments.Integer("root", std::nullopt).status(), "parameter 'root' is missing"));
  REQUIRE(Has(arguments.Number("scale", std::nullopt).status(), "parameter 'scale' is missing"));
  REQUIRE(Has(arguments.Choice("f", {"a", "b"}).status(), "f=1.5 is none of: a, b"));
  auto unused = OpArguments::Parse("op:ration=1").value();
  REQUIRE(unused.Text("ratio") == std::nullopt);
  REQUIRE(Has(unused.Finish(),
              "in op 'op:ration=1': unknown parameter 'ration' (did you mean 'ratio'?); it has: "
              "ratio"));
  REQUIRE(Has(OpArguments::Parse("op:x=1").value().Finish(), "unknown parameter 'x'; it has none"));
}

TEST_CASE("the ops of this issue are registered", "[op]") {
  const auto names = RegisteredOps();
  for (const char* name :
       {"sum", "average", "min", "max", "product", "broadcast", "allgather", "alltoall",
        "reduce_scatter", "adasum", "barrier", "dissemination", "topk"}) {
    INFO(name);
    REQUIRE(std::count(names.begin(), names.end(), name) == 1);
  }
  REQUIRE(std::is_sorted(names.begin(), names.end()));
}

TEST_CASE("the table makes one op per spec", "[op]") {
  OpTable table;
  const auto sum = table.Find("sum");
  REQUIRE(sum.ok());
  REQUIRE(table.Find("sum").value() == sum.value());
  REQUIRE(table.Find("broadcast:root=0").value() != table.Find("broadcast:root=1").value());
  REQUIRE(Has(table.Find("summ").status(),
              "in op 'summ': unknown name 'summ' (did you mean 'sum'?); there are: adasum, "
              "average, dissemination, gossip, max, min, neighbor_allreduce, product, sum, topk"));
  REQUIRE(Has(table.Find("brodcast:root=0").status(),
              "unknown name 'brodcast' (did you mean 'broadcast'?); there are: adasum, "));
  REQUIRE(Has(table.Find("quadratic").status(), "unknown name 'quadratic'; there are: adasum, "));
  REQUIRE(Has(table.Find("sum:x=1").status(), "in op 'sum:x=1': unknown parameter 'x'"));
  REQUIRE(Has(table.Find("broadcast").status(), "in op 'broadcast': parameter 'root' is missing"));
  REQUIRE(Has(table.Find("topk").status(), "give either ratio or count"));
  REQUIRE(Has(table.Find("topk:ratio=0.1,count=3").status(), "give either ratio or count"));
  REQUIRE(Has(table.Find("topk:rato=0.1").status(),
              "in op 'topk:rato=0.1': unknown parameter 'rato' (did you mean 'ratio'?); give "
              "either ratio or count"));
  REQUIRE(Has(table.Find("topk:late=fail,rato=0.1").status(), "unknown parameter 'rato' (did you"));
  REQUIRE(Has(table.Find("broadcast:rot=1").status(),
              "in op 'broadcast:rot=1': unknown parameter 'rot' (did you mean 'root'?); parameter "
              "'root' is missing"));
  REQUIRE(Has(table.Find("topk:ratio=1.5").status(), "ratio must be above 0 and at most 1"));
  REQUIRE(Has(table.Find("topk:ratio=nan").status(), "ratio must be above 0 and at most 1"));
  REQUIRE(Has(table.Find("topk:count=-1").status(), "count must be at least 1"));
  REQUIRE(Has(table.Find("topk:ratio=0.1,values=fp8").status(),
              "values=fp8 is none of: fp32, fp16, bf16"));
  REQUIRE(Has(table.Find("dissemination:hierarchical=2").status(), "hierarchical must be 0 or 1"));
}

TEST_CASE("only what reduces whole tensors is an op for an allreduce or an optimizer", "[op]") {
  for (const char* spec : {"sum", "adasum:local=average", "topk:ratio=0.1", "gossip:graph=ring",
                           "dissemination", "average:late=fail"}) {
    INFO(spec);
    CHECK(CheckReduction(spec).ok());
  }
  for (const std::string name :
       {"allgather", "alltoall", "barrier", "broadcast", "neighbor_allgather", "reduce_scatter"}) {
    const Status status = CheckReduction(name == "broadcast" ? "broadcast:root=0" : name);
    CHECK(status.code() == Code::kInvalidArgument);
    CHECK(Has(status, "'" + name + "' is no reduction of whole tensors, and has a call of its own; "
                                   "there are: adasum, average"));
  }
  CHECK(Has(CheckReduction("summ"), "did you mean 'sum'?"));
}

TEST_CASE("a spec gets its op's defaults where it leaves them open", "[op]") {
  const OpTable table(OpDefaults{{"topk", {{"ratio", "0.5"}, {"values", "bf16"}}}});
  CHECK(table.Complete("sum") == "sum");
  CHECK(table.Complete("topk") == "topk:ratio=0.5,values=bf16");
  CHECK(table.Complete("topk:values=fp16") == "topk:values=fp16,ratio=0.5");
  CHECK(table.Complete("topk:op=sum,ratio=1,values=fp32") == "topk:op=sum,ratio=1,values=fp32");
  CHECK(OpTable().Complete("topk:count=1") == "topk:count=1");
}

TEST_CASE("several threads may look ops up", "[op]") {
  OpTable table;
  std::vector<std::thread> threads;
  std::vector<Op*> found(4);
  for (size_t t = 0; t < found.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int root = 0; root < 50; ++root) {
        const auto op = table.Find("broadcast:root=" + std::to_string(root));
        if (op.ok() && root == 7) found[t] = op.value();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  REQUIRE(found[0] != nullptr);
  for (const Op* op : found) REQUIRE(op == found[0]);
}

TEST_CASE("tensor ids depend on the name and the process set alone", "[op]") {
  REQUIRE(TensorId(0, "w") == TensorId(0, "w"));
  REQUIRE(TensorId(0, "w") != TensorId(1, "w"));
  REQUIRE(TensorId(0, "w") != TensorId(0, "v"));
  REQUIRE(TensorId(0, "") == 0x07fbf907b4bced80u);  // FNV-1a of "0/": never changes
}

TEST_CASE("what becomes of it where ranks are late is said in any op's spec") {
  OpTable ops;
  const auto when = [&](const char* spec) { return ops.Find(spec).value()->when_late(); };
  CHECK(when("sum") == WhenLate::kWait);
  CHECK(when("sum:late=fail") == WhenLate::kFail);
  CHECK(when("adasum:local=sum,late=fail") == WhenLate::kFail);
  CHECK(when("average:late=keep") == WhenLate::kKeep);
  CHECK(when("gossip:graph=ring") == WhenLate::kKeep);
  CHECK(when("gossip:graph=ring,late=fail") == WhenLate::kFail);
  CHECK(when("neighbor_allgather") == WhenLate::kFail);
  const Status refused = ops.Find("max:late=keep").status();
  CHECK(refused.message().find("late=keep is none of: wait, fail") != std::string::npos);
}

}  // namespace
}  // namespace horon
