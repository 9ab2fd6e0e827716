#include "run/resume.hpp"

#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <new>
#include <numeric>
#include <sstream>

#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/run/run_directory.hpp"

namespace cifar_mpi::run {
namespace {

constexpr std::string_view kGlobalBatch = "--global-batch";
constexpr std::string_view kContent = "dataset content";  ///< known only after the samples have been read

std::string newest_later_than(const Directory& run, std::uint64_t step) {
  const std::vector<std::uint64_t> steps = list_checkpoints(run);
  return steps.empty() || steps.back() <= step ? std::string() : checkpoint_path(run.path(), steps.back());
}

/// Whether `path` names the run directory itself.
bool is_run(const std::string& path, const Directory& run) {
  const Directory folder = Directory::if_any(path);
  struct stat a {
  }, b{};
  return folder && ::fstat((folder / "lock").folder(), &a) == 0 &&
         ::fstat((run / "lock").folder(), &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/// The checkpoint for --resume; empty if the run is new.
std::optional<FoundCheckpoint> look_for_checkpoint(const StartRequest& asked, const Log& log) {
  if (asked.resume == "auto") return newest_valid_checkpoint(*asked.run, log);
  if (asked.resume != "never") {
    const bool itself = is_run(asked.resume, *asked.run) && !list_checkpoints(*asked.run).empty();
    if (itself) return newest_valid_checkpoint(*asked.run, log);
    FoundCheckpoint found = read_asked_checkpoint(asked.resume, log);
    // A restart would resume from those.
    if (const std::string later = newest_later_than(*asked.run, found.content.progress.step);
        !later.empty()) {
      throw Error(ErrorKind::checkpoint, later, " is of a later step than ", asked.resume, " (step ",
                  found.content.progress.step, "), and the next start would resume from it; choose another ",
                  "--run-dir, or move the later checkpoints away");
    }
    return found;
  }
  const std::vector<std::uint64_t> steps = list_checkpoints(*asked.run);
  if (steps.empty()) return std::nullopt;
  throw Error(ErrorKind::checkpoint, asked.run->path(), " already holds a run at step ", steps.back(),
              "; with --resume never, remove the directory or choose another --run-dir");
}

void broadcast(const comm::World& world, std::vector<NamedTensor>& tensors) {
  for (NamedTensor& tensor : tensors) world.broadcast(tensor.values);
}

std::vector<NamedTensor> zero_tensors(const model::ParamTable& params, bool with_running) {
  std::vector<NamedTensor> tensors;
  for (const model::Param& param : params)
    if (with_running || param.role != model::ParamRole::running) tensors.push_back(zero_tensor(param));
  return tensors;
}

/// Rank 0 reads the file of --init-from. Rows that do not begin with zeros begin with these weights.
void begin_with_other_weights(const StartRequest& asked, const model::ParamTable& params,
                              const comm::World& world, const Log& log, Start& start) {
  std::vector<NamedTensor>& weights = start.state[optim::StateRole::weights];
  world.together([&] {
    if (world.rank() != 0) return;
    start.initialized_from = initialize_from(asked.init_from, params, asked.classifier, weights, log);
  });
  world.broadcast(start.initialized_from);
  broadcast(world, weights);
  start.state[optim::StateRole::average] = weights;
  if (!start.state[optim::StateRole::slow].empty()) start.state[optim::StateRole::slow] = weights;
}

void require_same_beginning(const StartRequest& asked, const FoundCheckpoint& found) {
  if (asked.init_from.empty() || !found.content.provenance.initialized_from.empty()) return;
  throw Error(ErrorKind::checkpoint, found.path,
              " holds a run that did not begin with the weights of another one; omit ",
              "--init-from to resume it, or choose another --run-dir for a new run");
}

bool has(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

/// What to do about an item that differs.
std::string usual_advice(const std::string& item, const StartRequest& asked, const std::string& path) {
  const std::string allow = !has(asked.changeable, item)
                                ? ""
                                : concat(", --allow-change ", item == kLength ? "steps" : item.substr(2),
                                         " to resume with this value");
  const std::string other =
      concat("; give the same options to resume", allow, ", or choose another --run-dir");
  if (item == "model") return concat(other, "; the weights of one model cannot start another");
  const bool of_shapes = item == "network input" || item == "dataset image";
  return concat(other, ", with --init-from ", path, " to start from its weights",
                of_shapes ? " if no layer has another shape" : "");
}

/// Advice for a global batch that is not the checkpoint's.
std::string batch_advice(const RunFingerprint& found, const StartRequest& asked, int ranks_of_a_step) {
  const auto batch = find_number(found, kGlobalBatch);
  if (!batch || asked.global_batch_given) return {};
  const std::string rule =
      "; unless --global-batch is given, it is --batch-size times --accumulate times the ranks that make a "
      "step, here ";
  if (*batch % ranks_of_a_step == 0)
    return concat(rule, ranks_of_a_step, ": give --global-batch ", *batch, " to resume with this number");
  return concat(rule, ranks_of_a_step, ": to resume, use a number of ranks that divides ", *batch,
                " and give --global-batch ", *batch);
}

/// "24x24" where `text` begins with it and `end`.
std::string size_before(std::string_view text, char end) {
  const std::size_t at = text.find_first_not_of("0123456789x");
  const bool is_size = at != std::string_view::npos && text[at] == end &&
                       text.substr(0, at).find('x') != std::string_view::npos;
  return is_size ? std::string(text.substr(0, at)) : std::string();
}

/// The lines of a kernel plan by the size of images, with which they begin ("24x24 conv1: jit"); "" has those of whole
/// images. In checkpoints of earlier versions a line "images of 24x24:" comes before the lines of a size instead.
std::map<std::string, std::vector<std::string>> lines_by_size(const std::string& text) {
  constexpr std::string_view kBefore = "images of ";
  std::map<std::string, std::vector<std::string>> lines;
  std::istringstream in(text);
  std::string current;
  for (std::string line; std::getline(in, line);) {
    const std::string begun =
        line.starts_with(kBefore) ? size_before(std::string_view(line).substr(kBefore.size()), ':') : "";
    if (!begun.empty()) {
      current = begun;
      continue;
    }
    const std::string size = size_before(line, ' ');
    if (!size.empty() || current.empty())
      lines[size].push_back(line);
    else
      lines[current].push_back(concat(current, ' ', line));
  }
  return lines;
}

bool concerns_sums(const std::string& setting) {
  return setting == "update" || setting == "all-reduce" || setting == "bucket MiB" ||
         setting == "nccl algorithm";
}

}  // namespace

std::optional<FoundCheckpoint> newest_valid_checkpoint(const Directory& run, const Log& log) {
  const std::vector<std::uint64_t> steps = list_checkpoints(run);
  if (steps.empty()) return std::nullopt;
  std::string first_problem;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const InputFile file = open_checkpoint(run, *step);
    const auto refuse = [&](ErrorKind kind, const std::string& why) {
      throw Error(kind, "cannot read ", file.path(), ": ", why,
                  "; repair it, or move the file away to resume from an older checkpoint");
    };
    try {
      FoundCheckpoint found{file.path(), read_checkpoint(file)};
      if (found.content.progress.step == *step) return found;
      throw Error(ErrorKind::checkpoint, file.path(), " holds step ", found.content.progress.step,
                  ", but its name has another step");
    } catch (const std::bad_alloc&) {
      refuse(ErrorKind::device, "not enough memory for it");
    } catch (const Error& error) {
      if (const std::string why = file.fault(); !why.empty() && !file.missing()) refuse(ErrorKind::io, why);
      if (error.kind() != ErrorKind::checkpoint) throw;
      if (first_problem.empty()) first_problem = error.what();
      log.warn(concat("skipping a damaged checkpoint: ", error.what()));
    }
  }
  throw Error(ErrorKind::checkpoint, run.path(),
              " holds no checkpoint that can be read; the newest: ", first_problem,
              "; to start over, remove the directory or choose another --run-dir");
}

FoundCheckpoint read_asked_checkpoint(const std::string& path, const Log& log) {
  if (const Directory folder = Directory::if_any(path)) {
    if (auto found = newest_valid_checkpoint(folder, log)) return std::move(*found);
  }
  const InputFile file = open_checkpoint(path);
  require_checkpoint(file);
  return {file.path(), read_checkpoint(file)};
}

Start find_start(const StartRequest& asked, const std::function<std::vector<NamedTensor>()>& initial,
                 const model::ParamTable& params, const comm::World& world, const Log& log) {
  Start start;
  const std::vector<optim::StateRow> rows =
      optim::state_rows(asked.optimizer, asked.outer_momentum, asked.slow);
  world.together([&] {
    if (world.rank() != 0) return;
    std::optional<FoundCheckpoint> found = look_for_checkpoint(asked, log);
    if (!found) return;
    start.changed = require_same_run(found->content.progress.identity, asked, found->path, asked.of_a_step);
    start.changes = std::move(found->content.provenance.changes);
    if (!start.changed.empty())
      start.changes += concat("step ", found->content.progress.step, ": ", start.changed, '\n');
    require_same_beginning(asked, *found);
    if (const auto kind = found->content.optimizer.kind; kind != asked.optimizer) {
      throw Error(ErrorKind::checkpoint, found->path, " holds the state of the optimizer ", to_string(kind),
                  ", but is of a run with ", to_string(asked.optimizer), "; choose another checkpoint");
    }
    for (const optim::StateRow& row : rows) {
      start.state[row.role] = match_tensors(std::move(found->content.state[row.role]), params, found->path,
                                            row.running != nullptr);
    }
    start.name = found->path;
    start.progress = std::move(found->content.progress);
    start.kernels = std::move(found->content.provenance.kernels);
    start.views = found->content.provenance.views;
    start.initialized_from = std::move(found->content.provenance.initialized_from);
  });
  world.broadcast(start.name);
  start.resumed = !start.name.empty();
  if (!start.resumed) {
    start.state = initial_state(rows, initial());
    if (!asked.init_from.empty()) begin_with_other_weights(asked, params, world, log, start);
    return start;
  }

  world.broadcast(start.initialized_from);
  for (const optim::StateRow& row : rows) {
    if (world.rank() != 0) start.state[row.role] = zero_tensors(params, row.running != nullptr);
    broadcast(world, start.state[row.role]);
  }
  world.broadcast(start.progress.step);
  world.broadcast(start.progress.batches);
  world.broadcast(start.progress.identity);
  world.broadcast(start.progress.resolved);
  world.broadcast(start.kernels);
  world.broadcast(start.changed);
  world.broadcast(start.changes);
  return start;
}

void add_dataset_content(StartRequest& asked, std::uint64_t mine, const Start& start,
                         const comm::World& world) {
  // Each sample is fingerprinted by one rank only, even if all ranks hold all samples.
  const std::vector<std::uint64_t> all = world.gather(mine);
  const std::uint64_t total = std::accumulate(all.begin(), all.end(), std::uint64_t{0});
  asked.fingerprint.emplace_back(kContent, fmt::format("{:016x}", total));
  if (!start.resumed) return;
  world.together([&] {
    if (world.rank() != 0) return;
    require_same_run(start.progress.identity, asked, start.name, asked.of_a_step);
  });
}

std::string require_same_run(const RunFingerprint& found, const StartRequest& asked, const std::string& path,
                             int ranks_of_a_step) {
  std::string changes;
  const auto differs = [&](const std::string& item, const std::string& then, const std::string& now,
                           const std::string& advice) {
    if (has(asked.may_differ, item)) {
      changes += concat(changes.empty() ? "" : ", ", item, ' ', then, " -> ", now);
      return;
    }
    const char* const be = item.starts_with("dataset ") && item.ends_with('s') ? " are " : " is ";
    throw Error(ErrorKind::checkpoint, path, " holds a run of another configuration: its ", item, be, then,
                ", this one's", be, now, advice.empty() ? usual_advice(item, asked, path) : advice);
  };
  for (const auto& [name, value] : asked.fingerprint) {
    const std::string* then = find_item(found, name);
    if (then == nullptr) then = find_item(asked.unrecorded, name);
    if (then != nullptr && *then == value) continue;
    std::string advice;
    if (name == kContent && then != nullptr)
      advice = concat("; ", asked.data, " holds other images or labels: give its dataset ",
                      "with --data, or choose another --run-dir");
    if (name == kGlobalBatch) advice = batch_advice(found, asked, ranks_of_a_step);
    if (name == kLength && then != nullptr)
      advice = concat("; its learning rate or its lookahead depends on it: give --steps ", *then,
                      " to resume, --allow-change steps to resume with another length, or choose another ",
                      "--run-dir");
    differs(name, then != nullptr ? *then : "not recorded", value, advice);
  }
  for (const auto& [name, value] : found) {
    if (name == kContent || find_item(asked.fingerprint, name) != nullptr) continue;
    const std::string* const now = find_item(asked.unrecorded, name);
    differs(name, value, now != nullptr ? *now : "not set", {});
  }
  return changes;
}

std::vector<ChangedSetting> changed_settings(const RunFingerprint& then, const RunFingerprint& now) {
  const auto *ranks_then = find_item(then, "ranks"), *ranks_now = find_item(now, "ranks");
  const bool alone = ranks_then && ranks_now && *ranks_then == "1" && *ranks_now == "1";
  std::vector<ChangedSetting> changed;
  for (const auto& [name, value] : now) {
    const std::string* const before = find_item(then, name);
    if (before == nullptr || *before == value) continue;
    if (alone && concerns_sums(name)) continue;  // nothing is summed
    const std::string what = name == "ranks" ? "the number of ranks that compute" : name;
    changed.push_back({name, concat("note: ", what, " is ", value, ", but the checkpoint was made with ",
                                    *before, ": the run continues with different bits")});
  }
  return changed;
}

std::string changed_kernels(const std::string& then, const std::string& now) {
  if (then == now || then.empty()) return {};
  const auto before = lines_by_size(then), after = lines_by_size(now);
  std::string was = "nothing", is = "nothing";
  int different = 0;
  for (const auto& [size, old] : before) {
    const auto found = after.find(size);
    if (found == after.end()) continue;
    for (std::size_t i = 0; i < std::max(old.size(), found->second.size()); ++i) {
      const std::string a = i < old.size() ? old[i] : "nothing";
      const std::string b = i < found->second.size() ? found->second[i] : "nothing";
      if (a != b && different++ == 0) was = a, is = b;
    }
  }
  if (different == 0) return {};
  const std::string more = different > 1 ? concat(" (and ", different - 1, " more)") : std::string();
  return concat("note: the kernel plan has \"", is, "\", but the checkpoint was made with \"", was, "\"",
                more, ": the run continues with different bits");
}

ShardChange shard_change(std::uint64_t samples, std::uint64_t global_batch, std::uint64_t step,
                         int ranks_then, int ranks_now) {
  ShardChange change;
  change.seamless = true;
  // Epochs that any rank has begun, before or after the change, are affected, unless all ranks are at the end
  // of the same one.
  std::optional<std::uint64_t> common;
  for (const int ranks : {ranks_then, ranks_now}) {
    const auto p = static_cast<std::uint64_t>(ranks);
    const std::uint64_t position = step * (global_batch / p);
    for (std::uint64_t r = 0; r < p; ++r) {
      const std::uint64_t held = data::shard_of(samples, r, p).count;
      const std::uint64_t begun = (position + held - 1) / held;
      change.seamless = change.seamless && position % held == 0 && common.value_or(begun) == begun;
      common = begun;
      change.whole_epoch = std::max(change.whole_epoch, begun);
    }
  }
  const auto p = static_cast<std::uint64_t>(ranks_now);
  const std::uint64_t batch = global_batch / p, largest = (samples + p - 1) / p;
  change.step = std::max(step, (change.whole_epoch * largest + batch - 1) / batch);
  return change;
}

std::vector<std::string> resume_notes(const Start& start, const StartedRun& now) {
  if (!start.resumed) return {};
  RunFingerprint resolved = now.resolved;
  if (now.reproducible) {
    // The fixed tree over micro-shards gives the same bits on any number of ranks and with any buckets.
    std::erase_if(resolved,
                  [](const auto& item) { return item.first == "ranks" || item.first == "bucket MiB"; });
  }
  const std::vector<ChangedSetting> changed = changed_settings(start.progress.resolved, resolved);
  std::vector<std::string> notes;
  for (const ChangedSetting& setting : changed) notes.push_back(setting.note);
  // A different precision or number of threads or ranks, which is already reported, explains different
  // kernels.
  const bool explained = std::ranges::any_of(
      changed, [](const ChangedSetting& setting) { return !concerns_sums(setting.name); });
  const std::string kernels = changed_kernels(start.kernels, now.kernels);
  if (!explained && !kernels.empty()) notes.push_back(kernels);
  if (now.compares_evaluations && start.views != 0 && start.views != now.views) {
    notes.push_back(
        concat("note: --views is ", now.views, ", but the checkpoint was made with ", start.views,
               ": --patience and --keep-best begin anew, because only evaluations with equal views can be "
               "compared; the best checkpoint so far stays until one of the new views is recorded"));
  }
  const std::int64_t then = find_number(start.progress.resolved, "ranks").value_or(0);
  if (then < 1 || then == now.ranks) return notes;
  if (now.by_worker || !start.progress.batches.empty()) {
    notes.push_back(concat("note: the samples of each of ", counted(now.ranks, "worker"),
                           " continue where those of ", then,
                           " were on average: in the current epoch some may repeat or be skipped"));
    return notes;
  }
  const auto most = static_cast<std::int64_t>(now.global_batch);  // a rank has at least a sample per step
  if (then > most || now.shuffle != data::Shuffle::shard) return notes;
  const ShardChange change =
      shard_change(now.samples, now.global_batch, start.progress.step, static_cast<int>(then), now.ranks);
  if (change.seamless) return notes;
  notes.push_back(concat(
      "note: with --shuffle shard each of ", counted(now.ranks, "rank"),
      " holds different samples than each of ", then,
      " did: in the current epoch some samples may repeat or be skipped; from the next epoch on, ",
      "which all ranks have reached after step ", change.step, ", each epoch has each sample exactly once"));
  return notes;
}

}  // namespace cifar_mpi::run
