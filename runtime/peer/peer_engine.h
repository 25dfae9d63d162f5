// PeerEngine: what ranks do with each other without the agreement of all: windows and averages of
// pairs. A rank waits for its own peers only, and for none longer than HORON_GOSSIP_TIMEOUT.
//
// Orders come from user threads; each is a Task that the holder of the baton advances in every
// cycle, beside the executor's buckets. Inside a node an order works on the neighbor's slot itself,
// which takes no part; between nodes it asks the neighbor's engine, over a Link.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/device/stream.h"
#include "runtime/peer/link.h"
#include "runtime/peer/window.h"
#include "runtime/transport/communicator.h"
#include "runtime/transport/segment.h"

namespace horon {

enum class OrderKind : int {
  kPut = 0,     // B[me] of each rank <- weight * values; then values *= self_weight
  kAdd = 1,     // the same with +=
  kGet = 2,     // B[rank] <- weight * what that rank published
  kUpdate = 3,  // values <- self_weight * values + the sum of weight * B[rank]
  kLock = 4,    // takes the mutexes of these ranks
  kUnlock = 5,
  kPublish = 6,  // what others get from now on
  kPair = 7,     // values += weight * (theirs - values), theirs the other way round; one rank
  kStep = 8,     // values += self_weight * input; output <- values
  kRound = 9,    // values <- input, if there is one, mixed in the tensor's next round
};

struct Order {
  OrderKind kind = OrderKind::kPublish;
  std::shared_ptr<Window> window;
  std::vector<std::pair<int, double>> ranks;  // ascending, with their weights
  double self_weight = 1;
  bool carry = false;       // push-sum weights go along
  bool reset = false;       // kUpdate: empties what it has taken
  bool with_mutex = false;  // holds the ranks' mutexes meanwhile (kUpdate: its own)
  bool if_asked = false;    // kAdd: only to ranks that have asked since they were given a part
  const std::byte* input = nullptr;
  std::byte* output = nullptr;  // kUpdate: null: in place
  // Of a window on a GPU, as are input and output: when they may be read; and when what the order
  // wrote there may be, which the engine sets.
  SharedEvent ready = nullptr, written = nullptr;
  int64_t begun = 0;  // the engine's: when it was submitted, where somebody records
  // Called once. `unreached`: ranks whose part was left out.
  std::function<void(const Status&, std::vector<int64_t> unreached, SharedEvent written)> done;

  // Whether what other ranks have of the values counts on what this does with them later.
  bool changes() const {
    const bool gives = kind == OrderKind::kPut || kind == OrderKind::kAdd;
    return kind == OrderKind::kRound || (gives && self_weight != 1);
  }
};

// Who records what an engine does. Each from the thread of what is recorded.
struct PeerRecording {
  std::function<int64_t()> stamp;  // the steady clock in ns while something is recorded, else 0
  std::function<void(std::string row, std::string activity, int64_t begun, int64_t ended)> note;
};

class PeerEngine final : private Answerer {
 public:
  using Clock = Link::Clock;
  // `lost`: whether a rank of another node is known to be lost.
  PeerEngine(const Fabric& fabric, std::shared_ptr<SharedSegment> segment,
             std::chrono::milliseconds patience, Counters& counters, PeerRecording recording = {},
             std::function<bool(int rank)> lost = [](int) { return false; });
  ~PeerEngine() override;

  // --- user threads
  // From now on this rank answers for the window. kInvalidArgument: the name is taken.
  Status Open(const std::shared_ptr<Window>& window);
  void Close(const Window& window);
  std::shared_ptr<Window> Find(const std::string& name) const;
  // How often a window of this name was asked for, this time included: the same on all ranks, who
  // ask together.
  uint64_t NextEpoch(const std::string& name);
  // The caller rings the runtime's bell.
  Status Submit(Order order);

  // --- the holder of the baton
  // Whether anything moved.
  bool Advance();
  // The job has failed: work goes on with the ranks that live, as far as transports outlive it.
  void CutLinks(const Status& why);
  // Ends everything; later orders fail.
  void FailAll(const Status& why);
  bool idle() const { return running_.empty() && links_idle_; }
  bool open() const { return !links_.empty(); }  // messages may come at any time
  // The same after the job has failed, over this transport.
  bool Hears(const Transport& transport) const;
  Clock::time_point next_look() const;

 private:
  class Running;
  class NextCycle;
  class Turn;
  class Reached;
  class MixingRound;
  using Shared = std::shared_ptr<Window>;

  // Answering: peer_answers.cc.
  int64_t Expected(int from, const PeerHeader& header) override;
  std::shared_ptr<std::byte> Place(int from, const PeerHeader& header) override;
  std::optional<Answer> Do(int from, const PeerHeader& header, const std::byte* values) override;
  std::optional<Answer> Read(Window& window);
  static std::optional<Answer> TakeMessage(const PeerHeader& header, const class RoundSlot& slot,
                                           const std::byte* values);
  Answer Average(const PeerHeader& header, Window& window, const std::byte* values);
  Shared WindowOf(const PeerHeader& header) const;
  void AddWaiter(Window& window, int rank);
  void Unlock(Window& window, int rank);
  void GrantNext(Window& window);

