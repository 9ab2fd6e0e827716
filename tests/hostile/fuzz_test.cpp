#include <span>
#include <string>
#include <utility>

#include "cifar_mpi/data/dataset.hpp"
#include "cifar_mpi/run/checkpoint.hpp"
#include "hostile/fixture.hpp"
#include "run/resume.hpp"
#include "train/session_state.hpp"

/// Datasets and checkpoints.
namespace cifar_mpi::test {
namespace {

TEST_F(Hostile, Dataset) {
  fuzz(
      "dataset", 1,
      [&](const std::string& folder, std::uint64_t seed) {
        Dice dice(seed);
        if (seed == 0 || !put_no_file(folder + "/file.h5", dice, secret_))
          write(folder + "/file.h5", dataset_plan(), seed,
                seed == 0 ? 0 : 1 + static_cast<int>(dice.roll(3)));
      },
      [](const std::string& folder) {
        return try_to([&] {
          const data::DatasetFile file(folder + "/file.h5");
          std::string seen = joined(file.info().label_names) + file.info().source;
          for (const auto split : {data::Split::train, data::Split::test}) {
            const data::Samples half = file.read(split, data::shard_of(file.info().count(split), 1, 2));
            seen.append(half.images.begin(),
                        half.images.begin() +
                            static_cast<std::ptrdiff_t>(std::min<std::size_t>(half.images.size(), 4096)));
            seen.append(file.read_labels(split).empty() ? "" : "labels");
            seen += joined(file.read_files(split));
          }
          return seen;
        });
      });
}

/// Everything of a checkpoint that is shown, compared or adopted.
std::string take_checkpoint(const std::string& path) {
  static_cast<void>(run::recorded_test_accuracy(path));
  const run::Checkpoint checkpoint = run::read_checkpoint(path);
  std::string seen;
  const RunFingerprint mine{{"threads", "1"}, {"ranks", "2"}, {"precision", "fp32"}};
  for (const run::ChangedSetting& setting : run::changed_settings(checkpoint.progress.resolved, mine))
    seen += setting.note;
  seen += run::changed_kernels(checkpoint.provenance.kernels, "conv1: jit\nconv2: jit");
  seen += checkpoint.provenance.configuration + checkpoint.provenance.initialized_from;
  config::Sizes sizes;
  sizes.global_batch = 12;
  train::require_possible(checkpoint.progress, path, {}, sizes);
  const auto ranks = find_number(checkpoint.progress.resolved, "ranks");
  if (ranks && checkpoint.progress.batches.empty())
    run::shard_change(40, 12, checkpoint.progress.step, static_cast<int>(*ranks), 2);
  run::StartRequest asked;
  asked.fingerprint = {{"model", "tutorial"}, {"--lr", "0.1"}};
  asked.may_differ = {"--lr"};
  return seen + run::require_same_run(checkpoint.progress.identity, asked, path, 2);
}

TEST_F(Hostile, Checkpoint) {
  fuzz(
      "checkpoint", 1,
      [&](const std::string& folder, std::uint64_t seed) {
        Dice dice(seed);
        if (seed > 0 && put_no_file(folder + "/file.h5", dice, secret_)) return;
        write(folder + "/file.h5", checkpoint_plan(), seed,
              seed == 0 ? 0 : 1 + static_cast<int>(dice.roll(3)));
      },
      [](const std::string& folder) {
        return try_to([&] {
          try {
            return take_checkpoint(folder + "/file.h5");
          } catch (
              const Error& error) {  // a hand-made file has a wrong hash: everything has been read by then
            if (std::string(error.what()).find("its content has the hash") == std::string::npos) throw;
            return std::string(error.what());
          }
        });
      });
}

/// One setting that the file cannot have, or can; the step, or the name of a setting.
void forge(run::Progress& progress, Dice& dice) {
  static constexpr const char* kPossible[][2] = {
      {"threads", "4096"}, {"ranks", "12"}, {"precision", "bf16"}, {"update", "server"}};
  RunFingerprint& list = dice.one_in(2) ? progress.identity : progress.resolved;
  auto& [name, value] = list[dice.roll(list.size())];
  switch (dice.roll(6)) {
    case 0:
      value = odd_text(dice);
      break;
    case 1:
      value = std::to_string(dice.roll(UINT64_MAX) >> dice.roll(64));
      break;
    case 2:
      name = odd_text(dice);
      break;
    case 3:
      list.push_back({odd_text(dice), odd_text(dice)});
      break;
    case 4:
      progress.step = dice.roll(UINT64_MAX) >> dice.roll(64);
      break;
    default: {
      const auto& possible = dice.any_of(std::span(kPossible));
      progress.resolved.push_back({possible[0], possible[1]});
      std::swap(progress.resolved.front(), progress.resolved.back());
    }
  }
}

/// A whole file of another program: its free texts are odd, and up to two settings.
run::Checkpoint forged(std::uint64_t seed) {
  Dice dice(seed);
  run::Checkpoint c;
  for (const optim::StateRow& row : optim::state_rows(c.optimizer.kind)) {
    c.state[row.role].push_back({"conv1/weights", {5, 5, 3, 8}, "[h, w, in, out]", std::vector<float>(600)});
  }
  c.progress.step = 4;
  c.progress.identity = {{"model", "tutorial"}, {"--lr", "0.1"}};
  c.progress.resolved = {{"threads", "1"}, {"ranks", "1"}, {"precision", "fp32"}};
  if (seed == 0) return c;
  for (std::uint64_t left = dice.roll(3); left > 0; --left) forge(c.progress, dice);
  c.provenance.ranks = static_cast<int>(dice.roll(UINT64_MAX));
  for (std::string* text : {&c.provenance.kernels, &c.provenance.configuration, &c.provenance.backend,
                            &c.provenance.initialized_from})
    *text = odd_text(dice);
  return c;
}

TEST_F(Hostile, ForgedCheckpoint) {
  fuzz(
      "forged", 1,
      [](const std::string& folder, std::uint64_t seed) {
        run::write_checkpoint(folder + "/file.h5", forged(seed));
      },
      [](const std::string& folder) { return try_to([&] { return take_checkpoint(folder + "/file.h5"); }); },
      0.25);
}

}  // namespace
}  // namespace cifar_mpi::test
