#include "cifar_mpi/comm/server_update.hpp"

#include <mpi.h>

#include <algorithm>
#include <list>
#include <stdexcept>
#include <utility>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "comm/host_image.hpp"
#include "comm/mpi_check.hpp"
#include "comm/push_pull.hpp"
#include "comm/serving.hpp"
#include "comm/span_queue.hpp"
#include "comm/world_access.hpp"

namespace cifar_mpi::comm {
namespace {

using engine::ControlLayout;
using engine::kComm;
using engine::kCompute;
using engine::StepProgram;
using engine::Task;

template <class T>
engine::Bytes bytes_of(std::span<T> array) {
  return engine::bytes_of(array.data(), array.size());
}

/// The servers' exchange after their updates and before their answers: the decay term of each span, and the
/// number of requests. All of them then have the same control block and decay terms.
class CompareServers {
 public:
  struct Word {
    double decay_sum = 0.0;
    double stops = 0.0;
    double traces = 0.0;
  };

  CompareServers(MPI_Comm servers, int own, std::span<float> control, std::span<double> decay_sums,
                 const std::atomic<int>* requests, Serving& serving, bool waits_for_all)
      : servers_(servers),
        own_(static_cast<std::size_t>(own)),
        control_(control),
        decay_sums_(decay_sums),
        requests_(requests),
        serving_(serving),
        waits_for_all_(waits_for_all),
        words_(decay_sums.size()) {}

  void start() {
    const int asked = requests_ != nullptr ? requests_->load(std::memory_order_relaxed) : 0;
    const auto has = [asked](int request) { return (asked & request) != 0 ? 1.0 : 0.0; };
    mine_ = {decay_sums_[own_], has(engine::kStopRequest), has(engine::kTraceRequest)};
    check(MPI_Iallgather(&mine_, kNumbers, MPI_DOUBLE, words_.data(), kNumbers, MPI_DOUBLE, servers_,
                         under_way_.address()),
          "comparing the servers");
  }

  bool poll() {
    int done = 0;
    check(MPI_Test(under_way_.address(), &done, MPI_STATUS_IGNORE), "comparing the servers");
    if (done == 0) return false;
    for (std::size_t s = 0; s < words_.size(); ++s) {
      decay_sums_[s] = words_[s].decay_sum;
      if (waits_for_all_) {
        control_[ControlLayout::stop] += static_cast<float>(words_[s].stops);
        control_[ControlLayout::trace] += static_cast<float>(words_[s].traces);
      } else if (own_ == 0 && words_[s].stops > 0.0) {
        serving_.note_stop();
      }
    }
    return true;
  }

 private:
  static constexpr int kNumbers = sizeof(Word) / sizeof(double);

  MPI_Comm servers_;
  std::size_t own_;
  std::span<float> control_;
  std::span<double> decay_sums_;
  const std::atomic<int>* requests_;
  Serving& serving_;
  bool waits_for_all_;
  Word mine_;
  std::vector<Word> words_;
  Request under_way_;
};

class ServerUpdate final : public Update {
 public:
  ServerUpdate(const World& world, const engine::ParamLayout& layout, const ServerSettings& settings);

  std::string_view name() const override { return name_; }
  std::string note() const override { return {}; }
  RunFingerprint settings() const override;
  void allocate(std::size_t control_floats) override;
  GradientBlock& block() override { return block_; }
  void bind(const StepState& state) override { state_ = state; }
  std::span<const ParamSpan> spans() const override { return spans_; }
  void append(StepProgram& program, StepParts parts, Concurrency concurrent) override;
  void complete(std::span<const std::span<float>> blocks, std::span<const std::span<float>> shared) override;
  std::optional<PushCounts> push_counts() const override;

 private:
  void append_working(StepProgram& program, StepParts parts, Concurrency concurrent);
  void append_serving(StepProgram& program, StepParts parts);
  void require_same_step() const;
  void check_parts(const StepParts& parts) const;
  StepFacts facts_of(std::span<float> control, const StepState& state);
  bool waits_for_all() const { return settings_.aggregation.of(ranks_.workers) == ranks_.workers; }

