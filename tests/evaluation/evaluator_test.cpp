#include "cifar_mpi/evaluation/evaluator.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <span>

#include "cifar_mpi/cpu/backend.hpp"
#include "cifar_mpi/data/fingerprint.hpp"
#include "cifar_mpi/evaluation/evaluate_checkpoint.hpp"
#include "evaluation/wrong_images.hpp"
#include "support/errors.hpp"
#include "support/temp_dir.hpp"
#include "train/run_fixture.hpp"

namespace cifar_mpi::evaluation {
namespace {

/// Tiny samples, more than one read takes.
constexpr std::uint64_t kCount = 9000;
constexpr std::uint64_t kImageBytes = 6;

data::Samples make_samples() {
  data::Samples samples, test;
  data::make_synthetic({2, 3, 1}, 4, kCount, 1, samples, test);
  return samples;
}

TEST(ResidentData, HoldsAndFingerprintsWhatItIsAskedTo) {
  const TempDir dir;
  const data::Samples all = make_samples();
  data::DatasetInfo info;
  info.image = {2, 3, 1};
  info.label_names = {"a", "b", "c", "d"};
  data::write_dataset(dir / "data.h5", info, all, all);
  const data::DatasetFile file(dir / "data.h5");
  const auto backend = cpu::make_backend({});
  const data::Shard part{100, 8800};
  const auto wanted = [&](std::uint64_t first, std::uint64_t count) {
    return data::fingerprint(std::span(all.images).subspan(first * kImageBytes, count * kImageBytes),
                             std::span(all.labels).subspan(first, count), first);
  };
  const data::Shard cases[] = {{0, kCount}, part, {4000, 4500}, {100, 1}, {8899, 1}, {50, 60}, {0, 0}};
  for (const data::Shard fingerprinted : cases) {
    const ResidentData resident(*backend, file, data::Split::train, part, fingerprinted);
    const std::uint64_t begin = std::max(part.first, fingerprinted.first);
    const std::uint64_t end = std::min(part.first + part.count, fingerprinted.first + fingerprinted.count);
    EXPECT_EQ(resident.fingerprint(), begin < end ? wanted(begin, end - begin) : 0)
        << fingerprinted.first << ", " << fingerprinted.count;
    const engine::DataView view = resident.view();
    ASSERT_EQ(view.count, part.count);
    EXPECT_EQ(std::memcmp(view.images, all.images.data() + 100 * kImageBytes, part.count * kImageBytes), 0);
    EXPECT_EQ(std::memcmp(view.labels, all.labels.data() + 100, part.count), 0);
  }
}

constexpr std::uint64_t kChosen = 17452;  // sum of the indices that one rank chooses

using EvaluatorOfRun = train::RunTest;

TEST_F(EvaluatorOfRun, ShowsTheNetworkWholeImagesWhereTrainingCutsThem) {
  config::TrainConfig c = config();
  c.augment = data::Augment::crop;
  const Accuracy whole = start(c)->programs.evaluator->run();
  c.run_dir = path("cut");
  c.cutout = 6;
  const Accuracy same = start(c)->programs.evaluator->run();
  EXPECT_EQ(same.cross_entropy, whole.cross_entropy);
  EXPECT_EQ(same.correct(), whole.correct());
}

/// With the moments of its training set, whatever file it is evaluated on.
TEST_F(EvaluatorOfRun, NormalizesAsInTraining) {
  config::TrainConfig c = config();
  c.augment = data::Augment::crop;
  c.normalize = data::Normalize::dataset;
  c.steps = 1;
  run(c);
  const std::string brighter = other_data([](data::DatasetInfo&, data::Samples& train, data::Samples&) {
    for (std::uint8_t& value : train.images) value = static_cast<std::uint8_t>(128 + value / 2);
  });
  EvaluationConfig evaluation;
  std::vector<double> found;
  for (const std::string& file : {c.data, brighter}) {
    evaluation.data = file;
    found.push_back(
        evaluate_checkpoint(evaluation, run::checkpoint_path(c.run_dir, 1), world(), platform, heart_)
            .accuracy.cross_entropy);
  }
  EXPECT_EQ(found[0], found[1]);
}

/// The test image of another view, by the definition: pixel (y, x) is that of (y + shift, x' + shift) with x' = x or, mirrored,
/// 31 − x; indices −1 and 32 are reflected to 1 and 30.
std::vector<std::uint8_t> shown_by_hand(const std::vector<std::uint8_t>& images, int shift, bool mirror) {
  const auto inside = [](int i) { return i == -1 ? 1 : i == 32 ? 30 : i; };
  std::vector<std::uint8_t> shown;
  for (std::size_t image = 0; image < images.size(); image += 3072) {
    for (int y = 0; y < 32; ++y) {
      for (int x = 0; x < 32; ++x) {
        const int from = inside(y + shift) * 32 + inside((mirror ? 31 - x : x) + shift);
        for (int c = 0; c < 3; ++c) shown.push_back(images[image + static_cast<std::size_t>(from * 3 + c)]);
      }
    }
  }
  return shown;
}

/// Mean of plain logits of images that are moved and mirrored by hand; and the same bits from one rank alone.
TEST_F(EvaluatorOfRun, AveragesTheLogitsOfAllViews) {
  config::TrainConfig c = config();
  c.augment = data::Augment::crop;
  c.steps = 1;
  run(c);
  EvaluationConfig evaluation;
  evaluation.threads = 1;
  evaluation.keep_logits = true;
  const auto evaluate = [&](int views, const std::string& file, const comm::World& ranks) {
    evaluation.data = file;
    evaluation.views = views;
    return evaluate_checkpoint(evaluation, run::checkpoint_path(c.run_dir, 1), ranks, platform, heart_);
  };
  const auto plain = [&](int shift, bool mirror) {
    const std::string file = other_data([&](data::DatasetInfo&, data::Samples&, data::Samples& test) {
      test.images = shown_by_hand(test.images, shift, mirror);
    });
    return evaluate(1, file, world()).logits;
  };
  std::vector<std::vector<float>> views;
  for (const int shift : {0, -1, 1}) {
    for (const bool mirror : {false, true}) views.push_back(plain(shift, mirror));
  }
  const std::vector<std::uint8_t> labels = data::DatasetFile(c.data).read_labels(data::Split::test);
  const std::unique_ptr<comm::World> alone = comm::World::first(world(), 1);
  for (const int count : {2, 6}) {
    const Evaluation found = evaluate(count, c.data, world());
    if (alone != nullptr) {
      EXPECT_EQ(evaluate(count, c.data, *alone).logits, found.logits) << "other bits on one rank";
    }
    if (world().rank() != 0) continue;
    ASSERT_EQ(found.logits.size(), kTestSamples * 10);
    std::uint64_t correct = 0, plain_correct = 0;
    double loss = 0.0;
    for (std::size_t i = 0; i < found.logits.size(); ++i) {
      double pairs[3];
      for (std::size_t p = 0; p < 3; ++p)
        pairs[p] = (static_cast<double>(views[2 * p][i]) + static_cast<double>(views[2 * p + 1][i])) / 2.0;
      const double mean = count == 2 ? pairs[0] : (pairs[0] + (pairs[1] + pairs[2]) / 2.0) / 2.0;
      ASSERT_EQ(found.logits[i], static_cast<float>(mean))
          << count << " views, logit " << i;  // double holds the sums
    }
    for (std::size_t i = 0; i < kTestSamples; ++i) {
      const float* const row = &found.logits[i * 10];
      correct += std::max_element(row, row + 10) - row == labels[i] ? 1 : 0;
      const float* const first = &views[0][i * 10];
      plain_correct += std::max_element(first, first + 10) - first == labels[i] ? 1 : 0;
      double sum = 0.0;
      for (int j = 0; j < 10; ++j)
        sum += std::exp(static_cast<double>(row[j]) - static_cast<double>(row[labels[i]]));
      loss += std::log(sum) / static_cast<double>(kTestSamples);
    }
    EXPECT_EQ(found.accuracy.correct(), correct);
    EXPECT_EQ(found.accuracy.plain_correct, plain_correct);
    EXPECT_NEAR(found.accuracy.cross_entropy, loss, 1e-12 * loss);
    EXPECT_GT(found.time.first_view_s, 0.0);
    EXPECT_GT(found.time.other_views_s, 0.0);
  }
}

/// Training with --views evaluates as the evaluation of its checkpoint does, and trains to the same weights.
TEST_F(EvaluatorOfRun, ShowsTheViewsOfTheOptionInTrainingToo) {
  config::TrainConfig c = config();
  c.augment = data::Augment::crop;
  c.steps = 2;
  run(c);
  const run::Checkpoint plain = saved(c, 2);
  c.run_dir = path("views");
  c.views = 6;
  run(c);
  EvaluationConfig evaluation;
  evaluation.data = c.data;
  evaluation.views = 6;
  evaluation.batch_size = c.batch_size;  // for the same bits of the probabilities, as the next
  evaluation.threads = c.threads;
  const Evaluation found =
      evaluate_checkpoint(evaluation, run::checkpoint_path(c.run_dir, 2), world(), platform, heart_);
  EXPECT_EQ(found.record.views, 6u);
  on_rank_zero([&] { EXPECT_EQ(found.record, run::read_evaluation(c.run_dir + "/evaluation.h5")); });
  const run::Checkpoint viewed = saved(c, 2);
  EXPECT_EQ(viewed.state[optim::StateRole::weights][0].values,
            plain.state[optim::StateRole::weights][0].values);
}

TEST_F(EvaluatorOfRun, RefusesMirroredViewsOfARunThatMirrorsNoImage) {
  for (const bool off : {true, false}) {
    config::TrainConfig c = config();
    c.run_dir = path(off ? "off" : "none");
    c.augment = off ? data::Augment::crop : data::Augment::none;
    if (off) c.flip = data::Flip::off;
    c.steps = 1;
    run(c);
    EvaluationConfig evaluation;
    evaluation.data = c.data;
    for (const int views : {2, 6}) {
      evaluation.views = views;
      expect_agreed(
          ErrorKind::usage, off ? "was trained with --flip off" : "was trained with --augment none", [&] {
            evaluate_checkpoint(evaluation, run::checkpoint_path(c.run_dir, 1), world(), platform, heart_);
          });
    }
  }
}

TEST(ViewsOf, RefusesOtherNumbersAndImagesThatCannotBeMoved) {
  data::AugmentSpec augment;
  augment.source = {32, 1, 3};
  augment.cutout = 3;
  for (const int count : {1, 2}) {
    const std::vector<View> views = views_of(count, augment);
    ASSERT_EQ(views.size(), static_cast<std::size_t>(count));
    EXPECT_EQ(views[0].augment.kind, data::Augment::none);
    EXPECT_EQ(views[0].augment.cutout, 0);
  }
  expect_error(ErrorKind::usage, {"--views 6 moves images by a pixel", "32x1x3"},
               [&] { views_of(6, augment); });
  augment.source = {2, 2, 3};
  EXPECT_EQ(views_of(6, augment).size(), 6u);
  for (const int count : {-1, 0, 3, 7})
    expect_error(ErrorKind::usage, {"--views must be 1, 2 or 6"}, [&] { views_of(count, augment); });
}

TEST(MakeNetwork, RefusesDistortionsThatLeaveNothingOfAnImage) {
  data::DatasetInfo info;
  info.image = {32, 32, 3};
  info.label_names = {"cat", "dog"};
  const auto refuse = [&](const char* part, int pad, int cutout) {
    config::TrainConfig config;
    config.augment = data::Augment::crop;
    config.crop_pad = pad;
    config.cutout = cutout;
    expect_error(ErrorKind::usage, {part, "32x32", "it must be smaller"}, [&] {
      make_network("tutorial", info, config::augment_spec(config, info.image), "data.h5");
    });
  };
  refuse("--crop-pad 32", 32, 0);
  refuse("--cutout 32", 4, 32);
}

TEST(Shrink, TakesTheMeanOfSquares) {
  EXPECT_EQ(shrink({1, 2, 3, 4, 5, 6}, {3, 2, 1}, 1, 1), (std::vector<std::uint8_t>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(shrink({0, 255, 3, 255, 255, 3, 9, 9, 9}, {3, 3, 1}, 2, 2), (std::vector<std::uint8_t>{191}));
  EXPECT_EQ(shrink({0, 100, 10, 200, 20, 0, 30, 0}, {2, 2, 2}, 2, 2), (std::vector<std::uint8_t>{15, 75}));
  EXPECT_EQ(shrink({0, 2, 10, 20}, {2, 2, 1}, 1, 2), (std::vector<std::uint8_t>{1, 15}));
}

/// Predictions for all images of the split, with few or many wrong; equal for any number of ranks.
TEST(WrongImages, AreTheSameOnAnyNumberOfRanks) {
  const comm::World& world = test::test_world();
  constexpr std::uint64_t kImages = 500;
  const Extent image{1, 130, 1};  // comes as 1x43
  const auto label = [](std::uint64_t i) { return static_cast<std::uint8_t>(i % 7); };
  for (const std::uint64_t every : {3, 50, 1000}) {
    const auto prediction = [&](std::uint64_t i) {
      return static_cast<std::uint8_t>(i % every == 1 ? (i + 1) % 7 : i % 7);
    };
    const data::Shard part = data::shard_of(kImages, static_cast<std::uint64_t>(world.rank()),
                                            static_cast<std::uint64_t>(world.size()));
    std::vector<std::uint8_t> labels, predictions;
    for (std::uint64_t i = part.first; i < part.first + part.count; ++i) {
      labels.push_back(label(i));
      predictions.push_back(prediction(i));
    }
    run::EvaluationFile file;
    gather_wrong_images(
        world, {part.first, labels, predictions}, image,
        [](std::uint64_t i) { return std::vector<std::uint8_t>(130, static_cast<std::uint8_t>(i)); }, file);
    EXPECT_EQ(file.image, (Extent{1, 43, 1}));
    EXPECT_EQ(file.indices.size(), every == 3 ? 64u : every == 50 ? 10u : 1u);
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < file.indices.size(); ++i) {
      const std::uint64_t index = file.indices[i];
      EXPECT_EQ(index % every, 1u);
      EXPECT_EQ(file.labels[i], label(index));
      EXPECT_EQ(file.predictions[i], prediction(index));
      EXPECT_EQ(file.images[i * 43], static_cast<std::uint8_t>(index));
      sum += index;
    }
    EXPECT_TRUE(std::is_sorted(file.labels.begin(), file.labels.end()));
    EXPECT_TRUE(every != 3 || sum == kChosen) << "another choice than that of one rank: " << sum;
  }
}

TEST(Mistakes, AreAllWrongImagesInTheOrderOfTheSplit) {
  const comm::World& world = test::test_world();
  constexpr std::uint64_t kImages = 500;
  std::vector<std::string> files;
  for (std::uint64_t i = 0; i < kImages; ++i) files.push_back(std::to_string(i) + ".png");
  const auto prediction = [](std::uint64_t i) { return static_cast<std::uint8_t>((i + i % 3) % 7); };
  const data::Shard part = data::shard_of(kImages, static_cast<std::uint64_t>(world.rank()),
                                          static_cast<std::uint64_t>(world.size()));
  std::vector<std::uint8_t> labels, predictions;
  std::vector<float> probabilities;
  for (std::uint64_t i = part.first; i < part.first + part.count; ++i) {
    labels.push_back(static_cast<std::uint8_t>(i % 7));
    predictions.push_back(prediction(i));
    probabilities.push_back(static_cast<float>(i) / 512.0f);
  }
  const Predictions mine{part.first, labels, predictions, probabilities};
  run::Mistakes wanted;
  for (std::uint64_t i = 0; i < kImages && world.rank() == 0; ++i) {
    if (i % 3 == 0) continue;
    wanted.indices.push_back(i);
    wanted.labels.push_back(static_cast<std::uint8_t>(i % 7));
    wanted.predictions.push_back(prediction(i));
    wanted.probabilities.push_back(static_cast<float>(i) / 512.0f);
    wanted.files.push_back(files[i]);
  }
  EXPECT_EQ(gather_mistakes(world, mine, files), wanted);
  wanted.files.clear();
  EXPECT_EQ(gather_mistakes(world, mine, {}), wanted);
}

TEST_F(EvaluatorOfRun, KeepsTheConfusionMatrixAndTheImagesThatWereTakenForOthers) {
  config::TrainConfig c = config();
  run(c);
  on_rank_zero([&] {
    const run::EvaluationFile file = run::read_evaluation(c.run_dir + "/evaluation.h5");
    EXPECT_EQ(file.step, 4u);
    EXPECT_EQ(file.weights, "ema");
    EXPECT_EQ(file.label_names, data::cifar10_label_names());
    ASSERT_EQ(file.confusion.size(), 100u);
    EXPECT_EQ(std::accumulate(file.confusion.begin(), file.confusion.end(), std::uint64_t{0}), kTestSamples);
    std::uint64_t wrong = kTestSamples;
    for (std::size_t i = 0; i < 10; ++i) wrong -= file.confusion[11 * i];
    ASSERT_EQ(file.labels.size(), wrong);
    const data::Samples test = data::DatasetFile(c.data).read(data::Split::test, {0, kTestSamples});
    for (std::size_t i = 0; i < wrong; ++i) {
      EXPECT_NE(file.labels[i], file.predictions[i]);
      EXPECT_EQ(file.labels[i], test.labels[file.indices[i]]);
      EXPECT_EQ(std::memcmp(&file.images[i * 3072], &test.images[file.indices[i] * 3072], 3072), 0);
    }
    ASSERT_EQ(file.mistakes.indices.size(), wrong);
    for (const float probability : file.mistakes.probabilities) {
      EXPECT_GE(probability, 0.1f);  // of the most likely of ten classes
      EXPECT_LE(probability, 1.0f);
    }
  });
  EvaluationConfig evaluation;
  evaluation.data = c.data;
  const Evaluation found =
      evaluate_checkpoint(evaluation, run::checkpoint_path(c.run_dir, 4), world(), platform, heart_);
  on_rank_zero([&] {
    run::EvaluationFile kept = run::read_evaluation(c.run_dir + "/evaluation.h5");
    std::vector<float>& probabilities = kept.mistakes.probabilities;
    ASSERT_EQ(found.record.mistakes.probabilities.size(), probabilities.size());
    // Another batch size may add in another order; the logits are near 1.
    for (std::size_t i = 0; i < probabilities.size(); ++i)
      EXPECT_NEAR(found.record.mistakes.probabilities[i], probabilities[i], 1e-5f);
    probabilities = found.record.mistakes.probabilities;
    EXPECT_EQ(found.record, kept);
  });
}

TEST(Moments, ComeBackFromSettingsAndMustFitTheChannels) {
  data::AugmentSpec augment;
  augment.source = {8, 8, 3};
  EXPECT_TRUE(moments_of(augment).empty());
  augment.normalize = data::Normalize::dataset;
  for (int c = 0; c < 3; ++c) {
    augment.mean[c] = 100.0f / 3.0f + static_cast<float>(c);
    augment.deviation[c] = 64.1f / static_cast<float>(c + 1);
  }
  const RunFingerprint settings = moments_of(augment);
  data::AugmentSpec back;
  back.source = augment.source;
  EXPECT_FALSE(take_moments(back, settings, "a.h5")) << "an image is normalized by its own";
  back.normalize = data::Normalize::dataset;
  EXPECT_FALSE(take_moments(back, {}, "a.h5"));
  ASSERT_TRUE(take_moments(back, settings, "a.h5"));
  EXPECT_EQ(std::memcmp(back.mean, augment.mean, sizeof back.mean), 0);
  EXPECT_EQ(std::memcmp(back.deviation, augment.deviation, sizeof back.deviation), 0);
  for (const char* bad : {"", "1 2", "1 2 3 4", "1 2 x", "1 2 nan", "1 2 0", "1 2 -3", "1,2,3"}) {
    RunFingerprint forged = settings;
    forged.back().second = bad;
    expect_error(ErrorKind::checkpoint, {"a.h5", "dataset deviation", "3 channels"},
                 [&] { take_moments(back, forged, "a.h5"); });
  }
}

}  // namespace
}  // namespace cifar_mpi::evaluation
