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
  std::ranges::sort(ranges, {}, &Bytes::begin);
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
    : program_(program.name()),
      regions_(std::move(regions)),
      watched_(merged(regions_)),
      on_host_(!copy),
      copy_(on_host_ ? Copy(std::memcpy) : std::move(copy)) {
  for (const Task& task : program.tasks()) {
    const std::vector<Bytes> hidden = without(watched_, joined(task.reads, task.writes));
    const std::vector<Bytes> not_written = without(watched_, merged(task.writes));
    names_.push_back(task.name);
    watches_.push_back({hidden, without(not_written, hidden), without(watched_, not_written)});
  }
  shadow_ = allocate_host(total(watched_));
  poison_ = allocate_host(longest(watched_));
  staging_ = allocate_host(poison_.size());
  // Without regions there is no buffer.
  if (poison_.size() != 0) std::memset(poison_.data(), kPoison, poison_.size());
}

/// `range` is within one of watched_.
std::byte* Audit::shadow_of(const Bytes& range) const {
  std::byte* shadow = shadow_.data();
  for (const Bytes& watched : watched_) {
    if (watched.overlaps(range)) return shadow + (range.begin - watched.begin);
    shadow += watched.size;
  }
  throw std::logic_error("audit: a range outside of all regions");
}

void Audit::save(const std::vector<Bytes>& ranges) {
  for (const Bytes& range : ranges) copy_(shadow_of(range), range.begin, range.size);
}

void Audit::show(const std::vector<Bytes>& ranges) {
  for (const Bytes& range : ranges) copy_(writable(range), shadow_of(range), range.size);
}

void Audit::hide(const std::vector<Bytes>& ranges) {
  for (const Bytes& range : ranges) copy_(writable(range), poison_.data(), range.size);
}

const std::byte* Audit::read(const Bytes& range) {
  if (on_host_) return range.begin;
  copy_(staging_.data(), range.begin, range.size);
  return staging_.data();
}

void Audit::begin() {
  save(watched_);
  hide(watched_);
}

void Audit::end() { show(watched_); }

void Audit::before(TaskId task) {
  const Watch& watch = watches_[static_cast<std::size_t>(task)];
  show(watch.read_only);
  show(watch.written);
}

void Audit::after(TaskId task) {
  const Watch& watch = watches_[static_cast<std::size_t>(task)];
  const auto compare = [&](const Bytes& range, const std::byte* wanted, const char* declared) {
    const std::byte* const found = read(range);
    if (std::memcmp(found, wanted, range.size) == 0) return;
    report(task, range.begin + (std::mismatch(found, found + range.size, wanted).first - found), declared);
  };
  for (const Bytes& range : watch.hidden) compare(range, poison_.data(), "does not declare");
  for (const Bytes& range : watch.read_only) compare(range, shadow_of(range), "declares as only read");
  save(watch.written);
  hide(watch.written);
  hide(watch.read_only);
}

void Audit::report(TaskId task, const std::byte* where, const char* declared) const {
  const auto holds = [where](const Bytes& region) { return region.overlaps({where, 1}); };
  const auto region = std::ranges::find_if(regions_, holds);
  throw std::logic_error(concat("audit of ", program_, ": '", names_[static_cast<std::size_t>(task)],
                                "' wrote byte ", where - region->begin, " of region ",
                                region - regions_.begin(), " (", region->size, " bytes), which it ", declared,
                                "; add it to the task's writes"));
}

}  // namespace cifar_mpi::engine
