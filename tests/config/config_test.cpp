#include "cifar_mpi/config/config.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/config/options.hpp"
#include "config/made_config.hpp"
#include "support/errors.hpp"

namespace cifar_mpi::config {
namespace {

void reproducible(TrainConfig& c) { c.reproducible = true, c.shuffle = data::Shuffle::global; }

TEST(Check, TakesTheDefaultsAndTheEdges) {
  const std::vector<Change> fine{[](auto&) {},
                                 [](auto& c) { c.batch_size = 1; },
                                 [](auto& c) { c.batch_size = 1 << 20; },
                                 [](auto& c) { c.threads = 4096; },
                                 [](auto& c) { c.lr_decay_factor = 1e-9; },
                                 [](auto& c) { c.lr_decay_factor = 1.0; },
                                 [](auto& c) { c.ema_decay = 0.0; },
                                 [](auto& c) { c.weight_decay = 0.0; },
                                 [](auto& c) { reproducible(c), c.micro_shards = 4096; },
                                 [](auto& c) { c.bucket_mib = 1.0 / 1024; },
                                 [](auto& c) { c.bucket_mib = 4096.0; },
                                 [](auto& c) { c.run_dir = "./-run"; },
                                 [](auto& c) { c.timeout_s = 0.0; },
                                 [](auto& c) { c.timeout_s = 2.0; },
                                 reproducible,
                                 [](auto& c) { reproducible(c), c.all_reduce = "doubling"; }};
  for (std::size_t i = 0; i < fine.size(); ++i) EXPECT_NO_THROW(check(changed(fine[i]))) << i;
}

TEST(Check, NamesTheOptionAndTheValue) {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  const auto refuse = [](const char* option, const char* value, const Change& change) {
    expect_error(ErrorKind::usage, {option, value}, [&] { check(changed(change)); });
  };
  refuse("--run-dir", "\"\"", [](auto& c) { c.run_dir.clear(); });
  refuse("--run-dir", "./-x", [](auto& c) { c.run_dir = "-x"; });
  refuse("--init-from", "--resume old.h5 continues one; give only one of them", [](auto& c) {
    c.init_from = "a.h5";
    c.resume = "old.h5";
  });
  refuse("--keep-best", "set --eval-every", [](auto& c) { c.keep_best = true; });
  const auto normal = [](auto& c) {
    c.augment = data::Augment::crop, c.normalize = data::Normalize::dataset;
  };
  refuse("--brightness 0.5", "works only with --augment crop", [](auto& c) { c.brightness = 0.5; });
  refuse("--contrast 0.5", "works only with --augment crop", [](auto& c) { c.contrast = 0.5; });
  refuse("--brightness", "between 0 and 1, or off", [=](auto& c) { normal(c), c.brightness = 1.5; });
  refuse("--contrast", "at least 0 and below 1, or off", [=](auto& c) { normal(c), c.contrast = 1.0; });
  refuse("--brightness 0.5", "needs --normalize dataset",
         [=](auto& c) { c.augment = data::Augment::crop, c.brightness = 0.5; });
  refuse("--contrast 0.25", "needs --normalize dataset",
         [=](auto& c) { c.augment = data::Augment::crop, c.contrast = 0.25; });
  refuse("--lookahead", "between 0 and 1000000, or off", [](auto& c) { c.lookahead = -1; });
  refuse("--lookahead-keep", "at least 0 and below 1",
         [](auto& c) { c.lookahead = 5, c.lookahead_keep = 1.0; });
  refuse("--lookahead-power", "between 0 and 100",
         [](auto& c) { c.lookahead = 5, c.lookahead_power = -1.0; });
  refuse("--lookahead-steps", "at least 1, or all", [](auto& c) { c.lookahead = 5, c.lookahead_steps = -1; });
  refuse("--lookahead-keep 0.5", "without --lookahead", [](auto& c) { c.lookahead_keep = 0.5; });
  refuse("--share-matrices on", "no effect with --update local", [](auto& c) {
    c.optimizer.kind = optim::OptimizerKind::muon;
    c.share_matrices = comm::Share::on;
    c.update = comm::UpdateKind::local;
  });
  refuse("--lookahead-power 1", "without --lookahead", [](auto& c) { c.lookahead_power = 1.0; });
  refuse("--lookahead-steps 8", "without --lookahead", [](auto& c) { c.lookahead_steps = 8; });
  refuse("--sync-batch-norm",
         "works only with --update all-reduce, not with local: with the other ways ranks are",
         [](auto& c) { c.sync_batch_norm = true, c.update = comm::UpdateKind::local; });
  refuse("--sync-batch-norm", "cannot be combined with --reproducible",
         [](auto& c) { reproducible(c), c.sync_batch_norm = true; });
  refuse("--lookahead 5", "works only with --update all-reduce, not with local",
         [](auto& c) { c.lookahead = 5, c.update = comm::UpdateKind::local; });
  refuse("--tail-epochs 1", "works only with --schedule linear or cosine or one-cycle",
         [](auto& c) { c.tail_epochs = 1.0; });
  refuse("--tail-epochs 1", "at the rate 0",
         [](auto& c) { c.tail_epochs = 1.0, c.schedule = optim::ScheduleKind::linear; });
  refuse("--views 6", "--flip off trains on none", [](auto& c) { c.views = 6, c.flip = data::Flip::off; });
  refuse("--views 2", "--augment none trains on none",
         [](auto& c) { c.views = 2, c.augment = data::Augment::none; });
  refuse("--batch-size", "0", [](auto& c) { c.batch_size = 0; });
  refuse("--batch-size", "1048577", [](auto& c) { c.batch_size = (1 << 20) + 1; });
  refuse("--accumulate", "0", [](auto& c) { c.accumulate = 0; });
  refuse("--accumulate", "--reproducible", [](auto& c) { reproducible(c), c.accumulate = 2; });
  refuse("--global-batch", "-1", [](auto& c) { c.global_batch = -1; });
  refuse("--steps", "-1", [](auto& c) { c.steps = -1; });
  refuse("--threads", "-1", [](auto& c) { c.threads = -1; });
  refuse("--threads", "4097", [](auto& c) { c.threads = 4097; });
  refuse("--lr-decay-factor", "0", [](auto& c) { c.lr_decay_factor = 0.0; });
  refuse("--lr-decay-factor", "1.5", [](auto& c) { c.lr_decay_factor = 1.5; });
  refuse("--clip-norm", "-1", [](auto& c) { c.clip_norm = -1.0; });
  refuse("--clip-norm", "nan", [nan](auto& c) { c.clip_norm = nan; });
  refuse("--label-smoothing", "1", [](auto& c) { c.label_smoothing = 1.0; });
  refuse("--label-smoothing", "-0.1", [](auto& c) { c.label_smoothing = -0.1; });
  refuse("--beta1 0.5", "works only with --optimizer adamw, not with sgd",
         [](auto& c) { c.optimizer.beta1 = 0.5; });
  for (const double bad : {-0.1, 1.0, nan}) {
    refuse("--momentum", "at least 0 and below 1", [=](auto& c) { c.optimizer.momentum = bad; });
    refuse("--beta1", "at least 0 and below 1", [=](auto& c) { c.optimizer.beta1 = bad; });
    refuse("--beta2", "at least 0 and below 1", [=](auto& c) { c.optimizer.beta2 = bad; });
    refuse("--outer-momentum", "at least 0 and below 1", [=](auto& c) { c.local.outer_momentum = bad; });
  }
  for (const double bad : {-0.1, 1.1, nan}) {
    refuse("--initial-lr-share", "between 0 and 1", [=](auto& c) { c.initial_lr_share = bad; });
    refuse("--final-lr-share", "between 0 and 1", [=](auto& c) { c.final_lr_share = bad; });
    refuse("--eps", "between 1e-30 and 1", [=](auto& c) { c.optimizer.eps = bad < 0.0 ? 0.0 : bad; });
  }
  refuse("--local-steps", "between 1 and 1024, not 0", [](auto& c) { c.local.steps = 0; });
  refuse("--local-steps", "between 1 and 1024, not 1025", [](auto& c) { c.local.steps = 1025; });
  refuse("--local-after", "between 0 and", [](auto& c) { c.local.after_epoch = -1.0; });
  refuse("--outer-lr 0.5", "works only with --update local --outer nesterov, not with average", [](auto& c) {
    c.update = comm::UpdateKind::local;
    c.local.outer_rate = 0.5;
  });
  refuse("--decay-at 0.5", "works only with --schedule steps, not with staircase",
         [](auto& c) { c.decay_at = {0.5}; });
  refuse("--final-lr-share 0.5", "--schedule linear or cosine or one-cycle, not with staircase",
         [](auto& c) { c.final_lr_share = 0.5; });
  refuse("--micro-shards 16", "works only with --update all-reduce --reproducible; leave it out",
         [](auto& c) { c.micro_shards = 16; });
  refuse("--input-size", "-1", [](auto& c) { c.input_size = -1; });
  refuse("--image-size 24x3,32 works only with --update all-reduce, not with server", "--image-size full",
         [](auto& c) {
           c.update = comm::UpdateKind::server;
           c.image_sizes = {{24, 3.0}, {32}};
         });
  refuse("--image-size 32 works only with", "; give --image-size full", [](auto& c) {
    c.model = "fast94";  // its recipe sets one if none is given
    c.update = comm::UpdateKind::server;
    c.image_sizes = {{32}};
  });
  refuse("--crop-pad 2", "--augment crop, not with tutorial; leave it out", [](auto& c) { c.crop_pad = 2; });
  refuse("--crop-fill", "--augment crop", [](auto& c) { c.crop_fill = data::Fill::reflect; });
  refuse("--cutout", "--augment crop", [](auto& c) { c.cutout = 8; });
  refuse("--cutout", "-1", [](auto& c) { c.augment = data::Augment::crop, c.cutout = -1; });
  refuse("--flip alternate", "--augment tutorial or crop, not with none: none flips no image",
         [](auto& c) { c.augment = data::Augment::none, c.flip = data::Flip::alternate; });
  refuse("--normalize", "crop or none", [](auto& c) { c.normalize = data::Normalize::dataset; });
  refuse("--weight-decay", "-1", [](auto& c) { c.weight_decay = -1.0; });
  refuse("--warmup-epochs", "-1", [](auto& c) { c.warmup_epochs = -1.0; });
  refuse("--graph-steps", "-1", [](auto& c) { c.graph_steps = -1; });
  refuse("--graph-steps", "129", [](auto& c) { c.graph_steps = kMostGraphSteps + 1; });
  refuse("--eval-every", "-1", [](auto& c) { c.eval_every = -1.0; });
  refuse("--ema-decay", "1", [](auto& c) { c.ema_decay = 1.0; });
  refuse("--ema-decay", "-0.1", [](auto& c) { c.ema_decay = -0.1; });
  for (const int bad : {0, 6, 8192}) {
    refuse("--micro-shards must be a power of two", std::to_string(bad).c_str(),
           [bad](auto& c) { reproducible(c), c.micro_shards = bad; });
  }
  refuse("--bucket-mib", "1e-09", [](auto& c) { c.bucket_mib = 1e-9; });
  refuse("--bucket-mib", "4097", [](auto& c) { c.bucket_mib = 4097.0; });
  refuse("--trace 9-8", "ends before it begins", [](auto& c) { c.trace = {9, 8}; });
  refuse("--trace 1-1001", "at most 1000", [](auto& c) { c.trace = {1, 1001}; });
  refuse("--log-every", "0", [](auto& c) { c.log_every = 0; });
  refuse("--checkpoint-every", "0", [](auto& c) { c.checkpoint_every = 0; });
  refuse("--check-every", "0", [](auto& c) { c.check_every = 0; });
  refuse("--summary-every", "-1", [](auto& c) { c.summary_every = -1; });
  refuse("--keep", "0", [](auto& c) { c.keep = 0; });
  refuse("--keep-every", "-1", [](auto& c) { c.keep_every = -1; });
  refuse("--reproducible", "--shuffle global", [](auto& c) { c.reproducible = true; });
  refuse("--reproducible", "doubling", [](auto& c) { reproducible(c), c.all_reduce = "ring"; });
  refuse("--nccl-nvls", "--reproducible", [](auto& c) { reproducible(c), c.nccl_nvls = true; });
  refuse("--nccl-nvls", "--nccl-algo ring", [](auto& c) { c.nccl_nvls = true, c.nccl_algorithm = "ring"; });
  refuse("--reproducible", "--wire fp32", [](auto& c) { reproducible(c), c.wire = comm::Wire::bf16; });
  refuse("--servers 2", "works only with --update server, not with all-reduce",
         [](auto& c) { c.servers = 2; });
  refuse("--aggregate", "works only with --update server, not with all-reduce",
         [](auto& c) { c.aggregation.pushes = 2; });
  const auto refuse_served = [&](const char* option, const char* part, const Change& change) {
    refuse(option, part, [&](auto& c) {
      c.update = comm::UpdateKind::server;
      c.shuffle = data::Shuffle::global;
      change(c);
    });
  };
  refuse_served("--servers", "0", [](auto& c) { c.servers = 0; });
  refuse_served("--all-reduce", "with --update all-reduce", [](auto& c) { c.all_reduce = "ring"; });
  refuse_served("--bucket-mib", "with --update all-reduce", [](auto& c) { c.bucket_mib = 2.0; });
  refuse_served("--wire bf16", "with --update all-reduce", [](auto& c) { c.wire = comm::Wire::bf16; });
  refuse_served("--reproducible", "with --update all-reduce", [](auto& c) { c.reproducible = true; });
  refuse_served("--sync-batch-norm", "with --update all-reduce", [](auto& c) { c.sync_batch_norm = true; });
  refuse_served("--max-staleness 3", "works only with --update server --aggregate async, not with all",
                [](auto& c) { c.aggregation.most_drift = 3; });
  refuse_served("--staleness-lr", "works only with --update server --aggregate async",
                [](auto& c) { c.aggregation.scales_rate = true; });
  refuse_served("--arrival-order", "works only with --update server --aggregate async",
                [](auto& c) { c.aggregation.arrival_order = 3; });
  refuse_served("--reproducible", "with --update all-reduce",
                [](auto& c) { c.aggregation.asynchronous = true, c.reproducible = true; });
  refuse_served("--sync-batch-norm", "with --update all-reduce",
                [](auto& c) { c.aggregation.asynchronous = true, c.sync_batch_norm = true; });
  refuse_served("--clip-norm", "but each server has only a part", [](auto& c) { c.clip_norm = 1.0; });
  refuse_served("--optimizer muon", "whole matrices",
                [](auto& c) { c.optimizer.kind = optim::OptimizerKind::muon; });
  refuse("--timeout", "1.9", [](auto& c) { c.timeout_s = 1.9; });
  for (const double bad : {nan, inf, 0.0, -1.0}) {
    for (const auto& [option, member] : std::map<std::string, double TrainConfig::*>{
             {"--lr", &TrainConfig::lr},
             {"--epochs", &TrainConfig::epochs},
             {"--epochs-per-decay", &TrainConfig::epochs_per_decay}}) {
      expect_error(ErrorKind::usage, {option + " must"},
                   [&] { check(changed([&, m = member](auto& c) { c.*m = bad; })); });
    }
  }
  for (const auto member : {&TrainConfig::weight_decay, &TrainConfig::ema_decay, &TrainConfig::bucket_mib,
                            &TrainConfig::lr_decay_factor, &TrainConfig::warmup_epochs}) {
    expect_error(ErrorKind::usage, {"nan"}, [&] { check(changed([&](auto& c) { c.*member = nan; })); });
  }
}

template <Named E>
void expect_names_of_all_values(std::size_t count) {
  const auto names = names_of(E{});
  EXPECT_EQ(names.size(), count);
  for (std::size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(static_cast<std::size_t>(names[i].value), i) << names[i].text;
    EXPECT_EQ(find_name<E>(names[i].text), names[i].value) << "twice there: " << names[i].text;
    EXPECT_EQ(to_string(names[i].value), names[i].text);
  }
  EXPECT_EQ(find_name<E>("no such name"), std::nullopt);
}

TEST(Names, StandForAllValuesThatAUserMayChoose) {
  expect_names_of_all_values<engine::Precision>(4);
  expect_names_of_all_values<engine::RunnerKind>(5);
  expect_names_of_all_values<comm::Overlap>(3);
  expect_names_of_all_values<comm::Wire>(2);
  expect_names_of_all_values<data::Augment>(3);
  expect_names_of_all_values<data::Fill>(2);
  expect_names_of_all_values<data::Flip>(3);
  expect_names_of_all_values<data::Normalize>(2);
  expect_names_of_all_values<data::Shuffle>(2);
  expect_names_of_all_values<optim::OptimizerKind>(5);
  expect_names_of_all_values<optim::ScheduleKind>(5);
  expect_names_of_all_values<optim::LrScaling>(3);
}

TEST(ScheduleSpec, HasWhatTheUserChose) {
  const TrainConfig config = changed([](auto& c) {
    c.lr = 0.3, c.lr_decay_factor = 0.5, c.epochs_per_decay = 7.0, c.warmup_epochs = 2.0;
    c.lr_scaling = optim::LrScaling::sqrt;
    c.schedule = optim::ScheduleKind::one_cycle, c.decay_at = {0.5};
    c.initial_lr_share = 0.25, c.final_lr_share = 0.125;
  });
  Sizes sizes;
  sizes.total_steps = 77;
  sizes.global_batch = 96;
  const optim::ScheduleSpec spec = schedule_spec(config, sizes, 1000);
  EXPECT_EQ(spec.base_rate, 0.3);
  EXPECT_EQ(spec.decay_factor, 0.5);
  EXPECT_EQ(spec.epochs_per_decay, 7.0);
  EXPECT_EQ(spec.warmup_epochs, 2.0);
  EXPECT_EQ(spec.scaling, optim::LrScaling::sqrt);
  EXPECT_EQ(spec.kind, optim::ScheduleKind::one_cycle);
  EXPECT_EQ(spec.decay_at, std::vector<double>{0.5});
  EXPECT_EQ(spec.initial_share, 0.25);
  EXPECT_EQ(spec.final_share, 0.125);
  EXPECT_EQ(spec.total_steps, 77u);
  EXPECT_EQ(spec.samples, 1000u);
  EXPECT_EQ(spec.global_batch, 96u);
}

TEST(LookaheadRule, EndsWhereTheTailBegins) {
  TrainConfig config = changed([](auto& c) {
    c.schedule = optim::ScheduleKind::linear;
    c.lookahead = 4;
    c.lookahead_keep = 0.7;
    c.lookahead_power = 0.0;
    c.ema_decay = 0.5;
  });
  Sizes sizes;
  sizes.global_batch = 100;
  sizes.total_steps = 50;
  optim::Lookahead rule = lookahead_rule(config, sizes, 1000);
  EXPECT_EQ(rule.every, 4u);
  EXPECT_EQ(rule.from, 0u);
  EXPECT_EQ(rule.until, 50u);
  EXPECT_EQ(rule.keep, 0.7);
  EXPECT_EQ(average_rule(config, sizes, 1000).mean_from, optim::AverageRule{}.mean_from);
  config.tail_epochs = 1.25;  // 12 steps and a half
  config.final_lr_share = 0.05;
  config.lookahead_steps = 8;
  rule = lookahead_rule(config, sizes, 1000);
  EXPECT_EQ(rule.from, 30u);
  EXPECT_EQ(rule.until, 38u);
  EXPECT_EQ(average_rule(config, sizes, 1000).mean_from, 38u);
  EXPECT_EQ(average_rule(config, sizes, 1000).decay, 0.5);
  config.lookahead_steps = 38;
  EXPECT_EQ(lookahead_rule(config, sizes, 1000).from, 0u);
  config.lookahead_steps = 39;
  expect_error(ErrorKind::usage, {"--lookahead-steps 39", "38 steps of the run before its tail"},
               [&] { lookahead_rule(config, sizes, 1000); });
}

TEST(RunFingerprintOfAConfig, HasAPlaceOfItsOwnForEachOption) {
  std::map<int, std::string> taken;
  for (const Option& option : options()) {
    if (option.identity.place == 0) continue;
    const auto [at, is_new] = taken.emplace(option.identity.place, option.name);
    EXPECT_TRUE(is_new) << option.name << " has the place of " << at->second;
  }
}

TEST(RunFingerprintOfAConfig, SpellsNumbersSoThatTheyReadBack) {
  for (const double rate : {0.1, 1e-310, 5e-324, 0.30000000000000004, 1e9}) {
    const RunFingerprint items =
        run_fingerprint(changed([rate](auto& c) { c.lr = rate; }), {}, dataset_of(1000));
    const std::string* const lr = find_item(items, "--lr");
    ASSERT_NE(lr, nullptr);
    EXPECT_EQ(std::strtod(lr->c_str(), nullptr), rate);
    if (rate == 1e-310) {
      EXPECT_EQ(*lr, "1e-310");
    }
  }
}

TEST(RunFingerprintOfAConfig, ChangesWithWhatMakesARunAnother) {
  const auto items = [](const Change& change, std::uint64_t global_batch = 128,
                        std::uint64_t samples = 1000) {
    Sizes sizes;
    sizes.global_batch = global_batch;
    return run_fingerprint(changed(change), sizes, dataset_of(samples));
  };
  const RunFingerprint plain = items([](auto&) {});
  const std::map<std::string, RunFingerprint> others{
      {"--seed", items([](auto& c) { c.seed = 2; })},
      {"--global-batch", items([](auto&) {}, 129)},
      {"dataset training samples", items([](auto&) {}, 128, 1001)},
      {"--lr", items([](auto& c) { c.lr = std::nextafter(0.1, 1.0); })},
      {"--lr-decay-factor", items([](auto& c) { c.lr_decay_factor = 0.2; })},
      {"--epochs-per-decay", items([](auto& c) { c.epochs_per_decay = 1.0; })},
      {"--lr-scaling", items([](auto& c) { c.lr_scaling = optim::LrScaling::linear; })},
      {"--warmup-epochs", items([](auto& c) { c.warmup_epochs = 1.0; })},
      {"--weight-decay", items([](auto& c) { c.weight_decay = 0.0; })},
      {"--clip-norm", items([](auto& c) { c.clip_norm = 0.5; })},
      {"--label-smoothing", items([](auto& c) { c.label_smoothing = 0.1; })},
      {"--ema-decay", items([](auto& c) { c.ema_decay = 0.5; })},
      {"--augment", items([](auto& c) { c.augment = data::Augment::none; })},
      {"network input", items([](auto& c) { c.input_size = 28; })},
      {"--flip", items([](auto& c) { c.flip = data::Flip::alternate; })},
      {"--normalize", items([](auto& c) { c.normalize = data::Normalize::dataset; })},
      {"--shuffle", items([](auto& c) { c.shuffle = data::Shuffle::global; })},
      {"model", items([](auto& c) { c.model = "other"; })}};
  for (const auto& [name, other] : others) {
    ASSERT_EQ(other.size(), plain.size()) << name;
    std::vector<std::string> changed_items;
    for (std::size_t i = 0; i < plain.size(); ++i) {
      if (other[i] != plain[i]) changed_items.push_back(plain[i].first);
    }
    EXPECT_EQ(changed_items, std::vector<std::string>{name});
  }
  // Length, reports and storage of a run do not count, nor do unused micro-shards.
  EXPECT_EQ(
      items([](auto& c) { c.steps = 5, c.epochs = 9.0, c.keep = 1, c.run_dir = "x", c.micro_shards = 2; }),
      plain);
  const RunFingerprint sized = items([](auto& c) { c.image_sizes = {{16, 0.5}, {24}}; });
  ASSERT_EQ(sized.size(), plain.size() + 1);
  EXPECT_EQ(sized.back(), (std::pair<std::string, std::string>{"--image-size", "16x0.5,24"}));
  const RunFingerprint reproducible = items([](auto& c) { c.reproducible = true; });
  ASSERT_EQ(reproducible.size(), plain.size() + 1);
  EXPECT_EQ(reproducible.back(), (std::pair<std::string, std::string>{"--micro-shards", "8"}));
}

/// A checkpoint that lacks them was made with defaults that still hold. The way to update is not recorded if
/// a run may resume with another, and a size of images only if there is one.
TEST(RunFingerprintOfAConfig, KnowsWhatWasNotRecorded) {
  const RunFingerprint plain = run_fingerprint(changed([](auto&) {}), {}, dataset_of(1000));
  for (const auto& item : unrecorded_fingerprint()) {
    const std::string* const recorded = find_item(plain, item.first);
    if (item.first == "--update" || item.first == "--image-size" || item.first == "--brightness" ||
        item.first == "--contrast" || item.first.starts_with("--lookahead") ||
        item.first == "--tail-epochs" || item.first == "--sync-batch-norm") {
      EXPECT_EQ(recorded, nullptr) << item.first;
    } else {
      EXPECT_TRUE(recorded != nullptr && *recorded == item.second) << item.first;
    }
  }
}

}  // namespace
}  // namespace cifar_mpi::config
