#include <mpi.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <simgrid/s4u.hpp>
#include <string_view>
#include <vector>

#include "cifar_mpi/comm/collective.hpp"
#include "cifar_mpi/comm/world.hpp"

/// Runs an all-reduce of src/comm on simulated ranks: all_reduce_main COLLECTIVE BYTES WIRE PER_NODE. Rank 0 prints the
/// simulated seconds of one sum that all ranks begin at once, and the largest number of wrong elements on any rank.
///
/// The sources are those of the program. Polling takes no simulated time, so a rank that polls would never end. The linker
/// therefore redirects MPI_Test to this file, which collects unfinished requests, and `wait` blocks until one of them is
/// finished. It also redirects MPI_Comm_split_type, because each rank has a simulated host of its own: PER_NODE ranks
/// are a node.
namespace {

std::vector<MPI_Request*> g_unfinished;  // of this rank: smpirun gives each rank its own globals
int g_per_node = 1;

void wait() {
  int done = MPI_UNDEFINED;
  if (g_unfinished.size() == 1) {  // MPI_Waitany does not handle requests of MPI_Iallreduce
    MPI_Wait(g_unfinished.front(), MPI_STATUS_IGNORE);
    return;
  }
  std::vector<MPI_Request> requests;
  for (MPI_Request* const request : g_unfinished) requests.push_back(*request);
  MPI_Waitany(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUS_IGNORE);
  if (done == MPI_UNDEFINED) {
    usleep(1);  // the rank waits for shared memory, not for a message
  } else {
    *g_unfinished[static_cast<std::size_t>(done)] = requests[static_cast<std::size_t>(done)];
  }
}

void sum(const cifar_mpi::engine::Task& task) {
  cifar_mpi::engine::Lane lane;
  g_unfinished.clear();
  for (task.start(lane); !task.poll(); g_unfinished.clear()) wait();
}

/// SimGrid shares a link among all messages on it, but a connection sends one after the other. Where a rank has a single
/// connection to other nodes, its own link therefore carries one message at a time.
void serialize_connections() {
  for (simgrid::s4u::Link* const link : simgrid::s4u::Engine::get_instance()->get_all_links())
    if (link->get_name().ends_with("_UP")) link->set_concurrency_limit(1);
}

/// Ranks do not leave a barrier at once. All sleep until the same simulated moment, and return it.
double begin_together(const cifar_mpi::comm::World& world) {
  const double moment = std::ranges::max(world.gather(MPI_Wtime())) + 1.0;
  double left = 0.0;
  while ((left = moment - MPI_Wtime()) > 1e-9) {
    timespec time{};
    time.tv_nsec = static_cast<long>(1e9 * std::min(left, 0.9));
    nanosleep(&time, nullptr);
  }
  return moment;
}

/// -1, 0 or 1, so that sums are exact in any order, in bf16 for up to 256 ranks.
float value(int rank, std::size_t i) {
  return static_cast<float>((i * 7 + static_cast<std::size_t>(rank) * 11) % 3) - 1.0f;
}

}  // namespace

extern "C" int __real_MPI_Test(MPI_Request* request, int* done, MPI_Status* status);
extern "C" int __wrap_MPI_Test(MPI_Request* request, int* done, MPI_Status* status) {
  *done = 1;  // SMPI does not set it if there is no request
  const int result = __real_MPI_Test(request, done, status);
  if (*done == 0) g_unfinished.push_back(request);
  return result;
}

extern "C" int __wrap_MPI_Comm_split_type(MPI_Comm all, int, int rank, MPI_Info, MPI_Comm* node) {
  return MPI_Comm_split(all, rank / g_per_node, rank, node);
}

int main(int argc, char** argv) {
  using namespace cifar_mpi;
  if (argc != 5) return 2;
  g_per_node = std::atoi(argv[4]);
  comm::World world(argc, argv, 0.0);
  if (world.rank() == 0 && argv[1] != std::string_view("doubling")) serialize_connections();
  const std::size_t floats = static_cast<std::size_t>(std::atol(argv[2])) / sizeof(float);
  const auto collective = comm::make_collective(argv[1], world, find_name<comm::Wire>(argv[3]).value());
  Buffer buffer = collective->allocate(floats * sizeof(float));
  const auto data = buffer.span<float>();
  double wrong = 0.0, begin = 0.0, end = 0.0;
  {
    const engine::Task task = collective->all_reduce("sum", data, 0);
    for (int run = 0; run < 2; ++run) {
      for (std::size_t i = 0; i < floats; ++i) data[i] = value(world.rank(), i);
      begin = begin_together(world);  // all ranks read the same simulated clock
      sum(task);
      end = MPI_Wtime();
    }
  }
  std::vector<float> expected(std::min<std::size_t>(floats, 3), 0.0f);  // the inputs repeat
  for (int r = 0; r < world.size(); ++r)
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += value(r, i);
  for (std::size_t i = 0; i < floats; ++i) wrong += data[i] != expected[i % 3] ? 1.0 : 0.0;
  const double seconds = std::ranges::max(world.gather(end)) - begin;
  wrong = std::ranges::max(world.gather(wrong));
  if (world.rank() == 0) std::printf("%.9f %.0f\n", seconds, wrong);
  buffer = {};
  return 0;
}
