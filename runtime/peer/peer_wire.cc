#include "runtime/peer/peer_wire.h"

#include <cmath>
#include <string>

namespace horon {

Status CheckPiece(const PeerHeader& header, int64_t received) {
  constexpr auto kHead = static_cast<int64_t>(sizeof(PeerHeader));
  const bool whole = received >= kHead && header.magic == PeerHeader::kMagic;
  const bool known = whole && header.kind >= PeerKind::kPut && header.kind <= PeerKind::kReply;
  const bool fits = known && header.piece_bytes == received - kHead && header.offset >= 0 &&
                    header.total_bytes >= 0 &&
                    header.offset <= header.total_bytes - header.piece_bytes;
  const bool round = header.tensor_round >= 0 && header.tensor_round < kMostTensorRounds;
  const bool piece = fits && round && (header.piece_bytes > 0 || header.total_bytes == 0);
  if (piece && std::isfinite(header.weight) && std::isfinite(header.share)) return Status::Ok();
  return Status::Internal("a message of " + std::to_string(received) +
                          " bytes is none that a window sends");
}

}  // namespace horon
