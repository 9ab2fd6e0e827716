#include <atomic>
#include <cstdio>
#include <optional>
#include <set>
#include <string>

#include "app/config_file.hpp"
#include "app/device.hpp"
#include "app/help.hpp"
#include "app/program.hpp"
#include "app/signals.hpp"
#include "app/train_options.hpp"
#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/config/options.hpp"
#include "cifar_mpi/cpu/backend.hpp"
#include "cifar_mpi/cuda/backend.hpp"
#include "cifar_mpi/run/run_directory.hpp"
#include "cifar_mpi/train/session.hpp"
#include "cifar_mpi/watch/watchdog.hpp"
#include "run/self_check_record.hpp"

namespace {

using namespace cifar_mpi;

constexpr const char* kHelpEnding =
    R"(The value in brackets holds unless the option is given. With --model or
--config, --help shows the values that these set. The command line overrides
the file of --config, and the file overrides the model's recipe. Of an option
given twice on the command line, the last value holds. Where a number may be
off, 0 also means off.

Examples:
  mpirun -np 2 cifar_mpi_train --epochs 4 --run-dir runs/first
  mpirun -np 2 cifar_mpi_train --model resnet20 --eval-every 10
  mpirun -np 8 cifar_mpi_train --global-batch 1024 --lr-scaling sqrt \
    --warmup-epochs 5

Exit codes: 0 done, 1 internal error, 2 usage, 3 data, 4 checkpoint, 5 write,
6 device, 7 rank lost or no progress, 8 diverged, 9 ranks differ, 10 wrong
launcher, 75 stopped on request: rerun the same command to resume.

Signals: SIGUSR1 to mpirun, or SIGINT, SIGTERM or SIGHUP to a rank, makes all
ranks write a checkpoint and exit with code 75. SIGUSR2 traces 10 steps.
)";

/// Bits of engine::Request, set by signals, read in every step.
std::atomic<int> requests{0};

/// A check that administrators run on every node. Needs no dataset: it uses the format of CIFAR-10.
int only_check(comm::World& world, config::TrainConfig config) {
  watch::Watchdog watchdog(world, {config.timeout_s, {}, app::poll_launcher});
  if (config.device == "cpu") {
    throw comm::AgreedError(ErrorKind::usage,
                            "--self-check compares GPUs with the CPU; leave out --device cpu");
  }
  world.together([] {  // without the advice of a training run, to take the CPU
    if (const std::string lacks = cuda::unusable(); !lacks.empty())
      throw Error(ErrorKind::device,
                  "--self-check only compares GPUs with the CPU, but CUDA cannot be used: ", lacks,
                  "; start it on a node with a GPU, with a program that --check-build shows to have CUDA");
  });
  const Log log(world.rank());
  config.device = "cuda";
  // Every rank checks its GPU, whatever its role in a run.
  const config::TrainConfig plain;
  config.update = plain.update;
  config.servers = plain.servers;
  config.aggregation = plain.aggregation;
  config.local = plain.local;
  app::RunDevice device = app::choose_device(config, world);
  device.check->heart = &watchdog.heart();
  return selfcheck::report_self_check(config, world, log, device.platform, *device.check);
}

int run_training(comm::World& world, config::TrainConfig config, const app::Places& sources) {
  app::handle_stop_signals(requests);
  std::optional<run::RunDirectory> directory;  // outlives the watchdog, which writes its record
  std::atomic<bool> holds_directory{
      false};  // before that, the directory and its record may belong to another run
  watch::Watchdog watchdog(world, {config.timeout_s,
                                   [&](int code, const std::string& sentence) {
                                     if (!holds_directory) return;
                                     directory->drop_finished_record();
                                     run::record_exit(directory->directory(), code, sentence);
                                     // the watchdog has this code for a self-check alone
                                     if (code == exit_code(ErrorKind::device))
                                       run::note_hung_self_check(directory->directory());
                                   },
                                   app::poll_launcher});
  app::require_ranks_and_gpus(config, world);  // what is refused here makes no directory
  directory.emplace(config.run_dir, world, &watchdog.heart());
  holds_directory = true;
  std::optional<train::Session> session;  // destroyed after the exit record, before the lock
  directory->record_end_of([&] {
    app::RunDevice device = app::choose_device(config, world);
    world.together([&] {
      cpu::limit_instructions(find_name<cpu::InstructionSet>(config.isa).value());
      config.data = app::find_dataset(config.data);
      app::check_collective(config.all_reduce, device.is_cuda, device.sentence);
    });
    const Log log(world.rank());
    if (device.leaves_gpus) {
      log.warn(device.sentence);
    } else {
      log.info(device.sentence);
    }
    if (device.check) device.check->heart = &watchdog.heart();
    app::name_sources(sources, [&] {
      session.emplace(std::move(config), directory->directory(), world, log, device.platform, requests,
                      device.check ? &*device.check : nullptr);
    });
    session->show_to(watchdog);
    directory->begin();
    session->run(directory->last_end());
  });
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  app::handle_user_signals(requests);
  CLI::App cli(
      "Train an image classifier on a CIFAR-10 style dataset, data parallel over the ranks of mpirun.",
      "cifar_mpi_train");
  app::TrainOptions options;
  options.add_to(cli);
  app::add_config(cli);
  bool print_config = false;
  bool print_model = false;
  bool check_build = false;
  cli.add_flag("--print-config", print_config, "Print all options as a file for --config and exit")
      ->configurable(false);
  cli.add_flag("--print-model", print_model, "Print the layers of the model and exit")->configurable(false);
  cli.add_flag("--check-build", check_build, "Print what this program was built with and exit")
      ->configurable(false);
  std::set<std::string> everyday = app::TrainOptions::everyday();
  everyday.insert({"--config", "--print-config"});
  app::add_help(cli, kHelpEnding, everyday);
  app::Places sources;
  const auto check = [&] {
    config::check(options.config());
    if (cli.get_option("--config")->count() > 0) return;  // a default may undo what the file sets
    config::refuse_without_effect(options.config(), [&](std::string_view name) {
      const std::string option(name);
      return cli.get_option(option)->count() > 0 && !sources.contains(option);
    });
  };
  const auto find_recipe = [&] { return app::recipe_of(options.config().model); };
  if (const auto code = app::parse(cli, argc, argv, check, find_recipe, &sources)) return *code;
  if (print_config || print_model || check_build) {
    return app::run_alone("cifar_mpi_train", [&] {
      const std::string text = print_config  ? app::write_config(cli, true)
                               : print_model ? app::describe_model(options.config())
                                             : app::describe_build(options.config().nccl_nvls);
      if (app::first_rank()) std::fputs(text.c_str(), stdout);
      return app::finish("cifar_mpi_train", 0);
    });
  }

  config::TrainConfig config = options.config();
  config.text = app::write_config(cli, false);
  if (config.self_check == config::SelfCheckMode::only) {
    const int code =
        app::run_in_world(cli, argc, argv, [&](comm::World& world) { return only_check(world, config); });
    return app::finish("cifar_mpi_train", code);
  }
  return app::run_in_world(cli, argc, argv,
                           [&](comm::World& world) { return run_training(world, config, sources); });
}
