#include "app/bench_allreduce.hpp"
#include "app/device.hpp"
#include "app/program.hpp"
#include "app/values.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/comm/collective.hpp"
#include "cifar_mpi/cpu/peak.hpp"
#include "cifar_mpi/cuda/peak.hpp"
#include "cifar_mpi/train/step_benchmark.hpp"
#include "cifar_mpi/train/watchdog.hpp"

namespace {

using namespace cifar_mpi;

struct StepOptions {
  train::StepBenchmarkConfig config;
  std::string device = "auto";
  std::string precision = "auto";
  std::string wire = "fp32";
  std::vector<int> batch_sizes{128};
};

void print_exchange(const Log& log, const train::StepBenchmark& b) {
  const auto row = [&](const char* name, const train::Spread& s) {
    log.info(format("%-19s %11.3f %11.3f %11.3f", name, 1e3 * s.least, 1e3 * s.median, 1e3 * s.most));
  };
  row("  no all-reduce, ms", b.alone_s);
  row("  blocking, ms", b.blocking_s);
  row("  exposed, ms", b.exposed_s);
  const double blocking = b.blocking_s.median - b.alone_s.median;
  log.info(format("exposed communication: %.3f ms, %.0f %% of the blocking all-reduce (%.3f ms; %s)",
                  1e3 * b.exposed_s.median, 100.0 * b.exposed_s.median / blocking, 1e3 * blocking,
                  b.all_reduce.c_str()));
}

void print_ceiling(const Log& log, const train::StepBenchmark& b) {
  if (b.backend.starts_with("cuda")) {
    log.info(format("product, TFLOP/s    %11.1f %11.1f %11.1f   (4096^3 in bf16, one GPU)",
                    1e-12 * b.peak_flops.least, 1e-12 * b.peak_flops.median, 1e-12 * b.peak_flops.most));
    log.info(
        format("step, nominal       %11.2f TFLOP/s: %.1f %% of the product's rate (%.1f MFLOP per image)",
               1e-12 * b.nominal_flops * b.batch_size / b.step_s.median,
               100.0 * b.nominal_flops * b.batch_size / b.step_s.median / b.peak_flops.median,
               1e-6 * b.nominal_flops));
    return;
  }
  log.info(format("FMA limit, GFLOP/s  %11.1f %11.1f %11.1f   (one rank, fp32)", 1e-9 * b.peak_flops.least,
                  1e-9 * b.peak_flops.median, 1e-9 * b.peak_flops.most));
  log.info(format("share of FMA limit: %.1f %%   (%.1f to %.1f; %.1f MFLOP in the image per image and step)",
                  100.0 * b.share.median, 100.0 * b.share.least, 100.0 * b.share.most,
                  1e-6 * b.in_image_flops));
}

void print(const Log& log, const train::StepBenchmark& b) {
  log.info(concat(b.backend, ", ", b.precision, ", ", b.ranks, b.ranks == 1 ? " rank" : " ranks", ", batch ",
                  b.batch_size, " per rank"));
  log.info("                          least      median        most");
  log.info(format("ms per step         %11.4f %11.4f %11.4f", 1e3 * b.step_s.least, 1e3 * b.step_s.median,
                  1e3 * b.step_s.most));
  log.info(format("images/s            %11.1f %11.1f %11.1f", b.images_per_s.least, b.images_per_s.median,
                  b.images_per_s.most));
  if (b.in_a_row_s.median > 0.0) {
    log.info(format("  no side lane, ms  %11.4f %11.4f %11.4f", 1e3 * b.in_a_row_s.least,
                    1e3 * b.in_a_row_s.median, 1e3 * b.in_a_row_s.most));
  }
  print_ceiling(log, b);
  if (b.ranks > 1) print_exchange(log, b);
  log.info(format("resident memory per rank: %.0f MiB", b.resident_bytes / (1 << 20)));
  double sum = 0.0;
  log.info("ms per task (rank 0, mean)");
  for (const auto& row : b.tasks) {
    log.info(format("  %-40s %9.4f", row.task.c_str(), 1e3 * row.seconds));
    sum += row.seconds;
  }
  log.info(format("  %-40s %9.4f", "sum", 1e3 * sum));
}

int bench_step(StepOptions& options, comm::World& world) {
  const Log log(world.rank());
  if (options.precision == "fp32") options.config.precision = engine::Precision::fp32;
  if (options.precision == "tf32") options.config.precision = engine::Precision::tf32;
  if (options.precision == "bf16") options.config.precision = engine::Precision::bf16;
  if (options.wire == "bf16") options.config.wire = comm::Wire::bf16;
  world.together([&] { app::check_collective(options.config.all_reduce, options.device); });
  const bool on_gpu = app::takes_cuda(options.device);
  if (on_gpu && world.rank() == 0) {
    log.info(format("copy within the GPU: %.2f TB/s", 1e-12 * cuda::measure_copy_rate(0.1)));
  }
  for (const int batch : options.batch_sizes) {
    options.config.batch_size = batch;
    print(log, train::benchmark_step(options.config, world, app::backend_for(options.device),
                                     on_gpu ? cuda::measure_peak_flops : cpu::measure_peak_flops));
  }
  return 0;
}

void add_step(CLI::App& app, StepOptions& options) {
  app.add_option("--batch-size", options.batch_sizes, "Samples per rank; several: 128,512")
      ->delimiter(',')
      ->check(app::number(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--threads", options.config.threads, "CPU threads per rank; 0: a fair share")
      ->check(app::number(0, 4096))
      ->capture_default_str();
  app.add_option("--device", options.device)
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--precision", options.precision)
      ->check(CLI::IsMember({"auto", "fp32", "tf32", "bf16"}))
      ->capture_default_str();
  app.add_option("--all-reduce", options.config.all_reduce)
      ->check(CLI::IsMember(app::collective_names()))
      ->capture_default_str();
  app.add_option("--wire", options.wire, "What gradients look like in messages")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  app.add_option("--bucket-mib", options.config.bucket_mib,
                 "Least size of the spans in which gradients are summed")
      ->check(app::bucket_mib())
      ->capture_default_str();
  app.add_option("--graph-steps", options.config.graph_steps, "Steps in one launch of a CUDA graph")
      ->check(app::number(1, train::kMostGraphSteps))
      ->capture_default_str();
  app.add_option("--rounds", options.config.rounds, "Each round measures the FMA limit, then some steps")
      ->check(app::number(1, 10000))
      ->capture_default_str();
  app.add_option("--seconds", options.config.round_s, "Steps per round, in seconds")
      ->check(app::number(0.001, 3600.0))
      ->capture_default_str();
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App cli("Measures what this machine makes of the program's parts.", "cifar_mpi_bench");
  StepOptions step;
  CLI::App* step_command = cli.add_subcommand(
      "step", "The whole training step: images/s, ms per task, share of the machine's FMA limit");
  add_step(*step_command, step);
  app::AllReduceOptions all_reduce;
  CLI::App* const all_reduce_command = cli.add_subcommand(
      "allreduce",
      "The ways to sum over ranks: time, bandwidth and exactness by size, beside the MPI library's");
  app::add_all_reduce(*all_reduce_command, all_reduce);
  cli.require_subcommand(1);
  app::add_version(cli);
  if (const auto code = app::parse(cli, argc, argv, [&] { app::check(all_reduce); })) return *code;
  const int code = app::run_in_world(cli, argc, argv, [&](comm::World& world) {
    train::Watchdog watchdog(world, {});
    watchdog.heart().activity = comm::Activity::measuring;
    return all_reduce_command->parsed() ? app::bench_all_reduce(all_reduce, world) : bench_step(step, world);
  });
  return app::finish("cifar_mpi_bench", code);
}
