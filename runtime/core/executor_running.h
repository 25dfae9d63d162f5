// Executor::Running: one bucket in flight: its entries, its communicator, its Task, and what its op
// sees of all that. Part of the executor, which includes it alone; holder of the baton only.
#pragma once

#include <algorithm>
#include <cstring>
#include <optional>

#include "runtime/core/executor.h"

namespace horon {

class Executor::Running final : public GpuBucket, public Recycled {
 public:
  Running(Executor& executor, Bucket bucket, Group& group, Tag base)
      : executor_(executor),
        entries_(std::move(bucket.entries)),
        bytes_(bucket.bytes),
        last_(bucket.last),
        tuning_(bucket.tuning),
        group_(group),
        comm_(executor.CommOf(group, entries_[0].agreed.away, base, on_gpu())) {
    ++group_.running;
    started_ = executor.timeline_->Stamp();
    phases_.use = executor.time_use_;
    bucket_ = static_cast<uint64_t>(executor.buckets_.value());
    segments_.reserve(entries_.size());
    for (Entry& entry : entries_) {
      const uint64_t step = entry.what->runs++;
      const bool wanted = executor.timeline_->Wants(step);
      if (step > 0 && phases_.use != nullptr) phases_.use->Begin();
      traced_ = traced_ || wanted;
      const Request& r = entry.request();
      segments_.push_back(
          {entry.what->tensor_id, &r, &entry.agreed, entry.input, entry.output, entry.what->count});
      if (entry.output == nullptr) continue;
      entry.promise.output().data = entry.output;
      entry.promise.output().users = true;
    }
  }

  ~Running() override { --group_.running; }
  Communicator& comm() override { return comm_; }
  std::span<Segment> segments() override { return segments_; }
  DataType dtype() const override { return entries_[0].request().dtype; }
  double prescale() const override { return entries_[0].request().prescale; }
  double postscale() const override { return entries_[0].request().postscale; }
  int set_size() const override { return static_cast<int>(group_.ranks->size()); }
  int PlaceOf(int rank) const override {
    const std::vector<int>& ranks = *group_.ranks;
    return static_cast<int>(std::lower_bound(ranks.begin(), ranks.end(), comm_.global(rank)) -
                            ranks.begin());
  }
  void CountSent(int rank, int64_t bytes) override { executor_.SentTo(rank).Add(bytes); }
  void SetAlgorithm(const char* name) override { algorithm = name; }
  bool on_gpu() const { return entries_[0].request().device.kind == DeviceKind::kCuda; }
  std::span<Entry> entries() override { return entries_; }
  Op& op() override { return *entries_[0].what->op; }
  int64_t fusion_bytes() const override { return tuning_.fusion_bytes; }
  Pool& pool() { return executor_.gpu_road_.host_pool(on_gpu()); }
  Result<Buffer> Scratch(int64_t bytes) override { return pool().Take(bytes); }
  Status AllocateOutput(size_t i, Shape shape) override {
    HORON_ASSIGN(Buffer owned, pool().Take(CountOf(shape) * SizeOf(dtype())));
    segments_[i].output = owned.data();
    Output& output = entries_[i].promise.output();
    output.users = false;
    output.owned_shape = std::move(shape);
    output.data = owned.data();
    output.owned = std::move(owned);
    return Status::Ok();
  }
  void SetReceivedSplits(size_t i, std::vector<int64_t> splits) override {
    entries_[i].promise.output().received_splits = std::move(splits);
  }
  std::unique_ptr<TensorState>& State(size_t i) override {
    return group_.states.Of(entries_[i].request().op, entries_[i].what->key);
  }

  // This rank has joined: it was asked for nothing, so it has no input where others read one.
  bool away() const {
    const std::vector<int>& away = entries_[0].agreed.away;
    return std::binary_search(away.begin(), away.end(), executor_.fabric_->rank);
  }
  Status FillMissingInputs() override {
    for (Segment& s : segments_) {
      if (s.input != nullptr || s.count == 0) continue;
      HORON_ASSIGN(Buffer zeros, Scratch(s.count * SizeOf(dtype())));
      std::memset(zeros.data(), 0, static_cast<size_t>(zeros.bytes()));
      s.input = zeros.data();
      zeros_.push_back(std::move(zeros));
    }
    return Status::Ok();
  }

