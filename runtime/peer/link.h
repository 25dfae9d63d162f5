// Link: questions to one other rank and its answers, over the transport that reaches it. Each side
// may ask; one question of each is under way at a time, and the next one waits behind it.
//
// A message is cut into pieces (peer_wire.h). A question is asked again when no answer comes; the
// other side answers a number that it knows once more, without doing it twice, and takes no older
// one: so lost, doubled and reordered pieces change nothing. A rank that stays silent for the time
// of a question is not waited for again before it has been heard. Whether that question was done
// there nobody knows then: if that counts, it is asked on, before all others, until there is an
// answer or the rank is gone. Holder of the baton.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include "runtime/base/counters.h"
#include "runtime/device/memory.h"
#include "runtime/peer/peer_wire.h"
#include "runtime/peer/values_copy.h"
#include "runtime/transport/transport.h"

namespace horon {

inline constexpr Tag kPeerTag = 96;  // beside the negotiation's, below the buckets'

// What is asked, and then the answer.
struct Question final : Waitable {
  PeerHeader header;
  SharedCopy values;         // null: none
  int64_t answer_bytes = 0;  // of values that the answer must have
  bool counts = false;       // whether it must not stay open if it was done there
  std::chrono::steady_clock::time_point deadline;
  // The answer, once done. Open: there was none in time, and it may come; then `settled` is called,
  // with the answer here, or with the status of a rank that is gone.
  bool done = false, open = false;
  std::function<void()> settled;
  Status status;  // kUnavailable: none came; kInvalidArgument: refused
  PeerHeader reply;
  Buffer answer;
  bool Ready() override { return done; }
};

// Who answers.
class Answerer {
 public:
  struct Answer {
    uint32_t refused = 0;  // of peer_wire.h
    int64_t tensor_round = 0;
    double share = 0;
    SharedCopy values = nullptr;
  };
  virtual ~Answerer() = default;
  // Bytes of values that this question must have; -1: it is about nothing that exists.
  virtual int64_t Expected(int from, const PeerHeader& header) = 0;
  // Where they are put as they come, and stay until Do() is asked; null: into a buffer.
  virtual std::shared_ptr<std::byte> Place(int /*from*/, const PeerHeader& /*header*/) {
    return nullptr;
  }
  // Does what is asked, once for each question; nothing while it cannot yet: it is called again,
  // and answers and later questions do not wait for that.
  virtual std::optional<Answer> Do(int from, const PeerHeader& header,
                                   const std::byte* values) = 0;
};

class Link {
 public:
  using Clock = std::chrono::steady_clock;

  Link(int peer, Transport& transport, Pool& pool, std::chrono::milliseconds patience,
       Counters& counters);

  // Fails at once if the peer is silent. The number of the question is the link's business, its
  // deadline the caller's.
  void Ask(const std::shared_ptr<Question>& question);
  // Whether anything moved.
  bool Progress(Answerer& answerer, Clock::time_point now);
  // No message comes or goes any more; what is asked fails.
  void Close(const Status& why);
  // The job has failed, and the transport goes on: what is asked is asked again.
  void Renew();

  bool idle() const { return asked_.empty() && outbox_.empty(); }
  Clock::time_point next_look() const;
  bool lost() const { return silent_ || !closed_.ok(); }
  bool closed() const { return !closed_.ok(); }
  bool left() const { return left_; }  // the peer has said so, and the link is closed
  Transport& transport() const { return *transport_; }

 private:
  struct Parcel {
    PeerHeader header;
    SharedCopy values;
    int64_t sent = 0;
    bool started = false;
  };
  // A message of which some pieces have come.
  struct Incoming {
    explicit Incoming(const PeerHeader& first) : header(first) {}
    PeerHeader header;  // of its first piece
    std::byte* data() const { return place ? place.get() : values.data(); }
    std::shared_ptr<std::byte> place;  // of the answerer, or null
    Buffer values;
    int64_t got = 0;
    bool whole = false, fits = false;
  };

  void Break(const Status& why);
  bool ProgressAsked(Clock::time_point now);
  void ForgetUnsent();
  void GiveUp();
  // The question that the peer has been asked, or null.
  Question* current() const;
  bool ProgressSend();
  bool ProgressReceive(Answerer& answerer);
  Status PostReceive();
  void SendNextPiece();
  void TakePiece(Answerer& answerer);
  Status Begin(Answerer& answerer, const PeerHeader& header);
  int64_t ExpectedReply(const PeerHeader& header) const;
  void Deliver(Answerer& answerer);
  void DeliverReply();
  bool DeliverQuestion(Answerer& answerer, const Incoming& question);
  bool IsWaiting(const PeerHeader& question) const;
  void Finish(const Status& status);
  bool FinishUnsent(Clock::time_point now);
  void Settle(const Status& status);
  Status Silence() const;

  int peer_;
  Transport* transport_;
  Pool* pool_;
  std::chrono::milliseconds patience_;
  Counter &resent_, &dropped_, &silences_, &late_;
  Status closed_;
  bool broken_ = false;  // until it is renewed, or closed
  bool silent_ = false, left_ = false;

  std::deque<std::shared_ptr<Question>> asked_;  // the first is under way once `asking_`
  bool asking_ = false;
  std::shared_ptr<Question> open_;  // no other one is asked meanwhile
  bool sent_ = false;               // something of the one that is asked
  uint64_t round_ = 0;              // of my questions
  uint64_t silenced_ = 0;           // the last one that got no answer in time
  Clock::time_point ask_again_;
  Clock::duration until_again_{};

  std::deque<Parcel> outbox_;
  PeerHeader head_out_;
  SharedCopy values_out_;  // that send_ reads

  uint64_t done_round_ = 0;  // of the peer's questions: the last that was answered
  Parcel last_reply_;
  std::optional<Incoming> incoming_;
  std::optional<Incoming> waiting_;  // a question that could not be answered yet
  Buffer room_;                      // of one piece with its header
  bool receiving_ = false;           // receive_ was posted, and not looked at since it is done

  Transfer send_, receive_;  // last: they use the others
};

}  // namespace horon
