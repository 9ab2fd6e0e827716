#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "cifar_mpi/run/checkpoint.hpp"
#include "hostile/fixture.hpp"

/// Programs as users start them.
namespace cifar_mpi::test {
namespace {

const std::string kPrograms = CIFAR_MPI_BIN;
const std::string kSourceRoot = CIFAR_MPI_SOURCE_ROOT;

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
            concat("cd ", folder, " && ", kPrograms, "/cifar_mpi_train --config c.toml --print-config"));
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
        return try_program(concat("cd ", folder, " && ", kPrograms, "/cifar_mpi_pack --force --out new.h5 ",
                                  fs::exists(folder + "/strips") ? "--from-png" : "--from", " ."));
      });
}

/// A good run to begin with.
class HostileRun : public Hostile {
 protected:
  static void SetUpTestSuite() {
    home_ = std::make_unique<TempDir>();
    const Trial made = try_program(concat("cd ", home_->path(), " && ", kPrograms,
                                          "/cifar_mpi_pack --synthetic 64 --force --out data.h5 && ",
                                          train(""), " --data data.h5 --run-dir run"));
    ASSERT_EQ(to_string(made.end), std::string("read")) << made.seen;
  }
  static void TearDownTestSuite() { home_.reset(); }
  static std::string home(const std::string& name) { return *home_ / name; }
  static std::string train(const std::string& more) {
    return concat(". ", kSourceRoot, "/env/mpirun.sh; . ", kSourceRoot,
                  "/env/one_machine.sh; export OMP_NUM_THREADS=1; unset CIFAR_MPI_DATA; ", kPrograms,
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
        const std::vector<std::string> names{"exit",
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
            "cd ", folder, " && { ", kPrograms,
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
        return try_program(concat(". ", kSourceRoot, "/env/mpirun.sh; . ", kSourceRoot,
                                  "/env/one_machine.sh; export OMP_NUM_THREADS=1; cd ", folder, " && ",
                                  kPrograms, "/cifar_mpi_eval file.h5 --threads 1 --data ", home("data.h5")));
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
        return try_program(concat(". ", kSourceRoot, "/env/mpirun.sh; . ", kSourceRoot,
                                  "/env/one_machine.sh; export OMP_NUM_THREADS=1; cd ", folder, " && ",
                                  kPrograms,
                                  "/cifar_mpi_bench allreduce --sizes 4K --seconds 0.01 --json result.json"));
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
        return try_program(concat("cd ", folder, " && . ", kSourceRoot,
                                  "/env/shared_files.sh && plain \"$(first_line_of exit)\" && ",
                                  "n=$(number_in exit); : $((${n:-0} + 1)); [ ! -e executed ]"));
      });
}

}  // namespace
}  // namespace cifar_mpi::test
