#include "app/train_options.hpp"

#include <gtest/gtest.h>

#include <cctype>
#include <string>
#include <vector>

#include "cifar_mpi/config/options.hpp"
#include "support/contains.hpp"
#include "support/errors.hpp"

namespace cifar_mpi::app {
namespace {

config::TrainConfig parsed(const std::string& words) {
  CLI::App app;
  TrainOptions options;
  options.add_to(app);
  app.parse(words);
  return options.config();
}

TEST(TrainOptions, AreTheTutorialsWhenNothingIsSaid) {
  const config::TrainConfig config = parsed("");
  EXPECT_EQ(config.init_from, "");
  EXPECT_FALSE(config.keep_best);
  EXPECT_EQ(config.batch_size, 128);
  EXPECT_EQ(config.epochs, 256.0);
  EXPECT_EQ(config.lr, 0.1);
  EXPECT_EQ(config.seed, 1u);
  EXPECT_EQ(config.ema_decay, 0.9999);
  EXPECT_EQ(config.schedule, optim::ScheduleKind::staircase);
  EXPECT_TRUE(config.decay_at.empty());
  EXPECT_EQ(config.precision, engine::Precision::automatic);
  EXPECT_EQ(config.augment, data::Augment::tutorial);
  EXPECT_EQ(config.shuffle, data::Shuffle::shard);
}

TEST(TrainOptions, ReachTheRun) {
  const config::TrainConfig config = parsed(
      "--data d --run-dir r --resume never --init-from best.h5 --seed 2 --device cpu --self-check off "
      "--precision bf16 --threads 3 --runner serial --all-reduce ring --bucket-mib 4 --reproducible "
      "--micro-shards 5 --batch-size 6 --global-batch 7 --epochs 8 --steps 9 --augment none --shuffle global "
      "--lr 10 --lr-decay-factor 11 --epochs-per-decay 12 --lr-scaling sqrt --warmup-epochs 13 "
      "--weight-decay 14 --ema-decay 15 --log-every 16 --eval-every 17 --patience 31 --checkpoint-every 18 "
      "--check-every 19 --keep 20 --keep-every 21 --keep-best "
      "--timeout 22 --stop-after 23 --overlap off --schedule one-cycle --decay-at 0.25,0.5 --input-size 27 "
      "--crop-pad "
      "24 --crop-fill reflect --flip alternate --cutout 25 --normalize dataset --initial-lr-share 0.125 "
      "--final-lr-share 0.0625 --optimizer adamw --momentum 0.5 --beta1 0.25 --beta2 0.75 --eps 0.001 "
      "--clip-norm 24 "
      "--label-smoothing 0.125 --update local --local-steps 28 --outer nesterov --outer-lr 29 "
      "--outer-momentum 0.375 --local-after 30");
  EXPECT_EQ(config.update, comm::UpdateKind::local);
  EXPECT_EQ(config.local.steps, 28);
  EXPECT_EQ(config.local.outer, optim::OuterKind::nesterov);
  EXPECT_EQ(config.local.outer_rate, 29.0);
  EXPECT_EQ(config.local.outer_momentum, 0.375);
  EXPECT_EQ(config.local.after_epoch, 30.0);
  EXPECT_EQ(config.patience, 31);
  EXPECT_EQ(config.data, "d");
  EXPECT_EQ(config.run_dir, "r");
  EXPECT_EQ(config.resume, "never");
  EXPECT_EQ(config.init_from, "best.h5");
  EXPECT_EQ(config.seed, 2u);
  EXPECT_EQ(config.device, "cpu");
  EXPECT_EQ(config.self_check, config::SelfCheckMode::off);
  EXPECT_EQ(config.precision, engine::Precision::bf16);
  EXPECT_EQ(config.threads, 3);
  EXPECT_EQ(config.runner, engine::RunnerKind::serial);
  EXPECT_EQ(config.all_reduce, "ring");
  EXPECT_EQ(config.bucket_mib, 4.0);
  EXPECT_TRUE(config.reproducible);
  EXPECT_EQ(config.micro_shards, 5);
  EXPECT_EQ(config.batch_size, 6);
  EXPECT_EQ(config.global_batch, 7);
  EXPECT_EQ(config.epochs, 8.0);
  EXPECT_EQ(config.steps, 9);
  EXPECT_EQ(config.augment, data::Augment::none);
  EXPECT_EQ(config.input_size, 27);
  EXPECT_EQ(config.crop_pad, 24);
  EXPECT_EQ(config.crop_fill, data::Fill::reflect);
  EXPECT_EQ(config.flip, data::Flip::alternate);
  EXPECT_EQ(config.cutout, 25);
  EXPECT_EQ(config.normalize, data::Normalize::dataset);
  EXPECT_EQ(config.shuffle, data::Shuffle::global);
  EXPECT_EQ(config.lr, 10.0);
  EXPECT_EQ(config.lr_decay_factor, 11.0);
  EXPECT_EQ(config.epochs_per_decay, 12.0);
  EXPECT_EQ(config.lr_scaling, optim::LrScaling::sqrt);
  EXPECT_EQ(config.warmup_epochs, 13.0);
  EXPECT_EQ(config.weight_decay, 14.0);
  EXPECT_EQ(config.ema_decay, 15.0);
  EXPECT_EQ(config.log_every, 16);
  EXPECT_EQ(config.eval_every, 17.0);
  EXPECT_EQ(config.checkpoint_every, 18);
  EXPECT_EQ(config.check_every, 19);
  EXPECT_EQ(config.keep, 20);
  EXPECT_EQ(config.keep_every, 21);
  EXPECT_TRUE(config.keep_best);
  EXPECT_EQ(config.timeout_s, 22.0);
  EXPECT_EQ(config.stop_after_min, 23.0);
  EXPECT_EQ(config.overlap, comm::Overlap::off);
  EXPECT_EQ(config.schedule, optim::ScheduleKind::one_cycle);
  EXPECT_EQ(config.decay_at, (std::vector<double>{0.25, 0.5}));
  EXPECT_EQ(config.initial_lr_share, 0.125);
  EXPECT_EQ(config.final_lr_share, 0.0625);
  EXPECT_EQ(config.optimizer.kind, optim::OptimizerKind::adamw);
  EXPECT_EQ(config.optimizer.momentum, 0.5);
  EXPECT_EQ(config.optimizer.beta1, 0.25);
  EXPECT_EQ(config.optimizer.beta2, 0.75);
  EXPECT_EQ(config.optimizer.eps, 0.001);
  EXPECT_EQ(config.clip_norm, 24.0);
  EXPECT_EQ(config.label_smoothing, 0.125);
}

TEST(TrainOptions, TakeEveryValueBackAsTheyShowIt) {
  for (const config::Option& option : config::options()) {
    config::TrainConfig config;
    for (const std::string& name : option.value.names) {
      EXPECT_EQ(config::read(option, config, name), "") << option.name;
      EXPECT_EQ(config::shown(option, config), name) << option.name;
    }
    const config::TrainConfig standard;
    EXPECT_EQ(config::read(option, config, config::shown(option, standard)), "") << option.name;
    EXPECT_EQ(config::shown(option, config), config::shown(option, standard)) << option.name;
  }
}

TEST(TrainOptions, RefuseWhatTheyCannotRead) {
  const auto refusal = [](const std::string& words) {
    try {
      parsed(words);
    } catch (const CLI::ParseError& error) {
      return std::string(error.what());
    }
    return "accepted: " + words;
  };
  for (const char* bad : {",", "0.5,", ",0.5", "0.5,,1", "0.5;0.75", "a", "nan", "0.5,inf"})
    EXPECT_TRUE(contains(refusal(std::string("--decay-at ") + bad), "such as 0.5,0.75, not '")) << bad;
  for (const char* bad : {"-", "5", "5-", "0-5", "1-2-3", "a-b", "1-99999999999999999999"})
    EXPECT_TRUE(contains(refusal(std::string("--trace=") + bad), "such as 1000-1009, or none, not '")) << bad;
  EXPECT_TRUE(contains(refusal("--steps 1.5"),
                       "must be a whole number of at most 9223372036854775807, or auto, not '1.5'"));
  EXPECT_TRUE(contains(refusal("--lr nan"), "must be a finite number, not 'nan'"));
  EXPECT_TRUE(contains(refusal("--flip up"), "must be one of random, alternate, off, not 'up'"));
  EXPECT_TRUE(contains(refusal("--max-staleness -1"), "or none, not '-1'"));
}

TEST(TrainOptions, AreDescribedByOneShortPhrase) {
  for (const config::Option& option : config::options()) {
    EXPECT_LE(option.help.size(), 60u) << option.name;
    EXPECT_TRUE(!option.help.empty() && std::isupper(static_cast<unsigned char>(option.help.front())))
        << option.name;
    EXPECT_NE(option.help.back(), '.') << option.name;
  }
}

}  // namespace
}  // namespace cifar_mpi::app
