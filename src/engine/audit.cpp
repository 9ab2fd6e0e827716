#include "engine/audit.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::engine {
namespace {

constexpr int kPoison = 0xFF;

/// Sorted ranges without overlaps; empty ones are dropped. Ranges that only touch stay apart: they may be of two
/// allocations, and CUDA copies no range of more than one.
std::vector<Bytes> merged(std::vector<Bytes> ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const Bytes& a, const Bytes& b) { return a.begin < b.begin; });
  std::vector<Bytes> result;
  for (const Bytes& range : ranges) {
    if (range.size == 0) continue;
    if (result.empty() || range.begin >= result.back().end()) {
      result.push_back(range);
    } else if (range.end() > result.back().end()) {
      result.back().size = static_cast<std::size_t>(range.end() - result.back().begin);
    }
  }
  return result;
}

/// The parts of `from` outside all of `cuts`; both merged.
std::vector<Bytes> without(const std::vector<Bytes>& from, const std::vector<Bytes>& cuts) {
  std::vector<Bytes> rest;
  for (const Bytes& range : from) {
    const std::byte* begin = range.begin;
    for (const Bytes& cut : cuts) {
      if (!cut.overlaps({begin, static_cast<std::size_t>(range.end() - begin)})) continue;
      if (cut.begin > begin) rest.push_back({begin, static_cast<std::size_t>(cut.begin - begin)});
      begin = std::min(cut.end(), range.end());
    }
    if (begin < range.end()) rest.push_back({begin, static_cast<std::size_t>(range.end() - begin)});
  }
  return rest;
}

std::vector<Bytes> joined(const std::vector<Bytes>& a, const std::vector<Bytes>& b) {
  std::vector<Bytes> all = a;
  all.insert(all.end(), b.begin(), b.end());
  return merged(std::move(all));
}

std::size_t total(const std::vector<Bytes>& ranges) {
  std::size_t sum = 0;
  for (const Bytes& range : ranges) sum += range.size;
  return sum;
}

std::byte* writable(const Bytes& range) { return const_cast<std::byte*>(range.begin); }

std::size_t longest(const std::vector<Bytes>& ranges) {
  std::size_t most = 0;
  for (const Bytes& range : ranges) most = std::max(most, range.size);
  return most;
}

}  // namespace

Audit::Audit(const StepProgram& program, std::vector<Bytes> regions, Copy copy)
    : program_(program.name()), regions_(std::move(regions)), copy_(std::move(copy)) {
  const std::vector<Bytes> watched = merged(regions_);
  std::size_t most = 0;
  for (const Task& task : program.tasks()) {
    const std::vector<Bytes> hidden = without(watched, joined(task.reads, task.writes));
    const std::vector<Bytes> not_written = without(watched, merged(task.writes));
    Watch watch{hidden, without(not_written, hidden)};
    most = std::max(most, total(watch.hidden) + total(watch.read_only));
    names_.push_back(task.name);
    watches_.push_back(std::move(watch));
  }
  shadow_ = allocate_host(most);
  poison_ = allocate_host(longest(watched));
  staging_ = allocate_host(poison_.size());
  // Without regions there is no buffer.
  if (poison_.size() != 0) std::memset(poison_.data(), kPoison, poison_.size());
}

const std::byte* Audit::read(const Bytes& range) {
  copy_(staging_.data(), range.begin, range.size);
  return staging_.data();
}

void Audit::before(TaskId task) {
  const Watch& watch = watches_[static_cast<std::size_t>(task)];
  std::byte* shadow = shadow_.data();
  for (const std::vector<Bytes>* ranges : {&watch.hidden, &watch.read_only}) {
    for (const Bytes& range : *ranges) {
      copy_(shadow, range.begin, range.size);
      shadow += range.size;
    }
  }
  for (const Bytes& range : watch.hidden) copy_(writable(range), poison_.data(), range.size);
}

void Audit::after(TaskId task) {
  const Watch& watch = watches_[static_cast<std::size_t>(task)];
  const std::byte* shadow = shadow_.data();
  const auto compare = [&](const Bytes& range, const std::byte* wanted, const char* declared) {
    const std::byte* const found = read(range);
    if (std::memcmp(found, wanted, range.size) == 0) return;
    report(task, range.begin + (std::mismatch(found, found + range.size, wanted).first - found), declared);
  };
  for (const Bytes& range : watch.hidden) {
    compare(range, poison_.data(), "does not declare");
    copy_(writable(range), shadow, range.size);
    shadow += range.size;
  }
  for (const Bytes& range : watch.read_only) {
    compare(range, shadow, "declares as only read");
    shadow += range.size;
  }
}

void Audit::report(TaskId task, const std::byte* where, const char* declared) const {
  const auto holds = [where](const Bytes& region) { return region.overlaps({where, 1}); };
  const auto region = std::find_if(regions_.begin(), regions_.end(), holds);
  throw std::logic_error(concat("audit of ", program_, ": '", names_[static_cast<std::size_t>(task)],
                                "' wrote byte ", where - region->begin, " of region ",
                                region - regions_.begin(), " (", region->size, " bytes), which it ", declared,
                                "; add it to the task's writes"));
}

}  // namespace cifar_mpi::engine
