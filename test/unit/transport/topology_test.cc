#include "runtime/transport/communicator.h"
#include "test/support/catch.h"
#include "test/support/loop_transport.h"

namespace horon {
namespace {

using Members = std::vector<std::vector<int>>;

TEST_CASE("topology numbers nodes by their lowest rank", "[topology]") {
  const Topology topology = Topology::FromNodes({7, 3, 7, 3, 9});
  REQUIRE(topology.size() == 5);
  REQUIRE(topology.nodes() == 3);
  REQUIRE(topology.members(0) == std::vector<int>{0, 2});
  REQUIRE(topology.members(1) == std::vector<int>{1, 3});
  REQUIRE(topology.members(2) == std::vector<int>{4});
  REQUIRE(topology.node_of(4) == 2);
  REQUIRE(topology.local_rank(3) == 1);
  REQUIRE(topology.local_size(3) == 2);
  REQUIRE_FALSE(topology.homogeneous());
}

TEST_CASE("cross ranks count the nodes that have such a local rank", "[topology]") {
  const Topology topology = Topology::FromNodes({0, 1, 1, 2, 2});  // node 0 has one rank
  REQUIRE(topology.cross_size(0) == 3);
  REQUIRE(topology.cross_rank(3) == 2);
  REQUIRE(topology.cross_size(2) == 2);  // local rank 1 is missing on node 0
  REQUIRE(topology.cross_rank(2) == 0);
  REQUIRE(topology.cross_rank(4) == 1);
}

TEST_CASE("blocks: the last node may be smaller", "[topology]") {
  const Topology topology = Topology::Blocks(5, 2);
  REQUIRE(topology.nodes() == 3);
  REQUIRE(topology.members(2) == std::vector<int>{4});
  REQUIRE(Topology::Blocks(4, 2).homogeneous());
  REQUIRE(Topology::OneNode(3).nodes() == 1);
}

TEST_CASE("a communicator groups its members by node", "[communicator]") {
  test::LoopWorld world(Topology::FromNodes({0, 0, 1, 1, 2}), 1);
  const Communicator comm(world.fabric(3), {1, 2, 3}, 128);
  REQUIRE(comm.rank() == 2);
  REQUIRE(comm.size() == 3);
  REQUIRE(comm.global(0) == 1);
  REQUIRE(comm.nodes() == Members{{0}, {1, 2}});
  REQUIRE(comm.node_of(2) == 1);
  REQUIRE_FALSE(comm.one_node());
  REQUIRE_FALSE(comm.all_apart());
  REQUIRE(comm.only_transport() == nullptr);  // one for rank 2, another one for rank 1

  const Communicator node = comm.Sub(std::vector{1, 2}, 1);
  REQUIRE(node.rank() == 1);
  REQUIRE(node.ranks() == std::vector<int>{2, 3});
  REQUIRE(node.one_node());
  REQUIRE(node.only_transport() == world.fabric(3).route[2]);
  const Communicator apart = comm.Sub(std::vector{0, 2}, 2);
  REQUIRE(apart.all_apart());
  REQUIRE(apart.only_transport() == world.fabric(3).route[1]);
  REQUIRE(comm.Sub(std::vector{2}, 1).only_transport() == nullptr);
}

TEST_CASE("levels and streams of one bucket have tags of their own", "[communicator]") {
  test::LoopWorld world(Topology::OneNode(2), 1);
  Communicator comm(world.fabric(0), {0, 1}, 256);
  Communicator sub = comm.Sub(std::vector{0, 1}, 3);
  Communicator sub_of_sub = sub.Sub(std::vector{0, 1}, 5);
  Transfer plain, stream, level, nested;
  REQUIRE(comm.Receive(plain, 1, Span{}).ok());
  REQUIRE(comm.Receive(stream, 1, Span{}, 15).ok());
  REQUIRE(sub.Receive(level, 1, Span{}, 2).ok());
  REQUIRE(sub_of_sub.Receive(nested, 1, Span{}).ok());
  REQUIRE(plain.tag == 256);
  REQUIRE(stream.tag == 271);
  REQUIRE(level.tag == 256 + 3 * 16 + 2);
  REQUIRE(nested.tag == 256 + 5 * 16);
}

}  // namespace
}  // namespace horon
