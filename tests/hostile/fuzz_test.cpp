#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/data/dataset.hpp"
#include "cifar_mpi/report/metrics.hpp"
#include "cifar_mpi/run/checkpoint.hpp"
#include "cifar_mpi/run/evaluation_file.hpp"
#include "cifar_mpi/run/run_directory.hpp"
#include "cifar_mpi/run/run_lock.hpp"
#include "hdf5/hdf5.hpp"
#include "hostile/files.hpp"
#include "report/metrics_reader.hpp"
#include "run/resume.hpp"
#include "support/temp_dir.hpp"
#include "train/resolved.hpp"

/// Every file that the programs read, as a stranger may make it. HOSTILE_CASES: of each kind, HOSTILE_SEED: the
/// first; a failure names its seed. tools/fuzz runs this for as long as one likes.
namespace cifar_mpi::test {
namespace {

namespace fs = std::filesystem;

const std::string kBin = CIFAR_MPI_BIN;
const std::string kRoot = CIFAR_MPI_SOURCE_ROOT;

class Hostile : public testing::Test {
 protected:
  Hostile() {
    write_file(secret_, kSecret + "\n");
    fs::create_directories(dir_ / "precious/checkpoints");
    write_file(dir_ / "precious/checkpoints/step_000000001.h5", "not theirs");
    if (!apart([&] { write(other_, dataset_plan(), 0, 0); })) throw std::runtime_error("no good file");
  }

  /// A fresh folder for a case.
  std::string folder() {
    fs::remove_all(dir_ / "case");
    fs::create_directory(dir_ / "case");
    return dir_ / "case";
  }

  void write(const std::string& path, const std::vector<Wanted>& plan, std::uint64_t seed,
             int changes) const {
    Dice dice(seed);
    if (changes == 0) {
      do {
        dice = Dice(++seed * 1000);
        write_changed(path, plan, dice, 0, secret_, other_);
      } while (!is_whole(path));
      return;
    }
    write_changed(path, plan, dice, changes, secret_, other_);
  }

  void put_metrics(const std::string& folder, std::uint64_t seed) const {
    Dice dice(seed);
    const std::string path = folder + "/metrics.jsonl";
    if (seed > 0 && put_no_file(path, dice, secret_)) return;
    std::string text;
    if (dice.one_in(2))
      text = concat("{\"format\":\"cifar_mpi metrics\",\"version\":", dice.one_in(9) ? 2 : 1, "}\n");
    for (std::uint64_t n = 1 + dice.roll(50); n > 0; --n) {
      const std::string good =
          dice.one_in(4) ? concat("{\"event\":\"resume\",\"step\":", dice.roll(20), ",\"ranks\":2}")
                         : concat("{\"step\":", dice.roll(20), ",\"epoch\":0.5,\"cross_entropy\":2}");
      text += dice.one_in(3) && seed > 0 ? odd_text(dice) : good;
      if (seed == 0 || !dice.one_in(9)) text += '\n';
    }
    write_file(path, text);
  }

  /// `make(folder, seed)` puts the files of a case there, seed 0 those of a good one; `take` gets Trial's `seen`.
  template <class Make, class Read>
  void fuzz(const std::string& kind, std::uint64_t share, Make make, Read read) {
    const std::uint64_t cases = std::max<std::uint64_t>(setting("HOSTILE_CASES", 100) / share, 1);
    const std::uint64_t first = setting("HOSTILE_SEED", 1);
    const std::string good = folder();
    if (!apart([&] { make(good, 0); })) throw std::runtime_error("no good file");
    Figures figures(kind, read(good));
    for (std::uint64_t seed = first; seed < first + cases; ++seed) {
      const std::string place = folder();
      static_cast<void>(apart([&] { make(place, seed); }));  // half a file is a file, too
      const std::string before = state();
      figures.add(seed, read(place));
      EXPECT_EQ(state(), before) << kind << ", seed " << seed
                                 << ": files beside those of the case were touched";
      if (HasFailure() && ++failures_ > 5) return;
    }
  }

  const TempDir dir_;
  const std::string secret_ = dir_ / "secret", other_ = dir_ / "other.h5";

