#include "engine/audit.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "cifar_mpi/engine/runner.hpp"
#include "fake_tasks.hpp"

namespace cifar_mpi::engine {
namespace {

/// Runs one task under audit over two regions of 64 floats each; `x[i]` = i and `y[i]` = 100 + i before.
struct AuditedTask {
  std::array<float, 64> x{};
  std::array<float, 64> y{};

  AuditedTask() {
    std::iota(x.begin(), x.end(), 0.0f);
    std::iota(y.begin(), y.end(), 100.0f);
  }
  Bytes part_of_x(std::size_t begin, std::size_t end) const {
    return bytes_of(x.data() + begin, end - begin);
  }
  Bytes part_of_y(std::size_t begin, std::size_t end) const {
    return bytes_of(y.data() + begin, end - begin);
  }

  std::unique_ptr<Runner> runner(Task task) const {
    StepProgram program("audited");
    program.run(kCompute, std::move(task));
    program.finalize();
    return runner(std::move(program));
  }
  std::unique_ptr<Runner> runner(StepProgram program) const {
    return make_host_runner(std::move(program), RunnerKind::audit, WhileWaiting::spin,
                            {bytes_of(x.data(), x.size()), bytes_of(y.data(), y.size())});
  }
};

TEST(AuditRunner, LetsAnHonestTaskPassAndPutsEverythingBack) {
  AuditedTask t;
  const auto runner = t.runner(inline_task("honest", {t.part_of_x(2, 4), t.part_of_y(60, 64)},
                                           {t.part_of_y(0, 1)}, [&] { t.y[0] = t.x[2] + t.x[3] + t.y[63]; }));
  for (int i = 0; i < 2; ++i) {
    ASSERT_NO_THROW(runner->replay());
    EXPECT_EQ(t.y[0], 2.0f + 3.0f + 163.0f);
  }
  for (std::size_t i = 0; i < 64; ++i) {
    EXPECT_EQ(t.x[i], static_cast<float>(i));
    EXPECT_EQ(t.y[i], i == 0 ? 168.0f : 100.0f + static_cast<float>(i));
  }
}

TEST(AuditRunner, TurnsAnUndeclaredReadIntoNaN) {
  AuditedTask t;
  t.runner(inline_task("liar", {t.part_of_x(2, 3)}, {t.part_of_y(0, 1)}, [&] {
     t.y[0] = t.x[2] + t.x[3];
   }))->replay();
  EXPECT_TRUE(std::isnan(t.y[0]));
  EXPECT_EQ(t.x[3], 3.0f) << "put back";
}

TEST(AuditRunner, NamesTaskRegionAndOffsetOfAnUndeclaredWrite) {
  // Before, between and after the declared ranges, and the last float of the last region.
  for (const std::size_t place : {0u, 11u, 30u, 63u}) {
    AuditedTask t;
    const auto runner =
        t.runner(inline_task("liar", {t.part_of_x(0, 64)}, {t.part_of_y(10, 11), t.part_of_y(12, 20)},
                             [&] { t.y[place] = 1.0f; }));
    const std::string text = thrown_text<std::logic_error>([&] { runner->replay(); });
    EXPECT_TRUE(contains(text, "'liar'") && contains(text, " of region 1 ") &&
                contains(text, "does not declare"))
        << text;
    EXPECT_TRUE(contains(text, " byte " + std::to_string(4 * place) + " ")) << text;
  }
}

TEST(AuditRunner, SeesASingleByteAtEitherEndOfWhatItHides) {
  // Hidden are bytes 0 to 8, byte 10 alone, and bytes 12 to 255 of region 1.
  for (const std::size_t place : {0u, 8u, 10u, 12u, 255u}) {
    AuditedTask t;
    auto* const bytes = reinterpret_cast<unsigned char*>(t.y.data());
    const auto runner = t.runner(inline_task("liar", {}, {bytes_of(bytes + 9, 1), bytes_of(bytes + 11, 1)},
                                             [=] { bytes[place] = 1; }));
    const std::string text = thrown_text<std::logic_error>([&] { runner->replay(); });
    EXPECT_TRUE(contains(text, "byte " + std::to_string(place) + " of region 1")) << place << ": " << text;
  }
}

TEST(AuditRunner, CatchesAWriteToWhatATaskOnlyReads) {
  AuditedTask t;
  const auto runner =
      t.runner(inline_task("liar", {t.part_of_x(0, 64)}, {t.part_of_x(0, 32)}, [&] { t.x[32] = -1.0f; }));
  const std::string text = thrown_text<std::logic_error>([&] { runner->replay(); });
  // Float 32 stands at byte 128; 32.0f and -1.0f, 0x42000000 and 0xBF800000, first differ in their third
  // byte.
  EXPECT_TRUE(contains(text, "'liar'") && contains(text, "byte 130 of region 0") &&
              contains(text, "as only read"))
      << text;
}

TEST(AuditRunner, WatchesUntilALateTaskIsDone) {
  AuditedTask t;
  const auto runner = t.runner(late_task(
      "late liar", {}, {}, [&] { t.x[5] = 1.0f; }, [] { return 3; }));
  EXPECT_TRUE(contains(thrown_text<std::logic_error>([&] { runner->replay(); }), "byte 20 of region 0"));
}

TEST(AuditRunner, HidesFromATaskWhatTheOneBeforeItDeclared) {
  AuditedTask t;
  StepProgram program("audited");
  program.run(kCompute,
              inline_task("writes", {t.part_of_x(2, 3)}, {t.part_of_y(0, 1)}, [&] { t.y[0] = t.x[2]; }));
  program.run(kCompute, inline_task("liar", {}, {t.part_of_y(1, 2), t.part_of_y(4, 5)}, [&] {
                t.y[1] = t.y[0];
                t.y[4] = t.x[2];
              }));
  program.run(kCompute, inline_task("honest", {t.part_of_x(2, 3), t.part_of_y(0, 1)}, {t.part_of_y(2, 4)},
                                    [&] { t.y[2] = t.y[0] + t.x[2]; }));
  program.finalize();
  t.runner(std::move(program))->replay();
  EXPECT_TRUE(std::isnan(t.y[1]) && std::isnan(t.y[4]));
  EXPECT_EQ(t.y[0], 2.0f);
  EXPECT_EQ(t.y[2], 4.0f);
  EXPECT_EQ(t.y[3], 103.0f) << "declared and not written";
}

/// Regions with consecutive addresses may be two allocations, and CUDA copies no range of more than one.
TEST(Audit, CopiesNoRangeOfTwoRegions) {
  std::array<float, 16> memory{};
  const std::array regions = {bytes_of(memory.data(), 8), bytes_of(memory.data() + 8, 8)};
  StepProgram program("audited");
  program.run(kCompute, inline_task("task", {}, {bytes_of(memory.data() + 15, 1)}, [] {}));
  program.finalize();
  int copies = 0;
  Audit audit(program, {regions.begin(), regions.end()},
              [&](std::byte* dst, const std::byte* src, std::size_t bytes) {
                for (const std::byte* const begin : {static_cast<const std::byte*>(dst), src}) {
                  const bool crosses = begin < regions[1].begin && begin + bytes > regions[1].begin;
                  EXPECT_FALSE(crosses && begin >= regions[0].begin);
                }
                std::memcpy(dst, src, bytes);
                ++copies;
              });
  audit.begin();
  audit.before(0);
  audit.after(0);
  audit.end();
  EXPECT_GT(copies, 4);
}

TEST(AuditRunner, TakesOverlappingRegionsAndDeclarationsBeyondThem) {
  std::array<float, 32> x{};
  x.fill(1.0f);
  StepProgram program("audited");
  program.run(kCompute, inline_task("edge", {bytes_of(x.data(), 8)}, {bytes_of(x.data() + 4, 20)},
                                    [&] { x[20] = x[0] + x[24]; }));
  program.finalize();
  const auto runner = make_host_runner(std::move(program), RunnerKind::audit, WhileWaiting::spin,
                                       {bytes_of(x.data() + 4, 8), bytes_of(x.data() + 6, 12), Bytes{}});
  ASSERT_NO_THROW(runner->replay());
  EXPECT_EQ(x[20], 2.0f) << "outside the regions nothing is hidden";
}

}  // namespace
}  // namespace cifar_mpi::engine
