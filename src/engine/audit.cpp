#include "engine/audit.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::engine {
namespace {

constexpr int kPoison = 0xFF;

/// Sorted, without overlaps and without empty ranges.
std::vector<Bytes> merged(std::vector<Bytes> ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const Bytes& a, const Bytes& b) { return a.begin < b.begin; });
  std::vector<Bytes> result;
  for (const Bytes& range : ranges) {
    if (range.size == 0) continue;
    if (result.empty() || range.begin > result.back().end()) {
      result.push_back(range);
    } else if (range.end() > result.back().end()) {
      result.back().size = static_cast<std::size_t>(range.end() - result.back().begin);
    }
  }
  return result;
}

/// What of `from` lies outside all of `cuts`; both merged.
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

/// The first byte that is no longer poison, or null. Comparing the range with itself one byte on runs at
/// memcmp's speed.
const std::byte* first_healed(const Bytes& range) {
  constexpr auto kByte = static_cast<std::byte>(kPoison);
  if (range.begin[0] == kByte && std::memcmp(range.begin, range.begin + 1, range.size - 1) == 0)
    return nullptr;
  return std::find_if(range.begin, range.end(), [](std::byte b) { return b != kByte; });
}

}  // namespace

Audit::Audit(const StepProgram& program, std::vector<Bytes> regions)
    : program_(program.name()), regions_(std::move(regions)) {
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
}

void Audit::before(TaskId task) {
  const Watch& watch = watches_[static_cast<std::size_t>(task)];
  std::byte* shadow = shadow_.data();
  for (const std::vector<Bytes>* ranges : {&watch.hidden, &watch.read_only}) {
    for (const Bytes& range : *ranges) {
      std::memcpy(shadow, range.begin, range.size);
      shadow += range.size;
    }
  }
  for (const Bytes& range : watch.hidden) std::memset(writable(range), kPoison, range.size);
}

void Audit::after(TaskId task) {
  const Watch& watch = watches_[static_cast<std::size_t>(task)];
  const std::byte* shadow = shadow_.data();
  for (const Bytes& range : watch.hidden) {
    if (const std::byte* const where = first_healed(range)) report(task, where, "does not declare");
    std::memcpy(writable(range), shadow, range.size);
    shadow += range.size;
  }
  for (const Bytes& range : watch.read_only) {
    if (std::memcmp(range.begin, shadow, range.size) != 0) {
      report(task, std::mismatch(range.begin, range.end(), shadow).first, "declares as only read");
    }
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