 private:
  static bool is_whole(const std::string& path) {
    try {
      static_cast<void>(hdf5::Reader(path).members("/"));
      return hdf5::Reader(path).has("/train") || hdf5::Reader(path).has("/provenance/configuration");
    } catch (const Error&) {
      return false;
    }
  }

  /// Names, content and times of what no case may touch.
  std::string state() const {
    std::string text;
    for (const auto& entry : fs::recursive_directory_iterator(dir_.path())) {
      const std::string path = entry.path().string();
      if (path.starts_with(dir_ / "case")) continue;
      text += concat(path, ' ', fs::last_write_time(path).time_since_epoch().count(), ' ');
      if (entry.is_regular_file()) text += read_file(path);
      text += '\n';
    }
    return text;
  }

  int failures_ = 0;
};

std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) all += text + "\n";
  return all;
}

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
          }
          return seen;
        });
      });
}

/// All of a checkpoint that is shown, compared or taken over.
std::string take_checkpoint(const std::string& path) {
  static_cast<void>(run::recorded_test_accuracy(path));
  const run::Checkpoint checkpoint = run::read_checkpoint(path);
  std::string seen;
  const RunFingerprint mine{{"threads", "1"}, {"ranks", "2"}, {"precision", "fp32"}};
  for (const run::ChangedSetting& setting : run::changed_settings(checkpoint.progress.resolved, mine))
    seen += setting.note;
  seen += run::changed_kernels(checkpoint.provenance.kernels, "conv1: jit\nconv2: jit");
  seen += checkpoint.provenance.configuration + checkpoint.provenance.initialized_from;
  train::require_possible(checkpoint.progress, path, {}, 12);
  for (const auto& [name, value] : checkpoint.progress.resolved) {
    if (name == "ranks") run::shard_change(40, 12, checkpoint.progress.step, std::atoi(value.c_str()), 2);
  }
  run::StartRequest asked;
  asked.fingerprint = {{"model", "tutorial"}, {"--lr", "0.1"}};
  run::require_same_run(checkpoint.progress.identity, asked, path, 2);
  return seen;
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
          } catch (const Error&
                       error) {  // the hash of a file that was made by hand is wrong: all was read by then
            if (std::string(error.what()).find("its content has the hash") == std::string::npos) throw;
            return std::string(error.what());
          }
        });
      });
}

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
  for (auto* list : {&c.progress.identity, &c.progress.resolved}) {
    for (auto& [name, value] : *list) {
      if (dice.one_in(3)) value = odd_text(dice);
      if (dice.one_in(3)) value = std::to_string(dice.roll(UINT64_MAX) >> dice.roll(64));
      if (dice.one_in(8)) name = odd_text(dice);
    }
    if (dice.one_in(5)) list->push_back({odd_text(dice), odd_text(dice)});
  }
  if (dice.one_in(2)) c.progress.step = dice.roll(UINT64_MAX) >> dice.roll(64);
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
      [](const std::string& folder) { return try_to([&] { return take_checkpoint(folder + "/file.h5"); }); });
}

TEST_F(Hostile, Evaluation) {
  fuzz(
      "evaluation", 1,
      [](const std::string& folder, std::uint64_t seed) {
        Dice dice(seed);
        run::EvaluationFile file;
        file.label_names = {"cat", "dog", "größer"};
        if (seed > 0 && dice.one_in(2)) file.label_names.resize(1 + dice.roll(4), odd_text(dice));
        for (std::size_t n = file.label_names.size() * file.label_names.size(); n > 0; --n)
          file.confusion.push_back(dice.roll(UINT64_MAX) >> dice.roll(64));
        file.image = {static_cast<int>(1 + dice.roll(seed > 0 ? 80 : 32)), 4,
                      static_cast<int>(1 + dice.roll(seed > 0 ? 5 : 4))};
        for (std::uint64_t n = dice.roll(seed > 0 ? 80 : 64); n > 0; --n) {
          file.labels.push_back(static_cast<std::uint8_t>(dice.roll(3)));
          file.predictions.push_back(
              static_cast<std::uint8_t>(dice.roll(seed > 0 && dice.one_in(50) ? 256 : 3)));
          file.indices.push_back(dice.roll(UINT64_MAX));
        }
        file.images.resize(file.labels.size() * static_cast<std::size_t>(file.image.count()));
        const std::string path = folder + "/file.h5";
        run::write_evaluation(path, file);
        if (seed == 0 || dice.one_in(2)) return;
        std::string bytes = read_file(path);
        for (std::uint64_t n = 1 + dice.roll(8); n > 0; --n)
          bytes[dice.roll(bytes.size())] ^= static_cast<char>(1 << dice.roll(8));
        write_file(path, bytes.substr(0, dice.one_in(3) ? dice.roll(bytes.size()) : bytes.size()));
      },
      [](const std::string& folder) {
        return try_to([&] { return joined(run::read_evaluation(folder + "/file.h5").label_names); });
      });
}