  const World& world_;
  Communicator all_;
  Communicator servers_;  ///< none for a worker
  ServerRanks ranks_;
  ServerSettings settings_;
  std::vector<ParamSpan> spans_;
  std::string name_;
  PushTally tally_;
  GradientBlock block_;
  StepState state_;
  // Tasks point into these; they are destroyed before the communicators.
  std::list<HostImage> images_;
  std::list<Push> pushes_;
  std::list<Pull> pulls_;
  std::list<StepFacts> facts_;
  std::list<PushPolicy> policies_;
  std::list<Serving> serving_;
  std::list<CompareServers> comparing_;
};

ServerUpdate::ServerUpdate(const World& world, const engine::ParamLayout& layout,
                           const ServerSettings& settings)
    : world_(world),
      all_(WorldAccess::duplicate(world)),
      settings_(settings),
      spans_(cut_for_servers(layout, settings.servers)),
      tally_(world.size() - settings.servers) {
  ranks_ = {all_.get(), world.rank(), world.size() - settings.servers, settings.servers};
  servers_ = WorldAccess::split(world, ranks_.serves() ? 0 : -1);
  const int first = ranks_.workers, last = world.size() - 1;
  name_ = first == last ? concat("server, rank ", first) : concat("servers, ranks ", first, " to ", last);
  if (settings.aggregation.asynchronous) {
    name_ += ", asynchronously";
  } else if (!waits_for_all()) {
    name_ += concat(", of the first ", settings.aggregation.pushes, " of ", first, " workers");
  }
}

RunFingerprint ServerUpdate::settings() const {
  const Aggregation& of = settings_.aggregation;
  const std::string aggregate = of.asynchronous   ? "async"
                                : waits_for_all() ? "all"
                                                  : std::to_string(of.pushes);
  RunFingerprint settings{{"servers", std::to_string(ranks_.servers)}, {"aggregate", aggregate}};
  if (!of.asynchronous) return settings;
  const auto or_none = [](const std::optional<std::uint64_t>& value) {
    return value ? std::to_string(*value) : std::string("none");
  };
  settings.emplace_back("max staleness", or_none(of.most_drift));
  settings.emplace_back("rate by staleness", of.scales_rate ? "on" : "off");
  settings.emplace_back("arrival order", or_none(of.arrival_order));
  return settings;
}

void ServerUpdate::allocate(std::size_t control_floats) {
  const std::size_t bytes = (control_floats + spans_.back().end) * sizeof(float);
  world_.together([&] {
    block_ = {
        settings_.device != nullptr ? settings_.device->allocate(bytes) : allocate_message_memory(bytes),
        control_floats};
  });
}

/// A task in which a rank waits for others.
template <class Start, class Poll>
Task waiting(std::string name, std::vector<engine::Bytes> reads, std::vector<engine::Bytes> writes,
             Start start, Poll poll) {
  Task task{std::move(name), std::move(reads), std::move(writes), [start](engine::Lane&) { start(); }, poll};
  task.kind = engine::TaskKind::collective;
  return task;
}

template <class Operation>
Task waiting(std::string name, std::vector<engine::Bytes> reads, std::vector<engine::Bytes> writes,
             Operation& operation) {
  return waiting(
      std::move(name), std::move(reads), std::move(writes), [&operation] { operation.start(); },
      [&operation] { return operation.poll(); });
}

void ServerUpdate::check_parts(const StepParts& parts) const {
  if (parts.before_updates) throw std::logic_error("no server has the whole sum of the gradients");
  if (parts.update.size() != spans_.size() || state_.decay_sums.size() != spans_.size())
    throw std::logic_error("one update task and one decay sum per server");
  if (state_.step == nullptr || !settings_.next_meeting)
    throw std::logic_error("servers count steps, and must know where all ranks meet");
  if (state_.params.size() != block_.grads().size())
    throw std::logic_error("there are not as many trained parameters as gradients");
  if (parts.compute.empty() != ranks_.serves()) throw std::logic_error("workers compute, and servers do not");
}

void ServerUpdate::append(StepProgram& program, StepParts parts, Concurrency concurrent) {
  check_parts(parts);
  if (ranks_.serves()) return append_serving(program, std::move(parts));
  append_working(program, std::move(parts), concurrent);
}

void ServerUpdate::append_working(StepProgram& program, StepParts parts, Concurrency concurrent) {
  engine::Branches branches(program, concurrent.branches);
  const HostImage* const image =
      settings_.device != nullptr ? &images_.emplace_back(*settings_.device, block_, state_) : nullptr;
  const GradientBlock& block = image != nullptr ? image->block() : block_;
  const StepState& state = image != nullptr ? image->state() : state_;
  std::vector<std::size_t> ready_after;
  std::vector<Task> tasks;
  const auto add = [&](std::size_t ready, Task task) {
    ready_after.push_back(ready);
    tasks.push_back(std::move(task));
  };
  for (std::size_t s = 0; s < spans_.size(); ++s) {
    const std::span<float> array = block_.array_of(s, spans_[s]), sent = block.array_of(s, spans_[s]);
    const std::size_t last = last_user(parts.compute, array);
    const std::size_t ready = settings_.overlap && concurrent.exchange ? last : parts.compute.size() - 1;
    if (image != nullptr) add(ready, image->fetch(concat("copy for server ", s), sent, array));
    Push& push = pushes_.emplace_back(ranks_, static_cast<int>(s), sent);
    add(ready, waiting(concat("push to server ", s), {bytes_of(sent)}, {}, push));
  }
  SpanQueue queue(program, branches, std::move(ready_after), std::move(tasks));
  for (std::size_t i = 0; i < parts.compute.size(); ++i) {
    branches.run(std::move(parts.compute[i]));
    queue.run_ready_after(i);
  }
  Pull& pull = pulls_.emplace_back(ranks_, spans_, state.params, facts_of(block.control(), state));
  branches.wait(kComm);
  program.run(kComm, waiting("pull", {},
                             {bytes_of(state.params), bytes_of(block.control()), bytes_of(state.decay_sums),
                              engine::bytes_of(state.step, 1)},
                             pull));
  if (image != nullptr) program.run(kComm, image->deliver("copy the answer"));
  program.wait(kCompute, program.set(kComm));
  for (Task& task : parts.finish) branches.run(std::move(task));
  branches.join();
}

/// In sequence: each task needs the previous one.
void ServerUpdate::append_serving(StepProgram& program, StepParts parts) {
  const auto own = static_cast<std::size_t>(ranks_.server());
  const ParamSpan& span = spans_[own];
  const std::span<float> gradients = block_.array_of(own, span);
  const std::span<float> params = state_.params.subspan(span.begin, span.end - span.begin);
  Serving::First first;
  if (own == 0) {
    first.facts = &facts_.emplace_back(facts_of(block_.control(), state_));
    first.policy = &policies_.emplace_back(ranks_.workers, settings_.aggregation, *state_.step,
                                           settings_.next_meeting, settings_.pushed);
    first.tally = &tally_;
  }
  const Serving::Arrays arrays{gradients, block_.control(), params, state_.decay_sums};
  Serving& serving = serving_.emplace_back(ranks_, arrays, first, waits_for_all());
  CompareServers& comparing =
      comparing_.emplace_back(servers_.get(), ranks_.server(), block_.control(), state_.decay_sums,
                              settings_.requests, serving, waits_for_all());
  const engine::Bytes control = bytes_of(block_.control()), decay_sums = bytes_of(state_.decay_sums);
  const engine::Bytes step = engine::bytes_of(state_.step, 1);
  program.run(kCompute,
              waiting(
                  "wait for pushes", {bytes_of(params)}, {bytes_of(gradients), control},
                  [&serving] { serving.start_round(); }, [&serving] { return serving.poll_round(); }));
  for (Task& task : parts.update[own]) program.run(kCompute, std::move(task));
  program.run(kCompute, waiting("compare servers", {control, decay_sums}, {control, decay_sums}, comparing));
  program.run(kCompute,
              waiting(
                  "answer workers", {bytes_of(params), control, decay_sums, step}, {},
                  [&serving] { serving.start_answers(); }, [&serving] { return serving.poll_answers(); }));
  for (Task& task : parts.finish) program.run(kCompute, std::move(task));
}

/// Otherwise the ranks would not make the same collective call.
void ServerUpdate::require_same_step() const {
  if (state_.step == nullptr) return;
  std::uint64_t step = 0;
  if (settings_.device != nullptr) {
    settings_.device->copy(&step, state_.step, sizeof step);
  } else {
    step = *state_.step;
  }
  world_.require_equal(
      ErrorKind::internal, {{"the step", std::to_string(step)}},
      "all ranks must be at the same step when they evaluate, save or compare; this is a bug");
}

void ServerUpdate::complete(std::span<const std::span<float>> blocks,
                            std::span<const std::span<float>> shared) {
  require_same_step();
  const auto from = [this](int server, std::span<float> values) {
    const int root = ranks_.rank_of_server(server);
    check(MPI_Bcast(values.data(), count_of(values.size()), MPI_FLOAT, root, all_.get()),
          "completing the state of the ranks", root);
  };
  for (const std::span<float> block : blocks) {
    for (int server = 0; server < ranks_.servers; ++server) {
      const ParamSpan& span = spans_[static_cast<std::size_t>(server)];
      from(server, block.subspan(span.begin, span.end - span.begin));
    }
  }
  for (const std::span<float> block : shared) from(0, block);
  const std::span<std::uint64_t> counts = tally_.values();
  check(MPI_Bcast(counts.data(), count_of(counts.size()), MPI_UINT64_T, ranks_.rank_of_server(0), all_.get()),
        "completing the counts of the servers", ranks_.rank_of_server(0));
}

StepFacts ServerUpdate::facts_of(std::span<float> control, const StepState& state) {
  return StepFacts({std::as_writable_bytes(control), std::as_writable_bytes(state.decay_sums),
                    std::as_writable_bytes(std::span(state.step, 1)),
                    std::as_writable_bytes(tally_.values())});
}

std::optional<PushCounts> ServerUpdate::push_counts() const {
  PushCounts counts;
  counts.applied = tally_.applied();
  counts.dropped = tally_.dropped();
  if (settings_.aggregation.asynchronous) counts.staleness = tally_.staleness();
  counts.most_stale = tally_.most_stale();
  // A push to the first server has the control block, and its answer that and the other facts.
  const std::size_t with_first = 2 * block_.control().size_bytes() + state_.decay_sums.size_bytes() +
                                 sizeof *state_.step + tally_.values().size_bytes();
  const auto moved = [&](std::size_t span) {  // by a push and its answer
    const std::size_t floats = spans_[span].end - spans_[span].begin;
    return 2 * floats * sizeof(float) + (span == 0 ? with_first : 0);
  };
  counts.server_bytes.resize(spans_.size());
  for (std::size_t w = 0; w < counts.applied.size(); ++w) {
    const std::uint64_t pushes = counts.applied[w] + counts.dropped[w];
    std::uint64_t bytes = 0;
    for (std::size_t s = 0; s < spans_.size(); ++s) {
      bytes += pushes * moved(s);
      counts.server_bytes[s] += pushes * moved(s);
    }
    counts.worker_bytes.push_back(bytes);
  }
  return counts;
}

}  // namespace

std::vector<ParamSpan> cut_for_servers(const engine::ParamLayout& layout, int servers) {
  constexpr std::size_t kLine = 16;
  const std::size_t lines = layout.trained_floats / kLine, parts = static_cast<std::size_t>(servers);
  std::vector<ParamSpan> spans;
  for (std::size_t s = 0; s < parts; ++s)
    spans.push_back({s * lines / parts * kLine, (s + 1) * lines / parts * kLine});
  return spans;
}

std::unique_ptr<Update> make_server_update(const World& world, const engine::ParamLayout& layout,
                                           const ServerSettings& settings) {
  return std::make_unique<ServerUpdate>(world, layout, settings);
}

}  // namespace cifar_mpi::comm
