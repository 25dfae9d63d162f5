// Op: the socket that ops/ plugs into. One op is one file; nothing else grows with it.
//
// An op says two things. How ranks must agree: Check, called on the coordinator with every rank's
// request. And what to do, in one of two ways:
//   elementwise: a kind and a scaling. The engine packs, the transport streams; the op sees no
//   bytes. staged: Run, a Task over the segments of one bucket (Adasum, gossip, top-k, allgather).
// An op object lives as long as its runtime and is used by the holder of the baton only. It sees no
// entries, no queue, no framework.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/config.h"
#include "runtime/op/request.h"
#include "runtime/transport/collectives.h"

namespace horon {

struct Elementwise {
  ReduceKind kind = ReduceKind::kSum;
  bool average = false;  // divide the sum by the number of ranks
};

// State an op keeps for one tensor from call to call (gossip rounds, residuals). Owned by the
// engine.
class TensorState {
 public:
  virtual ~TensorState() = default;
};

// One tensor of a bucket, as a staged op sees it.
struct Segment {
  uint64_t tensor_id = 0;  // stable: same tensor, same id, on every rank and in every step
  const Request* request = nullptr;  // its name, shape, per-call arguments
  const Agreement* agreed = nullptr;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;  // the user's; null: Stage::AllocateOutput
  int64_t count = 0;            // elements of input
};

// Tells one bucket, or one thing done with it, from others: the same on all ranks.
inline uint64_t BucketWord(std::span<const Segment> segments, uint64_t begin) {
  for (const Segment& segment : segments) begin = begin * 31 + segment.tensor_id;
  return begin;
}

class GpuStage;  // runtime/op/gpu_stage.h

class Stage {
 public:
  virtual ~Stage() = default;
  virtual Communicator& comm() = 0;
  virtual std::span<Segment> segments() = 0;
  virtual DataType dtype() const = 0;  // of all segments: only equal ones share a bucket
  virtual double prescale() const = 0;
  virtual double postscale() const = 0;
  // Ranks of the process set: what an average divides by. comm() may have fewer (Op::when_joined).
  virtual int set_size() const = 0;
  // Place in the process set of comm()'s rank `rank`: another one where some have joined.
  virtual int PlaceOf(int rank) const { return rank; }
  // So many bytes of values went to that rank of the job, one of few: the counters of edges.
  virtual void CountSent(int, int64_t) {}
  // How the op goes about it, for the timeline. Lives as long as the process.
  virtual void SetAlgorithm(const char*) {}
  // Pooled; contents undefined; free when the Buffer goes.
  virtual Result<Buffer> Scratch(int64_t bytes) = 0;
  // Gives segment i an output of `shape` that the Work owns, and sets its `output`.
  virtual Status AllocateOutput(size_t i, Shape shape) = 0;
  // Rows received from each rank, handed to the user beside the output (alltoall).
  virtual void SetReceivedSplits(size_t i, std::vector<int64_t> splits) = 0;
  // Empty at the tensor's first call with this op spec; the op fills it and finds it again, unless
  // 65,536 other tensors came between. Hold the reference across no co_await.
  virtual std::unique_ptr<TensorState>& State(size_t i) = 0;
};

// What a rank that has joined (it has no more tensors) does while an op runs on the others.
enum class WhenJoined {
  kAway,    // nothing: the others run the op among themselves
  kNoRows,  // takes part with a tensor of no rows
  kZeros,   // takes part with zeros
};

// What becomes of a tensor that some ranks have not submitted HORON_GOSSIP_TIMEOUT after the first.
// Of any op a spec may ask for "late=fail".
enum class WhenLate {
  kWait,  // "wait": nothing: it waits on, as long as the stall limits allow
  kKeep,  // "keep": each rank keeps what it has, late ones when they come; nothing is exchanged
  kFail,  // "fail": it fails on all ranks, with kLate
};

class Op {
 public:
  virtual ~Op() = default;

