#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "support/event_reader.hpp"

/// Reads Perfetto's traces like its trace processor, without sharing code with their writer.
namespace cifar_mpi::test {

struct TrackRead {
  std::string name, process;
  std::uint64_t parent = 0, unit = 0, pid = 0, sequence = 0;
};

/// A slice, or with `counter` a value of a track.
struct TraceSlice {
  std::uint64_t track = 0, sequence = 0, begin = 0, end = 0;
  std::string name, category;
  int depth = 0;
  std::vector<std::uint64_t> flows;
  std::map<std::string, std::int64_t> notes;
};

struct TracePoint {
  std::uint64_t time = 0;
  double value = 0.0;
};

struct TraceRead {
  std::map<std::uint64_t, TrackRead> tracks;  ///< by uuid
  std::vector<TraceSlice> slices;             ///< in the order of their beginnings
  std::map<std::uint64_t, std::vector<TracePoint>> counters;

  /// "rank 0 on node1/comm"
  std::string path(std::uint64_t track) const {
    const TrackRead& found = tracks.at(track);
    if (!found.process.empty()) return found.process;
    return found.parent == 0 ? found.name : path(found.parent) + "/" + found.name;
  }
  std::vector<TraceSlice> on(const std::string& place) const {
    std::vector<TraceSlice> found;
    for (const TraceSlice& slice : slices) {
      if (path(slice.track) == place) found.push_back(slice);
    }
    return found;
  }
  std::vector<TracePoint> values(const std::string& place) const {
    for (const auto& [track, points] : counters) {
      if (path(track) == place) return points;
    }
    return {};
  }
};

namespace detail {

struct PacketEvent {
  std::uint64_t type = 0, name_id = 0;
  double value = 0.0;
  TraceSlice slice;  ///< what is known at its beginning
};

inline std::uint64_t whole(const Field& field) { return little_endian<std::uint64_t>(field.value); }

inline PacketEvent event_in(std::string_view message, const std::map<std::uint64_t, std::string>& names,
                            const std::map<std::uint64_t, std::string>& categories) {
  PacketEvent event;
  for (const Field& field : fields_of(message)) {
    if (field.number == 3) event.slice.category = categories.at(whole(field));
    if (field.number == 9) event.type = whole(field);
    if (field.number == 10) event.slice.name = names.at(whole(field));
    if (field.number == 11) event.slice.track = whole(field);
    if (field.number == 23) event.slice.name = field.value;
    if (field.number == 30) event.value = static_cast<double>(static_cast<std::int64_t>(whole(field)));
    if (field.number == 44) event.value = little_endian<double>(field.value);
    if (field.number == 47) event.slice.flows.push_back(whole(field));
    if (field.number != 4) continue;
    std::string name;
    std::int64_t number = 0;
    for (const Field& part : fields_of(field.value)) {
      if (part.number == 10) name = part.value;
      if (part.number == 4) number = static_cast<std::int64_t>(whole(part));
    }
    event.slice.notes[name] = number;
  }
  return event;
}

inline void note_track(TraceRead& trace, std::uint64_t sequence, std::string_view message) {
  TrackRead track;
  std::uint64_t uuid = 0;
  track.sequence = sequence;
  for (const Field& field : fields_of(message)) {
    if (field.number == 1) uuid = whole(field);
    if (field.number == 2) track.name = field.value;
    if (field.number == 5) track.parent = whole(field);
    if (field.number == 8) track.unit = whole(fields_of(field.value).at(0));
    if (field.number != 3) continue;
    for (const Field& part : fields_of(field.value)) {
      if (part.number == 1) track.pid = whole(part);
      if (part.number == 6) track.process = part.value;
    }
  }
  if (!trace.tracks.emplace(uuid, track).second) throw std::runtime_error("a track is described twice");
}

}  // namespace detail

/// Throws if a slice ends that did not begin or does not end, and if a name, a category or a track is used
/// before it is known.
inline TraceRead read_trace(std::string_view bytes) {
  using detail::whole;
  TraceRead trace;
  std::map<std::uint64_t, std::map<std::uint64_t, std::string>> names, categories;  // by sequence
  std::vector<std::pair<std::uint64_t, detail::PacketEvent>> events;
  std::set<std::uint64_t> cleared;
  for (const Field& packet : fields_of(bytes)) {
    if (packet.number != 1) throw std::runtime_error("a trace holds something other than a packet");
    std::uint64_t time = 0, sequence = 0, flags = 0;
    std::string event, interned, track;
    for (const Field& field : fields_of(packet.value)) {
      if (field.number == 8) time = whole(field);
      if (field.number == 10) sequence = whole(field);
      if (field.number == 11) event = field.value;
      if (field.number == 12) interned = field.value;
      if (field.number == 13) flags = whole(field);
      if (field.number == 60) track = field.value;
    }
    if ((flags & 1) != 0 && !cleared.insert(sequence).second)
      throw std::runtime_error("the names of a sequence are forgotten in its middle");
    for (const Field& entry : fields_of(interned)) {
      const std::vector<Field> parts = fields_of(entry.value);
      (entry.number == 1 ? categories : names)[sequence][whole(parts.at(0))] = parts.at(1).value;
    }
    if (!track.empty()) detail::note_track(trace, sequence, track);
    if (event.empty()) continue;
    if ((flags & 2) == 0 || !cleared.contains(sequence))
      throw std::runtime_error("an event uses names that its sequence does not have");
    events.emplace_back(time, detail::event_in(event, names[sequence], categories[sequence]));
    events.back().second.slice.sequence = sequence;
  }
  std::stable_sort(events.begin(), events.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::map<std::uint64_t, std::vector<std::size_t>> open;  // by track
  for (auto& [time, event] : events) {
    std::vector<std::size_t>& stack = open[event.slice.track];
    if (!trace.tracks.contains(event.slice.track)) throw std::runtime_error("an event of no track");
    if (event.type == 4) trace.counters[event.slice.track].push_back({time, event.value});
    if (event.type == 1) {
      event.slice.begin = time;
      event.slice.depth = static_cast<int>(stack.size());
      stack.push_back(trace.slices.size());
      trace.slices.push_back(event.slice);
    }
    if (event.type != 2) continue;
    if (stack.empty()) throw std::runtime_error("a slice ends that did not begin");
    trace.slices[stack.back()].end = time;
    stack.pop_back();
  }
  for (const auto& entry : open) {
    if (!entry.second.empty()) throw std::runtime_error("a slice does not end");
  }
  return trace;
}

}  // namespace cifar_mpi::test
