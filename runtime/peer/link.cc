#include "runtime/peer/link.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace horon {
namespace {

constexpr auto kHead = static_cast<int64_t>(sizeof(PeerHeader));
constexpr int kAttempts = 16;  // of a question, in the time that it has

}  // namespace

Link::Link(int peer, Transport& transport, Pool& pool, std::chrono::milliseconds patience,
           Counters& counters)
    : peer_(peer),
      transport_(&transport),
      pool_(&pool),
      patience_(patience),
      resent_(counters["peer.resent"]),
      dropped_(counters["peer.dropped"]),
      silences_(counters["peer.silences"]),
      late_(counters["peer.late"]) {
  send_.outlives = receive_.outlives = true;
}

Status Link::Silence() const {
  return Status::Unavailable("rank " + std::to_string(peer_) + " gave no answer within " +
                             std::to_string(patience_.count()) +
                             " ms (HORON_GOSSIP_TIMEOUT); what it would have got stays here");
}

void Link::Ask(const std::shared_ptr<Question>& question) {
  if (closed_.ok() && !silent_) {
    asked_.push_back(question);
    return;
  }
  question->status = closed_.ok() ? Silence() : closed_;
  question->done = true;
}

void Link::Close(const Status& why) {
  if (!closed_.ok()) return;
  closed_ = Status::Unavailable(why.message());
  send_.Cancel();  // before its memory goes
  receive_.Cancel();
  if (open_) Settle(closed_);
  while (!asked_.empty()) Finish(closed_);
  outbox_.clear();
  incoming_.reset();
  waiting_.reset();
}

// By a rank's death; whether messages go on after it is the transport's business.
void Link::Break(const Status& why) {
  if (why.code() == Code::kUnavailable && transport_->OutlivesRanks()) {
    broken_ = true;
  } else {
    Close(why);
  }
}

void Link::Renew() {
  if (!closed_.ok()) return;
  if (send_.done) send_.status = Status::Ok();
  if (receive_.done && !receive_.status.ok()) {
    receiving_ = false;
    receive_.status = Status::Ok();
    receive_.bytes = 0;
    incoming_.reset();
  }
  for (Parcel& parcel : outbox_) parcel.sent = 0, parcel.started = false;
  ask_again_ = Clock::time_point::min();
  broken_ = false;
}

bool Link::Progress(Answerer& answerer, Clock::time_point now) {
  if (!closed_.ok()) return false;
  const bool received = !broken_ && ProgressReceive(answerer);
  const bool asked = closed_.ok() && ProgressAsked(now);
  const bool sent = closed_.ok() && !broken_ && ProgressSend();
  return received || asked || sent;
}

Link::Clock::time_point Link::next_look() const {
  auto next = Clock::time_point::max();
  if (!closed_.ok()) return next;
  if (current() != nullptr && !broken_) next = ask_again_;
  for (const auto& question : asked_) next = std::min(next, question->deadline);
  return next;
}

// --- my questions

void Link::Finish(const Status& status) {
  asked_.front()->status = status;
  asked_.front()->done = true;
  asked_.pop_front();
  asking_ = false;
}

// Those whose time is over while another one, which has more of it, is under way. Nothing of them
// has gone, so the peer is not to blame.
bool Link::FinishUnsent(Clock::time_point now) {
  const auto late = [&](const std::shared_ptr<Question>& question) {
    if (question == asked_.front() || now < question->deadline) return false;
    question->status = Status::Unavailable(
        "rank " + std::to_string(peer_) + " had not answered what it was asked before within " +
        std::to_string(patience_.count()) +
        " ms (HORON_GOSSIP_TIMEOUT); what it would have got stays here");
    question->done = true;
    return true;
  };
  return std::erase_if(asked_, late) > 0;
}

// Of the one that was open.
void Link::Settle(const Status& status) {
  const std::shared_ptr<Question> question = std::move(open_);
  question->status = status;
  question->open = false;
  if (const auto settled = std::move(question->settled)) settled();
}

Question* Link::current() const {
  return open_ ? open_.get() : asking_ ? asked_.front().get() : nullptr;
}

// Questions that wait to be sent.
void Link::ForgetUnsent() {
  std::erase_if(outbox_,
                [](const Parcel& p) { return p.header.kind != PeerKind::kReply && !p.started; });
}

// The peer is silent, and all who wait for it hear so.
void Link::GiveUp() {
  silences_.Add();
  silent_ = true;
  ForgetUnsent();
  if (asking_) silenced_ = round_;
  if (asking_ && sent_ && asked_.front()->counts) {
    open_ = asked_.front();
    open_->open = true;
  }
  while (!asked_.empty()) Finish(Silence());
}

