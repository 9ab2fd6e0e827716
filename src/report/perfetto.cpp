#include "report/perfetto.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "cifar_mpi/base/log.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::report {
namespace {

/// TrackEvent.Type
enum class EventType : std::int64_t { begin = 1, end = 2, counter = 4 };

/// TracePacket.SequenceFlags
constexpr std::int64_t kStateCleared = 1, kNeedsState = 2;

/// CounterDescriptor.Unit
constexpr std::int64_t kCount = 2, kBytes = 3;

/// Tracks of the whole run.
constexpr std::uint64_t kImagesPerSecond = 1, kLossCounter = 2;

/// Tracks of a rank, after its process.
enum Track : std::uint64_t { process, steps, bytes_in_flight, first_lane };

constexpr int kTrackBits = 16;
std::uint64_t uuid(std::size_t rank, std::uint64_t track) {
  return (std::uint64_t{rank} + 1) << kTrackBits | track;
}
std::uint64_t lane_track(std::size_t rank, engine::LaneId lane) {
  return uuid(rank, first_lane + static_cast<std::uint64_t>(lane));
}

std::int64_t sequence(std::size_t rank) { return static_cast<std::int64_t>(rank) + 1; }

/// Interned: categories by TaskKind, and after these a name for every task.
constexpr std::int64_t kWork = 1, kCollective = 2, kWholeStep = 3;
constexpr std::int64_t kStart = 1, kPoll = 2, kFirstTask = 3;

std::string lane_name(engine::LaneId lane) {
  if (lane == engine::kCompute) return "compute";
  if (lane == engine::kComm) return "comm";
  return concat("side ", lane - engine::kFirstSide);
}

Message interned(std::int64_t id, const std::string& name) {
  return Message().number(1, id).bytes(2, printable(name));
}

Message track(std::uint64_t id, const std::string& name, std::uint64_t parent = 0) {
  Message descriptor;
  descriptor.number(1, static_cast<std::int64_t>(id)).bytes(2, name);
  if (parent != 0) descriptor.number(5, static_cast<std::int64_t>(parent));
  return descriptor;
}

Message counter(std::uint64_t id, const std::string& name, std::int64_t unit, std::uint64_t parent = 0) {
  return track(id, name, parent).message(8, Message().number(3, unit));
}

Message event_on(std::uint64_t track, EventType type) {
  return Message().number(9, static_cast<std::int64_t>(type)).number(11, static_cast<std::int64_t>(track));
}

Message annotation(const std::string& name, std::int64_t value) {
  return Message().bytes(10, name).number(4, value);
}

void add_packet(Message& trace, std::size_t rank, std::int64_t time_ns, const Message& event) {
  trace.message(
      1, Message().number(8, time_ns).number(10, sequence(rank)).message(11, event).number(13, kNeedsState));
}

}  // namespace

PerfettoTrace::PerfettoTrace(Timeline head) : head_(std::move(head)) {
  head_.steps.clear();
  for (const TimelineTask& task : head_.tasks) lanes_ = std::max(lanes_, task.lane + 1);
}

Message PerfettoTrace::tracks_of(std::size_t rank) const {
  const std::uint64_t parent = uuid(rank, process);
  const std::string name = concat("rank ", rank, " on ", printable(head_.hosts[rank]));
  // Not the PID: two hosts may have the same.
  const Message of_process = Message().number(1, sequence(rank)).bytes(6, name);
  std::vector<Message> descriptors{
      Message().number(1, static_cast<std::int64_t>(parent)).message(3, of_process),
      track(uuid(rank, steps), "steps", parent),
      counter(uuid(rank, bytes_in_flight), "bytes in flight", kBytes, parent)};
  for (engine::LaneId lane = 0; lane < lanes_; ++lane)
    descriptors.push_back(track(lane_track(rank, lane), lane_name(lane), parent));
  if (rank == 0) {
    descriptors.push_back(counter(kImagesPerSecond, "images per second", kCount));
    descriptors.push_back(counter(kLossCounter, "loss", kCount));
  }

  Message names;
  for (const auto& [id, text] :
       {std::pair{kWork, "work"}, std::pair{kCollective, "collective"}, std::pair{kWholeStep, "step"}})
    names.message(1, interned(id, text));
  names.message(2, interned(kStart, "start")).message(2, interned(kPoll, "poll"));
  for (std::size_t task = 0; task < head_.tasks.size(); ++task)
    names.message(2, interned(kFirstTask + static_cast<std::int64_t>(task), head_.tasks[task].name));

  Message trace;
  trace.message(1, Message().number(10, sequence(rank)).message(12, names).number(13, kStateCleared));
  for (const Message& descriptor : descriptors)
    trace.message(1, Message().number(10, sequence(rank)).message(60, descriptor));
  return trace;
}

std::string PerfettoTrace::begin() const {
  std::string all;
  for (std::size_t rank = 0; rank < head_.hosts.size(); ++rank) all += tracks_of(rank).text();
  return all;
}

std::vector<PerfettoTrace::Span> PerfettoTrace::spans_of(const RankStep& step) const {
  std::vector<Span> spans(head_.tasks.size());
  for (const Slice& slice : step.slices) {
    Span& span = spans[static_cast<std::size_t>(slice.task)];
    if (span.parts.empty()) span.begin_ns = slice.begin_ns;
    span.end_ns = slice.end_ns;
    span.own_ns += slice.end_ns - slice.begin_ns;
    span.parts.push_back(slice);
  }
  return spans;
}