  // Orders: peer_orders.cc, peer_staging.cc, peer_locks.cc, peer_update.cc, peer_rounds.cc.
  Task Run(Running& running);
  Task RunStaged(Running& running);
  Task RunOnHost(Running& running);
  Task RunLocked(Running& running);
  Task Give(Running& running);
  Task GiveNear(Running& running, int rank, double weight);
  Task GiveAllNear(Running& running);
  Task Offer(Running& running);
  void ScaleOwn(Running& running);
  static std::function<Status(Window&)> BackFrom(const Question& question);
  static bool MayTakeOwed(const Order& order);
  Status TakeOwed(Window& window);
  void LeaveOpen(Running& running, int rank, const std::shared_ptr<Question>& question,
                 std::function<Status(Window&)> answered, std::function<Status(Window&)> lost);
  Task Get(Running& running);
  Task GetNear(Running& running, int rank, double weight);
  Task KeepAnswer(Running& running, int rank, double weight, Question& asked);
  Task Publish(Running& running);
  Task PairUp(Running& running);
  void Step(Running& running);
  Task Update(Running& running);
  Task TakeSlot(Running& running, int from, double weight, class Mixture& mixture);
  bool TryTakeSlot(Running& running, int from, double weight, class Mixture& mixture);
  // Of a slot that an update has taken: whether anything had come since the last one.
  void CountTaken(Window& window, int from, bool news);
  Task MixRound(Running& running);
  void LoadInput(const Order& order);
  void TakeEarlierRounds(Window& window);
  Task LockAll(Running& running);
  Task Lock(Running& running, int rank);
  Task UnlockAll(Running& running);
  Task GiveBack(Running& running, int rank);

  // Values of the window went to that rank, and arrived.
  void CountSent(int rank, const Window& window);
  bool Deliver(const PeerHeader& header, Window& window, const Slot& slot, const std::byte* values);
  // What has no values cannot count.
  std::shared_ptr<Question> Ask(const Window& window, int rank, PeerHeader header,
                                Clock::time_point deadline, SharedCopy values = nullptr,
                                int64_t answer_bytes = 0);
  // Of the values as they are now; or of those that a message finds in them, piece by piece.
  Result<SharedCopy> CopyOf(const Window& window);
  Result<SharedCopy> CopyLaterOf(const Window& window);
  Status AddDifference(Window& window, double weight, const std::byte* x, const std::byte* y);
  int64_t Stamp() const { return recording_.stamp ? recording_.stamp() : 0; }
  void Note(const Window& window, std::string activity, int64_t begun) const;
  bool Gone(int rank) const;  // dead, or left
  bool GoneElsewhere(int rank) const;
  bool near(int rank) const {
    return fabric_->topology.node_of(rank) == fabric_->topology.node_of(me());
  }
  bool Silent(const Window& window, int rank) const;  // no message of it can be waited for
  void Ring(int rank);  // of this node: something was put into its memory, or taken
  int me() const { return fabric_->rank; }
  void OpenLinks();
  bool OutOfReach(int rank, const Link& link) const;
  void LeaveIfGone();
  bool ProgressCut();
  void StartOrders();
  bool AdvanceOrders();
  void KeepGrants();
  void FreeMutexes();

  const Fabric* fabric_;
  std::shared_ptr<SharedSegment> segment_;  // may be null
  std::chrono::milliseconds patience_;
  Counters* counters_;
  PeerRecording recording_;
  std::function<bool(int rank)> lost_;
  Counter &unreached_, &given_, &unasked_, &overwritten_, &taken_, &unchanged_;
  Counter &pairs_, &pairs_lost_;
  Counter &rounds_, &folded_, &rounds_late_;

  mutable Mutex mutex_;
  std::map<std::string, Shared> windows_ HORON_GUARDED_BY(mutex_);
  std::vector<Order> ordered_ HORON_GUARDED_BY(mutex_);
  std::map<std::string, uint64_t> epochs_ HORON_GUARDED_BY(mutex_);
  Status over_ HORON_GUARDED_BY(mutex_);
  std::atomic<bool> news_{false};  // orders or windows that Advance has not seen

  Status cut_;
  std::map<int, std::unique_ptr<Link>> links_;
  bool links_idle_ = true;
  uint64_t cycle_ = 0;
  bool looks_again_ = false;  // somebody waits for a slot
  struct Grant {              // told to another rank
    Shared window;
    int rank;
    std::shared_ptr<Question> told;
  };
  std::vector<Grant> grants_;
  std::list<std::unique_ptr<Running>> running_;  // last: its frames use the others
};

}  // namespace horon
