#include "runtime/transport/segment.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>

#include "runtime/base/check.h"
#include "runtime/base/cores.h"
#include "runtime/base/shared_memory.h"
#include "runtime/base/system_error.h"
#include "runtime/base/utf8.h"
#include "runtime/transport/whereabouts.h"

namespace horon {
namespace {

// First in the segment; a zeroed page is a valid start of everything that follows.
struct Header {
  int64_t bytes;
  int64_t ring_bytes;
  int64_t chunk_bytes;
  int32_t ranks, lanes, slots;
  int32_t cores;  // that whoever made the segment may use
  alignas(kCacheLine) std::atomic<uint32_t> deaths;
  std::atomic<uint32_t> death_lock;  // one writer of `death` at a time
  std::atomic<uint32_t> first_dead;  // 1 + local rank; later deaths may be its consequences
};

constexpr int64_t kPage = 4096;
int64_t RoundUp(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

int64_t RanksAt() { return RoundUp(sizeof(Header), kPage); }
int64_t NoticesAt(const SegmentShape& s) {
  return RoundUp(RanksAt() + static_cast<int64_t>(sizeof(RankWords)) * s.ranks, kPage);
}
int64_t RingsAt(const SegmentShape& s) {
  return RoundUp(NoticesAt(s) + static_cast<int64_t>(sizeof(NoticeWords)) * s.ranks, kPage);
}
int64_t RingStride(const SegmentShape& s) { return kPage + s.ring_bytes; }
int64_t CargoAt(const SegmentShape& s) { return RingsAt(s) + RingStride(s) * s.ranks * s.ranks; }
int64_t LanesAt(const SegmentShape& s) {
  return CargoAt(s) + (int64_t{s.ranks} + 1) * int64_t{kGatePlaces} * kGatePlaceBytes;
}
int64_t SlotsAt(const SegmentShape& s) {
  return RoundUp(LanesAt(s) + static_cast<int64_t>(sizeof(LaneWords)) * s.lanes * s.ranks, kPage);
}
int64_t RowsAt(const SegmentShape& s) {
  return SlotsAt(s) + int64_t{s.lanes} * s.ranks * s.slots * s.chunk_bytes;
}

}  // namespace

SegmentShape SegmentShape::For(int ranks, int64_t ring_bytes, int64_t chunk_bytes) {
  SegmentShape shape;
  shape.ranks = ranks;
  // 64 MiB of rings a node in all, within sensible bounds for one pair.
  const int64_t share = (int64_t{64} << 20) / std::max<int64_t>(1, int64_t{ranks} * ranks);
  const int64_t wanted = ring_bytes > 0 ? ring_bytes : std::min<int64_t>(share, 1 << 20);
  shape.ring_bytes = static_cast<int64_t>(
      std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(wanted, 64 << 10))));
  shape.chunk_bytes = RoundUp(chunk_bytes, kPage);
  // At most 64 MiB of a lane, of which only what is used is ever touched.
  shape.row_bytes = RoundUp(std::min<int64_t>(8 << 20, (64 << 20) / ranks), kPage);
  return shape;
}

int64_t SegmentShape::bytes() const {
  return RowsAt(*this) + int64_t{lanes} * ranks * row_bytes;
}

Result<std::shared_ptr<SharedSegment>> SharedSegment::MapAt(const SegmentShape& shape, int fd,
                                                            int flags) {
  void* base =
      mmap(nullptr, static_cast<size_t>(shape.bytes()), PROT_READ | PROT_WRITE, flags, fd, 0);
  if (base == MAP_FAILED) {
    const int error = errno;
    if (fd >= 0) close(fd);
    return Status::Unavailable("cannot map " + std::to_string(shape.bytes()) +
                               " bytes of shared memory: " + SystemError(error));
  }
  madvise(base, static_cast<size_t>(shape.bytes()), MADV_DONTFORK);  // a forked child is no rank
  return std::shared_ptr<SharedSegment>(
      new SharedSegment(shape, fd, static_cast<std::byte*>(base)));
}

Result<std::shared_ptr<SharedSegment>> SharedSegment::InProcess(const SegmentShape& shape) {
  HORON_ASSIGN(std::shared_ptr<SharedSegment> segment,
               MapAt(shape, -1, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE));
  reinterpret_cast<Header*>(segment->base_)->cores = Cores();
  return segment;
}

Result<std::shared_ptr<SharedSegment>> SharedSegment::Create(const SegmentShape& shape) {
  const int fd = memfd_create("horon", MFD_CLOEXEC);
  if (fd < 0) return Status::Unavailable("cannot make shared memory: " + SystemError(errno));
  if (ftruncate(fd, shape.bytes()) != 0) {
    const int error = errno;
    close(fd);
    return Status::Unavailable("cannot size a memfd to " + std::to_string(shape.bytes()) +
                               " bytes: " + SystemError(error));
  }
  HORON_ASSIGN(std::shared_ptr<SharedSegment> segment,
               MapAt(shape, fd, MAP_SHARED | MAP_NORESERVE));
  auto* header = reinterpret_cast<Header*>(segment->base_);
  header->bytes = shape.bytes();
  header->ring_bytes = shape.ring_bytes;
  header->chunk_bytes = shape.chunk_bytes;
  header->ranks = shape.ranks;
  header->lanes = shape.lanes;
  header->slots = shape.slots;
  header->cores = Cores();
  return segment;
}

