#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cifar_mpi/engine/program.hpp"
#include "support/contains.hpp"

/// Tasks for tests: immediate work, and work that completes late like a collective.
namespace cifar_mpi::engine {

using Work = std::function<void()>;

/// Does `work` in `start`.
inline Task inline_task(
    std::string name, std::vector<Bytes> reads, std::vector<Bytes> writes, Work work = [] {}) {
  return {std::move(name), std::move(reads), std::move(writes), [work = std::move(work)](Lane&) { work(); },
          nullptr};
}

/// Does `work` in the last of `polls` polls; `polls` is asked at every start.
inline Task late_task(std::string name, std::vector<Bytes> reads, std::vector<Bytes> writes, Work work,
                      std::function<int()> polls) {
  auto left = std::make_shared<int>(0);
  Task task{std::move(name), std::move(reads), std::move(writes), nullptr, nullptr};
  task.start = [left, polls = std::move(polls)](Lane&) { *left = polls(); };
  task.poll = [left, work = std::move(work)] {
    if (--*left > 0) return false;
    work();
    return true;
  };
  return task;
}

/// The text of the exception of type `E` that `action` throws, or "" when it throws none.
template <class E>
std::string thrown_text(const std::function<void()>& action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

}  // namespace cifar_mpi::engine
