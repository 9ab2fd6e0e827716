#include "train/summaries.hpp"

#include <exception>
#include <string>
#include <vector>

#include "cifar_mpi/base/text.hpp"
#include "train/run_facts.hpp"

namespace cifar_mpi::train {
namespace {

template <class T>
std::vector<T> download(engine::Backend& backend, const Buffer& block) {
  std::vector<T> values(block.size() / sizeof(T));
  backend.copy(values.data(), block.data(), values.size() * sizeof(T));
  return values;
}

}  // namespace

Summaries::Summaries(const step::Plan& plan, const step::Device& device, const step::Blocks& blocks,
                     Programs& programs, report::TensorBoard& board, std::uint64_t completed)
    : plan_(plan),
      device_(device),
      blocks_(blocks),
      programs_(programs),
      board_(board),
      asked_(completed),
      file_(*plan.run / "summaries.h5") {
  if (programs_.histograms == nullptr) return;
  try {
    history_ = report::SummaryHistory::read(file_, completed);
  } catch (const std::exception& error) {
    plan_.log.warn(concat(error.what(), "; training continues and replaces it"));
  }
  history_.lacks(unseen_outputs(plan_.network.net, *device_.tower));
  if (plan_.config.update == comm::UpdateKind::server)
    plan_.log.info("note: summaries have of gradients what rank 0 computed, its share of the mean");
}

bool Summaries::due_within(const engine::Replay& steps) const {
  if (plan_.config.summary_every == 0 || steps.steps() == 0) return false;
  return steps.begin == 0 || steps.crosses(static_cast<std::uint64_t>(plan_.config.summary_every));
}

void Summaries::begin(engine::Recorder* recorder) { programs_.step->observe({recorder, true}); }

void Summaries::end(const engine::Replay& replay, engine::Recorder* recorder) {
  programs_.step->observe({recorder, false});
  if (programs_.histograms == nullptr) return;
  programs_.step->finish();  // reads no record: all ranks must have read the same ones when they decide
  programs_.histograms->replay();
  programs_.histograms->finish();
  const report::StepSummary summary = read(replay.end);
  board_.write(summary);
  if (!history_.has_images()) {
    report::InputImages seen = images();
    board_.write(replay.end, seen);
    history_.keep(std::move(seen));
  }
  // The weights with which the next step begins; a comparison of the ranks is logged in any case.
  if (board_ && !replay.crosses(static_cast<std::uint64_t>(plan_.config.check_every)))
    board_.write(replay.end + 1, weight_losses(plan_, device_, blocks_.state));
  history_.add(summary);
}

report::StepSummary Summaries::read(std::uint64_t step) const {
  const std::vector<engine::ValueCounts> counts =
      download<engine::ValueCounts>(*device_.backend, blocks_.value_counts);
  report::StepSummary summary;
  summary.step = step;
  const std::vector<std::string> layers = device_.tower_for(programs_.kind.image_size).observed();
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (counts[i].values() > 0) summary.activations.push_back({layers[i], counts[i]});
  }
  const model::ParamTable& params = plan_.network.params;
  const std::size_t trained = trained_params(params);
  const auto first = static_cast<std::size_t>(step::param_counts(plan_, blocks_) -
                                              blocks_.value_counts.as<engine::ValueCounts>());
  for (std::size_t p = params.size(); p-- > 0;) {  // the table is in the order of backward
    summary.variables.push_back({params[p].name, counts[first + p]});
    if (p < trained) summary.gradients.push_back({params[p].name, counts[first + params.size() + p]});
  }
  if (plan_.config.clip_norm == 0.0)
    summary.gradient_norm = download<double>(*device_.backend, blocks_.gradient_norm)[0];
  return summary;
}

report::InputImages Summaries::images() const {
  const Extent& input = device_.tower_for(programs_.kind.image_size).input();
  std::vector<float> values = download<float>(*device_.backend, blocks_.kept_images);
  values.resize(static_cast<std::size_t>(step::kept_images(plan_) * input.count()));  // space for larger ones
  return report::visible_images(input, values);
}

run::WriteBeside Summaries::write_file() const {
  return [history = history_, file = file_] { history.write(file); };
}

}  // namespace cifar_mpi::train
