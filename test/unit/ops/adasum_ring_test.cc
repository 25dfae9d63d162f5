// Adasum along rings: against a simulation of its definition, and what it keeps of Adasum.
#include "test/support/catch.h"
#include "test/support/op_runner.h"
#include "test/unit/ops/adasum_bucket.h"

namespace horon {
namespace {

using test::AdasumAlong;
using test::AdasumTolerance;
using test::Bucket;
using test::Decoded;
using test::GapOf;
using test::Gradients;
using test::kFloats;
using test::Norm;
using test::OpResult;
using test::OpRunner;
using test::OpTensor;
using test::Plus;
using test::RaggedBucket;
using test::RelativeGap;
using test::Ring;
using test::SameOnAll;
using test::Scaled;
using test::Values;

struct Case {
  std::string spec;
  std::vector<Ring> rings;
};
std::vector<Case> CasesFor(int ranks) {
  Ring forth, back, odd;
  for (int r = 0; r < ranks; ++r) forth.push_back(r);
  back.assign(forth.rbegin(), forth.rend());
  for (int r = 0; r < ranks; r += 2) odd.push_back(r);
  for (int r = 1; r < ranks; r += 2) odd.push_back(r);
  const auto text = [](const Ring& ring) {
    std::string words;
    for (const int rank : ring) words += (words.empty() ? "" : ".") + std::to_string(rank);
    return words;
  };
  return {{"adasum:algo=ring", {forth}},
          {"adasum:algo=ring,rings=" + text(odd), {odd}},
          {"adasum:algo=ring,rings=" + text(forth) + "/" + text(back) + "/" + text(odd),
           {forth, back, odd}}};
}

TEST_CASE("rings do what they are defined to do, for 1 to 17 ranks and ragged tensors",
          "[adasum][ring]") {
  for (int ranks = 1; ranks <= 17; ++ranks) {
    for (const DataType dtype : kFloats) {
      const Bucket bucket = RaggedBucket(dtype, ranks);
      for (const Case& one : CasesFor(ranks)) {
        const Topology nodes =
            ranks % 3 == 0 ? Topology::Blocks(ranks, 4) : Topology::OneNode(ranks);
        OpRunner runner(nodes, static_cast<uint64_t>(ranks), ranks % 2 == 0);
        const OpResult result = runner.Run(one.spec, bucket.tensors);
        INFO(one.spec << " of " << NameOf(dtype) << ": " << result.status.message());
        REQUIRE(result.status.ok());
        for (size_t t = 0; t < bucket.tensors.size(); ++t) {
          REQUIRE(SameOnAll(result, t, ranks));
          const Values want = AdasumAlong(one.rings, bucket.values[t]);
          const double gap = GapOf(Decoded(dtype, result, t, 0), want, bucket.values[t]);
          REQUIRE(gap <= ranks * AdasumTolerance(dtype, ranks));
        }
      }
    }
  }
}

TEST_CASE("along rings, too, fused tensors have the bits of lone ones", "[adasum][ring]") {
  for (const Topology& topology : {Topology::OneNode(3), Topology::Blocks(6, 2)}) {
    const Bucket bucket = RaggedBucket(DataType::kFloat32, topology.size());
    for (const Case& one : CasesFor(topology.size())) {
      OpRunner runner(topology, 3);
      const OpResult fused = runner.Run(one.spec, bucket.tensors);
      REQUIRE(fused.status.ok());
      for (size_t t = 0; t < bucket.tensors.size(); ++t) {
        const OpResult alone = runner.Run(one.spec, {bucket.tensors[t]});
        REQUIRE(alone.status.ok());
        REQUIRE(alone.at(0, 0).bytes == fused.at(t, 0).bytes);
      }
    }
  }
}

TEST_CASE("rings average what is parallel, add what is orthogonal, and add no length",
          "[adasum][ring]") {
  const int ranks = 5;
  const int64_t count = 5000;
  const Values base = Gradients(DataType::kFloat64, 1, count, 4)[0];
  std::vector<Values> parallel, orthogonal(ranks, Values(static_cast<size_t>(count), 0.0));
  Values mean(base.size(), 0.0), sum = mean;
  for (int r = 0; r < ranks; ++r) {
    parallel.push_back(Scaled(r + 0.5, base));
    mean = Plus(mean, Scaled(1.0 / ranks, parallel.back()));
    for (size_t i = static_cast<size_t>(r); i < base.size(); i += ranks)
      orthogonal[static_cast<size_t>(r)][i] = base[i];
    sum = Plus(sum, orthogonal[static_cast<size_t>(r)]);
  }
  const auto any = Gradients(DataType::kFloat64, ranks, count, 6);
  OpRunner runner(Topology::OneNode(ranks), 1);
  for (const Case& one : CasesFor(ranks)) {
    const auto of = [&](const std::vector<Values>& by_rank) {
      return Decoded(DataType::kFloat64,
                     runner.Run(one.spec, {OpTensor::Make(DataType::kFloat64, by_rank)}), 0, 0);
    };
    CHECK(RelativeGap(of(parallel), mean) < 1e-12);
    CHECK(RelativeGap(of(orthogonal), sum) < 1e-12);
    double squares = 0;
    for (const Values& gradient : any) squares += Norm(gradient) * Norm(gradient);
    CHECK(Norm(of(any)) <= std::sqrt(squares) * (1 + 1e-12));
  }
}

TEST_CASE("rings scale, and NaN reaches every rank", "[adasum][ring]") {
  const int ranks = 4;
  auto values = Gradients(DataType::kFloat32, ranks, 1000, 8);
  OpRunner runner(Topology::OneNode(ranks), 1);
  const auto run = [&](double prescale, double postscale) {
    return runner.Run("adasum:algo=ring",
                      {OpTensor::Make(DataType::kFloat32, values).Scaled(prescale, postscale)});
  };
  const Values plain = Decoded(DataType::kFloat32, run(1, 1), 0, 0);
  CHECK(RelativeGap(Decoded(DataType::kFloat32, run(4, 0.5), 0, 0), Scaled(2, plain)) < 1e-6);
  values[2][500] = std::nan("");
  const OpResult result = run(1, 1);
  for (int r = 0; r < ranks; ++r) CHECK(std::isnan(Decoded(DataType::kFloat32, result, 0, r)[500]));
}

TEST_CASE("rings that are none are refused", "[adasum][ring]") {
  OpTable ops;
  for (const char* wrong : {"rings=0.1", "algo=ring,rings=0..1", "algo=ring,rings=a",
                            "algo=ring,rings=0.1/", "algo=ring,local=sum", "algo=ring,rings=-1"}) {
    INFO(wrong);
    CHECK_FALSE(ops.Find(std::string("adasum:") + wrong).ok());
  }
  OpRunner runner(Topology::OneNode(3), 1);
  const auto tensor = OpTensor::Make(DataType::kFloat32, Gradients(DataType::kFloat32, 3, 9, 1));
  for (const char* wrong : {"0.1", "0.1.1", "0.1.3", "0.1.2/0.1", "0.1.2.3"}) {
    const OpResult result = runner.Run(std::string("adasum:algo=ring,rings=") + wrong, {tensor});
    INFO(wrong << ": " << result.status.message());
    CHECK(result.status.code() == Code::kInvalidArgument);
  }
}

}  // namespace
}  // namespace horon
