#pragma once

#include <atomic>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "cifar_mpi/comm/server_update.hpp"
#include "cifar_mpi/engine/runner.hpp"
#include "support/mpi_world.hpp"

/// A step with parameter servers whose results are known.
namespace cifar_mpi::comm {

using engine::bytes_of;
using engine::Lane;
using engine::RunnerKind;
using engine::StepProgram;
using engine::Task;
using test::test_world;

inline constexpr std::size_t kServerControlFloats = 16;

/// Values of many magnitudes: added in another order they give other bits.
inline float worker_gradient(int worker, std::size_t i, float param) {
  const int k = static_cast<int>(i % 13) * 5 + worker * 11;
  return (static_cast<float>(k % 17) - 8.0f) * std::ldexp(1.1f, k % 23) + 1e-3f * param;
}

inline float updated(float param, float sum, float factor) { return param + 1e-8f * sum * factor; }

inline engine::ParamLayout three_parameters() {
  engine::ParamLayout layout;
  for (const std::size_t floats : {16u, 1024u, 160u}) engine::append(layout, floats);
  return layout;
}

/// A step that does nothing but arithmetic, on workers and servers.
class TinyServerStep {
 public:
  explicit TinyServerStep(int servers, bool overlap = true, const Aggregation& aggregation = {})
      : workers_(test_world().size() - servers),
        update_(make_server_update(
            test_world(), layout_,
            {servers, overlap, &requests, aggregation,
             [this](std::uint64_t done) { return (done / meet_every + 1) * meet_every; }})),
        decay_sums_(static_cast<std::size_t>(servers), -1.0) {
    update_->allocate(kServerControlFloats);
    params.resize(layout_.floats);
    update_->bind(state());
    std::iota(params.begin(), params.end(), 1.0f);
  }

  bool serves() const { return test_world().rank() >= workers_; }
  Update& update() { return *update_; }
  std::span<float> control() const { return update_->block().control(); }
  std::span<float> grads() const { return update_->block().grads(); }
  StepState state() { return {params, decay_sums_, &step}; }

  StepParts parts() {
    StepParts parts;
    if (!serves()) add_compute(parts);
    for (std::size_t s = 0; s < update_->spans().size(); ++s) parts.update.push_back({update_task(s)});
    parts.finish = {{"advance",
                     {bytes_of(control().data(), kServerControlFloats),
                      bytes_of(decay_sums_.data(), decay_sums_.size()), bytes_of(&step, 1)},
                     {bytes_of(&step, 1)},
                     [this](Lane&) {
                       totals.push_back(control()[0]);
                       steps.push_back(step++);
                       stops.push_back(control()[engine::ControlLayout::stop]);
                       decay.push_back(std::accumulate(decay_sums_.begin(), decay_sums_.end(), 0.0));
                     },
                     {}}};
    return parts;
  }

  std::unique_ptr<engine::Runner> runner(RunnerKind kind = RunnerKind::lanes, Concurrency concurrent = {}) {
    StepProgram program("train");
    update_->append(program, parts(), concurrent);
    program.finalize();
    const std::span<float> block = update_->block().all();
    return engine::make_host_runner(
        std::move(program), kind, engine::WhileWaiting::yield,
        {bytes_of(block.data(), block.size()), bytes_of(params.data(), params.size())});
  }

  std::vector<float> params;
  std::vector<float> totals, stops;  ///< by step
  std::vector<double> decay;
  std::vector<std::uint64_t> steps;
  std::uint64_t step = 0, meet_every = 1000;
  std::atomic<int> requests{0};
  std::function<bool()> pause;  ///< called after the pushes, before anything is received; true: go on

 private:
  void add_compute(StepParts& parts) {
    parts.compute.push_back({"control",
                             {},
                             {bytes_of(control().data(), kServerControlFloats)},
                             [this](Lane&) { std::fill(control().begin(), control().end(), 0.0f); },
                             {}});
    parts.compute.push_back({"loss",
                             {},
                             {bytes_of(control().data(), 1)},
                             [this](Lane&) { control()[0] = static_cast<float>(test_world().rank() + 1); },
                             {}});
    for (const auto& [offset, floats] : layout_.entries) {
      parts.compute.push_back({"backward",
                               {bytes_of(params.data() + offset, floats)},
                               {bytes_of(grads().data() + offset, floats)},
                               [this, begin = offset, end = offset + floats](Lane&) {
                                 for (std::size_t i = begin; i < end; ++i)
                                   grads()[i] = worker_gradient(test_world().rank(), i, params[i]);
                               },
                               {}});
    }
    if (pause) parts.compute.push_back({"pause", {}, {}, [](Lane&) {}, pause});
  }

  Task update_task(std::size_t s) {
    const ParamSpan span = update_->spans()[s];
    const std::size_t count = span.end - span.begin;
    return {"update",
            {bytes_of(control().data(), kServerControlFloats), bytes_of(grads().data() + span.begin, count),
             bytes_of(params.data() + span.begin, count)},
            {bytes_of(params.data() + span.begin, count), bytes_of(&decay_sums_[s], 1)},
            [this, span, s](Lane&) {
              decay_sums_[s] = static_cast<double>(span.end - span.begin);
              for (std::size_t i = span.begin; i < span.end; ++i)
                params[i] = updated(params[i], grads()[i], control()[0]);
            },
            {}};
  }

  const engine::ParamLayout layout_ = three_parameters();
  int workers_;
  std::unique_ptr<Update> update_;
  std::vector<double> decay_sums_;
};

/// The parameters after steps, each by the given range of workers [first, end); sums in rank order.
inline std::vector<float> expected_params(std::size_t count, const std::vector<std::pair<int, int>>& steps) {
  std::vector<float> params(count);
  std::iota(params.begin(), params.end(), 1.0f);
  for (const auto& [first, end] : steps) {
    float total = 0.0f;
    for (int w = first; w < end; ++w) total += static_cast<float>(w + 1);
    for (std::size_t i = 0; i < count; ++i) {
      float sum = worker_gradient(first, i, params[i]);
      for (int w = first + 1; w < end; ++w) sum += worker_gradient(w, i, params[i]);
      params[i] = updated(params[i], sum, total);
    }
  }
  return params;
}

inline std::vector<float> expected_params(std::size_t count, int workers, int steps) {
  return expected_params(count,
                         std::vector<std::pair<int, int>>(static_cast<std::size_t>(steps), {0, workers}));
}

}  // namespace cifar_mpi::comm
