#include "train/resume.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <exception>
#include <span>

#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/run/run_directory.hpp"

namespace cifar_mpi::train {
namespace {

constexpr std::string_view kContent = "dataset content";  ///< known only when the samples have been read

template <class T>
std::optional<T> number(const std::string* text) {
  T value{};
  if (text == nullptr) return std::nullopt;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size()) return std::nullopt;
  return value;
}

std::string newest_later_than(const std::string& run_dir, std::uint64_t step) {
  const std::vector<run::CheckpointFile> files = run::list_checkpoints(run_dir);
  return files.empty() || files.back().step <= step ? std::string() : files.back().path;
}

/// The checkpoint that --resume asks for; nothing when the run is new.
std::optional<FoundCheckpoint> look_for_checkpoint(const TrainConfig& config, const Log& log) {
  if (config.resume == "auto") return newest_valid_checkpoint(config.run_dir, log);
  if (config.resume != "never") {
    FoundCheckpoint found{config.resume, run::read_checkpoint(config.resume)};
    // Started again, the run would go on from those.
    if (const std::string later = newest_later_than(config.run_dir, found.content.progress.step);
        !later.empty()) {
      throw Error(ErrorKind::checkpoint,
                  concat(later, " is of a later step than ", config.resume, " (step ",
                         found.content.progress.step, "), and the next start would take it; choose another ",
                         "--run-dir, or move the later checkpoints away"));
    }
    return found;
  }
  const std::vector<run::CheckpointFile> files = run::list_checkpoints(config.run_dir);
  if (files.empty()) return std::nullopt;
  throw Error(
      ErrorKind::checkpoint,
      concat(config.run_dir, " already holds a run at step ", files.back().step,
             ", which --resume never will not overwrite; remove the directory or choose another --run-dir"));
}

void broadcast(const comm::World& world, std::vector<run::NamedTensor>& tensors) {
  for (run::NamedTensor& tensor : tensors) world.broadcast(std::as_writable_bytes(std::span(tensor.values)));
}

/// What to do about a global batch that is not the checkpoint's.
std::string batch_advice(const std::string& recorded, const TrainConfig& config, int ranks) {
  const auto batch = number<std::int64_t>(&recorded);
  if (!batch || config.global_batch != 0) return {};
  const std::string rule = "; unless --global-batch is given, it is --batch-size times the ranks: ";
  if (*batch % ranks == 0) {
    return concat(rule, "give --global-batch ", *batch, " to go on with ", ranks,
                  ranks == 1 ? " rank" : " ranks");
  }
  return concat(rule, "to go on, start a number of ranks that divides ", *batch, " and give --global-batch ",
                *batch);
}

/// Each rank fingerprints what no other does, also where all hold everything.
std::uint64_t sum_of_fingerprints(const SessionState& state) {
  constexpr int kPieces = 4;  // of 16 bits: their sums over the ranks are exact as doubles
  std::array<double, kPieces> sums{};
  for (std::size_t i = 0; i < kPieces; ++i) {
    sums[i] = static_cast<double>(state.samples.fingerprint() >> (16 * i) & 0xFFFF);
  }
  state.world.sum(sums);
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < kPieces; ++i) total += static_cast<std::uint64_t>(sums[i]) << (16 * i);
  return total;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

}  // namespace

std::optional<FoundCheckpoint> newest_valid_checkpoint(const std::string& run_dir, const Log& log) {
  const std::vector<run::CheckpointFile> files = run::list_checkpoints(run_dir);
  if (files.empty()) return std::nullopt;
  std::string first_problem;
  for (auto file = files.rbegin(); file != files.rend(); ++file) {
    try {
      FoundCheckpoint found{file->path, run::read_checkpoint(file->path)};
      if (found.content.progress.step == file->step) return found;
      throw Error(ErrorKind::checkpoint, concat(file->path, " is of step ", found.content.progress.step,
                                                ", which is not what its name says"));
    } catch (const std::exception& error) {
      if (first_problem.empty()) first_problem = error.what();
      log.warn(concat("skipping a damaged checkpoint: ", error.what()));
    }
  }
  throw Error(ErrorKind::checkpoint,
              concat(run_dir, " holds no checkpoint that can be read; the newest: ", first_problem));
}

