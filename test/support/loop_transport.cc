#include "test/support/loop_transport.h"

#include <algorithm>
#include <cstring>

#include "runtime/transport/spans.h"

namespace horon::test {
namespace {

std::vector<std::byte> Gathered(std::span<const Span> spans) {
  std::vector<std::byte> bytes;
  for (const Span& span : spans) bytes.insert(bytes.end(), span.data, span.data + span.bytes);
  return bytes;
}

void Finish(Transfer& transfer, Status status, int64_t bytes) {
  transfer.status = std::move(status);
  transfer.bytes = bytes;
  transfer.done = true;
  transfer.transport = nullptr;
}

}  // namespace

LoopNet::LoopNet(int ranks, uint64_t seed) : random_(seed), sent_(static_cast<size_t>(ranks)) {}

Status LoopNet::Post(int rank, Transfer& transfer, Transport* by) {
  if (posts_left_ >= 0 && posts_left_-- == 0) {
    return Status::Unavailable("rank " + std::to_string(transfer.peer) + " is gone");
  }
  const bool send = transfer.direction == Transfer::Direction::kSend;
  const int from = send ? rank : transfer.peer, to = send ? transfer.peer : rank;
  Wire& wire = wires_[{from, to, transfer.tag}];
  transfer.transport = by;
  transfer.done = false;
  if (!send) {
    wire.receives.push_back(&transfer);
  } else {
    sent_[static_cast<size_t>(rank)].bytes += TotalBytes(transfer.spans);
    ++sent_[static_cast<size_t>(rank)].messages;
    Message message{&transfer, {}};
    if (random_() % 2 == 0) {
      message = {nullptr, Gathered(transfer.spans)};
      Finish(transfer, Status::Ok(), static_cast<int64_t>(message.payload.size()));
    }
    wire.sends.push_back(std::move(message));
  }
  Match(to, wire);
  return Status::Ok();
}

void LoopNet::Match(int to, Wire& wire) {
  while (!wire.sends.empty() && !wire.receives.empty()) {
    const int delay = static_cast<int>(random_() % 4);
    flights_.push_back({to, delay, std::move(wire.sends.front()), wire.receives.front()});
    wire.sends.pop_front();
    wire.receives.pop_front();
  }
}

void LoopNet::Deliver(Flight& flight) {
  Message& message = flight.message;
  // Read when it arrives: a sender that writes to its memory before its send has finished is found
  // out.
  const std::vector<std::byte> payload =
      message.send != nullptr ? Gathered(message.send->spans) : std::move(message.payload);
  const auto bytes = static_cast<int64_t>(payload.size());
  if (message.send != nullptr) Finish(*message.send, Status::Ok(), bytes);
  if (bytes > TotalBytes(flight.receive->spans)) {
    Finish(*flight.receive, Status::Internal("a message longer than its receive"), 0);
    return;
  }
  SpanCursor at;
  const std::byte* from = payload.data();
  ForNext(flight.receive->spans, at, bytes, [&](std::byte* to, int64_t n) {
    std::memcpy(to, from, static_cast<size_t>(n));
    from += n;
  });
  Finish(*flight.receive, Status::Ok(), bytes);
}

bool LoopNet::Progress(int rank) {
  bool moved = false;
  std::shuffle(flights_.begin(), flights_.end(), random_);
  for (size_t i = 0; i < flights_.size();) {
    if (flights_[i].to != rank) {
      ++i;
      continue;
    }
    moved = true;
    if (flights_[i].delay-- > 0) {
      ++i;
      continue;
    }
    Deliver(flights_[i]);
    flights_.erase(flights_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return moved;
}

int LoopNet::Sender(int to, Tag tag) const {
  for (const auto& [way, wire] : wires_) {
    if (std::get<1>(way) == to && std::get<2>(way) == tag && !wire.sends.empty())
      return std::get<0>(way);
  }
  return -1;
}

void LoopNet::Cancel(Transfer& transfer) {
  for (auto& [key, wire] : wires_) {
    std::erase(wire.receives, &transfer);
    std::erase_if(wire.sends, [&](const Message& m) { return m.send == &transfer; });
  }
  for (const Flight& f : flights_) {  // the sender's part of it is over all the same
    if (f.receive == &transfer && f.message.send != nullptr)
      Finish(*f.message.send, Status::Ok(), 0);
  }
  std::erase_if(flights_, [&](const Flight& f) {
    return f.receive == &transfer || f.message.send == &transfer;
  });
  Finish(transfer, Status::Aborted("cancelled"), 0);
}

bool LoopNet::idle() const {
  const bool posted = std::any_of(wires_.begin(), wires_.end(), [](const auto& row) {
    return !row.second.sends.empty() || !row.second.receives.empty();
  });
  return !posted && flights_.empty() && blocks_.empty();
}

int64_t LoopNet::lent() const {
  size_t transfers = 0;
  for (const auto& [key, wire] : wires_) {
    transfers += wire.receives.size();
    for (const Message& message : wire.sends) transfers += message.send != nullptr ? 1 : 0;
  }
  return static_cast<int64_t>(transfers + flights_.size());
}

void LoopNet::Join(int rank, const BlockReduction& reduction, BlockCall& call) {
  call.reduction = reduction;
  call.rank = rank;
  auto& calls = blocks_[reduction.ranks];
  calls.push_back(&call);
  if (calls.size() < reduction.ranks.size()) return;
  std::sort(calls.begin(), calls.end(),
            [](const BlockCall* a, const BlockCall* b) { return a->rank < b->rank; });
  std::vector<const std::byte*> inputs;
  for (const BlockCall* one : calls) inputs.push_back(one->reduction.input);
  const int64_t bytes = reduction.count * SizeOf(reduction.dtype);
  std::vector<std::byte> result(static_cast<size_t>(bytes));
  ReduceInto(reduction.kind, reduction.dtype, 1.0, inputs, result.data(), reduction.count);
  for (BlockCall* one : calls) {
    std::memcpy(one->reduction.output, result.data(), result.size());
    one->done = true;
  }
  ++block_reductions_;
  blocks_.erase(reduction.ranks);
}

Task LoopTransport::ReduceBlock(BlockReduction reduction) {
  LoopNet::BlockCall call;
  net_->Join(rank_, reduction, call);
  co_await Until(call);
  co_return Status::Ok();
}

LoopWorld::LoopWorld(const Topology& topology, uint64_t seed, bool blocks)
    : random_(seed), net_(topology.size(), seed + 1) {
  for (int rank = 0; rank < topology.size(); ++rank) {
    all_.push_back(rank);
    transports_.push_back(std::make_unique<LoopTransport>(net_, rank, blocks));
    Transport* near = transports_.back().get();
    transports_.push_back(std::make_unique<LoopTransport>(net_, rank, blocks));
    Transport* far = transports_.back().get();
    Fabric fabric{rank, topology, {}, std::make_shared<Pool>(MakeHostMemory())};
    for (int peer = 0; peer < topology.size(); ++peer) {
      fabric.route.push_back(topology.node_of(peer) == topology.node_of(rank) ? near : far);
    }
    fabrics_.push_back(std::move(fabric));
  }
}

std::vector<Status> LoopWorld::Run(const std::vector<int>& ranks, const RankBody& body) {
  std::vector<std::unique_ptr<Communicator>> comms;
  std::vector<std::unique_ptr<RootTask>> tasks;
  for (int rank : ranks) {
    comms.push_back(std::make_unique<Communicator>(fabric(rank), ranks, next_base_));
    tasks.push_back(std::make_unique<RootTask>(body(*comms.back())));
  }
  next_base_ += Communicator::kTags;
  std::vector<size_t> order(ranks.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  for (bool moved = true; moved;) {
    moved = false;
    std::shuffle(order.begin(), order.end(), random_);
    for (size_t i : order) {
      moved = tasks[i]->Advance() || moved;
      moved = net_.Progress(ranks[i]) || moved;
    }
  }
  std::vector<Status> statuses;
  bool all_ok = true;
  for (const auto& task : tasks) {
    statuses.push_back(task->done() ? task->status() : Status::Internal("stuck"));
    all_ok = all_ok && statuses.back().ok();
  }
  if (all_ok && !net_.idle())
    statuses.assign(ranks.size(), Status::Internal("transfers were left behind"));
  return statuses;
}

std::vector<Status> RunRanks(const Topology& topology, uint64_t seed, const RankBody& body) {
  return LoopWorld(topology, seed).Run(body);
}

std::vector<Topology> TestTopologies() {
  std::vector<Topology> all;
  for (int size = 1; size <= 5; ++size) all.push_back(Topology::OneNode(size));
  for (int size = 2; size <= 5; ++size) all.push_back(Topology::Blocks(size, 1));
  all.push_back(Topology::Blocks(4, 2));
  all.push_back(Topology::Blocks(3, 2));
  all.push_back(Topology::Blocks(5, 3));
  all.push_back(Topology::FromNodes({0, 1, 1, 0}));
  all.push_back(Topology::FromNodes({0, 1, 2, 1, 0}));
  all.push_back(Topology::FromNodes({0, 1, 2, 2, 1, 0}));  // local rank 1: nodes descend by rank
  return all;
}

}  // namespace horon::test
