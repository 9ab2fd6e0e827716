#include "cuda/nccl.hpp"

#include <nccl.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <future>
#include <list>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/base/log.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/cuda/backend.hpp"
#include "cuda/handles.hpp"
#include "cuda/lane.hpp"
#include "cuda/sum.hpp"

namespace cifar_mpi::cuda {
namespace {

/// The most blocks that NCCL's kernels use, concurrently with the backward pass.
constexpr int kMostChannels = 8;
constexpr std::chrono::seconds kAbortDeadline{5};
/// NCCL reports that a rank is lost, but not which one. The watchdog of another rank of its node names it within this
/// time.
constexpr double kWatchdogsTurn = 2.0;

/// Owns a communicator. All ranks destroy it together. During an exception this rank may be alone, and aborting can hang
/// as well, so a thread aborts, and is abandoned after a deadline.
class Communicator {
 public:
  Communicator() = default;
  explicit Communicator(ncclComm_t value) : value_(value) {}
  Communicator(Communicator&& other) noexcept : value_(std::exchange(other.value_, nullptr)) {}
  Communicator& operator=(Communicator&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  ~Communicator() {
    if (value_ == nullptr) return;
    if (std::uncaught_exceptions() == 0) {
      static_cast<void>(ncclCommDestroy(value_));
    } else {
      abort_within_deadline();
    }
  }

  ncclComm_t get() const { return value_; }

 private:
  void abort_within_deadline() const {
    std::packaged_task<void()> abort([comm = value_] { static_cast<void>(ncclCommAbort(comm)); });
    const std::future<void> done = abort.get_future();
    std::thread(std::move(abort)).detach();
    done.wait_for(kAbortDeadline);
  }

  ncclComm_t value_ = nullptr;
};

class NcclCollective final : public comm::Collective {
 public:
  NcclCollective(Device& device, const comm::World& world, Communicator communicator, bool tree,
                 std::string note = {})
      : device_(device),
        world_(world),
        communicator_(std::move(communicator)),
        tree_(tree),
        note_(std::move(note)) {
    if (communicator_.get() == nullptr) return;
    auto& watches = device_.link().watches;
    watch_ = watches.insert(watches.end(), [this] { look(); });
  }
  ~NcclCollective() override {
    if (communicator_.get() != nullptr) device_.link().watches.erase(watch_);
  }

  std::string_view name() const override { return tree_ ? "doubling through nccl" : "nccl"; }
  std::string note() const override { return note_; }
  int ranks() const override { return world_.size(); }

  Buffer allocate(std::size_t bytes) override {
    Buffer buffer;
    world_.together([&] { buffer = device_.allocate(bytes); });
    if (ranks() > 1) warm_up(buffer);
    return buffer;
  }

  engine::Task all_reduce(std::string task_name, std::span<float> data, std::size_t) override {
    const engine::Bytes bytes = engine::bytes_of(data.data(), data.size());
    engine::Task task{std::move(task_name), {bytes}, {bytes}, {}, {}};
    if (!tree_) {
      task.start = [comm = communicator_.get(), data](engine::Lane& lane) {
        check(ncclAllReduce(data.data(), data.data(), data.size(), ncclFloat, ncclSum, comm, stream_of(lane)),
              "starting an all-reduce");
      };
      return task;
    }
    gathered_.push_back(device_.allocate(data.size_bytes() * static_cast<std::size_t>(ranks())));
    float* const all = gathered_.back().as<float>();
    task.writes.push_back({gathered_.back().data(), gathered_.back().size()});
    task.start = [comm = communicator_.get(), data, all, count = ranks()](engine::Lane& lane) {
      check(ncclAllGather(data.data(), all, data.size(), ncclFloat, comm, stream_of(lane)),
            "starting an all-gather");
      add_ranks(stream_of(lane), data.data(), all, data.size(), count);
    };
    return task;
  }

