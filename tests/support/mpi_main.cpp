#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <span>
#include <sstream>
#include <string>
#include <thread>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "support/mpi_world.hpp"

/// The main of the tests that need ranks: rank 0 reports as usual, the others report only failures, all
/// return the same exit code, and a test that hangs is named and ended.
namespace cifar_mpi::test {
namespace {

const comm::World* the_world = nullptr;

std::string full_name(const testing::TestInfo& test) {
  return concat(test.test_suite_name(), ".", test.name());
}

void write_to_stderr(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

/// Keeps the failures of one test and writes them in one piece with this rank's number.
class FailureReporter : public testing::EmptyTestEventListener {
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    failures_ << "[rank " << test_world().rank() << "] " << (result.file_name() ? result.file_name() : "?")
              << ":" << result.line_number() << ": " << result.message() << "\n";
  }
  void OnTestEnd(const testing::TestInfo& test) override {
    const std::string failures = failures_.str();
    if (failures.empty()) return;
    write_to_stderr(concat("[rank ", test_world().rank(), "] ", full_name(test), " failed\n", failures));
    failures_.str("");
  }

  std::ostringstream failures_;
};

/// Ends the program, and with it all ranks, if a test takes too long.
class Watchdog {
 public:
  Watchdog() : thread_([this] { watch(); }) {}
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Begins a new interval; an empty name means that nothing is watched.
  void expect_end_of(std::string name) {
    {
      const std::lock_guard lock(mutex_);
      name_ = std::move(name);
      ++interval_;
    }
    changed_.notify_one();
  }

 private:
  static constexpr std::chrono::seconds kLimit{300};

  void watch() {
    std::unique_lock lock(mutex_);
    while (!over_) {
      const int interval = interval_;
      const bool next = changed_.wait_for(lock, kLimit, [&] { return over_ || interval_ != interval; });
      if (next || name_.empty()) continue;
      write_to_stderr(concat("[rank ", test_world().rank(), "] ", name_, " has not ended after ",
                             kLimit.count(), " s; maybe another rank left it early\n"));
      std::_Exit(1);
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::string name_;
  int interval_ = 0;
  bool over_ = false;
  std::thread thread_;
};

/// Watches each test until all ranks complete it.
class WatchedTests : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& test) override { watchdog_.expect_end_of(full_name(test)); }
  void OnTestEnd(const testing::TestInfo&) override {
    test_world().barrier();
    watchdog_.expect_end_of("");
  }

  Watchdog watchdog_;
};

int run_tests(int& argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
  if (test_world().rank() != 0) {
    delete listeners.Release(listeners.default_result_printer());
    delete listeners.Release(listeners.default_xml_generator());
    listeners.Append(new FailureReporter);
  }
  listeners.Append(new WatchedTests);
  double failed = RUN_ALL_TESTS();
  test_world().sum(std::span(&failed, 1));
  return failed > 0 ? 1 : 0;
}

}  // namespace

const comm::World& test_world() { return *the_world; }

}  // namespace cifar_mpi::test

int main(int argc, char** argv) {
  try {
    const cifar_mpi::comm::World world(argc, argv);
    cifar_mpi::test::the_world = &world;
    return cifar_mpi::test::run_tests(argc, argv);
  } catch (const cifar_mpi::Error& error) {
    cifar_mpi::test::write_to_stderr(cifar_mpi::concat(error.what(), "\n"));
    return exit_code(error.kind());
  } catch (const std::exception& error) {
    cifar_mpi::test::write_to_stderr(cifar_mpi::concat(error.what(), "\n"));
    return 1;
  }
}
