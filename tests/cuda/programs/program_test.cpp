#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cifar_mpi/comm/all_reduce_update.hpp"
#include "cifar_mpi/cuda/backend.hpp"
#include "cifar_mpi/engine/branches.hpp"
#include "cifar_mpi/engine/roofline.hpp"
#include "cifar_mpi/engine/verify.hpp"
#include "cifar_mpi/lower/tower.hpp"
#include "cuda/kernels.hpp"
#include "cuda/step_tasks.hpp"
#include "support/errors.hpp"
#include "support/networks.hpp"

/// Programs of the CUDA backend, built in host memory and inspected, never run, so no device is needed.
namespace cifar_mpi::cuda {
namespace {

using engine::Bytes;
using engine::Task;

/// Stands in for NCCL between two ranks.
class TwoRanks final : public comm::Collective {
 public:
  std::string_view name() const override { return "none"; }
  int ranks() const override { return 2; }
  Buffer allocate(std::size_t bytes) override { return allocate_host(bytes); }
  Task all_reduce(std::string name, std::span<float> data, std::size_t) override {
    const Bytes bytes = engine::bytes_of(data.data(), data.size());
    return {std::move(name), {bytes}, {bytes}, [](engine::Lane&) {}, {}};
  }
};

constexpr int kBatch = 4;

/// All data of a step, in host memory.
struct StepRun {
  StepRun(const model::NetSpec& spec, engine::Precision precision, ConvChoice choice)
      : net(spec),
        table(model::make_param_table(net)),
        tower(plan_kernels({&net, &table, kBatch, precision}, context(), choice),
              {&net, &table, kBatch, precision}),
        blocks(allocate_host(3 * tower.layout().floats * sizeof(float))),
        reduced(allocate_host((control.floats() + tower.layout().floats) * sizeof(float))),
        images(static_cast<std::size_t>(100 * net.input.count())),
        labels(100),
        records(engine::kRecordRing) {}

  /// Host memory in place of the device's; the libraries are not called.
  PlanContext context() {
    return {[this](std::size_t bytes) {
              Buffer made = allocate_host(bytes);
              counters.push_back({made.data(), bytes});
              return made;
            },
            [](NetKernels&) {}, [this](const std::atomic<int>&) { return &request_word; }};
  }

  engine::TrainBinding binding() {
    engine::TrainBinding b;
    b.params = blocks.as<float>();
    b.control = reduced.as<float>();
    b.grads = b.control + control.floats();
    b.control_layout = control;
    b.step = &step;
    b.facts = &facts;
    b.requests = &requests;
    b.data = {images.data(), labels.data(), 100};
    b.order = data::SampleOrder(data::Shuffle::shard, 1, 100, 0, 2, kBatch);
    b.augment.source = net.input;
    b.augment.crop_height = net.input.height;
    b.augment.crop_width = net.input.width;
    b.global_batch = 8;
    return b;
  }

  std::vector<Task> train() { return tower.train_tasks(binding(), arena); }

  Task update(const comm::ParamSpan& bucket, double* sum) {
    engine::UpdateBinding u;
    u.params = blocks.as<float>();
    u.grads = binding().grads;
    u.ema = blocks.as<float>() + tower.layout().floats;
    u.begin = bucket.begin;
    u.end = bucket.end;
    u.control = reduced.as<float>();
    u.step = &step;
    u.decay_sum = sum;
    return plan_update(u, table, tower.layout(), partials, &update_counter);
  }

  Task running() {
    engine::RunningBinding r;
    r.params = blocks.as<float>();
    r.ema = blocks.as<float>() + tower.layout().floats;
    r.control = reduced.as<float>();
    r.control_layout = control;
    r.step = &step;
    return plan_running(r, table, tower.layout());
  }

