#include "runtime/transport/communicator.h"

#include <algorithm>
#include <map>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/fault.h"

namespace horon {

Communicator::Members::Members(const Fabric& fabric, std::vector<int> all) : ranks(std::move(all)) {
  const auto own = std::find(ranks.begin(), ranks.end(), fabric.rank);
  HORON_CHECK(own != ranks.end(), "a communicator holds the rank that makes it");
  me = static_cast<int>(own - ranks.begin());
  std::map<int, int> renumbered;  // node of the job -> node of this communicator
  for (int member = 0; member < static_cast<int>(ranks.size()); ++member) {
    const int job_node = fabric.topology.node_of(ranks[static_cast<size_t>(member)]);
    const auto [it, added] = renumbered.emplace(job_node, static_cast<int>(nodes.size()));
    if (added) nodes.emplace_back();
    nodes[static_cast<size_t>(it->second)].push_back(member);
    node_of.push_back(it->second);
  }
}

Communicator::Communicator(const Fabric& fabric, std::vector<int> ranks, Tag base, Lane* lane)
    : fabric_(&fabric),
      members_(std::make_shared<Members>(fabric, std::move(ranks))),
      base_(base),
      lane_(lane) {}

Status Communicator::Send(Transfer& transfer, int to, std::span<const Span> spans, int stream) {
  FaultPoint(FaultPhase::kMessage);
  return Start(transfer, Transfer::Direction::kSend, to, spans, stream);
}

Status Communicator::Receive(Transfer& transfer, int from, std::span<const Span> spans,
                             int stream) {
  return Start(transfer, Transfer::Direction::kReceive, from, spans, stream);
}

Status Communicator::Start(Transfer& transfer, Transfer::Direction direction, int peer,
                           std::span<const Span> spans, int stream) {
  HORON_CHECK(transfer.done, "a transfer is started again only after it has finished");
  HORON_CHECK(peer >= 0 && peer < size(), "a peer is a member of the communicator");
  HORON_CHECK(stream >= 0 && stream < kStreams, "a communicator has 16 streams");
  transfer.direction = direction;
  transfer.peer = global(peer);
  transfer.tag = base_ + static_cast<Tag>(stream);
  transfer.spans.assign(spans.begin(), spans.end());
  transfer.status = Status::Ok();
  transfer.bytes = 0;
  if (phases_ != nullptr) phases_->Sent();
  return fabric_->route[static_cast<size_t>(transfer.peer)]->Post(transfer);
}

std::shared_ptr<const Communicator::Members> Communicator::MembersOf(
    std::span<const int> part) const {
  auto& parts = members_->parts;
  for (const Members::Part& known : parts)
    if (std::equal(known.members.begin(), known.members.end(), part.begin(), part.end()))
      return known.kept;
  std::vector<int> ranks;
  ranks.reserve(part.size());
  for (int member : part) ranks.push_back(global(member));
  auto made = std::make_shared<const Members>(*fabric_, std::move(ranks));
  if (parts.size() < Members::kParts) parts.push_back({{part.begin(), part.end()}, made});
  return made;
}

Communicator Communicator::Sub(std::span<const int> members, int level) const {
  HORON_CHECK(level > 0 && level < kLevels, "a sub-communicator's level is 1..7");
  const Tag bucket = base_ / kTags * kTags;
  Communicator sub(*this, MembersOf(members), bucket + static_cast<Tag>(level * kStreams));
  sub.Follow(phases_);
  return sub;
}

Communicator Communicator::Part(std::span<const int> members) const {
  Communicator part = Sub(members, 1);
  if (!top()) part.base_ = base_;
  return part;
}

Communicator Communicator::At(int place) const {
  HORON_CHECK(place >= 0 && place < kPlaces, "a communicator has 96 places");
  Communicator other = *this;
  other.base_ = base_ / kTags * kTags + static_cast<Tag>(kStreams + place);
  other.lane_ = nullptr;
  return other;
}

void Communicator::Flatten() {
  if (one_node()) return;
  flattened_ = true;
  auto flat = std::make_shared<Members>(*members_);
  flat->nodes.clear();
  for (int member = 0; member < size(); ++member) {
    flat->nodes.push_back({member});
    flat->node_of[static_cast<size_t>(member)] = member;
  }
  members_ = std::move(flat);
}

size_t Communicator::smallest_node() const {
  size_t fewest = ranks().size();
  for (const auto& node : nodes()) fewest = std::min(fewest, node.size());
  return fewest;
}

bool Communicator::top() const { return base_ % kTags == 0; }

bool Communicator::reads_gpus(int member) const {
  return fabric_->route[static_cast<size_t>(global(member))]->reads_gpus();
}

Transport* Communicator::only_transport() const {
  Transport* only = nullptr;
  for (int member = 0; member < size(); ++member) {
    if (member == rank()) continue;
    Transport* route = fabric_->route[static_cast<size_t>(global(member))];
    if (only != nullptr && route != only) return nullptr;
    only = route;
  }
  return only;
}

}  // namespace horon
