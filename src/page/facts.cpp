#include <algorithm>
#include <cmath>

#include "cifar_mpi/base/terminal.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/run/run_directory.hpp"
#include "page/sections.hpp"
#include "page/text.hpp"

namespace cifar_mpi::page {
namespace {

std::string progress_text(const Run& run) {
  const report::StepReport& last = run.metrics.steps.back();
  std::uint64_t total = 0;
  for (const report::RunEvent& event : run.metrics.events)
    total = event.total_steps > 0 ? event.total_steps : total;
  return concat("step ", whole(static_cast<double>(last.step)),
                total > 0 ? concat(" of ", whole(static_cast<double>(total))) : std::string(),
                std::isfinite(last.epoch) ? concat(", epoch ", figure(last.epoch)) : std::string());
}

std::string loss_text(const report::StepReport& last) {
  return concat(figure(last.cross_entropy + last.decay_term), " (cross-entropy ", figure(last.cross_entropy),
                " + decay term ", figure(last.decay_term), ")");
}

std::string accuracy_text(const std::vector<report::EvaluationReport>& evaluations) {
  const report::EvaluationReport& last = evaluations.back();
  const auto best = std::ranges::max_element(evaluations, {}, &report::EvaluationReport::test_accuracy);
  std::string text = concat(percent(last.test_accuracy), " at step ", whole(static_cast<double>(last.step)));
  if (best->test_accuracy > last.test_accuracy)
    text += concat("; the best was ", percent(best->test_accuracy), " at step ",
                   whole(static_cast<double>(best->step)));
  return text;
}

std::string speed_text(const Run& run) {
  std::string text = concat(whole(recent_speed(run)), " images/s");
  const int ranks = rank_count(run);
  if (ranks > 0) text += " over " + counted(ranks, "rank");
  return text + concat("; ", duration(run.seconds.back()), " of training");
}

}  // namespace

int rank_count(const Run& run) {
  int ranks = run.checkpoint ? run.checkpoint->provenance.ranks : 0;
  for (const report::RunEvent& event : run.metrics.events) ranks = event.ranks > 0 ? event.ranks : ranks;
  return ranks;
}

Facts key_facts(const Run& run) {
  Facts facts{{"state", run.state_text}};
  const report::Metrics& metrics = run.metrics;
  if (!metrics.steps.empty()) {
    facts.emplace_back("progress", progress_text(run));
    facts.emplace_back("loss", loss_text(metrics.steps.back()));
  }
  if (!metrics.evaluations.empty()) facts.emplace_back("test accuracy", accuracy_text(metrics.evaluations));
  if (!metrics.steps.empty()) {
    facts.emplace_back("speed", speed_text(run));
    if (const auto& pushes = metrics.steps.back().pushes)
      facts.emplace_back("pushes", report::pushes_text(*pushes));
  }
  const auto& events = metrics.events;
  const auto count = [&](report::RunEventKind kind) {
    return std::ranges::count_if(events, [&](const report::RunEvent& e) { return e.kind == kind; });
  };
  if (const auto resumes = count(report::RunEventKind::resume); resumes > 0)
    facts.emplace_back(
        "starts", concat(resumes + count(report::RunEventKind::start), ", ", resumes, " of them resumed"));
  return facts;
}

Facts tiles_of(const Run& run) {
  Facts tiles;
  const report::Metrics& metrics = run.metrics;
  if (!metrics.evaluations.empty())
    tiles.emplace_back("test accuracy", percent(metrics.evaluations.back().test_accuracy));
  if (metrics.steps.empty()) return tiles;
  const report::StepReport& last = metrics.steps.back();
  tiles.emplace_back("loss", figure(last.cross_entropy + last.decay_term));
  tiles.emplace_back("images per second", whole(recent_speed(run)));
  tiles.emplace_back("epochs", figure(last.epoch));
  tiles.emplace_back("training time", duration(run.seconds.back()));
  return tiles;
}

std::string headline(const Run& run) {
  std::string text;
  const auto add = [&](const std::string& part) {
    if (!part.empty()) text += (text.empty() ? "" : " · ") + part;
  };
  if (run.checkpoint) {
    const std::string* const model = find_item(run.checkpoint->progress.identity, "model");
    add(model == nullptr ? std::string() : *model);
  }
  if (const int ranks = rank_count(run); ranks > 0) add(counted(ranks, "rank"));
  if (run.checkpoint) {
    add(run.checkpoint->provenance.precision);
    add(run.checkpoint->provenance.backend);
  }
  return text;
}

Facts provenance_facts(const Run& run) {
  Facts facts;
  if (!run.checkpoint) return facts;
  const run::Provenance& from = run.checkpoint->provenance;
  const auto add = [&](const char* name, const std::string& text) {
    if (!text.empty()) facts.emplace_back(name, text);
  };
  add("newest checkpoint", run.checkpoint_path);
  add("of step", concat(run.checkpoint->progress.step, ", epoch ", figure(run.checkpoint->progress.epoch)));
  add("written", from.time);
  add("test accuracy", from.test_accuracy ? percent(*from.test_accuracy) : std::string());
  add("ranks", concat(from.ranks, ", global batch ", from.global_batch));
  add("device", from.backend);
  add("precision", from.precision);
  add("learning rate", from.learning_rate_rule);
  add("revision", from.git_revision);
  add("initialized from", from.initialized_from);
  add("changed on resume", from.changes);
  return facts;
}

Facts files_of(const Run& run, const std::string& page) {
  Facts files;
  const auto add = [&](const char* name, const std::string& command, const std::string& of = {}) {
    const DirectoryEntry file = run.directory / name;
    if (!exists(file)) return;
    files.emplace_back(file.path(),
                       command.empty() ? of : concat(command, shell_word(of.empty() ? file.path() : of)));
  };
  files.emplace_back(page, concat("xdg-open ", shell_word(page)));
  add("metrics.jsonl", "tail -f ");
  if (run.checkpoint)
    files.emplace_back(run.checkpoint_path, concat("h5dump -n ", shell_word(run.checkpoint_path)));
  add("evaluation.h5", "h5dump -d /confusion ");
  add("timeline.h5", "h5dump -n ");
  add("summaries.h5", "h5dump -n ");
  add("tensorboard", "tensorboard --logdir ", run.dir);
  add("trace", "", "open one of its files at https://ui.perfetto.dev");
  add("config.toml", "cifar_mpi_train --config ");
  return files;
}

}  // namespace cifar_mpi::page
