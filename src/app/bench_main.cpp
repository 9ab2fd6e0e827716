#include <fmt/core.h>

#include <sstream>
#include <string>

#include "app/bench_allreduce.hpp"
#include "app/device.hpp"
#include "app/help.hpp"
#include "app/program.hpp"
#include "app/values.hpp"
#include "cifar_mpi/base/build_info.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/bench/step_benchmark.hpp"
#include "cifar_mpi/comm/collective.hpp"
#include "cifar_mpi/cpu/backend.hpp"
#include "cifar_mpi/cuda/backend.hpp"
#include "cifar_mpi/watch/watchdog.hpp"
#include "report/json.hpp"

namespace {

using namespace cifar_mpi;

struct StepOptions {
  bench::StepBenchmarkConfig config;
  std::string device = "auto";
  std::string precision = "auto";
  std::string conv = "auto";
  std::string optimizer = "auto";
  std::string share_matrices = "auto";
  std::string isa = "auto";
  std::string wire = "fp32";
  std::vector<int> batch_sizes{128};
  std::string json;
};

/// A step takes microseconds on a GPU, milliseconds on a CPU.
struct Unit {
  const char* name;
  double per_second;
};

void print_spread(const Log& log, const std::string& name, const bench::Spread& s, double scale,
                  const std::string& remark = "") {
  log.info(fmt::format("{:<19} {:11.3f} {:11.3f} {:11.3f}{}", name, scale * s.least, scale * s.median,
                       scale * s.most, remark));
}

bool ran_on_gpu(const bench::StepBenchmark& b) { return b.backend.starts_with("cuda"); }

void print_exchange(const Log& log, const bench::StepBenchmark& b, const Unit& unit) {
  const auto row = [&](const char* name, const bench::Spread& s) {
    print_spread(log, concat("  ", name, ", ", unit.name), s, unit.per_second);
  };
  row("no all-reduce", b.alone_s);
  row("blocking", b.blocking_s);
  row("exposed", b.exposed_s);
  log.info(bench::exposed_text(b, unit.name, unit.per_second));
}

void print_limit(const Log& log, const bench::StepBenchmark& b, const Unit& unit) {
  if (ran_on_gpu(b)) {
    print_spread(log, "product, TFLOP/s", b.peak_flops, 1e-12,
                 concat("   (4096^3 in ", b.precision, ", one GPU)"));
    print_spread(log, "copy, TB/s", b.copy_rate, 1e-12, "   (read and written)");
    log.info(fmt::format("nominal rate:       {:.2f} TFLOP/s   ({:.1f} MFLOP per image and step)",
                         1e-12 * b.nominal_flops * b.batch_size / b.step_s.median, 1e-6 * b.nominal_flops));
  } else {
    print_spread(log, "processor, %", b.processor_share, 100.0, "   (of a rank's threads)");
    print_spread(log, "FMA limit, GFLOP/s", b.peak_flops, 1e-9, "   (one rank, fp32)");
    print_spread(log, "copy, GB/s", b.copy_rate, 1e-9, "   (memory, read and written, one rank)");
    log.info(fmt::format(
        "of direct convolution at the FMA limit: {:.2f} times its speed   ({:.1f} MFLOP in the image per "
        "image and step)",
        b.in_image_flops * b.batch_size / (b.step_s.median * b.peak_flops.median), 1e-6 * b.in_image_flops));
  }
  log.info(
      fmt::format("share of the roofline: {:.1f} %   ({:.1f} to {:.1f}; limit {:.3f} {}: each task's "
                  "operations or bytes at these rates)",
                  100.0 * b.share.median, 100.0 * b.share.least, 100.0 * b.share.most,
                  unit.per_second * b.floor_s, unit.name));
}

void print_tasks(const Log& log, const bench::StepBenchmark& b, const Unit& unit) {
  log.info(fmt::format("per task and step (rank 0, mean)           {:>9}   {:>9}  {:>6} {:>8} {:>8}",
                       unit.name, concat("limit, ", unit.name), "share", "MFLOP", "MB"));
  const auto row = [&](const bench::StepBenchmark::Row& task) {
    const bool limited = task.floor_s > 0.0;
    log.info(fmt::format("  {:<40} {:9.4f}   {:>9}  {:>6} {:8.1f} {:8.2f}", task.task,
                         unit.per_second * task.seconds,
                         limited ? fmt::format("{:.4f}", unit.per_second * task.floor_s) : "-",
                         limited ? fmt::format("{:.1f} %", 100.0 * task.floor_s / task.seconds) : "-",
                         1e-6 * task.flops, 1e-6 * task.bytes));
  };
  bench::StepBenchmark::Row sum{"sum"};
  for (const auto& task : b.tasks) {
    row(task);
    sum.seconds += task.seconds;
    sum.flops += task.flops;
    sum.bytes += task.bytes;
  }
  sum.floor_s = b.floor_s;
  row(sum);
}

void print(const Log& log, const bench::StepBenchmark& b) {
  const Unit unit = ran_on_gpu(b) ? Unit{"us", 1e6} : Unit{"ms", 1e3};
  log.info(concat(b.model, " on ", b.backend, ", ", b.precision, ", ", b.optimizer,
                  b.shares_matrices ? " with shared matrices, " : ", ", counted(b.ranks, "rank"), ", batch ",
                  b.batch_size, " per rank"));
  std::istringstream kernels(b.kernels);
  for (std::string line; std::getline(kernels, line);) log.info(concat("  ", line));
  log.info("                          least      median        most");
  print_spread(log, concat(unit.name, " per step"), b.step_s, unit.per_second);
  print_spread(log, "images/s", b.images_per_s, 1.0);
  if (b.in_a_row_s.median > 0.0) {
    print_spread(log, concat("  no side lane, ", unit.name), b.in_a_row_s, unit.per_second);
  }
  print_limit(log, b, unit);
  if (b.ranks > 1) print_exchange(log, b, unit);
  log.info(fmt::format("resident memory per rank: {:.0f} MiB", b.resident_bytes / (1 << 20)));
  log.info(fmt::format("bits of the first two steps: {:016x}", b.bits));
  print_tasks(log, b, unit);
}

constexpr std::string_view kStepBegin = R"({"format": "cifar_mpi step")";

/// One object; lists are least, median and most.
std::string to_json(const bench::StepBenchmark& b) {
  const auto list = [](const char* name, const bench::Spread& s, double scale) {
    return fmt::format(", \"{}\": [{:.6g}, {:.6g}, {:.6g}]", name, scale * s.least, scale * s.median,
                       scale * s.most);
  };
  std::string text = fmt::format(
      "{}, \"version\": 1, \"program\": {}, \"model\": \"{}\", \"backend\": {}, \"precision\": \"{}\", "
      "\"optimizer\": \"{}\", \"shares_matrices\": {}, \"all_reduce\": {}, \"kernels\": {}, \"bits\": "
      "\"{:016x}\", \"ranks\": {}, \"batch_size\": {}",
      kStepBegin, report::json_text(concat(version(), " (", git_revision(), ", ", compiler(), ")")), b.model,
      report::json_text(b.backend), b.precision, b.optimizer, b.shares_matrices,
      report::json_text(b.all_reduce), report::json_text(b.kernels), b.bits, b.ranks, b.batch_size);
  text += list("step_ms", b.step_s, 1e3) + list("images_per_s", b.images_per_s, 1.0) +
          list("peak_gflops", b.peak_flops, 1e-9) + list("copy_gb_s", b.copy_rate, 1e-9);
  const auto slices = [](const char* name, const std::vector<double>& values, double scale) {
    std::string numbers;
    for (const double value : values)
      numbers += fmt::format("{}{:.6g}", numbers.empty() ? "" : ", ", scale * value);
    return fmt::format(", \"{}\": [{}]", name, numbers);
  };
  text += slices("slice_ms", b.slice_s, 1e3);
  if (!ran_on_gpu(b))
    text += list("processor_share", b.processor_share, 1.0) + slices("slice_share", b.slice_share, 1.0);
  if (b.ranks > 1)
    text += list("alone_ms", b.alone_s, 1e3) + list("blocking_ms", b.blocking_s, 1e3) +
            list("exposed_ms", b.exposed_s, 1e3);
  return text + "}\n";
}

int bench_step(StepOptions& options, comm::World& world) {
  const Log log(world.rank());
  options.config.precision = find_name<engine::Precision>(options.precision).value();
  options.config.conv = find_name<engine::ConvMethod>(options.conv).value();
  options.config.optimizer = find_name<optim::OptimizerKind>(options.optimizer);  // none for auto
  options.config.share_matrices = find_name<comm::Share>(options.share_matrices).value();
  options.config.wire = find_name<comm::Wire>(options.wire).value();
  world.together([&] {
    cpu::limit_instructions(find_name<cpu::InstructionSet>(options.isa).value());
    app::check_collective(options.config.all_reduce, app::takes_cuda(options.device),
                          concat("--device ", options.device));
  });
  app::prepare_json(world, options.json, kStepBegin, "a file of cifar_mpi_bench step");
  const bool on_gpu = app::takes_cuda(options.device);
  const auto measure_limits = [on_gpu](engine::Precision precision, int threads, double seconds) {
    if (!on_gpu) {
      return engine::RooflineLimits{cpu::measure_peak_flops(threads, seconds),
                                    cpu::measure_copy_rate(threads, seconds)};
    }
    return engine::RooflineLimits{cuda::measure_peak_flops(precision, seconds),
                                  cuda::measure_copy_rate(seconds)};
  };
  for (const std::string& line : world.place_lines()) log.info(line);
  std::string json;
  for (const int batch : options.batch_sizes) {
    options.config.batch_size = batch;
    const bench::StepBenchmark result =
        bench::benchmark_step(options.config, world, app::platform_for(options.device), measure_limits);
    print(log, result);
    json += to_json(result);
  }
  app::write_json(world, options.json, json);
  return 0;
}

void add_step(CLI::App& app, StepOptions& options) {
  app.add_option("--model", options.config.model,
                 "Network; all but tutorial see the whole image and use momentum")
      ->check(app::model_name());
  app.add_option("--batch-size", options.batch_sizes, "Samples per rank; one or more, such as 128,512")
      ->delimiter(',')
      ->check(app::number(1, 1 << 20));
  app.add_option("--isa", options.isa, "Widest CPU instructions to use")
      ->check(app::one_of({"auto", "avx2", "portable"}));
  app.add_option("--threads", options.config.threads, "CPU threads per rank; auto: a fair share of the cores")
      ->transform(app::threads())
      ->default_str("auto");
  app.add_option("--device", options.device, "Device; auto: the CPU if built in, else a GPU")
      ->check(app::one_of({"auto", "cpu", "cuda"}));
  app.add_option("--precision", options.precision, "Arithmetic of the network")
      ->check(app::one_of({"auto", "fp32", "tf32", "bf16"}));
  app.add_option("--conv", options.conv, "Convolutions on the CPU")
      ->check(app::one_of({"auto", "direct", "fft", "winograd"}));
  app.add_option("--optimizer", options.optimizer, "Update rule; auto: sgd for tutorial, else momentum")
      ->check(app::one_of({"auto", "sgd", "momentum", "nesterov", "adamw", "muon"}));
  app.add_option("--share-matrices", options.share_matrices, "Compute each hidden matrix on one rank (muon)")
      ->check(app::one_of({"auto", "on", "off"}));
  app.add_option("--all-reduce", options.config.all_reduce, "Algorithm that sums gradients over ranks")
      ->check(app::one_of(app::collective_names()));
  app::add_wire(app, options.wire);
  app::add_bucket_mib(app, options.config.bucket_mib);
  app.add_option("--graph-steps", options.config.graph_steps, "Steps per launch of a CUDA graph")
      ->check(app::number(1, config::kMostGraphSteps));
  app.add_flag("--share-gpus", options.config.share_gpus, "Let several ranks use one GPU: slow, for tests");
  app.add_option("--rounds", options.config.rounds,
                 "Rounds; each measures the limits of the device, then steps")
      ->check(app::number(1, 10000));
  app.add_option("--seconds", options.config.round_s, "Seconds of steps per round")
      ->check(app::number(0.001, 3600.0));
  app.add_option("--json", options.json, "File to write as well: one object per batch size");
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App cli("Measure parts of the program on this machine.", "cifar_mpi_bench");
  cli.option_defaults()->always_capture_default();
  StepOptions step;
  CLI::App* step_command =
      cli.add_subcommand("step", "Training step: images/s, time per task, share of the machine's limits");
  add_step(*step_command, step);
  app::AllReduceOptions all_reduce;
  CLI::App* const all_reduce_command = cli.add_subcommand(
      "allreduce", "Sums over ranks: time, bandwidth and exactness by size, against the MPI library");
  app::add_all_reduce(*all_reduce_command, all_reduce);
  app::LinksOptions links;
  CLI::App* const links_command =
      cli.add_subcommand("links", "Messages between nodes: time by length, bandwidth");
  app::add_links(*links_command, links);
  app::WaysOptions ways;
  CLI::App* const ways_command = cli.add_subcommand(
      "ways", "Ways to update: time and bytes of a step, dropped and stale pushes, also with a slow worker");
  app::add_ways(*ways_command, ways);
  cli.require_subcommand(1);
  app::add_help(cli,
                "Options of a command: cifar_mpi_bench COMMAND --help\n\n"
                "Examples:\n  cifar_mpi_bench step\n  mpirun -np 4 cifar_mpi_bench allreduce\n");
  if (const auto code = app::parse(cli, argc, argv, [&] {
        app::check(all_reduce);
        app::check(ways);
      })) {
    return *code;
  }
  const int code = app::run_in_world(cli, argc, argv, [&](comm::World& world) {
    watch::Watchdog watchdog(world, {});
    watchdog.heart().activity = comm::Activity::measuring;
    if (links_command->parsed()) return app::bench_links(links, world);
    if (ways_command->parsed()) return app::bench_ways(ways, world);
    return all_reduce_command->parsed() ? app::bench_all_reduce(all_reduce, world) : bench_step(step, world);
  });
  return app::finish("cifar_mpi_bench", code);
}