  Task advance(std::span<const double> sums) {
    engine::AdvanceBinding a;
    a.control = reduced.as<float>();
    a.control_layout = control;
    a.global_batch = 8;
    a.decay_sums = sums;
    a.step = &step;
    Advance ring;
    ring.replays = &replays;
    ring.entries = entries;
    ring.slots = slots.data();
    return plan_advance(a, ring);
  }

  model::NetSpec net;
  model::ParamTable table;
  std::vector<Bytes> counters;  ///< of the column sums, and what the loss keeps
  int request_word = 0;
  lower::Tower tower;
  engine::ControlLayout control{2, tower.layout().running_floats};
  Buffer blocks, reduced;
  std::vector<std::uint8_t> images, labels;
  engine::Arena arena{[](std::size_t bytes) { return allocate_host(bytes); }};
  std::vector<engine::StepRecord> records;
  std::uint64_t step = 0, replays = 0;
  engine::RankFacts facts;
  std::atomic<int> requests{0};
  unsigned update_counter = 0;
  double partials[kUpdateBlocks] = {};
  DeviceRecord entries[engine::kRecordRing];
  std::vector<float> slots = std::vector<float>(engine::kRecordRing * 64);
};

template <class Check>
void for_each_run(Check check) {
  std::vector<model::NetSpec> nets = test::orders_of_layers();
  nets.push_back(model::make_model("tutorial", {24, 24, 3}, 10));
  nets.push_back(test::network_with_blocks(16));
  for (const model::NetSpec& net : nets) {
    for (const auto precision : {engine::Precision::fp32, engine::Precision::tf32, engine::Precision::bf16}) {
      for (const auto choice : {ConvChoice::automatic, ConvChoice::products, ConvChoice::library}) {
        const auto run = std::make_unique<StepRun>(net, precision, choice);
        SCOPED_TRACE(net.name + ", " + std::string(to_string(precision)) + ", choice " +
                     std::to_string(static_cast<int>(choice)));
        check(*run);
      }
    }
  }
}

/// The bytes of one region that have been written.
class Written {
 public:
  explicit Written(Bytes region) : region_(region), written_(region.size, false) {}

  void write(const Bytes& bytes) {
    if (!bytes.overlaps(region_)) return;
    for (const std::byte* at = std::max(bytes.begin, region_.begin);
         at < std::min(bytes.end(), region_.end()); ++at)
      written_[static_cast<std::size_t>(at - region_.begin)] = true;
  }
  /// The number of bytes in this region that no task has written.
  std::size_t missing(const Bytes& bytes) const {
    std::size_t count = 0;
    if (!bytes.overlaps(region_)) return 0;
    for (const std::byte* at = std::max(bytes.begin, region_.begin);
         at < std::min(bytes.end(), region_.end()); ++at)
      count += written_[static_cast<std::size_t>(at - region_.begin)] ? 0 : 1;
    return count;
  }