TEST_F(Hostile, Metrics) {
  fuzz(
      "metrics", 1, [&](const std::string& folder, std::uint64_t seed) { put_metrics(folder, seed); },
      [](const std::string& folder) {
        return try_to([&] {
          const std::string path = folder + "/metrics.jsonl";
          { report::MetricsFile(path, 10, Log(1), true).write(report::StepReport()); }
          return read_file(path);
        });
      });
}

TEST_F(Hostile, MetricsForTheReport) {
  fuzz(
      "metrics for the report", 1,
      [&](const std::string& folder, std::uint64_t seed) { put_metrics(folder, seed); },
      [](const std::string& folder) {
        return try_to([&] {
          const report::Metrics metrics = report::read_metrics(folder + "/metrics.jsonl");
          std::string seen = joined(metrics.problems);
          for (const report::RunEvent& event : metrics.events) seen += event.text + event.hosts;
          return concat(seen, metrics.steps.size());
        });
      });
}

void leave_lock(const std::string& folder, const std::string& name, Dice& dice, const std::string& secret,
                const std::vector<std::string>& tokens) {
  const std::string path = folder + "/" + name;
  if (!put_no_file(path, dice, secret)) {
    run::LockHolder holder = run::this_process();
    holder.host = dice.one_in(2) ? "elsewhere" : odd_text(dice);
    holder.pid = dice.roll(UINT64_MAX) >> dice.roll(64);
    holder.job = odd_text(dice);
    holder.since = odd_text(dice);
    holder.heartbeat_s = dice.one_in(2) ? 10.0 : 1e300;
    holder.token = dice.one_in(4) ? odd_text(dice) : dice.any_of(tokens);
    write_file(path, run::to_text(holder) + (dice.one_in(3) ? odd_text(dice) : ""));
  }
  const timespec then{std::time(nullptr) - (dice.one_in(2) ? 1000 : 0), 0};
  const timespec times[2] = {then, then};
  utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW);
}

TEST_F(Hostile, Lock) {
  const std::vector<std::string> tokens{"0a", "0b", "0c"};
  fuzz(
      "lock", 1,
      [&](const std::string& folder, std::uint64_t seed) {
        if (seed == 0) return;
        Dice dice(seed);
        leave_lock(folder, "lock", dice, secret_, tokens);
        for (const char* after : {"0a", "0b", "0c", "unreadable", "unreadable-1"}) {
          if (dice.one_in(2)) leave_lock(folder, std::string("lock.after.") + after, dice, secret_, tokens);
        }
      },
      [](const std::string& folder) {
        return try_to([&] {
          std::string seen;
          const auto hear = [&](const std::string& why) { seen += why; };
          const run::RunLock lock(folder, run::this_process(), hear, hear);
          return seen + (lock.held() ? "" : " not held");
        });
      });
}

// Programs as they are started.