  // What a request must fulfil whatever the other ranks ask for; asked when it is submitted, on the
  // user's thread. Default: nothing.
  virtual Status CheckAlone(const Request&) const { return Status::Ok(); }
  // by_rank[i] is the request of the set's i-th rank; at least one. A failure is a sentence that
  // names the tensor, the ranks on each side and both values (CheckSame below writes it). Default:
  // everything equal but weights and splits, scaling and dtype supported by the kernels.
  virtual Result<Agreement> Check(std::span<const Request* const> by_rank,
                                  std::span<const int> ranks) const;

  virtual std::optional<Elementwise> elementwise() const { return std::nullopt; }
  // Whether several tensors may share one bucket. Elementwise ops always may.
  virtual bool fusable() const { return elementwise().has_value(); }
  // Whether it fills the output that a caller gives, which has the shape of the input. If not, the
  // Work owns whatever it makes.
  virtual bool fills_output() const { return elementwise().has_value(); }
  // What the tensor weighs when buckets are filled; must come out the same on every rank, so an op
  // whose shapes differ between ranks goes by the agreement. Default: `bytes`, its input's.
  virtual int64_t FusionBytes(int64_t bytes, const Request&, const Agreement&) const {
    return bytes;
  }
  // Bytes of a bucket of several tensors of a device of this kind, at most; 0: each alone.
  // `threshold` is the user's.
  virtual int64_t MostFused(int64_t threshold, DeviceKind) const { return threshold; }
  // Whether a locked schedule may run it on the host: it can be taken back while some rank has not
  // started the bucket. Run begins when all have, so any op can; but where it takes a lane it
  // begins before, and then it neither writes to a user's output nor changes a State until the
  // lane's members have packed their part. Asked only of what waits for late ranks: nobody is late
  // for what a schedule runs.
  virtual bool lockable(const Request&) const { return elementwise().has_value(); }
  // Whether equal requests give an equal agreement, so that the response cache may remember it.
  virtual bool cacheable() const { return true; }
  // Staged ops only. Called once a bucket; `stage` outlives the Task.
  virtual Task Run(Stage& stage);
  // Staged ops: whether Run, of this bucket, swaps rows over the lane of stage.comm(), which is
  // there. It is the bucket's own then while Run runs. Must come out the same on every rank.
  virtual bool TakesLane(Stage&) const { return false; }

  // Staged ops: whether this bucket runs on GPUs, where the group joins all ranks (`everyone`), or
  // those of each node, of which all have as many. Elsewhere the tensors are copied to the host,
  // where Run works on them. Must come out the same on every rank.
  virtual bool on_gpus(Stage&, bool /*everyone*/) const { return false; }
  // Enqueues the whole op and returns, where the group joins all ranks.
  virtual Status Enqueue(GpuStage&) { return Status::Unsupported("this op has no way on GPUs"); }
  // The same where it joins those of each node: waits for messages between nodes. `stage` outlives
  // the Task.
  virtual Task RunOverNodes(GpuStage& stage);
  // Either, by default. `stage` outlives the Task.
  virtual Task RunOnGpus(GpuStage& stage);

  // Check sees such a rank's request with `joined` set; the functions for Check pass over it.
  virtual WhenJoined when_joined() const { return WhenJoined::kAway; }
  // What a spec may choose, the first by default.
  virtual std::vector<WhenLate> late_choices() const { return {WhenLate::kWait, WhenLate::kFail}; }
  WhenLate when_late() const { return when_late_; }
  // Called instead of Run on a rank that is away, or keeps what it has: what the op remembers of
  // the tensors must stay in step with the others.
  virtual void Skip(Stage&) {}

