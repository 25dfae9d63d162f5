// Packets: what goes through the sockets between a rank and its launcher, and between the ranks of
// a node while they meet. One short text (UTF-8) a packet (SOCK_SEQPACKET), at times a descriptor.
//
//   rank -> launcher   segment <generation> <bytes> (+ memfd); under MPI in its place: joined;
//                      recorder <bytes> (+ memfd); raised <sentence>; failed: <sentence>;
//                      lost <rank> <sentence> (that rank, given up by this one);
//                      explain <counter>=<value> ...; bye
//   launcher -> rank   segment ... (+ memfd); dead <rank> <sentence>
//
// Called by horon_init on the user's thread and by the watch thread (watch.h).
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/base/status.h"

namespace horon {

struct Packet {
  std::string text;  // empty: end of file
  int fd = -1;       // that came with it; the receiver owns it
};

// A text of the form "<word> <number>" or "<word> <number> <rest>"; nothing if it has another.
struct Told {
  int number = 0;
  std::string rest;
};
std::optional<Told> ReadTold(std::string_view text, std::string_view word);

// Sends one packet, with a descriptor if fd >= 0 (the sender keeps its own). Blocks only while the
// socket is full.
Status SendPacket(int to, const std::string& text, int fd);
// The next packet, at the latest at `until` (else kUnavailable). Looks (look.h).
Result<Packet> ReceivePacket(int from, std::chrono::steady_clock::time_point until);

// This process's socket to the launcher, for all its inits. Not closed: the launcher takes end of
// file for the end of the process.
struct LauncherSocket {
  int fd = -1;
  Mutex mutex;  // guards kept
  // Segments of a later init that the watch thread of this one received.
  std::vector<Packet> kept HORON_GUARDED_BY(mutex);
};

}  // namespace horon