  // `cut_off`: it had begun and has not ended, and so may have changed what is input and output at
  // once.
  void Finish(const Status& status, bool cut_off = false) {
    const std::string& key = entries_[0].what->key;
    if (status.ok())
      Record(executor_.recorder_, EventKind::kFinished, key, static_cast<int64_t>(entries_.size()));
    else
      Record(executor_.recorder_, EventKind::kFailed, key + ": " + status.message());
    if (traced_) Trace(status.ok());
    if (phases_.use != nullptr) Explain();
    for (Entry& entry : entries_) {
      const bool changed = cut_off && entry.input != nullptr && entry.input == entry.output;
      entry.promise.Finish(changed ? PartlyWritten(entry, status) : status);
    }
  }
  // Where the movers of bytes note when they did what; null: nobody will read it.
  Phases* phases() { return traced_ || phases_.use != nullptr ? &phases_ : nullptr; }
  // An op's own messages are followed where somebody reads it: from the first that it hands over to
  // the last that it waits for.
  void Follow() {
    if (phases() == nullptr) return;
    followed_ = true;
    phases_.begun = SteadyNow();
    comm_.Follow(&phases_);
  }
  bool Advance() {
    const int64_t now = phases() != nullptr ? SteadyNow() : 0;
    const bool ran = task_->Advance();
    if (ran && followed_) phases_.arrived = now;
    moves_ += ran ? 1 : 0;
    return ran;
  }
  uint64_t moves() const { return moves_; }
  // As far as its mover says: it waits for its gate, or for the others' first bytes.
  bool awaits_others() const {
    if (on_gpu()) return false;
    if (phases_.begun == 0) return locked().number > 0;
    return entries_[0].what->op->elementwise() && phases_.met == 0;
  }
  const char* algorithm = "as the op says";
  uint64_t number = 0;  // of the executor's buckets, from 1
  void Run(Task task) { task_ = std::make_unique<RootTask>(std::move(task)); }
  const RootTask& task() const { return *task_; }
  int64_t bytes() const { return bytes_; }  // of the inputs
  bool last() const { return last_; }        // of its batch
  const Tuning& tuning() const { return tuning_; }
  const Locked& locked() const { return entries_[0].locked; }
  Entries TakeEntries() {
    for (Entry& entry : entries_) --entry.what->runs;
    return std::move(entries_);
  }
  void Withdraw() { task_.reset(); }  // takes every transfer back: the tensors are the user's again
  Group& group() { return group_; }
  // In which it has a place, by its ticket: the lane's, that of what messages reduce, that of the
  // staged ops.
  enum class Order { kNone, kLane, kMessages, kStaged };
  Order order = Order::kNone;
  uint64_t ticket = 0;
  void Place(Order in, uint64_t place) {
    order = in;
    ticket = place;
  }
  std::optional<Cargo> cargo;  // what travels with the gate's word

 private:
  static Status PartlyWritten(const Entry& entry, const Status& status) {
    return Status(status.code(), status.message() + "; tensor '" + entry.request().name +
                                     "' was under way in place and may be partly written");
  }
  void Explain() {
    for (const Entry& entry : entries_)
      phases_.use->Finished(entry.what->runs, entry.what->bytes, locked().number > 0);
    phases_.use->FinishedBucket(phases_.packing + phases_.unpacking, phases_.reducing);
  }
  void Trace(bool ok) {
    TimelineEvent event;
    event.started = started_;
    event.finished = SteadyNow();
    event.phases = phases_;
    event.bucket = bucket_;
    event.in_bucket = entries_.size();
    event.locked = locked();
    event.algorithm = algorithm;
    event.ok = ok;
    for (const Entry& entry : entries_) {
      TimelineEvent of_tensor = event;
      of_tensor.what = entry.what;
      of_tensor.stamps = entry.stamps;
      of_tensor.step = entry.what->runs - 1;
      executor_.timeline_->Add(std::move(of_tensor));
    }
  }

  Executor& executor_;
  Entries entries_;
  int64_t bytes_;
  bool last_;
  Tuning tuning_;
  Group& group_;
  Communicator comm_;
  RecycledVector<Segment> segments_;
  std::vector<Buffer> zeros_;
  bool traced_ = false;
  int64_t started_ = 0;
  uint64_t bucket_ = 0;
  Phases phases_;
  bool followed_ = false;
  uint64_t moves_ = 0;
  std::unique_ptr<RootTask> task_;  // last: its frames use all the others
};

}  // namespace horon