Result<std::shared_ptr<SharedSegment>> SharedSegment::Map(int fd, const SegmentShape& shape) {
  struct stat file{};
  if (fstat(fd, &file) != 0 || file.st_size != shape.bytes()) {
    close(fd);
    return Status::InvalidArgument(
        "the node's shared segment has " + std::to_string(file.st_size) +
        " bytes, this rank expects " + std::to_string(shape.bytes()) +
        ": set HORON_SHM_CHUNK_BYTES and HORON_SHM_RING_BYTES alike on all ranks");
  }
  HORON_ASSIGN(std::shared_ptr<SharedSegment> segment,
               MapAt(shape, fd, MAP_SHARED | MAP_NORESERVE));
  const auto* header = reinterpret_cast<const Header*>(segment->base_);
  if (header->ranks != shape.ranks || header->chunk_bytes != shape.chunk_bytes ||
      header->ring_bytes != shape.ring_bytes) {
    return Status::InvalidArgument(
        "the node's shared segment was made for other HORON_SHM_* settings than this rank's");
  }
  return segment;
}

SharedSegment::~SharedSegment() {
  munmap(base_, static_cast<size_t>(shape_.bytes()));
  CloseOwn(fd_);
}

int64_t SharedSegment::share_bytes() const { return TouchedBytes(fd_) / shape_.ranks; }

uint32_t SharedSegment::Ring(int to, int me, uint32_t whom) {
  Doorbell& bell = rank(to).bell;
  if ((bell.sleeper() & whom) != 0) {  // who is woken may run here at once
    const Whereabouts here = Whereabouts::Here(true, std::chrono::steady_clock::now());
    rank(me).place.store(here.Packed(), std::memory_order_relaxed);
  }
  return bell.Ring(whom);
}

bool SharedSegment::spare_core() const {
  return shape_.ranks < reinterpret_cast<const Header*>(base_)->cores;
}

RankWords& SharedSegment::rank(int r) {
  HORON_CHECK(r >= 0 && r < shape_.ranks, "no such rank in this segment");
  return reinterpret_cast<RankWords*>(base_ + RanksAt())[r];
}

NoticeWords& SharedSegment::notice(int r) {
  HORON_CHECK(r >= 0 && r < shape_.ranks, "no such rank in this segment");
  return reinterpret_cast<NoticeWords*>(base_ + NoticesAt(shape_))[r];
}

std::atomic<uint32_t>& SharedSegment::deaths() { return reinterpret_cast<Header*>(base_)->deaths; }

void SharedSegment::MarkDead(int r, const std::string& sentence) {
  auto* header = reinterpret_cast<Header*>(base_);
  RankWords& words = rank(r);
  // A writer that dies holding the lock must not stop the others: after some tries they go on
  // without.
  for (int i = 0; i < 1000 && header->death_lock.exchange(1, std::memory_order_acquire) != 0; ++i) {
  }
  const auto state = static_cast<RankState>(words.state.load(std::memory_order_acquire));
  if (state != RankState::kDead && state != RankState::kLeft) {
    const std::string said = ShortenedSentence(sentence, sizeof(words.death) - 1);
    std::memcpy(words.death, said.data(), said.size());  // zeros follow
    words.state.store(static_cast<uint32_t>(RankState::kDead), std::memory_order_release);
    uint32_t nobody = 0;
    header->first_dead.compare_exchange_strong(nobody, static_cast<uint32_t>(r) + 1,
                                               std::memory_order_release);
    header->deaths.fetch_add(1, std::memory_order_release);
  }
  header->death_lock.store(0, std::memory_order_release);
  for (int i = 0; i < shape_.ranks; ++i) rank(i).bell.Ring();
}

int SharedSegment::FirstDead() const {
  const auto* header = reinterpret_cast<const Header*>(base_);
  return static_cast<int>(header->first_dead.load(std::memory_order_acquire)) - 1;
}

Status SharedSegment::Deaths(int me) {
  const int dead = FirstDead();
  if (dead < 0) return Status::Ok();
  return Status::Unavailable((dead == me ? "the other ranks have given this one up: " : "") +
                             std::string(rank(dead).death));
}

std::string SharedSegment::FirstKnown(int me, const std::string& sentence) {
  const int dead = FirstDead();
  return dead >= 0 && dead != me ? std::string(rank(dead).death) : sentence;
}

void SharedSegment::MarkLeft(int r) {
  auto joined = static_cast<uint32_t>(RankState::kJoined),
       absent = static_cast<uint32_t>(RankState::kAbsent);
  const auto left = static_cast<uint32_t>(RankState::kLeft);
  if (!rank(r).state.compare_exchange_strong(joined, left, std::memory_order_release)) {
    rank(r).state.compare_exchange_strong(absent, left,
                                          std::memory_order_release);  // thread ranks never join
  }
}

RingWords& SharedSegment::ring(int from, int to) {
  return *reinterpret_cast<RingWords*>(base_ + RingsAt(shape_) +
                                       RingStride(shape_) * (from * shape_.ranks + to));
}
std::byte* SharedSegment::ring_bytes(int from, int to) {
  return base_ + RingsAt(shape_) + RingStride(shape_) * (from * shape_.ranks + to) + kPage;
}
std::byte* SharedSegment::cargo(int r, uint64_t place) {
  const uint64_t at = static_cast<uint64_t>(r) * kGatePlaces + place % kGatePlaces;
  return base_ + CargoAt(shape_) + static_cast<int64_t>(at) * kGatePlaceBytes;
}
LaneWords& SharedSegment::lane(int lane, int r) {
  return reinterpret_cast<LaneWords*>(base_ + LanesAt(shape_))[lane * shape_.ranks + r];
}
std::byte* SharedSegment::slot(int lane, int r, int slot) {
  return base_ + SlotsAt(shape_) +
         ((int64_t{lane} * shape_.ranks + r) * shape_.slots + slot) * shape_.chunk_bytes;
}
std::byte* SharedSegment::row(int lane, int r) {
  return base_ + RowsAt(shape_) + (int64_t{lane} * shape_.ranks + r) * shape_.row_bytes;
}

}  // namespace horon