Start find_start(SessionState& state) {
  const TrainConfig& config = state.config;
  state.progress.seed = config.seed;
  state.progress.identity = run_fingerprint(config, state.sizes, state.info);
  Start start;
  start.model = initial_tensors(state.network.params, config.seed);
  start.ema = start.model;
  state.world.together([&] {
    if (state.world.rank() != 0) return;
    std::optional<FoundCheckpoint> found = look_for_checkpoint(config, state.log);
    if (!found) return;
    require_same_run(found->content.progress.identity, state.progress.identity, found->path, config,
                     state.world.size());
    start.model = run::match_tensors(std::move(found->content.model), state.network.params, found->path);
    start.ema = run::match_tensors(std::move(found->content.ema), state.network.params, found->path);
    start.name = found->path;
    start.progress = std::move(found->content.progress);
    start.kernels = std::move(found->content.provenance.kernels);
  });
  state.world.broadcast(start.name);
  start.resumed = !start.name.empty();
  if (!start.resumed) return start;

  broadcast(state.world, start.model);
  broadcast(state.world, start.ema);
  state.world.broadcast(std::as_writable_bytes(std::span(&start.progress.step, 1)));
  state.world.broadcast(start.progress.identity);
  state.world.broadcast(start.progress.resolved);
  state.world.broadcast(start.kernels);
  state.progress.step = start.progress.step;
  return start;
}

void adopt(SessionState& state, const RunFingerprint& resolved) {
  using engine::Precision;
  TrainConfig& config = state.config;
  if (const auto* value = find_item(resolved, "precision");
      value && config.precision == Precision::automatic) {
    for (const Precision precision : {Precision::fp32, Precision::tf32, Precision::bf16}) {
      if (*value == engine::to_string(precision)) config.precision = precision;
    }
    state.adopted_precision = config.precision != Precision::automatic;
  }
  if (number<int>(find_item(resolved, "ranks")) != state.world.size()) return;
  if (const auto threads = number<int>(find_item(resolved, "threads")); threads && config.threads == 0) {
    config.threads = std::max(*threads, 0);
  }
  if (const auto* nccl = find_item(resolved, "nccl algorithm"); nccl && config.nccl_algorithm == "auto") {
    config.nccl_algorithm = *nccl;
  }
  // Auto's choice by length has no name of its own; on the same nodes it chooses alike again.
  const auto* all_reduce = find_item(resolved, "all-reduce");
  const auto known = comm::collectives();
  if (all_reduce && config.all_reduce == "auto" &&
      std::any_of(known.begin(), known.end(), [&](const auto& info) { return info.name == *all_reduce; })) {
    config.all_reduce = *all_reduce;
    state.adopted_all_reduce = true;
  }
}

void settle_identity(SessionState& state, const Start& start) {
  const auto total = static_cast<unsigned long long>(sum_of_fingerprints(state));
  state.progress.identity.emplace_back(kContent, format("%016llx", total));
  if (!start.resumed) return;
  state.world.together([&] {
    if (state.world.rank() != 0) return;
    require_same_run(start.progress.identity, state.progress.identity, start.name, state.config,
                     state.world.size());
  });
}

void require_same_run(const RunFingerprint& found, const RunFingerprint& wanted, const std::string& path,
                      const TrainConfig& config, int ranks) {
  const auto refuse = [&](const std::string& item, const std::string& then, const std::string& now,
                          const std::string& advice) {
    throw Error(ErrorKind::checkpoint, concat(path, " holds a run of another configuration: its ", item,
                                              " is ", then, ", this one's is ", now, advice));
  };
  const std::string usual = "; choose another --run-dir, or give the same options to resume";
  for (const auto& [name, value] : wanted) {
    const std::string* const then = find_item(found, name);
    if (then != nullptr && *then == value) continue;
    if (then == nullptr) refuse(name, "not recorded", value, usual);
    if (name == kContent) {
      refuse(name, *then, value,
             concat("; ", config.data, " holds other images or labels: give its dataset ",
                    "with --data, or choose another --run-dir"));
    }
    const std::string advice = name == "--global-batch" ? batch_advice(*then, config, ranks) : "";
    refuse(name, *then, value, advice.empty() ? usual : advice);
  }
  for (const auto& [name, value] : found) {
    if (name == kContent || find_item(wanted, name) != nullptr) continue;
    refuse(name, value, "not set", usual);
  }
}

namespace {

bool concerns_sums(const std::string& setting) {
  return setting == "all-reduce" || setting == "bucket MiB" || setting == "nccl algorithm";
}

}  // namespace

