#include "train/summaries.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <string>

#include "cifar_mpi/run/run_directory.hpp"
#include "hdf5/hdf5.hpp"
#include "support/event_reader.hpp"
#include "support/launch_counter.hpp"
#include "support/naive_counts.hpp"
#include "train/run_fixture.hpp"

/// The files of --summary-every.
namespace cifar_mpi::train {
namespace {

using test::event_files;
using test::EventRead;

/// Rows of (left, right, count), by tag.
using Histograms = std::map<std::string, std::vector<double>>;

class RunSummaries : public RunTest {
 protected:
  /// Summaries after steps 1, 2 and 4.
  config::TrainConfig four_steps() const {
    config::TrainConfig c = config();
    c.summary_every = 2;
    c.checkpoint_every = 2;
    c.log_every = 1;
    return c;
  }

  static std::vector<EventRead> events_of(const config::TrainConfig& config) {
    std::vector<EventRead> events;
    for (const std::string& path : event_files(config.run_dir + "/tensorboard")) {
      for (EventRead& event : test::read_events(path)) events.push_back(std::move(event));
    }
    return events;
  }
  static Histograms histograms_at(const std::vector<EventRead>& events, std::uint64_t step) {
    Histograms found;
    for (const EventRead& event : events) {
      if (event.step != step) continue;
      for (const auto& [tag, rows] : event.doubles) found[tag] = rows;
    }
    return found;
  }
  static double scalar_at(const std::vector<EventRead>& events, std::uint64_t step, const std::string& tag) {
    for (const EventRead& event : events) {
      for (const auto& [name, value] : event.scalars) {
        if (event.step == step && name == tag) return static_cast<double>(value);
      }
    }
    ADD_FAILURE() << tag << " has no value at step " << step;
    return 0.0;
  }

