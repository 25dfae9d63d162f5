// horon_window_*: windows for C, over c_window.h.
#include <algorithm>
#include <cmath>
#include <memory>

#include "runtime/c_current.h"
#include "runtime/c_error.h"
#include "runtime/c_request.h"
#include "runtime/c_rounds.h"
#include "runtime/c_window.h"
#include "runtime/c_work.h"
#include "runtime/include/horon/horon.h"

struct horon_window {
  std::shared_ptr<horon::Window> window;
  horon::Device device;  // of its tensor
};

namespace horon {
namespace {

static_assert(HORON_WINDOW_PUT == static_cast<int>(OrderKind::kPut));
static_assert(HORON_WINDOW_ROUND == static_cast<int>(OrderKind::kRound));

Result<WindowShape> ReadShape(const horon_window_spec& spec) {
  if (spec.struct_bytes != sizeof(spec) || spec.name == nullptr || spec.ndim < 0 ||
      spec.dtype < 0 || spec.dtype >= kDataTypes)
    return Status::InvalidArgument("a window needs struct_bytes, a name, a shape and a dtype");
  WindowShape shape;
  shape.name = spec.name;
  shape.dtype = static_cast<DataType>(spec.dtype);
  shape.shape.assign(spec.shape, spec.shape + spec.ndim);
  shape.in.assign(spec.in, spec.in + std::max(0, spec.in_count));
  shape.out.assign(spec.out, spec.out + std::max(0, spec.out_count));
  shape.gets = spec.no_gets == 0;
  for (const int64_t extent : shape.shape) {
    if (extent < 0) return Status::InvalidArgument("a window's shape has a negative extent");
  }
  if (spec.values == nullptr && CountOf(shape.shape) > 0)
    return Status::InvalidArgument("the window '" + shape.name + "' has no values");
  return shape;
}

Status ReadRounds(const Runtime& runtime, const horon_window_spec& spec, WindowShape* shape) {
  if (spec.graph == nullptr) return Status::Ok();
  if (spec.in_count != 0 || spec.out_count != 0)
    return Status::InvalidArgument("the window '" + shape->name +
                                   "' has its neighbors from its graph: name none beside it");
  return SetRounds(spec.graph, runtime.topology().size(), runtime.rank(), spec.first_round,
                   spec.push_sum != 0, shape);
}

Result<Order> ReadOrder(Runtime& runtime, const horon_window& window,
                        const horon_window_order& given) {
  if (given.struct_bytes != sizeof(given) || given.act < HORON_WINDOW_PUT ||
      given.act > HORON_WINDOW_ROUND)
    return Status::InvalidArgument("an order to a window needs struct_bytes and a known act");
  Order order;
  order.kind = static_cast<OrderKind>(given.act);
  order.window = window.window;
  for (int i = 0; i < given.count; ++i)
    order.ranks.emplace_back(given.ranks[i], given.weights == nullptr ? 1 : given.weights[i]);
  order.self_weight = given.self_weight;
  order.carry = given.push_sum != 0;
  order.reset = given.reset != 0;
  order.with_mutex = given.with_mutex != 0;
  order.if_asked = given.if_asked != 0 && order.kind == OrderKind::kAdd;
  order.input = static_cast<const std::byte*>(given.input);
  order.output = static_cast<std::byte*>(given.output);
  HORON_ASSIGN(order.ready, ReadyOn(runtime, window.device, given.stream, "the window",
                                    window.window->shape().name));
  return order;
}

}  // namespace
}  // namespace horon

using namespace horon;  // NOLINT: the functions below are C's

extern "C" {

int horon_window_create(const horon_window_spec* spec, horon_window** window) {
  return Command([&](Runtime& runtime) -> Status {
    Result<WindowShape> read = ReadShape(*spec);
    const Status rounds = read.ok() ? ReadRounds(runtime, *spec, &read.value()) : read.status();
    const bool named = spec->struct_bytes == sizeof(*spec) && spec->name != nullptr;
    if (!rounds.ok() && named) return RefuseWindow(runtime, spec->name, rounds);
    HORON_TRY(rounds);
    WindowShape shape = std::move(read).value();
    WindowTensor tensor{static_cast<std::byte*>(spec->values), DeviceOf(spec->device)};
    tensor.ready = ReadyOn(runtime, tensor.device, spec->stream, "the window", shape.name);
    HORON_ASSIGN(auto made, MakeWindow(runtime, std::move(shape), tensor, spec->zero != 0));
    *window = new horon_window{std::move(made), tensor.device};
    return Status::Ok();
  });
}

int horon_window_refuse(const char* name, const char* why) {
  return Command([&](Runtime& runtime) -> Status {
    if (name == nullptr || why == nullptr)
      return Status::InvalidArgument("a window that is refused needs its name and the reason");
    return RefuseWindow(runtime, name, Status::InvalidArgument(why));
  });
}

int horon_window_free(horon_window* window) {
  return Command([&](Runtime& runtime) { return FreeWindow(runtime, window->window); });
}

void horon_window_release(horon_window* window) {
  if (!Forked()) delete window;  // a forked child has not its memory
}

int horon_window_start(horon_window* window, const horon_window_order* order, int will_wait,
                       horon_work** work) {
  return Command([&](Runtime& runtime) -> Status {
    HORON_ASSIGN(Order made, ReadOrder(runtime, *window, *order));
    HORON_ASSIGN(auto started, StartOrder(runtime, std::move(made), will_wait == 0));
    *work = Handle(started);
    return Status::Ok();
  });
}

int64_t horon_window_deliveries(const horon_window* window, int from) {
  if (window->window->slot_of(from) < 0) return -1;
  return static_cast<int64_t>(
      window->window->slot(from).head().deliveries.load(std::memory_order_relaxed));
}

void horon_window_ask(const horon_window* window, int wanted) { window->window->Ask(wanted != 0); }

double horon_window_share(const horon_window* window) { return window->window->share.load(); }

int horon_window_set_share(horon_window* window, double share) {
  return Guard([&]() -> Status {
    if (!std::isfinite(share)) return Status::InvalidArgument("a push-sum weight is a number");
    if (window->window->pending.load() > 0)
      return Status::InvalidArgument("the window '" + window->window->shape().name +
                                     "' has orders under way, which change its weight");
    window->window->share = share;
    return Status::Ok();
  });
}

int64_t horon_window_round(const horon_window* window) { return window->window->round.load(); }

}  // extern "C"