/// A unique number for each arrow of a trace.
std::uint64_t PerfettoTrace::flow(std::uint64_t step, std::size_t rank, std::size_t collective,
                                  std::size_t which) const {
  return ((step * head_.hosts.size() + rank) * head_.tasks.size() + collective) * 8 + which;
}

/// Arrows that begin, go through or end at the beginning of a task's slice.
std::vector<std::uint64_t> PerfettoTrace::flows_at(std::uint64_t step, std::size_t rank,
                                                   std::size_t task) const {
  constexpr std::size_t kRanks = 7;  // 0 to 6: from each of the tasks that it follows
  std::vector<std::uint64_t> flows;
  for (std::size_t other = 0; other < head_.tasks.size(); ++other) {
    if (head_.tasks[other].kind != engine::TaskKind::collective) continue;
    const std::vector<std::int32_t>& after = head_.tasks[other].after;
    for (std::size_t i = 0; i < std::min(after.size(), kRanks); ++i) {
      if (other == task || static_cast<std::size_t>(after[i]) == task)
        flows.push_back(flow(step, rank, other, i));
    }
    if (other == task) flows.push_back(flow(step, 0, other, kRanks));
  }
  return flows;
}

void PerfettoTrace::add_task(Message& trace, const Timeline::Step& step, std::size_t rank, std::size_t task,
                             const Span& span) const {
  const TimelineTask& facts = head_.tasks[task];
  const bool collective = facts.kind == engine::TaskKind::collective;
  const std::uint64_t place = lane_track(rank, facts.lane);
  Message first = event_on(place, EventType::begin);
  first.number(3, collective ? kCollective : kWork).number(10, kFirstTask + static_cast<std::int64_t>(task));
  if (collective) first.message(4, annotation("bytes", static_cast<std::int64_t>(facts.bytes)));
  if (span.parts.size() > 1) {
    first.message(4, annotation("own run time in ns", span.own_ns));
    first.message(4, annotation("stretches", static_cast<std::int64_t>(span.parts.size())));
  }
  for (const std::uint64_t id : flows_at(step.step, rank, task)) first.fixed(47, id);
  add_packet(trace, rank, span.begin_ns, first);
  if (collective && span.parts.size() > 1) {
    for (std::size_t i = 0; i < span.parts.size(); ++i) {
      const Message part =
          event_on(place, EventType::begin).number(3, kCollective).number(10, i == 0 ? kStart : kPoll);
      add_packet(trace, rank, span.parts[i].begin_ns, part);
      add_packet(trace, rank, span.parts[i].end_ns, event_on(place, EventType::end));
    }
  }
  add_packet(trace, rank, span.end_ns, event_on(place, EventType::end));
}

void PerfettoTrace::add_bytes_in_flight(Message& trace, std::size_t rank,
                                        const std::vector<Span>& spans) const {
  std::map<std::int64_t, std::int64_t> changes;
  for (std::size_t task = 0; task < spans.size(); ++task) {
    if (head_.tasks[task].kind != engine::TaskKind::collective || spans[task].parts.empty()) continue;
    changes[spans[task].begin_ns] += static_cast<std::int64_t>(head_.tasks[task].bytes);
    changes[spans[task].end_ns] -= static_cast<std::int64_t>(head_.tasks[task].bytes);
  }
  std::int64_t bytes = 0;
  for (const auto& [time_ns, change] : changes) {
    bytes += change;
    add_packet(trace, rank, time_ns,
               event_on(uuid(rank, bytes_in_flight), EventType::counter).number(30, bytes));
  }
}

void PerfettoTrace::add_rank(Message& trace, const Timeline::Step& step, std::size_t rank) const {
  const RankStep& mine = step.ranks[rank];
  if (mine.slices.empty()) return;
  Message whole = event_on(uuid(rank, steps), EventType::begin);
  whole.number(3, kWholeStep).bytes(23, concat("step ", step.step + 1));
  whole.message(4, annotation("clock uncertainty in ns", head_.clock_uncertainty_ns[rank]));
  if (mine.dropped > 0)
    whole.message(4, annotation("stretches dropped", static_cast<std::int64_t>(mine.dropped)));
  add_packet(trace, rank, mine.begin_ns, whole);
  add_packet(trace, rank, mine.end_ns, event_on(uuid(rank, steps), EventType::end));

  const std::vector<Span> spans = spans_of(mine);
  std::vector<std::size_t> order;
  for (std::size_t task = 0; task < spans.size(); ++task) {
    if (!spans[task].parts.empty()) order.push_back(task);
  }
  std::ranges::stable_sort(
      order, [&](std::size_t a, std::size_t b) { return spans[a].begin_ns < spans[b].begin_ns; });
  for (const std::size_t task : order) add_task(trace, step, rank, task, spans[task]);
  add_bytes_in_flight(trace, rank, spans);
}

std::string PerfettoTrace::step(const Timeline::Step& step, std::optional<double> loss) const {
  Message trace;
  for (std::size_t rank = 0; rank < step.ranks.size(); ++rank) add_rank(trace, step, rank);
  const RankStep& first = step.ranks.front();
  if (first.end_ns > first.begin_ns) {
    const double images = static_cast<double>(head_.images_per_rank * head_.hosts.size());
    const double seconds = 1e-9 * static_cast<double>(first.end_ns - first.begin_ns);
    add_packet(trace, 0, first.begin_ns,
               event_on(kImagesPerSecond, EventType::counter).number(44, images / seconds));
  }
  if (loss) add_packet(trace, 0, first.end_ns, event_on(kLossCounter, EventType::counter).number(44, *loss));
  return trace.text();
}

}  // namespace cifar_mpi::report
