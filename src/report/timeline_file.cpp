#include "cifar_mpi/report/timeline_file.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <iterator>
#include <system_error>
#include <utility>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "hdf5/hdf5.hpp"

namespace cifar_mpi::report {
namespace {

constexpr const char* kTimelineFormat = "cifar_mpi timeline";
constexpr std::int64_t kTimelineVersion = 1;
constexpr std::uint64_t kMostTasks = 1 << 16, kMostRanks = 1 << 16;
constexpr std::int64_t kMostLanes = 1 << 8;
/// No clock reaches this, and the difference of two smaller times fits in 64 bits.
constexpr std::int64_t kLatest = std::int64_t{1} << 61;

constexpr std::uint64_t kSliceBytes = 3 * sizeof(std::int64_t);
constexpr std::uint64_t kRankStepBytes = 5 * sizeof(std::int64_t);
constexpr std::uint64_t kRankTaskBytes = 3 * sizeof(double);  ///< see charge_analysis
constexpr std::uint64_t kAfterBytes = 2;                      ///< not stored: charged for the time it costs

std::uint64_t bytes_of(const Timeline::Step& step) {
  std::uint64_t bytes = sizeof step.step;
  for (const RankStep& rank : step.ranks) bytes += kRankStepBytes + kSliceBytes * rank.slices.size();
  return bytes;
}

void write_tasks(hdf5::Writer& file, const std::vector<TimelineTask>& tasks) {
  std::vector<std::string> names;
  std::vector<std::int64_t> lanes, after;
  std::vector<std::uint8_t> collective;
  std::vector<std::uint64_t> bytes, first_after{0};
  for (const TimelineTask& task : tasks) {
    names.push_back(task.name);
    lanes.push_back(task.lane);
    collective.push_back(task.kind == engine::TaskKind::collective ? 1 : 0);
    bytes.push_back(task.bytes);
    after.insert(after.end(), task.after.begin(), task.after.end());
    first_after.push_back(after.size());
  }
  file.write_strings("/tasks/name", names);
  file.write("/tasks/lane", {lanes.size()}, lanes);
  file.write("/tasks/collective", {collective.size()}, collective);
  file.write("/tasks/bytes", {bytes.size()}, bytes);
  file.write("/tasks/first_after", {first_after.size()}, first_after);
  file.write("/tasks/after", {after.size()}, after);
}

void write_steps(hdf5::Writer& file, const Timeline& timeline) {
  std::vector<std::uint64_t> steps, dropped, first_slice{0};
  std::vector<std::int64_t> begins, ends, work_cpu, tasks, slice_begins, slice_ends;
  for (const Timeline::Step& step : timeline.steps) {
    steps.push_back(step.step);
    for (const RankStep& rank : step.ranks) {
      begins.push_back(rank.begin_ns);
      ends.push_back(rank.end_ns);
      dropped.push_back(rank.dropped);
      work_cpu.push_back(rank.work_cpu_ns);
      for (const Slice& slice : rank.slices) {
        tasks.push_back(slice.task);
        slice_begins.push_back(slice.begin_ns);
        slice_ends.push_back(slice.end_ns);
      }
      first_slice.push_back(tasks.size());
    }
  }
  const hdf5::Dims by_rank{steps.size(), timeline.hosts.size()};
  file.write("/steps/step", {steps.size()}, steps);
  file.write("/steps/begin_ns", by_rank, begins);
  file.write("/steps/end_ns", by_rank, ends);
  file.write("/steps/dropped", by_rank, dropped);
  file.write("/steps/work_cpu_ns", by_rank, work_cpu);
  file.write("/steps/first_slice", {first_slice.size()}, first_slice);
  file.write("/slices/task", {tasks.size()}, tasks);
  file.write("/slices/begin_ns", {slice_begins.size()}, slice_begins);
  file.write("/slices/end_ns", {slice_ends.size()}, slice_ends);
}

[[noreturn]] void refuse(const hdf5::Reader& file, const std::string& what) {
  throw Error(ErrorKind::checkpoint, "cannot use the timeline '", file.path(), "': ", what);
}

/// Reads a data set of exactly these dims.
template <class T>
std::vector<T> read(const hdf5::Reader& file, const char* object, const hdf5::Dims& expected) {
  const hdf5::Dims found = file.dims(object);
  if (found != expected) {
    refuse(file, concat(object, " has the dims ", hdf5::to_string(found), " instead of ",
                        hdf5::to_string(expected)));
  }
  return file.read<T>(object);
}

/// Reads a list of any length.
template <class T>
std::vector<T> read_list(const hdf5::Reader& file, const char* object) {
  if (const hdf5::Dims found = file.dims(object); found.size() != 1)
    refuse(file, concat(object, " has the dims ", hdf5::to_string(found), ", it must be a list"));
  return file.read<T>(object);
}

/// Checks the offsets of the parts of a list of `size` entries; the last offset is the end.
void require_parts(const hdf5::Reader& file, const char* object, const std::vector<std::uint64_t>& first,
                   std::uint64_t size) {
  if (first.front() != 0 || first.back() != size || !std::ranges::is_sorted(first))
    refuse(file, concat(object, " does not divide ", size, " entries into parts"));
}

std::vector<TimelineTask> read_tasks(const hdf5::Reader& file) {
  const std::vector<std::string> names = file.read_strings("/tasks/name", kMostTasks);
  const std::uint64_t count = names.size();
  const auto lanes = read<std::int64_t>(file, "/tasks/lane", {count});
  const auto collective = read<std::uint8_t>(file, "/tasks/collective", {count});
  const auto bytes = read<std::uint64_t>(file, "/tasks/bytes", {count});
  const auto first_after = read<std::uint64_t>(file, "/tasks/first_after", {count + 1});
  const auto after = read_list<std::int64_t>(file, "/tasks/after");
  require_parts(file, "/tasks/first_after", first_after, after.size());
  file.charge("/tasks", count, 2 * sizeof(TimelineTask));  // twice, because a replay keeps as much per task
  file.charge("/tasks/after", after.size(), sizeof(std::int32_t));
  std::vector<TimelineTask> tasks(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (lanes[i] < 0 || lanes[i] >= kMostLanes) refuse(file, concat("task ", i, " is on lane ", lanes[i]));
    if (collective[i] > 1)
      refuse(file, concat("/tasks/collective has ", int{collective[i]}, ", neither 0 nor 1"));
    tasks[i] = {names[i],
                static_cast<engine::LaneId>(lanes[i]),
                collective[i] == 1 ? engine::TaskKind::collective : engine::TaskKind::work,
                bytes[i],
                {}};
    for (std::uint64_t at = first_after[i]; at < first_after[i + 1]; ++at) {
      if (after[at] < 0 || static_cast<std::uint64_t>(after[at]) >= count)
        refuse(file, concat("task ", i, " has the predecessor ", after[at], " of ", count));
      tasks[i].after.push_back(static_cast<std::int32_t>(after[at]));
    }
  }
  return tasks;
}

/// The content of /slices, checked.
std::vector<Slice> read_slices(const hdf5::Reader& file, std::size_t tasks) {
  const auto task = read_list<std::int64_t>(file, "/slices/task");
  const auto begin = read<std::int64_t>(file, "/slices/begin_ns", {task.size()});
  const auto end = read<std::int64_t>(file, "/slices/end_ns", {task.size()});
  file.charge("/slices", task.size(), 2 * sizeof(Slice));  // once here, once in their steps
  std::vector<Slice> slices(task.size());
  for (std::size_t i = 0; i < slices.size(); ++i) {
    if (task[i] < 0 || static_cast<std::uint64_t>(task[i]) >= tasks)
      refuse(file, concat("slice ", i, " is of task ", task[i], " of ", tasks));
    if (begin[i] < -kLatest || end[i] > kLatest || begin[i] > end[i])
      refuse(file, concat("slice ", i, " lasts from ", begin[i], " to ", end[i], " ns"));
    slices[i] = {static_cast<std::int32_t>(task[i]), begin[i], end[i]};
  }
  return slices;
}

/// The verdict and the page keep a number for each rank and task (its time), another for each rank and task in each
/// step (SampledSteps::Step::transfer_ns), and read each `after` for each rank in each step. In a file of ours nearly
/// every rank has a slice of 24 bytes of each task in each step; an untrusted file may have none.
void charge_analysis(const hdf5::Reader& file, const std::vector<TimelineTask>& tasks, std::uint64_t ranks,
                     std::uint64_t steps) {
  std::uint64_t after = 0;
  for (const TimelineTask& task : tasks) after += task.after.size();
  const auto charge = [&](std::uint64_t count, std::uint64_t bytes) {
    file.charge(concat("/tasks of ", ranks, " ranks in ", steps, " steps"), count, bytes);
  };
  charge(ranks * tasks.size(), kRankTaskBytes);  // at most 2^32
  std::uint64_t rows = 0, entries = 0;
  if (__builtin_mul_overflow(steps, ranks, &rows) ||
      __builtin_mul_overflow(rows, sizeof(double) * tasks.size() + kAfterBytes * after, &entries))
    entries = UINT64_MAX;
  charge(entries, 1);
}

std::vector<Timeline::Step> read_steps(const hdf5::Reader& file, std::size_t tasks, std::uint64_t ranks) {
  const auto numbers = read_list<std::uint64_t>(file, "/steps/step");
  const std::uint64_t count = numbers.size();
  if (std::ranges::adjacent_find(numbers, std::greater_equal<>()) != numbers.end())
    refuse(file, "its steps are not in ascending order");
  const auto begin = read<std::int64_t>(file, "/steps/begin_ns", {count, ranks});
  const auto end = read<std::int64_t>(file, "/steps/end_ns", {count, ranks});
  const auto dropped = read<std::uint64_t>(file, "/steps/dropped", {count, ranks});
  std::vector<std::int64_t> work_cpu(count * ranks, -1);
  if (file.has("/steps/work_cpu_ns"))  // older files lack it
    work_cpu = read<std::int64_t>(file, "/steps/work_cpu_ns", {count, ranks});
  const auto first = read<std::uint64_t>(file, "/steps/first_slice", {count * ranks + 1});
  const std::vector<Slice> slices = read_slices(file, tasks);
  require_parts(file, "/steps/first_slice", first, slices.size());
  file.charge("/steps", count, sizeof(Timeline::Step));
  file.charge("/steps", begin.size(), sizeof(RankStep));
  std::vector<Timeline::Step> steps(count);
  for (std::size_t i = 0; i < count; ++i) {
    steps[i].step = numbers[i];
    steps[i].ranks.reserve(ranks);
    for (std::size_t at = i * ranks; at < (i + 1) * ranks; ++at) {
      if (begin[at] < -kLatest || end[at] > kLatest || begin[at] > end[at])
        refuse(file, concat("step ", numbers[i], " lasts from ", begin[at], " to ", end[at], " ns"));
      if (work_cpu[at] < -1 || work_cpu[at] > kLatest)
        refuse(file, concat("step ", numbers[i], " has ", work_cpu[at], " ns on a core"));
      const auto from = slices.begin() + static_cast<std::ptrdiff_t>(first[at]);
      const auto to = slices.begin() + static_cast<std::ptrdiff_t>(first[at + 1]);
      const auto earlier = [](const Slice& a, const Slice& b) { return a.begin_ns < b.begin_ns; };
      if (!std::is_sorted(from, to, earlier))
        refuse(file, concat("the slices of step ", numbers[i], " are not in order of their beginnings"));
      steps[i].ranks.push_back({begin[at], end[at], {from, to}, dropped[at], work_cpu[at]});
    }
  }
  return steps;
}

/// Whether steps of both fit in one timeline.
bool go_together(const Timeline& a, const Timeline& b) {
  return a.program == b.program && a.collective == b.collective && a.wire == b.wire &&
         a.reproducible == b.reproducible && a.images_per_rank == b.images_per_rank &&
         a.image_size == b.image_size && a.tasks == b.tasks && a.hosts == b.hosts;
}

}  // namespace

void write_timeline(const DirectoryEntry& target, const Timeline& timeline) {
  hdf5::Writer file(kTimelineFormat, kTimelineVersion);
  file.attribute("/", "program", timeline.program);
  file.attribute("/", "collective", timeline.collective);
  file.attribute("/", "wire", timeline.wire);
  file.attribute("/", "reproducible", timeline.reproducible);
  file.attribute("/", "images_per_rank", timeline.images_per_rank);
  file.attribute("/", "image_size", timeline.image_size);
  file.write_strings("/hosts", timeline.hosts);
  file.write("/clock_uncertainty_ns", {timeline.clock_uncertainty_ns.size()}, timeline.clock_uncertainty_ns);
  write_tasks(file, timeline.tasks);
  write_steps(file, timeline);
  file.save(target);
}

Timeline read_timeline(const DirectoryEntry& entry) {
  const hdf5::Reader file = hdf5::open_record(entry, kTimelineFormat, kTimelineVersion);
  Timeline timeline;
  timeline.program = file.attribute<std::string>("/", "program");
  timeline.collective = file.attribute<std::string>("/", "collective");
  timeline.wire = file.attribute<std::string>("/", "wire");
  if (file.has_attribute("/", "reproducible"))  // older files lack it
    timeline.reproducible = file.attribute<bool>("/", "reproducible");
  timeline.images_per_rank = file.attribute<std::uint64_t>("/", "images_per_rank");
  if (file.has_attribute("/", "image_size"))
    timeline.image_size = file.attribute<std::uint64_t>("/", "image_size");
  timeline.hosts = file.read_strings("/hosts", kMostRanks);
  const std::uint64_t ranks = timeline.hosts.size();
  if (ranks == 0) refuse(file, "it has no ranks");
  timeline.clock_uncertainty_ns = read<std::int64_t>(file, "/clock_uncertainty_ns", {ranks});
  for (const std::int64_t uncertainty : timeline.clock_uncertainty_ns) {
    if (uncertainty < 0) refuse(file, concat("a clock is uncertain by ", uncertainty, " ns"));
  }
  timeline.tasks = read_tasks(file);
  timeline.steps = read_steps(file, timeline.tasks.size(), ranks);
  charge_analysis(file, timeline.tasks, ranks, timeline.steps.size());
  return timeline;
}

TimelineFile::TimelineFile(DirectoryEntry file, Timeline head, std::uint64_t step, const Log& log,
                           std::uint64_t most_bytes)
    : entry_(std::move(file)), log_(log), most_bytes_(most_bytes), timeline_(std::move(head)) {
  if (!exists(entry_)) return;
  try {
    Timeline found = read_timeline(entry_);
    if (!go_together(found, timeline_)) {
      remove_file(entry_);  // the old timeline belongs to another program
      return;
    }
    timeline_ = std::move(found);
    const auto repeated = [&](const Timeline::Step& kept) { return kept.step >= step; };
    if (std::erase_if(timeline_.steps, repeated) > 0) write_next();
  } catch (const Error& error) {
    log_.warn(concat(error.what(), "; a new one is started"));
  }
}

void TimelineFile::add(std::vector<Timeline::Step> steps,
                       const std::vector<std::int64_t>& clock_uncertainty_ns) {
  waiting_.push_back({std::move(steps), clock_uncertainty_ns});
  const bool busy =
      in_flight_.valid() && in_flight_.wait_for(std::chrono::seconds(0)) == std::future_status::timeout;
  if (!busy) write_next();
}

void TimelineFile::finish() {
  wait();
  if (!waiting_.empty()) write_next();
  wait();
}

void TimelineFile::write_next() {
  wait();
  for (Added& added : std::exchange(waiting_, {})) take(std::move(added));
  const auto task = [this]() -> std::string {
    try {
      write_timeline(entry_, timeline_);
    } catch (const std::exception& error) {
      return error.what();
    }
    return {};
  };
  try {
    in_flight_ = std::async(std::launch::async, task);
  } catch (const std::system_error&) {
    in_flight_ = std::async(std::launch::deferred, task);  // no thread can be started: `wait` writes
  }
}

void TimelineFile::take(Added added) {
  std::uint64_t bytes = 0;
  for (const Timeline::Step& step : timeline_.steps) bytes += bytes_of(step);
  for (const Timeline::Step& step : added.steps) bytes += bytes_of(step);
  auto first = timeline_.steps.begin();
  for (; first != timeline_.steps.end() && bytes > most_bytes_; ++first) bytes -= bytes_of(*first);
  timeline_.steps.erase(timeline_.steps.begin(), first);
  std::move(added.steps.begin(), added.steps.end(), std::back_inserter(timeline_.steps));
  for (std::size_t rank = 0; rank < timeline_.clock_uncertainty_ns.size(); ++rank) {
    std::int64_t& kept = timeline_.clock_uncertainty_ns[rank];
    kept = std::max(kept, added.clock_uncertainty_ns[rank]);
  }
}

void TimelineFile::wait() {
  if (!in_flight_.valid()) return;
  const std::string problem = in_flight_.get();
  if (problem.empty() || warned_) return;
  warned_ = true;
  log_.warn(concat(problem, "; training continues, but timeline.h5 will lack its latest steps"));
}

}  // namespace cifar_mpi::report