TEST_F(Hostile, Configuration) {
  const std::vector<std::string> keys{"data",       "run-dir",    "steps",  "lr",          "seed",
                                      "batch-size", "augment",    "model",  "config",      "help",
                                      "timeout",    "bucket-mib", "runner", "reproducible"};
  fuzz(
      "configuration", 4,
      [&](const std::string& folder, std::uint64_t seed) {
        Dice dice(seed);
        if (seed == 0) return write_file(folder + "/c.toml", "steps = 4\n");
        if (put_no_file(folder + "/c.toml", dice, secret_)) return;
        std::string text;
        for (std::uint64_t n = dice.roll(12); n > 0; --n) {
          text += dice.one_in(4) ? odd_text(dice) : dice.any_of(keys);
          text += dice.one_in(8) ? "" : " = ";
          text += dice.one_in(2) ? concat('"', odd_text(dice), '"')
                                 : std::to_string(dice.roll(UINT64_MAX) >> dice.roll(64));
          text += dice.one_in(9) ? "" : "\n";
        }
        if (dice.one_in(20)) text = "a = " + std::string(100'000, '[');
        write_file(folder + "/c.toml", text);
      },
      [&](const std::string& folder) {
        return try_program(
            concat("cd ", folder, " && ", kBin, "/cifar_mpi_train --config c.toml --print-config"));
      });
}

TEST_F(Hostile, FilesOfCifar10) {
  fuzz(
      "pack", 12,
      [&](const std::string& folder, std::uint64_t seed) {
        Dice dice(seed);
        if (seed % 2 == 1) write_file(folder + "/strips", "");
        for (const std::string name :
             {"data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"}) {
          const std::string content(10'000 * 3073, '\1');
          if (seed == 0) {
            write_file(folder + "/" + name + ".bin", content);
            continue;
          }
          for (const char* ending : {".bin", ".png"}) {
            if (!put_no_file(folder + "/" + name + ending, dice, secret_))
              write_file(folder + "/" + name + ending,
                         (dice.one_in(2) ? "\x89PNG\r\n\x1a\n" : "") + odd_text(dice));
          }
        }
        for (const char* list : {"train_lables.json", "test_lables.json"}) {
          std::string labels = "[0";
          for (std::uint64_t n = dice.roll(60'000); n > 0 && seed > 0; --n) labels += ",1";
          if (dice.one_in(2) && put_no_file(folder + "/" + list, dice, secret_)) continue;
          write_file(folder + "/" + list, dice.one_in(3) ? odd_text(dice) : labels + "]");
        }
      },
      [&](const std::string& folder) {
        return try_program(concat("cd ", folder, " && ", kBin, "/cifar_mpi_pack --out new.h5 ",
                                  fs::exists(folder + "/strips") ? "--from-png" : "--from", " ."));
      });
}

/// A good run to begin with.
class HostileRun : public Hostile {
 protected:
  static void SetUpTestSuite() {
    home_ = std::make_unique<TempDir>();
    const Trial made = try_program(concat("cd ", home_->path(), " && ", kBin,
                                          "/cifar_mpi_pack --synthetic 64 --out data.h5 && ", train(""),
                                          " --data data.h5 --run-dir run"));
    ASSERT_EQ(to_string(made.end), std::string("read")) << made.seen;
  }
  static void TearDownTestSuite() { home_.reset(); }
  static std::string home(const std::string& name) { return *home_ / name; }
  static std::string train(const std::string& more) {
    return concat(". ", kRoot,
                  "/env/mpirun.sh; export OMPI_MCA_btl=^tcp OMP_NUM_THREADS=1; unset CIFAR_MPI_DATA; ", kBin,
                  "/cifar_mpi_train --batch-size 8 --steps 2 --threads 1 ", more);
  }

 private:
  static inline std::unique_ptr<TempDir> home_;
};

TEST_F(HostileRun, Directory) {
  fuzz(
      "run directory", 25,
      [&](const std::string& folder, std::uint64_t seed) {
        fs::copy(home("run"), folder + "/run", fs::copy_options::recursive | fs::copy_options::copy_symlinks);
        if (seed == 0) return;
        Dice dice(seed);
        const std::vector<std::string> names{"lock",
                                             "exit",
                                             "metrics.jsonl",
                                             "tensorboard",
                                             "config.toml",
                                             "evaluation.h5",
                                             "timeline.h5",
                                             "summaries.h5",
                                             "checkpoints/latest",
                                             "checkpoints/best",
                                             "checkpoints",
                                             "checkpoints/step_000000002.h5",
                                             "checkpoints/step_000000003.h5"};
        for (std::uint64_t n = 1 + dice.roll(3); n > 0; --n) {
          const std::string name = dice.any_of(names), path = folder + "/run/" + name;
          fs::remove_all(path);
          if (name == "checkpoints") {
            fs::create_directory_symlink(dir_ / "precious/checkpoints", path);
            return;
          }
          if (put_no_file(path, dice, secret_)) continue;
          if (name.ends_with(".h5")) {
            write(path, checkpoint_plan(), seed, 1);
          } else {
            write_file(path, odd_text(dice));
          }
        }
      },
      [&](const std::string& folder) {
        Trial trial = try_program(concat(
            "cd ", folder, " && { ", kBin,
            "/cifar_mpi_report run --html page.html || [ $? -lt 6 ] || exit 139; cat page.html; ",
            train("--steps 4 --keep-best --eval-every 0.125 --run-dir run --data "), home("data.h5"), "; }"));
        return trial;
      });
}

TEST_F(HostileRun, CheckpointToEvaluate) {
  fuzz(
      "eval", 25,
      [&](const std::string& folder, std::uint64_t seed) {
        const std::string file = folder + "/file.h5";
        Dice dice(seed);
        if (seed == 0)
          return static_cast<void>(fs::copy_file(home("run/checkpoints/step_000000002.h5"), file));
        if (put_no_file(file, dice, secret_)) return;
        if (dice.one_in(2)) return write(file, checkpoint_plan(), seed, 1);
        run::Checkpoint checkpoint = run::read_checkpoint(home("run/checkpoints/step_000000002.h5"));
        for (auto& [name, value] : checkpoint.progress.identity) {
          if (dice.one_in(5)) value = odd_text(dice);
        }
        for (auto& tensor : checkpoint.state[optim::StateRole::average]) {
          if (dice.one_in(5))
            std::fill(tensor.values.begin(), tensor.values.end(), std::numeric_limits<float>::quiet_NaN());
          if (dice.one_in(9)) tensor.name += odd_text(dice).substr(0, 3);
        }
        try {
          run::write_checkpoint(file, checkpoint);
        } catch (const Error&) {  // a name that HDF5 does not take
          write_file(file, "");
        }
      },
      [&](const std::string& folder) {
        return try_program(
            concat(". ", kRoot, "/env/mpirun.sh; export OMPI_MCA_btl=^tcp OMP_NUM_THREADS=1; cd ", folder,
                   " && ", kBin, "/cifar_mpi_eval file.h5 --threads 1 --data ", home("data.h5")));
      });
}

TEST_F(HostileRun, ResultOfABenchmark) {
  fuzz(
      "bench", 60,
      [&](const std::string& folder, std::uint64_t seed) {
        Dice dice(seed);
        if (seed > 0) put_no_file(folder + "/result.json", dice, secret_);
      },
      [&](const std::string& folder) {
        return try_program(
            concat(". ", kRoot, "/env/mpirun.sh; export OMPI_MCA_btl=^tcp OMP_NUM_THREADS=1; cd ", folder,
                   " && ", kBin, "/cifar_mpi_bench allreduce --sizes 4K --seconds 0.01 --json result.json"));
      });
}

TEST_F(Hostile, RecordOfTheEndInAJob) {
  fuzz(
      "exit", 4,
      [&](const std::string& folder, std::uint64_t seed) {
        Dice dice(seed);
        if (seed == 0) return write_file(folder + "/exit", "0 done\n");
        if (put_no_file(folder + "/exit", dice, secret_)) return;
        write_file(folder + "/exit",
                   (dice.one_in(2) ? std::to_string(dice.roll(300)) + " " : "") + odd_text(dice));
      },
      [&](const std::string& folder) {
        return try_program(concat("cd ", folder, " && . ", kRoot,
                                  "/env/shared_files.sh && plain \"$(first_line_of exit)\" && ",
                                  "n=$(number_in exit); : $((${n:-0} + 1)); [ ! -e executed ]"));
      });
}

}  // namespace
}  // namespace cifar_mpi::test
