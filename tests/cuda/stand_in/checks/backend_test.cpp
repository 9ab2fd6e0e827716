#include <gtest/gtest.h>
#include <unistd.h>

#include "cifar_mpi/base/error.hpp"
#include "cuda/lane.hpp"
#include "cuda/runner.hpp"
#include "cuda/stand_in/gpu.hpp"

/// What of the backend needs work of the GPU that takes as long as a test likes.
namespace cifar_mpi::cuda {
namespace {

TEST(DeviceRunner, LooksAtTheWatchesWhileItWaits) {
  Device device{engine::BackendOptions{}};
  int looks = 0;
  device.link().watches.push_back([&] {
    if (++looks == 2) throw Error(ErrorKind::comm, "a rank is gone");
  });
  engine::StepProgram program("slow");
  program.run(engine::kCompute,
              {"task",
               {},
               {},
               [](engine::Lane& lane) { stand_in::start(stream_of(lane), "slow", [] { usleep(500'000); }); },
               {}});
  program.seal();
  const auto runner = make_runner(device, std::move(program), engine::RunnerKind::lanes, {});
  runner->replay();
  EXPECT_THROW(runner->finish(), Error);
  EXPECT_EQ(looks, 2);
  device.link().watches.clear();
  runner->finish();
}

}  // namespace
}  // namespace cifar_mpi::cuda