bool Link::ProgressAsked(Clock::time_point now) {
  if (!asked_.empty() && now >= asked_.front()->deadline) {
    GiveUp();
    return true;
  }
  if (FinishUnsent(now)) return true;
  const bool again = current() != nullptr;
  if (again ? now < ask_again_ : asked_.empty()) return false;
  if (!again) {
    asked_.front()->header.round = ++round_;
    sent_ = false;
    until_again_ = patience_ / kAttempts;
  }
  ask_again_ = now + until_again_;
  if (open_) until_again_ = std::min<Clock::duration>(2 * until_again_, patience_);
  const bool waits = std::any_of(outbox_.begin(), outbox_.end(), [&](const Parcel& p) {
    return p.header.kind != PeerKind::kReply && p.header.round == round_;
  });
  if (waits) return false;  // it has not even gone
  if (again) resent_.Add();
  asking_ = !open_;
  outbox_.push_back({current()->header, current()->values});
  return true;
}

// --- sending

bool Link::ProgressSend() {
  bool moved = false;
  while (send_.done && closed_.ok() && !broken_) {
    if (!send_.status.ok()) {
      Break(send_.status);
      return true;
    }
    values_out_.reset();
    if (!outbox_.empty() && outbox_.front().started &&
        outbox_.front().sent == outbox_.front().header.total_bytes)
      outbox_.pop_front();
    if (outbox_.empty()) return moved;
    SendNextPiece();
    moved = true;
  }
  return moved;
}

void Link::SendNextPiece() {
  Parcel& parcel = outbox_.front();
  head_out_ = parcel.header;
  head_out_.offset = parcel.sent;
  head_out_.piece_bytes = std::min(kPieceBytes, parcel.header.total_bytes - parcel.sent);
  send_.direction = Transfer::Direction::kSend;
  send_.peer = peer_;
  send_.tag = kPeerTag;
  send_.spans = {Span{reinterpret_cast<std::byte*>(&head_out_), kHead}};
  if (head_out_.piece_bytes > 0) {
    const int64_t end = parcel.sent + head_out_.piece_bytes;
    send_.spans.push_back({parcel.values->DataTo(end) + parcel.sent, head_out_.piece_bytes});
  }
  values_out_ = parcel.values;
  parcel.sent += head_out_.piece_bytes;
  parcel.started = true;
  if (parcel.header.kind != PeerKind::kReply && parcel.header.round == round_) sent_ = true;
  send_.status = Status::Ok();
  const Status posted = transport_->Post(send_);
  if (!posted.ok()) Break(posted);
}

// --- receiving

Status Link::PostReceive() {
  if (room_.data() == nullptr) {
    HORON_ASSIGN(room_, pool_->Take(kHead + kPieceBytes));
  }
  receive_.direction = Transfer::Direction::kReceive;
  receive_.peer = peer_;
  receive_.tag = kPeerTag;
  receive_.spans = {Span{room_.data(), room_.bytes()}};
  receive_.status = Status::Ok();
  receive_.bytes = 0;
  const Status posted = transport_->Post(receive_);
  receiving_ = posted.ok();
  return posted;
}

bool Link::ProgressReceive(Answerer& answerer) {
  bool moved = waiting_ && DeliverQuestion(answerer, *waiting_);
  if (moved) waiting_.reset();
  for (;;) {
    if (incoming_ && incoming_->whole) {
      Deliver(answerer);
      incoming_.reset();
      moved = true;
    }
    if (!receive_.done) return moved;
    Status status = receive_.status;
    if (std::exchange(receiving_, false) && status.ok() && receive_.bytes == 0) {
      left_ = true;
      Close(Status::Unavailable("rank " + std::to_string(peer_) + " takes no part any more"));
      return true;
    }
    if (status.code() == Code::kAborted) {  // the peer has taken its message back
      dropped_.Add();
      status = Status::Ok();
    } else if (status.ok() && receive_.bytes > 0) {
      moved = true;
      TakePiece(answerer);
      receive_.bytes = 0;
      if (incoming_ && incoming_->whole) continue;
    }
    if (status.ok() && closed_.ok()) status = PostReceive();
    if (!status.ok()) Break(status);
    if (!closed_.ok() || broken_) return true;
  }
}

