#include "selfcheck/device_checks.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <exception>

#include "cifar_mpi/base/text.hpp"
#include "selfcheck/gradient_limits.hpp"

namespace cifar_mpi::selfcheck {
namespace {

using engine::Precision;
using engine::RunnerKind;
using Input = CheckStep::Input;

CheckRow good(std::string found) { return {{}, Outcome::good, std::move(found)}; }
CheckRow bad(std::string found) { return {{}, Outcome::bad, std::move(found)}; }
CheckRow no_graph(std::string found) { return {{}, Outcome::no_graph, std::move(found)}; }
CheckRow refused(const Error& error) {
  return {{}, Outcome::refused, concat("no graph can be made: ", error.what())};
}

/// The largest relative error of a rounded operand; for bf16 half of it, about the mean.
double rounding_of(Precision precision) {
  return precision == Precision::bf16 ? 0x1.0p-9 : precision == Precision::tf32 ? 0x1.0p-11 : 0x1.0p-24;
}

/// Gradients and loss of one step with the current weights.
struct StepFigures {
  Gradients gradients;
  double loss = 0.0;
};

StepFigures figures_of(CheckStep& step) {
  step.rewind();
  const auto runner = step.runner(RunnerKind::serial, Input::plain);
  runner->replay();
  runner->finish();
  return {step.gradients(), step.loss()};
}

/// The largest error as a share of the allowed one.
struct Worst {
  std::string what;
  double distance = 0.0;
  double allowed = 0.0;
  double share() const { return std::isnan(distance) ? HUGE_VAL : distance / allowed; }
};

/// `allowed(p)`: share of the length of gradient p. If all gradients are good but the loss is not, returns
/// the loss.
template <class Allowed>
Worst furthest(const model::ParamTable& params, const StepFigures& found, const StepFigures& wanted,
               double loss_allowed, const Allowed& allowed) {
  Worst worst{"", -1.0, 1.0};
  for (std::size_t p = 0; p < params.size(); ++p) {
    if (wanted.gradients[p].empty()) continue;
    const bool running = params[p].role == model::ParamRole::running;
    const Worst one{concat(running ? "" : "the gradient of ", params[p].name),
                    gradient_distance(params, found.gradients, wanted.gradients, p), allowed(p)};
    if (one.share() > worst.share()) worst = one;
  }
  const Worst loss{"the loss", std::abs(found.loss - wanted.loss) / wanted.loss, loss_allowed};
  return worst.share() <= 1.0 && loss.share() > 1.0 ? loss : worst;
}

CheckRow judged(const Worst& worst, Precision precision) {
  const std::string text = fmt::format("{} in {} is off by {:.2g}, at most {:.2g} is rounding", worst.what,
                                       to_string(precision), worst.distance, worst.allowed);
  return worst.share() <= 1.0 ? good(text) : bad(text);
}

/// A wrong kernel is wrong for other weights and images too; a unit that rounding moves across zero or past
/// its neighbour is not.
template <class Look>
CheckRow twice(const Look& look) {
  CheckRow row;
  for (const std::uint64_t draw : {1, 2}) {
    row = look(draw);
    if (row.outcome == Outcome::good) break;
  }
  return row;
}

/// The state after three steps.
struct Trace {
  std::vector<std::vector<float>> rows;
  std::vector<engine::StepRecord> records;
};
constexpr int kSteps = 3;

Trace trace_of(CheckStep& step, engine::Runner& runner) {
  step.rewind();
  for (int i = 0; i < kSteps; ++i) runner.replay();
  runner.finish();
  return {step.rows(), {step.blocks->records.begin(), step.blocks->records.begin() + kSteps}};
}

/// Where two traces differ, in words; empty when they do not.
std::string difference(const CheckStep& step, const Trace& a, const Trace& b) {
  for (std::size_t r = 0; r < a.rows.size(); ++r) {
    const auto& entries = step.device.layout.entries;
    for (std::size_t p = 0; p < entries.size(); ++p) {
      std::size_t differ = 0;
      double most = 0.0;
      for (std::size_t i = entries[p].offset; i < entries[p].offset + entries[p].floats; ++i) {
        if (std::memcmp(&a.rows[r][i], &b.rows[r][i], sizeof(float)) == 0) continue;
        ++differ;
        most =
            std::max(most, std::abs(static_cast<double>(a.rows[r][i]) - static_cast<double>(b.rows[r][i])));
      }
      if (differ == 0) continue;
      return concat(step.blocks->state.rows()[r].what, " of ", step.plan.network.params[p].name, " in ",
                    differ, " places, by up to ", fmt::format("{:.2g}", most));
    }
  }
  for (std::size_t i = 0; i < a.records.size(); ++i) {
    const engine::StepRecord &x = a.records[i], &y = b.records[i];
    const auto figures = [](const engine::StepRecord& record) {
      return std::array{record.cross_entropy, record.decay_term,    record.correct,
                        record.samples,       record.gradient_norm, record.applied ? 1.0 : 0.0};
    };
    const auto left = figures(x), right = figures(y);
    if (std::memcmp(left.data(), right.data(), sizeof left) == 0) continue;
    return concat("the record of step ", i + 1, ": a cross-entropy of ", x.cross_entropy, " and of ",
                  y.cross_entropy);
  }
  return {};
}

}  // namespace

int distinct_images(int batch) {
  constexpr int kEnough = 8;
  for (int images = kEnough; images < batch; ++images) {
    if (batch % images == 0) return images;
  }
  return batch;
}

CheckRow compare_fp32(CheckStep& device, CheckStep& judge, int images) {
  const model::ParamTable& params = judge.plan.network.params;
  const RoundingLimits limits = fp32_limits(judge.plan.network.net, device.plan.sizes.batch);
  return twice([&](std::uint64_t draw) {
    device.fill(draw, images);
    judge.fill(draw, images);
    return judged(furthest(params, figures_of(device), figures_of(judge), limits.loss,
                           [&](std::size_t) { return limits.gradients; }),
                  Precision::fp32);
  });
}

CheckRow compare_rounded(CheckStep& device, CheckStep& judge, int images) {
  const model::ParamTable& params = judge.plan.network.params;
  const Precision precision = device.plan.config.precision;
  const double eps = rounding_of(precision);
  constexpr double kRoom = 4.0;
  return twice([&](std::uint64_t draw) {
    device.fill(draw, images);
    judge.fill(draw, images);
    const StepFigures wanted = figures_of(judge);
    double loss_moved = 0.0;
    std::vector<double> moved(params.size(), 0.0);
    for (const double off : {eps, -eps}) {
      judge.fill(draw, images, off);
      const StepFigures beside = figures_of(judge);
      loss_moved = std::max(loss_moved, std::abs(beside.loss - wanted.loss) / wanted.loss);
      for (std::size_t p = 0; p < params.size(); ++p) {
        if (wanted.gradients[p].empty()) continue;
        moved[p] = std::max(moved[p], gradient_distance(params, beside.gradients, wanted.gradients, p));
      }
    }
    return judged(furthest(params, figures_of(device), wanted, kRoom * (loss_moved + eps),
                           [&](std::size_t p) { return kRoom * (moved[p] + eps); }),
                  precision);
  });
}

namespace {

/// Steps as a graph. Throws if the device is wrong, that is if lanes do not work either.
CheckRow compare_graph(CheckStep& device, const Trace& wanted, engine::Runner& lanes) {
  try {
    const auto graph = device.runner(RunnerKind::graph, Input::distorted);
    for (const char* const which : {"", " again"}) {
      const std::string where = difference(device, wanted, trace_of(device, *graph));
      if (!where.empty()) return no_graph(concat("in line and as a graph", which, " differ: ", where));
    }
  } catch (const Error& error) {
    if (!difference(device, wanted, trace_of(device, lanes)).empty()) throw;
    return refused(error);
  }
  return good(concat(kSteps, " steps in line, on lanes, as a graph and as it again have the same bits"));
}

}  // namespace

CheckRow compare_runners(CheckStep& device, int images) {
  device.fill(1, images);
  const Trace wanted = trace_of(device, *device.runner(RunnerKind::serial, Input::distorted));
  for (const engine::StepRecord& record : wanted.records) {
    if (!record.applied) return bad(concat("step ", record.step + 1, " in line is not finite"));
  }
  const auto lanes = device.runner(RunnerKind::lanes, Input::distorted);
  if (const std::string where = difference(device, wanted, trace_of(device, *lanes)); !where.empty())
    return bad(concat("in line and on lanes differ: ", where));
  return compare_graph(device, wanted, *lanes);
}

CheckRow compare_images(CheckStep& device, int images) {
  device.fill(1, images);
  device.rewind();
  const auto runner = device.runner(RunnerKind::serial, Input::distorted);
  runner->observe({nullptr, true});
  runner->replay();
  runner->finish();
  const std::vector<float> found = device.images(), wanted = device.wanted_images();
  // values up to 255 times a scale, a shift of that size, then one rounding, which may move all values of an image alike
  constexpr double kUnitOfBf16 = 0x1.0p-8;
  const double allowed = 0x1.0p-20 + (device.plan.config.precision == Precision::bf16 ? kUnitOfBf16 : 0.0);
  const auto values = static_cast<std::size_t>(device.plan.network.net.input.count());
  Worst worst{"", 0.0, allowed};
  for (std::size_t begin = 0; begin < wanted.size(); begin += values) {
    double square = 0.0, length = 0.0;
    for (std::size_t i = begin; i < begin + values; ++i) {
      square += std::pow(static_cast<double>(found[i]) - static_cast<double>(wanted[i]), 2);
      length += std::pow(static_cast<double>(wanted[i]), 2);
    }
    const Worst one{concat("image ", begin / values + 1), std::sqrt(square / std::max(length, 1e-300)),
                    allowed};
    if (one.share() > worst.share()) worst = one;
  }
  const std::string text =
      fmt::format("{} is off by {:.2g}, at most {:.2g} is rounding", worst.what, worst.distance, allowed);
  return worst.share() <= 1.0 ? good(text) : bad(text);
}

CheckRow see_divergence(CheckStep& device, int images) {
  device.fill(1, images);
  device.rewind();
  const std::vector<std::vector<float>> before = device.rows();
  const auto runner = device.runner(RunnerKind::serial, Input::not_a_number);
  runner->replay();
  runner->finish();
  const engine::StepRecord& record = device.blocks->records.front();
  if (std::isfinite(record.cross_entropy) || record.applied) {
    return bad(concat("NaN in every image gives a cross-entropy of ", record.cross_entropy,
                      "; some kernel hides it, and a run that diverges would continue"));
  }
  return before == device.rows() ? good("NaN in the input is seen, and no weight moves")
                                 : bad("NaN in the input is seen, but weights move all the same");
}

namespace {

/// Makes the other ranks fail too, instead of waiting for this one, if an error interrupts an exchange
/// between GPUs.
class ExchangeGuard {
 public:
  explicit ExchangeGuard(CheckStep& step) : step_(step) {}
  ~ExchangeGuard() {
    if (std::uncaught_exceptions() == 0 || !step_.device.collectives.device) return;
    // Freeing it would wait for messages in flight. Device memory, unlike that of `window`, may outlive its
    // collective.
    step_.left_in_flight = std::move(step_.blocks->update->block());
    step_.blocks->update.reset();
  }
  ExchangeGuard(const ExchangeGuard&) = delete;
  ExchangeGuard& operator=(const ExchangeGuard&) = delete;