 private:
  Bytes region_;
  std::vector<bool> written_;
};

TEST(CudaProgram, HasNoRaceBetweenLanesNorBetweenReplays) {
  for_each_run([](StepRun& run) {
    comm::AllReduceUpdate update(std::make_unique<TwoRanks>(), run.tower.layout(), {1000.0 / (1 << 20)});
    update.block() = {Buffer(run.reduced.data(), run.reduced.size(), {}), run.control.floats()};
    const std::span<const comm::ParamSpan> buckets = update.spans();
    std::vector<double> sums(buckets.size());
    comm::StepParts parts;
    parts.compute = run.train();
    for (std::size_t b = 0; b < buckets.size(); ++b)
      parts.update.push_back({run.update(buckets[b], &sums[b])});
    parts.finish.push_back(run.running());
    parts.finish.push_back(run.advance(sums));
    engine::StepProgram program("train");
    update.append(program, std::move(parts), {});
    EXPECT_NO_THROW(program.finalize());
  });
}

TEST(CudaProgram, RunsWeightGradientsBesideTheRestOfBackwardAndPreparationsBesideTheInput) {
  for (const auto choice : {ConvChoice::products, ConvChoice::library}) {
    StepRun run(model::make_model("tutorial", {24, 24, 3}, 10), engine::Precision::bf16, choice);
    engine::StepProgram program("train");
    engine::Branches branches(program, true);
    for (Task& task : run.train()) branches.run(std::move(task));
    std::set<std::string> aside, joining;
    for (std::size_t i = 0; i < program.instructions().size(); ++i) {
      const engine::Instruction& line = program.instructions()[i];
      const auto name_at = [&](std::size_t at) {
        return program.tasks()[static_cast<std::size_t>(program.instructions()[at].target)].name;
      };
      if (line.lane == engine::kFirstSide && line.op == engine::Op::run) aside.insert(name_at(i));
      if (line.lane == engine::kCompute && line.op == engine::Op::wait) joining.insert(name_at(i + 1));
    }
    const bool library = choice == ConvChoice::library;
    std::set<std::string> wanted{"control",
                                 "round weights",
                                 "conv2 bias gradient",
                                 "conv2 weight gradient",
                                 "local3 weight gradient",
                                 "local4 weight gradient",
                                 "softmax_linear bias gradient",
                                 "softmax_linear weight gradient",
                                 "compute time"};
    wanted.merge(library ? std::set<std::string>{"conv1 weights", "conv2 weights", "conv1 bias gradient"}
                         : std::set<std::string>{"conv2 turn"});
    EXPECT_EQ(aside, wanted);
    EXPECT_EQ(joining, std::set<std::string>{"conv1 forward"});
  }
}

TEST(CudaProgram, ReadsNoScratchThatNoTaskBeforeHasWritten) {
  for_each_run([](StepRun& run) {
    const std::vector<Task> tasks = run.train();
    for (const Bytes& region : run.arena.regions()) {
      Written written(region);
      for (const Task& task : tasks) {
        for (const Bytes& read : task.reads) EXPECT_EQ(written.missing(read), 0u) << task.name;
        for (const Bytes& write : task.writes) written.write(write);
      }
    }
  });
}

TEST(CudaProgram, NeedsTheModelsOperationsAndNoMoreBytesThanItDeclares) {
  for_each_run([](StepRun& run) {
    std::set<std::string> products;
    const std::vector<bool> wants = model::wants_gradient(run.net);
    for (std::size_t i = 0; i < run.net.operations.size(); ++i) {
      const model::Operation& operation = run.net.operations[i];
      if (std::holds_alternative<model::BatchNorm>(operation.layer)) continue;
      if (model::params_of(run.table, i).empty()) continue;
      products.merge(std::set<std::string>{operation.name + " forward", operation.name + " weight gradient"});
      if (wants[operation.inputs[0].id]) products.insert(operation.name + " data gradient");
    }
    double flops = 0.0;
    for (const Task& task : run.train()) {
      flops += task.cost.flops;
      EXPECT_EQ(task.cost.flops > 0.0, products.contains(task.name)) << task.name;
      Task declared = task;
      declared.cost = {};
      EXPECT_GT(engine::bytes_moved(task), 0.0) << task.name;
      EXPECT_LE(engine::bytes_moved(task), engine::bytes_moved(declared)) << task.name;
    }
    EXPECT_NEAR(flops, kBatch * model::training_flops(run.net).in_image, 1e-9 * flops);
  });
}

/// Also every statistic, which the control task zeroes first.
TEST(CudaProgram, WritesEveryLogicalGradientByOneTaskEach) {
  for_each_run([](StepRun& run) {
    const std::vector<Task> tasks = run.train();
    const engine::ParamLayout& layout = run.tower.layout();
    for (std::size_t p = 0; p < run.table.size(); ++p) {
      if (run.table[p].role == model::ParamRole::frozen) continue;
      const bool running = run.table[p].role == model::ParamRole::running;
      const float* const begin =
          running ? run.binding().control + run.control.statistics() - layout.running_begin()
                  : run.binding().grads;
      const Bytes wanted = engine::bytes_of(begin + layout.entries[p].offset,
                                            static_cast<std::size_t>(run.table[p].shape.count()));
      Written written(wanted);
      int writers = 0;
      for (const Task& task : tasks) {
        for (const Bytes& write : task.writes) {
          if (!write.overlaps(wanted)) continue;
          ++writers;
          written.write(write);
        }
      }
      EXPECT_EQ(writers, running ? 2 : 1) << run.table[p].name;
      EXPECT_EQ(written.missing(wanted), 0u) << run.table[p].name;
    }
  });
}

TEST(CudaProgram, KeepsToItsOwnMemory) {
  for_each_run([](StepRun& run) {
    const std::vector<Task> tasks = run.train();
    std::vector<Bytes> known = run.arena.regions();
    for (const Buffer* block : {&run.blocks, &run.reduced}) known.push_back({block->data(), block->size()});
    known.push_back(engine::bytes_of(run.images.data(), run.images.size()));
    known.push_back(engine::bytes_of(run.labels.data(), run.labels.size()));
    known.push_back(engine::bytes_of(&run.step, 1));
    known.push_back(engine::bytes_of(&run.facts, 1));
    known.push_back(engine::bytes_of(&run.request_word, 1));
    known.insert(known.end(), run.counters.begin(), run.counters.end());
    for (const Task& task : tasks) {
      for (const auto* ranges : {&task.reads, &task.writes}) {
        for (const Bytes& range : *ranges) {
          const bool inside =
              range.size == 0 || std::any_of(known.begin(), known.end(), [&](const Bytes& whole) {
                return whole.begin <= range.begin && range.end() <= whole.end();
              });
          EXPECT_TRUE(inside) << task.name << ": " << range.size << " bytes";
        }
      }
    }
  });
}

TEST(CudaProgram, EvaluatesInTheMemoryOfTraining) {
  StepRun run(model::make_model("tutorial", {24, 24, 3}, 10), engine::Precision::bf16, ConvChoice::automatic);
  run.train();
  const std::size_t training = run.arena.regions().size();
  run.arena.rewind();
  engine::EvaluateBinding binding;
  std::vector<std::uint8_t> predictions(4);
  std::uint64_t cursor = 0;
  float loss = 0.0f;
  binding.params = run.blocks.as<float>();
  binding.data = run.binding().data;
  binding.augment = run.binding().augment;
  binding.cursor = &cursor;
  binding.predictions = predictions.data();
  binding.loss_sum = &loss;
  EXPECT_FALSE(run.tower.evaluate_tasks(binding, run.arena).empty());
  EXPECT_EQ(run.arena.regions().size(), training);
}

TEST(CudaLayout, GivesLogicalValuesBackAsTheyWere) {
  StepRun run(model::make_model("tutorial", {24, 24, 3}, 10), engine::Precision::fp32, ConvChoice::automatic);
  for (std::size_t p = 0; p < run.table.size(); ++p) {
    const auto count = static_cast<std::size_t>(run.table[p].shape.count());
    const std::size_t floats = run.tower.layout().entries[p].floats;
    const std::vector<float> logical(count, 3.0f);
    std::vector<float> physical(floats, -5.0f), back(count);
    run.tower.from_logical(p, logical, physical);
    EXPECT_EQ(std::count(physical.begin(), physical.end(), 0.0f),
              static_cast<std::ptrdiff_t>(floats - count));
    run.tower.to_logical(p, physical, back);
    EXPECT_EQ(back, logical);
  }
}

TEST(CudaBackend, SaysInOneSentenceWhyItCannotBeUsed) {
  const std::string reason = unusable();
  if (reason.empty()) GTEST_SKIP() << "there is a GPU";
  expect_error(ErrorKind::device, {reason, "--device cpu"}, [&] { make_backend({}); });
}

}  // namespace
}  // namespace cifar_mpi::cuda