  static void expect_histogram(const std::vector<double>& rows, const std::vector<float>& values,
                               const std::string& what) {
    const engine::ValueCounts wanted = test::naive_counts(values);
    ASSERT_EQ(rows.size(), 90u) << what;
    for (std::size_t i = 0; i < 30; ++i) {
      EXPECT_FLOAT_EQ(static_cast<float>(rows[3 * i]), wanted.edges[i]) << what;
      EXPECT_FLOAT_EQ(static_cast<float>(rows[3 * i + 1]), wanted.edges[i + 1]) << what;
      const auto inside = std::count_if(values.begin(), values.end(), [&](float value) {
        const auto x = static_cast<double>(value);
        return x >= rows[3 * i] && (x < rows[3 * i + 1] || (i == 29 && x <= rows[3 * i + 1]));
      });
      EXPECT_EQ(rows[3 * i + 2], static_cast<double>(inside)) << what << ", bucket " << i;
    }
  }
};

/// The weights of every step with a checkpoint, compared with it; padding of the backend's formats does not
/// count.
TEST_F(RunSummaries, CountTheVariablesThatTheCheckpointOfTheStepHas) {
  for (const char* const model : {"tutorial", "resnet20"}) {
    config::TrainConfig c = four_steps();
    c.model = model;
    c.run_dir = path(model);
    c.weight_decay = 1e-4;
    run(c);
    const std::vector<EventRead> events = events_of(c);
    for (const std::uint64_t step : {2u, 4u}) {
      Histograms found = histograms_at(events, step);
      const run::StateTensors state = saved(c, step).state;
      std::size_t compared = 0;
      for (const auto role : {optim::StateRole::weights}) {
        for (const run::NamedTensor& tensor : state[role]) {
          ASSERT_TRUE(found.contains(tensor.name)) << tensor.name;
          expect_histogram(found[tensor.name], {tensor.values.begin(), tensor.values.end()}, tensor.name);
          ++compared;
        }
      }
      EXPECT_GE(compared, 10u);
    }
    EXPECT_FALSE(histograms_at(events, 1).empty());
    EXPECT_TRUE(histograms_at(events, 3).empty());
  }
}

/// With SGD the update is the gradient: without decay, w' = w − rate · g.
TEST_F(RunSummaries, CountTheGradientsSummedOverAllRanks) {
  config::TrainConfig c = four_steps();
  c.checkpoint_every = 1;
  c.keep = 10;
  c.weight_decay = 0.0;
  c.lr = 1.0;
  run(c);
  Histograms found = histograms_at(events_of(c), 4);
  const run::StateTensors before = saved(c, 3).state, after = saved(c, 4).state;
  for (std::size_t t = 0; t < after[optim::StateRole::weights].size(); ++t) {
    const run::NamedTensor& w = before[optim::StateRole::weights][t];
    const run::NamedTensor& moved = after[optim::StateRole::weights][t];
    double least = 0.0, most = 0.0, largest = 0.0;
    for (std::size_t i = 0; i < w.values.size(); ++i) {
      const double gradient = static_cast<double>(w.values[i]) - static_cast<double>(moved.values[i]);
      least = i == 0 ? gradient : std::min(least, gradient);
      most = i == 0 ? gradient : std::max(most, gradient);
      largest = std::max(largest, std::abs(static_cast<double>(moved.values[i])));
    }
    const std::vector<double>& rows = found.at(w.name + "/gradients");
    const double rounding = 0x1.0p-23 * largest + 1e-12;  // of w − g to fp32
    EXPECT_NEAR(rows.front(), least, rounding) << w.name;
    EXPECT_NEAR(rows[88], most, rounding) << w.name;
    double counted = 0.0;
    for (std::size_t i = 0; i < 30; ++i) counted += rows[3 * i + 2];
    EXPECT_EQ(counted, static_cast<double>(w.values.size())) << w.name;
  }
}

/// The norm that clipping computes inside the step, compared with the one computed between steps, for every
/// way to sum.
TEST_F(RunSummaries, FindTheGradientsWhereEveryCollectiveLeavesThem) {
  for (const comm::CollectiveInfo& collective : comm::collectives()) {
    config::TrainConfig c = config();
    c.run_dir = path("norm-" + std::string(collective.name));
    c.all_reduce = collective.name;
    c.clip_norm = 1e-3;
    c.steps = 1;
    const auto state = start(c);
    run(*state);
    if (state->programs.histograms == nullptr) continue;
    const double inside = state->blocks.records[0].gradient_norm;
    state->blocks.gradient_norm.as<double>()[0] = 0.0;
    state->programs.histograms->replay();
    EXPECT_EQ(state->blocks.gradient_norm.as<double>()[0], inside) << collective.name;
    EXPECT_GT(inside, 1e-3) << "it is clipped";
  }
}

TEST_F(RunSummaries, CountTheOutputsOfTheLayers) {
  config::TrainConfig c = four_steps();
  c.steps = 1;
  for (const int accumulate : {1, 2}) {
    c.accumulate = accumulate;
    c.run_dir = path("layers" + std::to_string(accumulate));
    c.batch_size = 12 / world().size() / accumulate;
    if (c.batch_size * accumulate * world().size() != 12) continue;
    run(c);
    const std::vector<EventRead> events = events_of(c);
    const Histograms found = histograms_at(events, 1);
    const auto values = [&](const std::string& tag) {
      double sum = 0.0;
      for (std::size_t i = 0; i < 30; ++i) sum += found.at(tag)[3 * i + 2];
      return sum;
    };
    const double batch = c.batch_size;
    EXPECT_EQ(values("norm1/activations"), batch * 6 * 6 * 64);
    EXPECT_EQ(values("conv2/activations"), batch * 6 * 6 * 64);
    EXPECT_EQ(values("local3/activations"), batch * 384);
    EXPECT_EQ(values("softmax_linear/activations"), batch * 10);
    EXPECT_EQ(found.at("conv2/activations").front(), 0.0) << "the ReLU's output";
    EXPECT_LT(found.at("softmax_linear/activations").front(), 0.0);
    const double sparsity = scalar_at(events, 1, "local3/sparsity");
    EXPECT_GT(sparsity, 0.0);
    EXPECT_LT(sparsity, 1.0);
    EXPECT_GE(found.at("local3/activations")[2], sparsity * batch * 384 - 1e-3) << "zeros are in the first";
    EXPECT_FALSE(found.contains("image/activations"));
  }
}

TEST_F(RunSummaries, ChangeNoBitOfTheRun) {
  std::vector<run::NamedTensor> wanted;
  for (const std::int64_t every : {0, 1}) {
    for (const auto runner :
         {engine::RunnerKind::lanes, engine::RunnerKind::serial, engine::RunnerKind::audit}) {
      if (every == 0 && runner != engine::RunnerKind::lanes) continue;
      config::TrainConfig c = config();
      c.steps = 3;
      c.summary_every = every;
      c.runner = runner;
      c.run_dir = path("bits" + std::to_string(every) + std::string(to_string(runner)));
      run(c);
      const auto weights = saved(c, 3).state[optim::StateRole::weights];
      EXPECT_EQ(std::filesystem::exists(c.run_dir + "/summaries.h5"), every > 0);
      if (every == 0) {
        wanted = weights;
        for (const EventRead& event : events_of(c)) EXPECT_TRUE(event.doubles.empty());
      } else {
        run::expect_same_tensors(weights, wanted);
      }
    }
  }
}

TEST_F(RunSummaries, GoOnInTheirFileWhenARunIsResumed) {
  config::TrainConfig c = four_steps();
  run(c);
  const std::string file = c.run_dir + "/summaries.h5";
  on_rank_zero([&] {
    const auto steps = hdf5::Reader(file).read<std::uint64_t>("/variables/conv1/weights/steps");
    EXPECT_EQ(steps, (std::vector<std::uint64_t>{1, 2, 4}));
    std::filesystem::remove(run::checkpoint_path(c.run_dir, 4));  // step 4 is done again
  });
  config::TrainConfig longer = c;
  longer.steps = 6;
  run(longer);
  const hdf5::Reader read(file);
  for (const char* const group :
       {"/variables/conv1/weights", "/gradients/local3/weights", "/activations/conv2"}) {
    EXPECT_EQ(read.read<std::uint64_t>(std::string(group) + "/steps"),
              (std::vector<std::uint64_t>{1, 2, 4, 6}));
  }
  const auto kept = static_cast<std::uint64_t>(std::min(8, c.batch_size));
  EXPECT_EQ(read.dims("/images"), (hdf5::Dims{kept, 12, 12, 3}));
  std::size_t told = 0;
  for (const EventRead& event : events_of(c))
    told += static_cast<std::size_t>(std::count(event.tensors.begin(), event.tensors.end(), "images"));
  EXPECT_EQ(told, 1u) << "once per run";
}

TEST_F(RunSummaries, HoldUpNoRunWhereTheyCannotBeWrittenOrRead) {
  config::TrainConfig c = four_steps();
  on_rank_zero([&] { std::filesystem::create_directories(c.run_dir + "/summaries.h5"); });
  run(c);
  EXPECT_TRUE(std::filesystem::exists(run::checkpoint_path(c.run_dir, 4)));
  EXPECT_TRUE(std::filesystem::is_directory(c.run_dir + "/summaries.h5"));
  config::TrainConfig other = c;
  other.run_dir = path("other");
  on_rank_zero([&] {
    std::filesystem::create_directories(other.run_dir);
    write_file(other.run_dir + "/summaries.h5", "garbage");
  });
  run(other);
  EXPECT_TRUE(hdf5::Reader(other.run_dir + "/summaries.h5").has("/variables/conv1/weights/steps"));
}

/// Other steps cost nothing, and a recorder continues.
TEST_F(RunSummaries, LookAtTheStepsThatAreDueAndAtNoOther) {
  config::TrainConfig c = config();
  c.steps = 5;
  c.graph_steps = 3;  // 2, 3 and 4 could be launched at once
  c.summary_every = 4;
  for (const bool traced : {false, true}) {
    c.run_dir = path(traced ? "traced" : "untraced");
    if (traced) c.trace = {3, 5};
    const auto state = start(c);
    for (const engine::Task& task : state->programs.step->program().tasks())
      EXPECT_EQ(task.observer, task.name == "keep images" || task.name.starts_with("observe ")) << task.name;
    std::vector<bool> looks, records;
    const test::LaunchCounter* seen = nullptr;
    auto counter = std::make_unique<test::LaunchCounter>(std::move(state->programs.step), [&](int times) {
      looks.insert(looks.end(), static_cast<std::size_t>(times), seen->observation().look);
      records.insert(records.end(), static_cast<std::size_t>(times), seen->observation().recorder != nullptr);
    });
    seen = counter.get();
    state->programs.step = std::move(counter);
    run(*state);
    EXPECT_EQ(looks, (std::vector<bool>{true, false, false, true, false}));
    EXPECT_EQ(records, (std::vector<bool>{false, false, traced, traced, traced}));
  }
}

/// For a small batch per rank oneDNN computes conv1.
TEST_F(RunSummaries, SayWhichLayersTheyLackAndWhy) {
  config::TrainConfig c = config();
  c.steps = 1;
  c.conv = engine::ConvMethod::direct;
  for (const int batch : {c.batch_size, static_cast<int>(kTrainSamples) / world().size()}) {
    c.run_dir = path("batch" + std::to_string(batch));
    c.batch_size = batch;
    const auto state = start(c);
    const std::vector<std::string> seen = state->device.tower->observed();
    run(*state);
    const bool lacks = std::find(seen.begin(), seen.end(), "conv1") == seen.end();
    if (world().size() == 1) {
      EXPECT_EQ(lacks, batch > 12);
    }
    const hdf5::Reader file(c.run_dir + "/summaries.h5");
    EXPECT_EQ(file.has("/activations/conv1"), !lacks);
    ASSERT_EQ(file.has_attribute("/activations", "lacking"), lacks);
    if (lacks) {
      const auto words = file.attribute<std::string>("/activations", "lacking");
      EXPECT_TRUE(words.starts_with("no histogram of the outputs of conv1: a kernel hands them on")) << words;
    }
    std::size_t told = 0;
    for (const EventRead& event : events_of(c))
      told += static_cast<std::size_t>(
          std::count(event.tensors.begin(), event.tensors.end(), "activations/lacking"));
    EXPECT_EQ(told, lacks ? 1u : 0u);
  }
}

/// Also with bf16, where activations lie in another type than the sums.
TEST_F(RunSummaries, CountBf16) {
  config::TrainConfig c = four_steps();
  c.precision = engine::Precision::bf16;
  c.steps = 1;
  std::unique_ptr<SessionState> state;
  try {
    state = start(c);
  } catch (const comm::AgreedError& error) {
    GTEST_SKIP() << error.what();
  }
  run(*state);
  const Histograms found = histograms_at(events_of(c), 1);
  double sum = 0.0;
  for (std::size_t i = 0; i < 30; ++i) sum += found.at("conv2/activations")[3 * i + 2];
  EXPECT_EQ(sum, static_cast<double>(c.batch_size) * 6 * 6 * 64);
  EXPECT_LT(found.at("conv2/activations")[88], 100.0);
}

TEST_F(RunSummaries, TellHowLongCommunicationIsExposed) {
  config::TrainConfig c = four_steps();
  run(c);
  bool told = false;
  for (const EventRead& event : events_of(c)) {
    for (const auto& [tag, value] : event.scalars) {
      if (tag != "exposed_communication_ms") continue;
      told = true;
      EXPECT_GT(value, 0.0f);
      EXPECT_LT(value, 1e5f);
    }
  }
  EXPECT_EQ(told, world().size() > 1);
  EXPECT_GT(scalar_at(events_of(c), 4, "gradient_norm"), 0.0);
  EXPECT_GT(scalar_at(events_of(c), 3, "local3/weight_loss (raw)"), 0.0) << "after step 2";
}

}  // namespace
}  // namespace cifar_mpi::train
