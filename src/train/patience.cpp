#include "train/patience.hpp"

#include <fmt/core.h>

#include <exception>

#include "cifar_mpi/base/text.hpp"
#include "report/metrics_reader.hpp"

namespace cifar_mpi::train {

void Patience::resume(const comm::World& world, const Directory& run, std::uint64_t step, const Log& log) {
  if (limit_ == 0 || step == 0) return;
  if (world.rank() == 0) {
    try {
      for (const report::EvaluationReport& r : report::read_metrics(run / "metrics.jsonl").evaluations) {
        if (r.step <= step && (r.views == 0 || r.views == views_)) note(r.step, r.test_accuracy);
      }
    } catch (const std::exception& error) {  // the other ranks wait for this one
      log.warn(concat("--patience counts from step ", step, " on: ", error.what()));
    }
  }
  world.broadcast(without_);
  world.broadcast(best_step_);
  world.broadcast(best_);
}

void Patience::note(std::uint64_t step, double test_accuracy) {
  constexpr double kRounded = 1e-8;  // metrics.jsonl has 9 digits; one image of a split weighs more
  ++without_;
  if (!(test_accuracy > best_ + kRounded)) return;
  without_ = 0;
  best_step_ = step;
  best_ = test_accuracy;
}

std::string Patience::text() const {
  return fmt::format("no evaluation of the last {} was better than {:.2f} % at step {} (--patience {})",
                     without_, 100.0 * best_, best_step_, limit_);
}

}  // namespace cifar_mpi::train