 private:
  CheckStep& step_;
};

}  // namespace

CheckRow compare_sums(CheckStep& device, bool graphs) {
  const step::Plan& plan = device.plan;
  engine::Backend& backend = *device.device.backend;
  comm::Update& update = *device.blocks->update;
  const std::span<float> block = update.block().all();
  const auto ranks = static_cast<std::size_t>(plan.world.size());
  const auto own = static_cast<std::size_t>(plan.world.rank());
  const std::size_t floats = block.size(), most = 255 / ranks + 1;
  const auto term = [&](std::size_t i, std::size_t rank) {
    return static_cast<float>((i * 7 + rank * 3) % most);  // sums of at most 255 + ranks, exact in bf16 too
  };
  std::vector<float> mine(floats), wanted(floats, 0.0f), found(floats);
  for (std::size_t i = 0; i < floats; ++i) {
    mine[i] = term(i, own);
    for (std::size_t rank = 0; rank < ranks; ++rank) wanted[i] += term(i, rank);
  }
  const std::size_t control = update.block().control().size(), trained = update.spans().back().end;
  const auto nothing = [](std::string name, std::vector<engine::Bytes> reads,
                          std::vector<engine::Bytes> writes) {
    return engine::Task{std::move(name), std::move(reads), std::move(writes), [](engine::Lane&) {}, {}};
  };
  comm::StepParts parts;
  parts.compute.push_back(nothing("terms", {}, {engine::bytes_of(block.data(), floats)}));
  for (const comm::ParamSpan& span : update.spans()) {
    parts.update.push_back({nothing(
        "sums", {engine::bytes_of(block.data() + control + span.begin, span.end - span.begin)}, {})});
  }
  engine::StepProgram program("self-check");
  update.append(program, std::move(parts), {});
  program.finalize();
  const auto runner = backend.runner(std::move(program), graphs ? RunnerKind::graph : RunnerKind::lanes, {});
  CheckRow wrong;  // the first one; a rank that finds it continues with the others
  for (const bool first_time : {true, false}) {  // a runner of graphs makes one in the second replay
    const char* const how = first_time ? "on lanes" : graphs ? "in a graph" : "on lanes again";
    backend.copy(block.data(), mine.data(), block.size_bytes());
    try {
      const ExchangeGuard guard(device);
      runner->replay();
      runner->finish();
    } catch (const Error& error) {
      if (first_time || !graphs || error.kind() == ErrorKind::comm) throw;
      return refused(error);
    }
    backend.copy(found.data(), block.data(), block.size_bytes());
    const std::size_t summed = control + trained;
    std::size_t differ = 0, first = summed;
    for (std::size_t i = summed; i-- > 0;) {
      if (found[i] == wanted[i]) continue;
      first = i;
      ++differ;
    }
    if (differ == 0 || !wrong.found.empty()) continue;
    wrong = (graphs && !first_time ? no_graph : bad)(
        concat("the all-reduce ", how, " gives ", found[first], " instead of ", wanted[first], " at float ",
               first, ", and ", differ, " of ", summed, " sums are wrong"));
  }
  if (!wrong.found.empty()) return wrong;
  return good(concat("sums of ", ranks, " ranks are exact (", update.name(), ")"));
}

namespace {

constexpr int kGraphSteps = 2;  ///< steps of a graph; more would take longer and test nothing else
constexpr int kTrainingReplays = 2 + 2 + kGraphSteps + 1 + 2;

/// kTrainingReplays in every way that the training loop replays. A runner of graphs makes one in the second
/// replay of each kind.
void train_in_all_ways(CheckStep& device, RunnerKind kind) {
  device.rewind();
  const auto steps = static_cast<std::uint64_t>(device.plan.sizes.local_steps);
  auto runner = device.run_runner(kind);
  engine::Recorder recorder(1, 4096 + 16 * runner->program().tasks().size());
  for (int i = 0; i < 2; ++i) runner->replay();
  runner->observe({nullptr, true});
  for (int i = 0; i < 2; ++i) runner->replay();
  runner->observe({});
  runner->replay(kGraphSteps);
  runner->observe({&recorder});
  runner->replay();
  runner->observe({});
  runner->finish();
  constexpr int kBefore = kTrainingReplays - 2;
  device.resume(steps * kBefore);
  runner = device.run_runner(kind);
  for (int i = kBefore; i < kTrainingReplays; ++i) runner->replay();
  runner->finish();
}

/// Why a run cannot replay as `kind` does; empty if it can.
std::string training_fault(CheckStep& device, const Trace& wanted, RunnerKind kind) {
  train_in_all_ways(device, kind);
  const std::string where = difference(device, wanted, {device.rows(), {}});
  return where.empty()
             ? where
             : concat("steps with summaries, in graphs, traced or resumed differ from plain ones: ", where);
}

}  // namespace

CheckRow compare_training(CheckStep& device, int images, bool graphs) {
  const comm::World& world = device.plan.world;
  world.together([&] { device.fill(1, images); });
  Trace wanted;
  std::string fault;
  {
    const ExchangeGuard guard(device);
    device.rewind();
    const auto lanes = device.run_runner(RunnerKind::lanes);
    for (int i = 0; i < kTrainingReplays; ++i) lanes->replay();
    lanes->finish();
    wanted.rows = device.rows();
    if (!graphs) fault = training_fault(device, wanted, RunnerKind::lanes);
  }
  const std::uint64_t hash = device.blocks->state.hash(*device.device.backend);
  const std::vector<std::uint64_t> hashes = world.gather(hash);
  if (hashes.front() != hash) return bad("weights after steps of the run are not those of rank 0");
  if (std::ranges::count(hashes, hash) < world.size())  // that rank stops
    return {{}, Outcome::left_out, "weights of another rank are not those of rank 0"};
  if (!device.blocks->records.front().applied) return bad("a step of the run over all ranks is not finite");
  if (!fault.empty()) return bad(fault);
  if (graphs) {
    try {
      const ExchangeGuard guard(device);
      fault = training_fault(device, wanted, RunnerKind::graph);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::comm) throw;
      return refused(error);
    }
  }
  if (!fault.empty()) return no_graph(fault);
  return good(concat(kTrainingReplays, " replays with summaries, ", graphs ? "in graphs, " : "",
                     "traced and resumed have the bits of plain ones (", device.blocks->update->name(), ")"));
}

}  // namespace cifar_mpi::selfcheck
