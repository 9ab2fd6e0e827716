#include "app/train_options.hpp"

#include <utility>
#include <vector>

#include "app/device.hpp"
#include "app/values.hpp"

namespace cifar_mpi::app {
namespace {

constexpr const char* kNone = "none";

/// Headings of the help that more than one function has options under.
constexpr const char* kSamples = "Length, batches and samples";
constexpr const char* kOptimizer = "Optimizer";

/// An option for one of the names of an enumeration; `value` is its default. As text it stays what was given, so
/// that --print-config writes it back as it is read.
template <Named E>
CLI::Option* add_choice(CLI::App& app, const std::string& option, E& value, const std::string& description) {
  std::vector<std::string> names;
  for (const auto& name : names_of(value)) names.emplace_back(name.text);
  return app
      .add_option_function<std::string>(
          option, [&value](const std::string& name) { value = find_name<E>(name).value(); }, description)
      ->default_str(std::string(to_string(value)))
      ->check(CLI::IsMember(names));
}

}  // namespace

void TrainOptions::add_to(CLI::App& app) {
  add_run(app);
  add_model(app);
  add_batches(app);
  add_input(app);
  add_exchange(app);
  add_optimizer(app);
  add_schedule(app);
  add_regularization(app);
  add_reports(app);
}

void TrainOptions::add_run(CLI::App& app) {
  const std::string group = "Run";
  app.add_option(
         "--data", config_.data,
         "Dataset file; else $CIFAR_MPI_DATA, else data/cifar10.h5 here or beside the binary's folder")
      ->group(group);
  app.add_option("--run-dir", config_.run_dir,
                 "Folder for checkpoints, metrics.jsonl, config.toml, timeline.h5, summaries.h5, tensorboard "
                 "and traces")
      ->capture_default_str()
      ->group(group);
  app.add_option("--resume", config_.resume,
                 "auto: go on with the newest checkpoint of the run directory; never: refuse a directory "
                 "that holds a run; "
                 "or the path of a checkpoint")
      ->check(not_empty())
      ->capture_default_str()
      ->group(group);
  app.add_option(
         "--init-from", init_from_,
         "Path of a checkpoint: a new run begins with its averaged weights and takes nothing else of it; its "
         "last layer is new where the number of classes is another. A run that goes on does not read it")
      ->check(not_empty())
      ->capture_default_str()
      ->group(group);
  app.add_option("--timeout", config_.timeout_s,
                 "Seconds without progress after which the job is ended and the rank that does not move "
                 "named; five times as long while starting and at a checkpoint; 0: never")
      ->check(number<double>())
      ->capture_default_str()
      ->group(group);
  app.add_option(
         "--stop-after", config_.stop_after_min,
         "Minutes of training after which the run stops by itself, with a checkpoint and exit code 75; 0: "
         "it does not. The end of a SLURM job is heeded in any case")
      ->check(number<double>())
      ->capture_default_str()
      ->group(group);
  app.add_option("--seed", config_.seed, "Seed of initial values, sample order and distortions")
      ->check(number<std::uint64_t>())
      ->capture_default_str()
      ->group(group);
}

void TrainOptions::add_model(CLI::App& app) {
  const std::string group = "Model and device";
  app.add_option("--model", config_.model,
                 "Model of the catalog; those but tutorial bring their recipe (jobs/recipes) as defaults, "
                 "which --config and options override")
      ->check(model_name())
      ->capture_default_str()
      ->group(group);
  app.add_option("--device", config_.device, "auto says what it takes and why")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str()
      ->group(group);
  add_choice(
      app, "--self-check", config_.self_check,
      "Whether a GPU proves itself against the CPU before the first start in a run directory; only: print "
      "what it finds and leave, without a dataset or run directory")
      ->group(group);
  add_choice(app, "--precision", config_.precision,
             "Arithmetic of activations; weights, gradients and sums are always fp32")
      ->group(group);
  add_choice(app, "--conv", config_.conv,
             "On the CPU: how convolutions are computed; auto takes Fourier transforms or own kernels where "
             "they are "
             "faster than oneDNN's, fft transforms wherever there are some for the layer, direct oneDNN's "
             "kernels alone")
      ->group(group);
  add_choice(app, "--isa", instructions_, "Widest CPU instructions that kernels may use")->group(group);
  app.add_option("--threads", config_.threads,
                 "CPU threads per rank; 0: its fair share of cores and CPU quota")
      ->check(number<int>())
      ->capture_default_str()
      ->group(group);
  add_choice(app, "--runner", config_.runner,
             "How a step is replayed: serial waits after every task, audit also checks what each task "
             "touches (slow)")
      ->group(group);
  app.add_option("--graph-steps", config_.graph_steps,
                 "Steps in one launch of a CUDA graph, where none of them but the last is logged, evaluated, "
                 "saved or compared; other runners take them one by one; 0: 5")
      ->check(number<int>())
      ->capture_default_str()
      ->group(group);
}

void TrainOptions::add_exchange(CLI::App& app) {
  const std::string group = "Gradient exchange";
  add_choice(
      app, "--update", config_.update,
      "How the gradients of all ranks become new weights; all-reduce: they are summed, and every rank "
      "makes the same step; server: the last ranks sum them and make it for all; local: each rank takes "
      "--local-steps of its own, then their weights are averaged")
      ->group(group);
  app.add_option(
         "--servers", config_.servers,
         "With --update server: the ranks that hold the weights and compute no gradients, the last ones")
      ->check(number<int>())
      ->capture_default_str()
      ->group(group);
  app.add_option(
         "--aggregate", aggregate_,
         "With --update server: how many workers' gradients make a step, those that come first; what comes "
         "late is dropped and counted. all: those of all workers; async: each makes a step, as it comes")
      ->check(aggregate())
      ->capture_default_str()
      ->group(group);
  app.add_option("--max-staleness", max_staleness_,
                 "async: a worker waits while it has computed more than so many batches more than another; "
                 "none: never")
      ->check(number_or_none())
      ->capture_default_str()
      ->group(group);
  app.add_option(
         "--staleness-lr", staleness_rate_,
         "async: divides the rate of a step by its staleness, the steps since its worker had the weights")
      ->check(CLI::IsMember({"on", "off"}))
      ->capture_default_str()
      ->group(group);
  app.add_option(
         "--arrival-order", arrival_order_,
         "async: gradients are applied in an order drawn from this seed, whoever comes first, for the "
         "same bits each time; none: as they come")
      ->check(number_or_none())
      ->capture_default_str()
      ->group(group);
  app.add_option(
         "--local-steps", config_.local.steps,
         "local: steps of a rank between two averagings; log, evaluation, checkpoints and stops wait for one")
      ->check(number<int>())
      ->capture_default_str()
      ->group(group);
  add_choice(app, "--outer", config_.local.outer,
             "local: average goes on from the mean of the ranks' weights; nesterov takes what they moved for "
             "a gradient, for hundreds of local steps")
      ->group(group);
  app.add_option("--outer-lr", config_.local.outer_rate, "--outer nesterov: its rate")
      ->check(number<double>())
      ->capture_default_str()
      ->group(group);
  app.add_option("--outer-momentum", config_.local.outer_momentum, "--outer nesterov: its momentum")
      ->check(number<double>())
      ->capture_default_str()
      ->group(group);
  app.add_option("--local-after", config_.local.after_epoch,
                 "local: epochs in which gradients are summed in every step, before local steps begin")
      ->check(number<double>())
      ->capture_default_str()
      ->group(group);
  app.add_option("--all-reduce", config_.all_reduce, "How gradients are summed over the ranks")
      ->check(CLI::IsMember(collective_names()))
      ->capture_default_str()
      ->group(group);
  app.add_option("--bucket-mib", config_.bucket_mib,
                 "Least size of the spans in which gradients are summed, in MiB")
      ->check(number<double>())
      ->capture_default_str()
      ->group(group);
  app.add_option("--nccl-algo", config_.nccl_algorithm, "How NCCL sums between GPUs; auto: its own choice")
      ->check(CLI::IsMember({"auto", "ring", "tree"}))
      ->capture_default_str()
      ->group(group);
  app.add_flag("--nccl-nvls", config_.nccl_nvls, "Let NCCL use NVLS; runs then need not repeat bit for bit")
      ->group(group);
  app.add_flag("--share-gpus", config_.share_gpus,
               "Let several ranks have one GPU: works, and is slow; for tests")
      ->group(group);
  app.add_flag("--reproducible", config_.reproducible,
               "The same bits on 1, 2, 4, … ranks with the same --global-batch, --seed and --shuffle global; "
               "implies 1 thread per "
               "rank and --all-reduce doubling")
      ->group(group);
  app.add_option("--micro-shards", config_.micro_shards,
                 "With --reproducible: pieces the global batch is computed in")
      ->check(number<int>())
      ->capture_default_str()
      ->group(group);
  add_choice(app, "--wire", config_.wire,
             "What gradients look like in messages; bf16 halves the bytes between nodes, sums stay fp32")
      ->group(group);
  app.add_option("--side-lane", side_lane_,
                 "Weight gradients may run beside data gradients; only backends that gain by it let them")
      ->check(CLI::IsMember({"on", "off"}))
      ->capture_default_str()
      ->group(group);
  add_choice(app, "--overlap", config_.overlap,
             "Sum buckets while backward goes on; auto: by where the ranks stand")
      ->group(group);
}

void TrainOptions::add_batches(CLI::App& app) {
  const std::string group = kSamples;
  app.add_option("--batch-size", config_.batch_size, "Samples that a rank computes at once")
      ->check(number<int>())
      ->capture_default_str()
      ->group(group);
  app.add_option(
         "--accumulate", config_.accumulate,
         "Batches per rank and step: their gradients are added before they are exchanged; for large global "
         "batches on few ranks")
      ->check(number<int>())
      ->capture_default_str()
      ->group(group);
  app.add_option(
         "--global-batch", config_.global_batch,
         "Samples per step over all ranks, divisible by their number; overrides --batch-size unless 0")
      ->check(number<std::int64_t>())
      ->capture_default_str()
      ->group(group);
  app.add_option("--epochs", config_.epochs, "Length in passes over the training set")
      ->check(number<double>())
      ->capture_default_str()
      ->group(group);
  app.add_option("--steps", config_.steps, "Length in steps; overrides --epochs unless 0")
      ->check(number<std::int64_t>())
      ->capture_default_str()
      ->group(group);
}

void TrainOptions::add_input(CLI::App& app) {
  const std::string group = kSamples;
  add_choice(
      app, "--augment", config_.augment,
      "tutorial: random crop, flip, brightness and contrast; crop: the image moved by up to --crop-pad "
      "pixels, flip, --cutout; none: the centre of each image")
      ->group(group);
  app.add_option("--input-size", config_.input_size,
                 "Height and width of what the network sees, in pixels; 0: 24, or the whole image with "
                 "--augment crop")
      ->check(number<int>())
      ->capture_default_str()
      ->group(group);
  app.add_option("--crop-pad", config_.crop_pad, "How far --augment crop moves an image, in pixels")
      ->check(number<int>())
      ->capture_default_str()
      ->group(group);
  add_choice(app, "--crop-fill", config_.crop_fill,
             "What --augment crop shows beyond the edge: zeros (black) or a reflection")
      ->group(group);
  add_choice(app, "--flip", config_.flip,
             "Left for right: random; alternate: each image in every other epoch; off")
      ->group(group);
  app.add_option("--cutout", config_.cutout,
                 "Side of a square of zeros that --augment crop puts anywhere; 0: none")
      ->check(number<int>())
      ->capture_default_str()
      ->group(group);
  add_choice(
      app, "--normalize", config_.normalize,
      "To mean 0 and deviation 1: each image over all its values, or each channel by the whole training "
      "dataset's")
      ->group(group);
  add_choice(app, "--shuffle", config_.shuffle,
             "shard: each rank shuffles its own part of the file; global: the same global batches for "
             "any number of ranks (each rank holds the whole set)")
      ->group(group);
}

void TrainOptions::add_optimizer(CLI::App& app) {
  const std::string group = kOptimizer;
  add_choice(app, "--optimizer", config_.optimizer.kind,
             "How a weight follows from its gradient; adamw's weight decay is no part of the gradient")
      ->group(group);
  app.add_option("--momentum", config_.optimizer.momentum,
                 "momentum, nesterov: share of what was gathered that stays in each step")
      ->check(number<double>())
      ->capture_default_str()
      ->group(group);
  app.add_option("--beta1", config_.optimizer.beta1, "adamw: decay of the moving average of gradients")
      ->check(number<double>())
      ->capture_default_str()
      ->group(group);
  app.add_option("--beta2", config_.optimizer.beta2, "adamw: decay of that of their squares")
      ->check(number<double>())
      ->capture_default_str()
      ->group(group);
  app.add_option("--eps", config_.optimizer.eps, "adamw: is added to the root of the squares' average")
      ->check(number<double>())
      ->capture_default_str()
      ->group(group);
  app.add_option("--clip-norm", config_.clip_norm,
                 "Scale the summed gradient down to this norm where it has a larger one; 0: do not")
      ->check(number<double>())
      ->capture_default_str()
      ->group(group);
}

void TrainOptions::add_schedule(CLI::App& app) {
  const std::string group = kOptimizer;
  app.add_option("--lr", config_.lr, "Learning rate")
      ->check(number<double>())
      ->capture_default_str()
      ->group(group);
  add_choice(app, "--schedule", config_.schedule,
             "How the rate goes on: staircase drops it every --epochs-per-decay; steps at --decay-at; "
             "linear and cosine lower it to the end of the run; one-cycle raises it in --warmup-epochs, "
             "then lowers it linearly")
      ->group(group);
  app.add_option("--lr-decay-factor", config_.lr_decay_factor,
                 "staircase, steps: the rate is multiplied by this at every boundary")
      ->check(number<double>())
      ->capture_default_str()
      ->group(group);
  app.add_option("--epochs-per-decay", config_.epochs_per_decay,
                 "staircase: epochs (of the global batch) between boundaries")
      ->check(number<double>())
      ->capture_default_str()
      ->group(group);
  app.add_option("--decay-at", decay_at_,
                 "steps: the boundaries as fractions of the run, with commas between them: 0.5,0.75")
      ->check(number_list())
      ->group(group);
  app.add_option("--initial-lr-share", config_.initial_lr_share,
                 "one-cycle: share of the rate at which it begins")
      ->check(number<double>())
      ->capture_default_str()
      ->group(group);
  app.add_option("--final-lr-share", config_.final_lr_share,
                 "linear, cosine, one-cycle: share of the rate that is left at the end of the run")
      ->check(number<double>())
      ->capture_default_str()
      ->group(group);
  add_choice(app, "--lr-scaling", config_.lr_scaling,
             "Scale the rate by global batch / 128: not, linearly, by its square root")
      ->group(group);
  app.add_option("--warmup-epochs", config_.warmup_epochs,
                 "Epochs in which the rate rises linearly to its value; one-cycle needs some")
      ->check(number<double>())
      ->capture_default_str()
      ->group(group);
}

void TrainOptions::add_regularization(CLI::App& app) {
  const std::string group = kOptimizer;
  app.add_option(
         "--weight-decay", config_.weight_decay,
         "L2 factor of the parameters that the model decays (tutorial: the weights of local3 and local4)")
      ->check(number<double>())
      ->capture_default_str()
      ->group(group);
  app.add_option("--label-smoothing", config_.label_smoothing,
                 "Share of each training target that is spread evenly over all classes; the loss of training "
                 "is then that of the smoothed target, evaluation smooths nothing")
      ->check(number<double>())
      ->capture_default_str()
      ->group(group);
  app.add_option("--ema-decay", config_.ema_decay,
                 "Decay of the moving average of the weights, at most (1+t)/(10+t) in step t")
      ->check(number<double>())
      ->capture_default_str()
      ->group(group);
}

void TrainOptions::add_reports(CLI::App& app) {
  const std::string group = "Reports and checkpoints";
  app.add_option("--log-every", config_.log_every, "Steps between log lines")
      ->check(number<std::int64_t>())
      ->capture_default_str()
      ->group(group);
  app.add_option(
         "--tensorboard", tensorboard_,
         "Write what TensorBoard shows to RUN_DIR/tensorboard: scalars at the log's lines, the network, and "
         "what --summary-every asks for")
      ->check(CLI::IsMember({"on", "off"}))
      ->capture_default_str()
      ->group(group);
  app.add_option(
         "--summary-every", config_.summary_every,
         "Steps between histograms of all variables, gradients and activations, for TensorBoard and in "
         "RUN_DIR/summaries.h5; 0: none")
      ->check(number<std::int64_t>())
      ->capture_default_str()
      ->group(group);
  app.add_option(
         "--trace", trace_,
         "Steps, as in 1000-1009, for which when each task of each rank ran is written to RUN_DIR/trace, "
         "for ui.perfetto.dev; or none. SIGUSR2 to a run asks for its next 10 steps")
      ->check(trace_window())
      ->capture_default_str()
      ->group(group);
  app.add_option("--eval-every", config_.eval_every,
                 "Epochs between evaluations on the test set; 0: only at the end")
      ->check(number<double>())
      ->capture_default_str()
      ->group(group);
  app.add_option("--checkpoint-every", config_.checkpoint_every, "Steps between checkpoints")
      ->check(number<std::int64_t>())
      ->capture_default_str()
      ->group(group);
  app.add_option("--check-every", config_.check_every, "Steps between comparisons of all ranks' parameters")
      ->check(number<std::int64_t>())
      ->capture_default_str()
      ->group(group);
  app.add_option("--keep", config_.keep, "Checkpoints kept, newest first")
      ->check(number<int>())
      ->capture_default_str()
      ->group(group);
  app.add_option("--keep-every", config_.keep_every,
                 "Also keep the checkpoints of steps divisible by this; 0: no others")
      ->check(number<std::int64_t>())
      ->capture_default_str()
      ->group(group);
  app.add_flag(
         "--keep-best", config_.keep_best,
         "Also write a checkpoint at each evaluation that is the best so far, keep the best, and link it as "
         "checkpoints/best; needs --eval-every")
      ->group(group);
}

train::TrainConfig TrainOptions::config() const {
  train::TrainConfig config = config_;
  config.side_lane = side_lane_ == "on";
  config.init_from = init_from_ == kNone ? std::string() : init_from_;
  config.tensorboard = tensorboard_ == "on";
  config.aggregation = aggregation_of(aggregate_);
  config.aggregation.most_drift = number_or_none_of(max_staleness_);
  config.aggregation.scales_rate = staleness_rate_ == "on";
  config.aggregation.arrival_order = number_or_none_of(arrival_order_);
  config.trace = trace_window_of(trace_);
  config.decay_at = numbers_of(decay_at_);
  return config;
}

}  // namespace cifar_mpi::app