// What does not belong to the message under way, or does not follow its last piece, is dropped: it
// is asked again.
void Link::TakePiece(Answerer& answerer) {
  PeerHeader header;
  Status status = receive_.bytes >= kHead ? (std::memcpy(&header, room_.data(), sizeof(header)),
                                             CheckPiece(header, receive_.bytes))
                                          : CheckPiece({}, 0);
  if (status.ok()) {
    silent_ = false;
    if (header.offset == 0) status = Begin(answerer, header);
  }
  const bool follows = status.ok() && incoming_ && header.kind == incoming_->header.kind &&
                       header.round == incoming_->header.round &&
                       header.total_bytes == incoming_->header.total_bytes &&
                       header.offset == incoming_->got;
  if (!follows) {
    dropped_.Add();
    return;
  }
  if (incoming_->fits && header.piece_bytes > 0) {
    std::memcpy(incoming_->data() + header.offset, room_.data() + kHead,
                static_cast<size_t>(header.piece_bytes));
  }
  incoming_->got += header.piece_bytes;
  incoming_->whole = incoming_->got == header.total_bytes;
}

// A length is believed only where it is the one that is expected; else the values are not kept.
Status Link::Begin(Answerer& answerer, const PeerHeader& header) {
  incoming_.emplace(header);
  const int64_t expected =
      header.kind == PeerKind::kReply ? ExpectedReply(header) : answerer.Expected(peer_, header);
  incoming_->fits = expected == header.total_bytes && !IsWaiting(header);
  if (!incoming_->fits || expected == 0) return Status::Ok();
  if (header.kind != PeerKind::kReply) incoming_->place = answerer.Place(peer_, header);
  if (incoming_->place) return Status::Ok();
  Result<Buffer> values = pool_->Take(expected);
  if (!values.ok()) {
    incoming_.reset();
    return values.status();
  }
  incoming_->values = std::move(values).value();
  return Status::Ok();
}

int64_t Link::ExpectedReply(const PeerHeader& header) const {
  if (header.refused != 0) return 0;
  return current() != nullptr && header.round == round_ ? current()->answer_bytes : -1;
}

// A question that cannot be answered yet waits beside what comes after it. Who asks a newer one
// does not wait for it any more.
void Link::Deliver(Answerer& answerer) {
  if (incoming_->header.kind == PeerKind::kReply) {
    DeliverReply();
  } else if (IsWaiting(incoming_->header)) {
    dropped_.Add();
  } else {
    if (waiting_ && waiting_->header.round < incoming_->header.round) waiting_.reset();
    if (!DeliverQuestion(answerer, *incoming_)) waiting_ = std::move(incoming_);
  }
}

bool Link::IsWaiting(const PeerHeader& question) const {
  return waiting_ && question.kind != PeerKind::kReply && question.round == waiting_->header.round;
}

void Link::DeliverReply() {
  const bool mine = current() != nullptr && incoming_->header.round == round_ && incoming_->fits;
  if (!mine || open_) (incoming_->header.round == silenced_ ? late_ : dropped_).Add();
  if (!mine) return;
  Question& question = *current();
  question.reply = incoming_->header;
  question.answer = std::move(incoming_->values);
  ForgetUnsent();  // asked once more meanwhile
  const Status status =
      question.reply.refused != kNoSuchWindow
          ? Status::Ok()
          : Status::InvalidArgument("rank " + std::to_string(peer_) +
                                    " has no such window: it was freed there, or made anew");
  open_ ? Settle(status) : Finish(status);
}

// False while it cannot be answered yet.
bool Link::DeliverQuestion(Answerer& answerer, const Incoming& question) {
  const PeerHeader& asked = question.header;
  if (asked.round < done_round_) {
    dropped_.Add();
    return true;
  }
  if (asked.round > done_round_) {
    std::optional<Answerer::Answer> answer;
    if (question.fits) {
      answer = answerer.Do(peer_, asked, question.data());
      if (!answer) return false;
    } else {
      answer = Answerer::Answer{.refused = kNoSuchWindow};
    }
    last_reply_ = {};
    last_reply_.header.set = asked.set;
    last_reply_.header.epoch = asked.epoch;
    last_reply_.header.round = done_round_ = asked.round;
    last_reply_.header.refused = answer->refused;
    last_reply_.header.tensor_round = answer->tensor_round;
    last_reply_.header.share = answer->share;
    last_reply_.header.total_bytes = answer->values ? answer->values->bytes() : 0;
    last_reply_.values = std::move(answer->values);
  }
  outbox_.push_back(last_reply_);
  return true;
}

}  // namespace horon
