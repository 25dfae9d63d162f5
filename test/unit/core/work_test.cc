// A work that gathers: its members come one by one, and it is done when it is closed and all are.
#include "runtime/core/work.h"

#include "test/support/road.h"

namespace horon {
namespace {

class Gathering {
 public:
  // As a submit does it.
  Promise Add(const std::string& name) {
    SharedRegistration what = registry_.Of(test::Tensor(name, "sum", {4})).value();
    work->Expect(what);
    REQUIRE(what->Claim());
    return Promise(work, 0, std::move(what));
  }
  std::string first() const { return work->first()->request.name; }

  const std::shared_ptr<Work> work = std::make_shared<Work>(Work::Gathers());

 private:
  OpTable ops_;
  Registry registry_{ops_};
};

TEST_CASE("gathering work: done when it is closed and all members are") {
  for (bool closed_last : {true, false}) {
    Gathering gathering;
    Promise one = gathering.Add("one");
    one.Finish(Status::Ok());
    CHECK_FALSE(gathering.work->done());
    Promise two = gathering.Add("two");
    if (!closed_last) gathering.work->Close();
    CHECK_FALSE(gathering.work->done());
    two.Finish(Status::Ok());
    CHECK(gathering.work->done() == !closed_last);
    if (closed_last) gathering.work->Close();
    CHECK(gathering.work->done());
    CHECK(gathering.work->status().ok());
    CHECK(gathering.work->outputs().empty());
  }
}

TEST_CASE("gathering work: stands for the first member that is pending") {
  Gathering gathering;
  CHECK(gathering.work->first() == nullptr);
  Promise one = gathering.Add("one"), two = gathering.Add("two"), three = gathering.Add("three");
  CHECK(gathering.first() == "one");
  two.Finish(Status::Ok());
  CHECK(gathering.first() == "one");
  one.Finish(Status::Ok());
  CHECK(gathering.first() == "three");
  three.Finish(Status::Ok());
  CHECK(gathering.first() == "one");
}

TEST_CASE("gathering work: stands for the first member that failed once it is done") {
  Gathering gathering;
  Promise one = gathering.Add("one"), two = gathering.Add("two"), three = gathering.Add("three");
  gathering.work->Close();
  one.Finish(Status::Ok());
  three.Finish(Status::Aborted("lost"));
  CHECK(gathering.first() == "two");
  two.Finish(Status::Aborted("lost"));
  REQUIRE(gathering.work->done());
  CHECK(gathering.first() == "two");
}

TEST_CASE("gathering work: is closed once, and another one not at all") {
  Gathering gathering;
  Promise one = gathering.Add("one"), two = gathering.Add("two");
  CHECK(gathering.work->open());
  for (int again = 0; again < 3; ++again) gathering.work->Close();
  CHECK_FALSE(gathering.work->open());
  CHECK_FALSE(gathering.work->done());
  one.Finish(Status::Ok());
  CHECK_FALSE(gathering.work->done());
  two.Finish(Status::Ok());
  CHECK(gathering.work->done());
  Work plain(1);
  plain.Close();
  CHECK_FALSE(plain.open());
  CHECK_FALSE(plain.done());
}

TEST_CASE("gathering work: has the first failure, and goes on when a tensor is refused") {
  Gathering gathering;
  SharedRegistration refused;
  gathering.work->Expect(refused);
  gathering.work->Unexpect();
  CHECK(gathering.work->first() == nullptr);
  Promise one = gathering.Add("one"), two = gathering.Add("two");
  gathering.work->Expect(refused);
  gathering.work->Unexpect();
  gathering.work->Close();
  two.Finish(Status::InvalidArgument("two"));
  CHECK_FALSE(gathering.work->done());
  one.Finish(Status::InvalidArgument("one"));
  CHECK(gathering.work->done());
  CHECK(gathering.work->status().message() == "two");
}

}  // namespace
}  // namespace horon
