// PeerHeader: what every message between two peers of a window begins with, and the check that it
// is one. A message's values travel in pieces of at most kPieceBytes, each behind such a header, so
// that a receiver's buffer has one size whatever a sender claims. A message without a header says
// that its sender takes no part any more (Transport::Leave). Used by link.h.
#pragma once

#include <cstdint>

#include "runtime/base/status.h"

namespace horon {

enum class PeerKind : uint32_t {
  kPut = 1,      // values replace what the edge holds
  kAdd = 2,      // values are added to it
  kGet = 3,      // asks for the window's published values
  kLock = 4,     // asks for the window's mutex; kGrant follows
  kUnlock = 5,   // gives it back, or asks no longer
  kGrant = 6,    // the mutex is yours
  kPropose = 7,  // a pair's average: my values, for yours
  kRound = 8,    // my values in one round of the tensor's
  kOffer = 9,    // may I add my values? once for each time that the receiver has asked for some
  kReply = 10,   // answers any of these
};

struct PeerHeader {
  static constexpr uint32_t kMagic = 0x50524e48;
  uint32_t magic = kMagic;
  PeerKind kind = PeerKind::kReply;
  uint64_t set = 0;          // which window: a hash of its name, element type and shape
  uint64_t epoch = 0;        // which making of it
  uint64_t round = 0;        // the question's number on this link; a reply has its question's
  double weight = 1;         // that the receiver gives the values
  double share = 0;          // push-sum weight that goes with the values, not weighted yet
  int64_t total_bytes = 0;   // of all the message's values
  int64_t offset = 0;        // of this piece in them
  int64_t piece_bytes = 0;   // behind this header
  int64_t tensor_round = 0;  // kRound: which one; a reply that it is late: the one that is next
  uint32_t refused = 0;      // of a reply: one of those below
  uint32_t carry = 0;        // whether `share` counts
};

inline constexpr uint32_t kNoSuchWindow = 1;  // or not with such values
inline constexpr uint32_t kTooLate = 2;       // the round was gone on without it
inline constexpr uint32_t kNotAsked = 3;      // of an offer

inline constexpr int64_t kPieceBytes = 256 << 10;
inline constexpr int64_t kMostTensorRounds = int64_t{1} << 60;

// kInternal unless the `received` bytes can be such a header and its piece.
Status CheckPiece(const PeerHeader& header, int64_t received);

}  // namespace horon
