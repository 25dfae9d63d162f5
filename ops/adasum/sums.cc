// The inner products of tensors whose pieces several ranks hold.
#include "ops/adasum/share.h"

namespace horon::adasum {

// Adds what `holders`, one after the other, have; both sides of each exchange get the same bits.
Task Share::SumDots(const Column& column, RecycledVector<int> holders) {
  const auto bytes = static_cast<int64_t>(dots_.size() * sizeof(WideDots));
  RecycledVector<WideDots> theirs(dots_.size()), mine;
  for (const int holder : holders) {
    mine = dots_;
    Transfer in, out;
    HORON_CO_TRY(
        comm().Receive(in, holder, Span{reinterpret_cast<std::byte*>(theirs.data()), bytes}));
    HORON_CO_TRY(comm().Send(out, holder, Span{reinterpret_cast<std::byte*>(mine.data()), bytes}));
    HORON_CO_TRY(co_await Finished(in));
    HORON_CO_TRY(co_await Finished(out));
    for (size_t i = 0; i < dots_.size(); ++i) dots_[i].Add(theirs[i]);
  }
  if (column.row == nullptr || column.row->size() == 1) co_return Status::Ok();
  co_return co_await SumDotsOverRow(*column.row);
}

// In the lowest powers that any of the row has; they are 0 but for fp64.
Task Share::SumDotsOverRow(Communicator& row) {
  const auto tensors = static_cast<int64_t>(dots_.size());
  RecycledVector<int32_t> powers(2 * dots_.size(), 0);
  if (dtype_ == DataType::kFloat64) {
    for (size_t i = 0; i < dots_.size(); ++i) {
      powers[2 * i] = dots_[i].power_a;
      powers[2 * i + 1] = dots_[i].power_b;
    }
    HORON_CO_TRY(co_await Allreduce(row, reinterpret_cast<std::byte*>(powers.data()), 2 * tensors,
                                    {DataType::kInt32, ReduceKind::kMin}));
  }
  for (size_t i = 0; i < dots_.size(); ++i) dots_[i].Rescale(powers[2 * i], powers[2 * i + 1]);
  RecycledVector<Dots> sums;
  for (const WideDots& dots : dots_) sums.push_back(dots.of);
  HORON_CO_TRY(co_await Allreduce(row, reinterpret_cast<std::byte*>(sums.data()), 3 * tensors,
                                  {DataType::kFloat64, ReduceKind::kSum}));
  for (size_t i = 0; i < dots_.size(); ++i) dots_[i].of = sums[i];
  co_return Status::Ok();
}

}  // namespace horon::adasum