 private:
  /// Sums the zeros of a fresh array: NCCL opens its connections in the first run of a collective.
  void warm_up(const Buffer& buffer) {
    engine::Task task;
    world_.together([&] { task = all_reduce("warm-up", buffer.span<float>(), 0); });
    StreamLane lane(device_.stream(engine::kComm));
    Event summed;
    world_.together([&] {
      summed = make_event();
      task.start(lane);
      check(cudaEventRecord(summed.get(), lane.stream()), "marking the end of the first sum");
    });
    // not together: where the network fails, this rank may be the only one that sees it
    while (!has_happened(summed, "summing for the first time")) {
      look();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (tree_) gathered_.pop_back();
  }

  void look() {
    ncclResult_t state = ncclSuccess;
    check(ncclCommGetAsyncError(communicator_.get(), &state), "asking whether all is well");
    if (state == ncclSuccess || state == ncclInProgress) return;
    if (!failed_at_) failed_at_ = steady_seconds();
    if (steady_seconds() - *failed_at_ < kWatchdogsTurn) return;
    throw Error(ErrorKind::comm, "NCCL lost a rank or the network: ", ncclGetErrorString(state),
                ", seen by rank ", world_.rank(), " on ", world_.host(),
                "; the first message of the other ranks says more");
  }

  Device& device_;
  const comm::World& world_;
  Communicator communicator_;  ///< null in a world of one rank
  bool tree_;
  std::string note_;
  std::optional<double> failed_at_;
  std::list<std::function<void()>>::iterator watch_;
  std::vector<Buffer> gathered_;  ///< all ranks' arrays, one per task; freed before the communicator
};

void set_default(const char* variable, const std::string& value) { setenv(variable, value.c_str(), 0); }

/// Whether NCCL_ALGO, such as "Ring,NVLS" or "allreduce:NVLSTree;broadcast:Ring", asks for NVLS. "^NVLS" excludes it.
bool names_nvls(std::string algorithms) {
  std::ranges::transform(algorithms, algorithms.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  std::istringstream lists(algorithms);
  for (std::string list; std::getline(lists, list, ';');) {
    if (list.find('^') == std::string::npos && list.find("nvls") != std::string::npos) return true;
  }
  return false;
}

/// The setting that allows NVLS, as the user wrote it; empty if none does. NCCL_NVLS_ENABLE overrides the others.
std::string nvls_cause(bool asked_for) {
  const char* const enabled = std::getenv("NCCL_NVLS_ENABLE");
  if (enabled != nullptr) return std::atoi(enabled) != 0 ? concat("NCCL_NVLS_ENABLE=", enabled) : "";
  if (asked_for) return "--nccl-nvls";
  const char* const algorithms = std::getenv("NCCL_ALGO");
  return algorithms != nullptr && names_nvls(algorithms) ? concat("NCCL_ALGO=", algorithms) : "";
}

/// Sets the environment that NCCL reads in its first call; keeps the user's own settings. NCCL_ALGO applies to every
/// collective, and no tree can gather, so it is set only if all collectives are sums.
void prepare_environment(const comm::World& world, const NcclOptions& options, bool gathers) {
  if (!gathers && options.algorithm == "ring") set_default("NCCL_ALGO", "Ring");
  if (!gathers && options.algorithm == "tree") set_default("NCCL_ALGO", "Tree");
  if (nvls_cause(options.nvls).empty()) set_default("NCCL_NVLS_ENABLE", "0");
  if (!options.share_gpus) return;
  // NCCL refuses two ranks with one GPU on one host, so each rank claims a host of its own.
  set_default("NCCL_HOSTID", concat(world.host(), "-rank-", world.rank()));
  set_default("NCCL_IB_DISABLE", "1");
  const auto& hosts = world.hosts();
  if (std::ranges::all_of(hosts, [&](const std::string& host) { return host == hosts.front(); })) {
    set_default("NCCL_SOCKET_IFNAME", "lo");
  }
}

Communicator connect(const comm::World& world) {
  ncclUniqueId id{};
  world.together([&] {
    if (world.rank() == 0) check(ncclGetUniqueId(&id), "making an id");
  });
  world.broadcast(id);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  config.maxCTAs = kMostChannels;
  std::optional<Error> mine;
  ncclComm_t made = nullptr;
  try {
    check(ncclCommInitRankConfig(&made, world.size(), id, world.rank(), &config), "connecting the ranks");
  } catch (const Error& error) {
    mine = error;
  }
  Communicator communicator(made);
  world.agree(mine);
  Log(world.rank())
      .info(concat("NCCL connects ", world.size(), " ranks, at most ", kMostChannels, " channels"));
  return communicator;
}

}  // namespace

std::string nvls_note(bool asked_for) {
  const std::string cause = nvls_cause(asked_for);
  if (cause.empty()) return {};
  return concat(cause,
                " lets NCCL sum in NVLink switches (NVLS), whose sums can differ from run to run: the same "
                "run need not give the same bits");
}

std::unique_ptr<comm::Collective> make_nccl(Device& device, std::string_view name, const comm::World& world,
                                            comm::Wire wire, const NcclOptions& options) {
  const comm::CollectiveInfo* const info = comm::find_collective(collectives(), name);
  const bool tree = info != nullptr && info->fixed_tree;
  std::optional<Error> wrong;
  if (info == nullptr && name != "auto") {
    wrong.emplace(ErrorKind::usage, "--all-reduce ", name,
                  " sums in host memory; on cuda choose nccl, doubling or auto");
  } else if (wire != comm::Wire::fp32) {
    wrong.emplace(ErrorKind::usage, "gradients travel as ", to_string(wire),
                  " between hosts only; NCCL sums fp32");
  }
  world.agree(wrong);
  if (world.size() == 1) return std::make_unique<NcclCollective>(device, world, Communicator(), tree);
  prepare_environment(world, options, tree);
  compare_devices(device, world, options.share_gpus);
  return std::make_unique<NcclCollective>(device, world, connect(world), tree,
                                          tree ? std::string() : nvls_note(options.nvls));
}

}  // namespace cifar_mpi::cuda