 private:
  friend class OpTable;
  WhenLate when_late_ = WhenLate::kWait;
};

// --- for Run -----------------------------------------------------------------------------------
// For ops whose outputs have the shapes of their inputs: where the user gave none, the Work owns
// it.
Status PrepareOutputs(Stage& stage);

// --- for Check ---------------------------------------------------------------------------------
// Each compares one aspect over all ranks: "Mismatched data types for tensor 'w': ranks [0, 2] have
// float32, rank [1] has float64." `what` is the plural as in that sentence; `collective` is
// Horovod's word in its sentences: "ALLREDUCE", "BROADCAST".
Status CheckSame(std::span<const Request* const> by_rank, std::span<const int> ranks,
                 const std::string& what, const std::function<std::string(const Request&)>& value);
// Where groups differ no member can become ready, so the coordinator asks this of ranks that have
// reported before all have.
Status CheckGroups(std::span<const Request* const> by_rank, std::span<const int> ranks);
// dtype, device, scale factors, group and round: what every op wants equal. (Op spec equality is
// checked before any op is asked.)
Status CheckCommon(std::span<const Request* const> by_rank, std::span<const int> ranks,
                   const std::string& collective = "ALLREDUCE");
Status CheckShapes(std::span<const Request* const> by_rank, std::span<const int> ranks,
                   const std::string& collective = "ALLREDUCE");
// Both, and a floating dtype.
Status CheckFloatingAlike(std::span<const Request* const> by_rank, std::span<const int> ranks);
// Number of dimensions at least 1, and all dimensions but the first equal.
Status CheckRows(std::span<const Request* const> by_rank, std::span<const int> ranks,
                 const std::string& collective = "ALLGATHER");
// For one request (all have the same by then): floating dtype; scale factors of 1.
Status CheckFloating(const Request& request);
Status CheckUnscaled(const Request& request);

// --- registry ----------------------------------------------------------------------------------
// The parsed parameters of a spec: "gossip:graph=ring,push_sum=1".
class OpArguments {
 public:
  static Result<OpArguments> Parse(const std::string& spec);
  const std::string& name() const { return name_; }
  // Each marks the key as known; Finish() is kInvalidArgument if a key was never asked for.
  std::optional<std::string> Text(const std::string& key);
  Result<int64_t> Integer(const std::string& key, std::optional<int64_t> fallback);
  Result<double> Number(const std::string& key, std::optional<double> fallback);
  // One of `choices`, of which the first is the default.
  Result<std::string> Choice(const std::string& key, const std::vector<std::string>& choices);
  Status Finish() const;
  // Why an op could not be made, after a key that is nearly one asked for: it may be the cause.
  Status Explained(const Status& why) const;
  // kInvalidArgument that names the spec: "in op 'topk:ratio=2': ratio must be ..."
  Status Wrong(const std::string& what) const;

 private:
  Status Missing(const std::string& key) const;
  std::string Unknown(const std::string& key) const;

  std::string name_, spec_;
  struct Pair {
    std::string key, value;
    bool used = false;
  };
  std::vector<Pair> pairs_;
  std::vector<std::string> known_;  // keys asked for
};

using OpFactory = std::function<Result<std::unique_ptr<Op>>(OpArguments&)>;

// The factory of an op without parameters.
template <typename T>
Result<std::unique_ptr<Op>> MakeOp(OpArguments&) {
  return std::unique_ptr<Op>(std::make_unique<T>());
}

enum class OpUse {
  kReduce,  // what op= of an allreduce or an optimizer takes: of all tensors one of their shape
  kCall,    // a collective that has a call of its own: allgather, barrier
};

// `const OpRegistrar kSum{"sum", ...}` at namespace scope in the op's file. Read-only after load.
struct OpRegistrar {
  OpRegistrar(const char* name, OpFactory factory, OpUse use = OpUse::kReduce);
};
std::vector<std::string> RegisteredOps();  // ascending

// kInvalidArgument if Find below would be, and for what does not reduce.
Status CheckReduction(const std::string& spec);

// The ops of one runtime, parsed once per spec. Find is kInvalidArgument for an unknown name, with
// those that reduce and the nearest of all, and for a bad parameter. User threads may call Find (it
// locks), so bad specs fail at submit.
class OpTable {
 public:
  explicit OpTable(OpDefaults defaults = {});
  ~OpTable();
  // The spec with the defaults of its op, where it leaves them open.
  std::string Complete(const std::string& spec) const;
  Result<Op*> Find(const std::string& spec);

 private:
  struct Rows;
  std::unique_ptr<Rows> rows_;
  const OpDefaults defaults_;
};

}  // namespace horon
