#include "train/summaries.hpp"

#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "cifar_mpi/base/text.hpp"
#include "train/board_facts.hpp"

namespace cifar_mpi::train {
namespace {

template <class T>
std::vector<T> download(engine::Backend& backend, const Buffer& block) {
  std::vector<T> values(block.size() / sizeof(T));
  backend.copy(reinterpret_cast<std::byte*>(values.data()), block.data(), values.size() * sizeof(T));
  return values;
}

}  // namespace

Summaries::Summaries(SessionState& state, report::TensorBoard& board, std::uint64_t completed)
    : s_(state), board_(board), file_(*state.run / "summaries.h5") {
  if (s_.look == nullptr) return;
  try {
    history_ = report::SummaryHistory::read(file_, completed);
  } catch (const std::exception& error) {
    s_.log.warn(concat(error.what(), "; training continues and replaces it"));
  }
  history_.lacks(unseen_outputs(s_));
  if (!history_.lacking().empty()) s_.log.info(concat("note: ", history_.lacking()));
  if (s_.config.update == comm::UpdateKind::server)
    s_.log.info("note: summaries have of gradients what rank 0 computed, its share of the mean");
}

bool Summaries::due(std::uint64_t step) const {
  if (s_.config.summary_every == 0) return false;
  return step == 1 || step % static_cast<std::uint64_t>(s_.config.summary_every) == 0;
}

bool Summaries::due_within(std::uint64_t completed, std::uint64_t steps) const {
  for (std::uint64_t step = completed + 1; step <= completed + steps; ++step) {
    if (due(step)) return true;
  }
  return false;
}

void Summaries::begin(engine::Recorder* recorder) { s_.step->observe({recorder, true}); }

void Summaries::end(std::uint64_t step, engine::Recorder* recorder) {
  s_.step->observe({recorder, false});
  if (s_.look == nullptr) return;
  s_.step->finish();  // no record is read here: all ranks read the same ones before they decide
  s_.look->replay();
  s_.look->finish();
  const report::StepSummary summary = read(step);
  board_.write(summary);
  if (!history_.has_images()) {
    report::InputImages seen = images();
    board_.write(step, seen);
    history_.keep(std::move(seen));
  }
  // The weights with which the next step begins; where the ranks are compared they are told of anyway.
  if (board_ && !s_.sizes.due(static_cast<std::uint64_t>(s_.config.check_every), step))
    board_.write(step + 1, weight_losses(s_));
  history_.add(summary);
}

report::StepSummary Summaries::read(std::uint64_t step) const {
  const std::vector<engine::ValueCounts> counts = download<engine::ValueCounts>(*s_.backend, s_.value_counts);
  report::StepSummary summary;
  summary.step = step;
  const std::vector<std::string> layers = s_.tower->observed();
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (counts[i].values() > 0) summary.activations.push_back({layers[i], counts[i]});
  }
  const model::ParamTable& params = s_.network.params;
  const std::size_t trained = trained_params(params);
  for (std::size_t p = params.size(); p-- > 0;) {  // the table stands in the order of backward
    summary.variables.push_back({params[p].name, counts[layers.size() + p]});
    if (p < trained) summary.gradients.push_back({params[p].name, counts[layers.size() + params.size() + p]});
  }
  if (s_.config.clip_norm == 0.0) summary.gradient_norm = download<double>(*s_.backend, s_.gradient_norm)[0];
  return summary;
}

report::InputImages Summaries::images() const {
  return report::visible_images(s_.network.net.input, download<float>(*s_.backend, s_.kept_images));
}

run::WriteBeside Summaries::write_file() const {
  return [history = history_, file = file_] { history.write(file); };
}

}  // namespace cifar_mpi::train