std::vector<std::string> changed_settings(const RunFingerprint& then, const RunFingerprint& now) {
  const auto *ranks_then = find_item(then, "ranks"), *ranks_now = find_item(now, "ranks");
  const bool alone = ranks_then && ranks_now && *ranks_then == "1" && *ranks_now == "1";
  std::vector<std::string> notes;
  for (const auto& [name, value] : now) {
    const std::string* const before = find_item(then, name);
    if (before == nullptr || *before == value) continue;
    if (alone && concerns_sums(name)) continue;  // nothing is summed
    notes.push_back(concat("note: ", name, " is ", value, ", the checkpoint was made with ", *before,
                           ": the run goes on, but not to the same bits"));
  }
  return notes;
}

std::string changed_kernels(const std::string& then, const std::string& now) {
  if (then == now || then.empty()) return {};
  const std::vector<std::string> before = lines_of(then), after = lines_of(now);
  std::string was = "nothing", is = "nothing";
  int different = 0;
  for (std::size_t i = 0; i < std::max(before.size(), after.size()); ++i) {
    const std::string a = i < before.size() ? before[i] : "nothing";
    const std::string b = i < after.size() ? after[i] : "nothing";
    if (a != b && different++ == 0) was = a, is = b;
  }
  const std::string more = different > 1 ? concat(" (and ", different - 1, " more)") : std::string();
  return concat("note: the kernel plan has \"", is, "\", the checkpoint was made with \"", was, "\"", more,
                ": the run goes on, but not to the same bits");
}

ShardChange shard_change(std::uint64_t samples, std::uint64_t global_batch, std::uint64_t step,
                         int ranks_then, int ranks_now) {
  ShardChange change;
  change.seamless = true;
  // Passes that any rank has begun, before or after the change, are disturbed, unless all stand at the very
  // end of the same one.
  std::optional<std::uint64_t> common;
  for (const int ranks : {ranks_then, ranks_now}) {
    const auto p = static_cast<std::uint64_t>(ranks);
    const std::uint64_t position = step * (global_batch / p);
    for (std::uint64_t r = 0; r < p; ++r) {
      const std::uint64_t held = data::shard_of(samples, r, p).count;
      const std::uint64_t begun = (position + held - 1) / held;
      change.seamless = change.seamless && position % held == 0 && common.value_or(begun) == begun;
      common = begun;
      change.whole_pass = std::max(change.whole_pass, begun);
    }
  }
  const auto p = static_cast<std::uint64_t>(ranks_now);
  const std::uint64_t batch = global_batch / p, largest = (samples + p - 1) / p;
  change.step = std::max(step, (change.whole_pass * largest + batch - 1) / batch);
  return change;
}

std::vector<std::string> resume_notes(const SessionState& state, const Start& start) {
  if (!start.resumed) return {};
  RunFingerprint now = state.progress.resolved;
  if (state.config.reproducible) {
    // The fixed tree over micro-shards gives the same bits on any number of ranks, however it is cut.
    std::erase_if(now, [](const auto& item) { return item.first == "ranks" || item.first == "bucket MiB"; });
  }
  std::vector<std::string> notes = changed_settings(start.progress.resolved, now);
  // Another precision, or other numbers of threads or ranks, bring other kernels with them: said already.
  const bool explained = std::any_of(notes.begin(), notes.end(), [](const std::string& note) {
    return note.find(": all-reduce ") == std::string::npos &&
           note.find(": bucket MiB ") == std::string::npos &&
           note.find(": nccl algorithm ") == std::string::npos;
  });
  const std::string kernels = changed_kernels(start.kernels, state.tower->plan_text());
  if (!explained && !kernels.empty()) notes.push_back(kernels);
  const int ranks = state.world.size();
  const auto then = number<int>(find_item(start.progress.resolved, "ranks"));
  if (!then || *then < 1 || *then == ranks || state.config.shuffle != data::Shuffle::shard) return notes;
  const ShardChange change =
      shard_change(state.info.train_count, state.sizes.global_batch, state.progress.step, *then, ranks);
  if (change.seamless) return notes;
  notes.push_back(concat(
      "note: with --shuffle shard each of ", ranks, ranks == 1 ? " rank" : " ranks",
      " holds other samples than of ", *then,
      ": in the pass in progress some samples may repeat or be skipped; from the next pass ",
      "on, which all ranks are in after step ", change.step, ", each stands exactly once in every pass"));
  return notes;
}

}  // namespace cifar_mpi::train
