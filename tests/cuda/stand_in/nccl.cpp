#include <fcntl.h>
#include <linux/futex.h>
#include <nccl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <stdexcept>
#include <string>
#include <thread>

#include "cuda/stand_in/gpu.hpp"
#include "cuda/stand_in/queues.hpp"

/// The part of NCCL that the backend calls, between processes of one machine: sums in the order of the ranks,
/// through shared memory. A collective fails when the ranks make different calls.
namespace {

using cifar_mpi::stand_in::start_collective;

constexpr int kMostRanks = 16;
constexpr std::size_t kPieceBytes = std::size_t{1} << 18;

/// One rank's call of a collective. NCCL hangs or mixes up data unless all ranks make the same call: the
/// calls of each communicator must be uniform, and so must the captures that hold them and the launches of
/// their graphs.
struct Call {
  char name[16];
  std::size_t count;  ///< of floats
  unsigned
      capture;     ///< number of the capture among those with calls of this communicator, from 1 on; 0: eager
  unsigned place;  ///< among the calls of that capture, from 1 on

  bool operator==(const Call& other) const {
    return std::strcmp(name, other.name) == 0 && count == other.count && capture == other.capture &&
           place == other.place;
  }
  std::string text() const {
    const std::string how =
        capture == 0 ? "eager"
                     : "call " + std::to_string(place) + " of its capture number " + std::to_string(capture);
    return std::string(name) + " of " + std::to_string(count) + " floats, " + how;
  }
};

struct Meeting {
  std::atomic<std::uint32_t> arrived;
  std::atomic<std::uint32_t> round;
  std::atomic<std::uint32_t> broken;
  std::atomic<int> pids[kMostRanks];
  char places[kMostRanks][128];  ///< host and GPU of each
  Call calls[kMostRanks];        ///< the current call of each
  alignas(16) std::byte pieces[kMostRanks][kPieceBytes];
};

/// Sleeps until another process wakes those that wait for the word, or for 10 ms. Spinning ranks would take the
/// processors from the ranks that they wait for.
void wait_for_change(const std::atomic<std::uint32_t>& word, std::uint32_t seen) {
  const std::timespec limit{0, 10'000'000};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &limit, nullptr, 0);
}
void wake_all(const std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool lives(int pid) { return pid == 0 || kill(pid, 0) == 0 || errno != ESRCH; }

}  // namespace

struct ncclComm {
  Meeting* meeting = nullptr;
  int rank = 0;
  int ranks = 1;
  std::atomic<bool> aborted = false;
  mutable long pieces_left = -1;  ///< until the network breaks; negative: it does not
  std::uint64_t capture_id = 0;   ///< of the last capture with a call
  Call last{};                    ///< of that capture

  /// On the host, when the call is made.
  Call call(const char* name, std::size_t count, cudaStream_t stream) {
    Call made{};
    std::snprintf(made.name, sizeof made.name, "%s", name);
    made.count = count;
    const std::uint64_t id = cifar_mpi::stand_in::Queues::get().capture_of(stream);
    if (id == 0) return made;
    made.capture = last.capture + (id != capture_id ? 1 : 0);
    made.place = id != capture_id ? 1 : last.place + 1;
    capture_id = id;
    last = made;
    return made;
  }

  /// Returns true when all ranks have arrived. If one is lost, the host gets false, and a kernel waits until this rank
  /// aborts.
  bool meet(bool in_kernel) const {
    if (aborted.load()) return false;
    const std::uint32_t round = meeting->round.load();
    if (meeting->arrived.fetch_add(1) + 1 == static_cast<std::uint32_t>(ranks)) {
      meeting->arrived = 0;
      ++meeting->round;
      wake_all(meeting->round);
      return true;
    }
    for (int turn = 0; meeting->round.load() == round; ++turn) {
      constexpr int kSpins = 20;
      if (turn < kSpins) {
        sched_yield();
        continue;
      }
      if (!std::all_of(meeting->pids, meeting->pids + ranks,
                       [](const auto& pid) { return lives(pid.load()); })) {
        meeting->broken = 1;
      }
      if (meeting->broken.load() != 0 && (!in_kernel || aborted.load())) return false;
      wait_for_change(meeting->round, round);
    }
    return true;
  }

  /// Throws if another rank makes another call.
  void require_uniform() const {
    const Call* const calls = meeting->calls;
    for (int other = 1; other < ranks; ++other) {
      if (calls[other] == calls[0]) continue;
      throw std::runtime_error("NCCL: the calls of the ranks differ: rank 0 (" +
                               std::string(meeting->places[0]) + ") runs " + calls[0].text() + "; rank " +
                               std::to_string(other) + " (" + meeting->places[other] + ") runs " +
                               calls[other].text());
    }
  }

  /// The network stops: this piece waits until the program aborts.
  void cross_broken_link() const {
    meeting->broken = 1;
    while (!aborted.load()) usleep(1000);
  }

  /// Calls use(first, count) for each piece once all ranks have stored theirs in the meeting; stops when it
  /// is aborted.
  template <class Use>
  void exchange(const Call& call, const float* data, Use use) const {
    constexpr std::size_t kPiece = kPieceBytes / sizeof(float);
    meeting->calls[rank] = call;
    for (std::size_t first = 0; first == 0 || first < call.count; first += kPiece) {
      const std::size_t piece = std::min(kPiece, call.count - first);
      if (pieces_left == 0) cross_broken_link();
      if (pieces_left > 0) --pieces_left;
      std::memcpy(meeting->pieces[rank], data + first, piece * sizeof(float));
      if (!meet(true)) return;
      if (first == 0) require_uniform();
      use(first, piece);
      if (!meet(true)) return;
    }
  }
  const float* piece_of(int other) const { return reinterpret_cast<const float*>(meeting->pieces[other]); }
};

namespace {

Meeting* open_meeting(const char* name) {
  const int file = shm_open(name, O_CREAT | O_RDWR, 0600);
  if (file < 0) return nullptr;
  void* memory = MAP_FAILED;
  if (ftruncate(file, sizeof(Meeting)) == 0) {
    memory = mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  close(file);
  return memory == MAP_FAILED ? nullptr : static_cast<Meeting*>(memory);
}

std::string own_place() {
  char host[64] = {};
  gethostname(host, sizeof host - 1);
  const char* const named = std::getenv("NCCL_HOSTID");
  return std::string(named != nullptr ? named : host) + ", " + cifar_mpi::stand_in::device_uuid();
}

thread_local std::string last_words;

ncclResult_t fail(ncclResult_t result, const std::string& words) {
  last_words = words;
  return result;
}

}  // namespace

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::snprintf(id->internal, sizeof id->internal, "/cifar_mpi_stand_in_%d_%llu", static_cast<int>(getpid()),
                static_cast<unsigned long long>(cifar_mpi::stand_in::nanoseconds()));
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t*) {
  while (cifar_mpi::stand_in::has_fault("init")) std::this_thread::sleep_for(std::chrono::hours(1));
  if (ranks > kMostRanks) return fail(ncclInvalidArgument, "too many ranks for the stand-in GPU");
  Meeting* const meeting = open_meeting(id.internal);
  if (meeting == nullptr) return fail(ncclSystemError, "no shared memory");
  auto* const made = new ncclComm{meeting, rank, ranks};
  if (const char* const pieces = std::getenv("STAND_IN_LINK_BREAKS")) made->pieces_left = std::atol(pieces);
  meeting->pids[rank] = static_cast<int>(getpid());
  std::snprintf(meeting->places[rank], sizeof meeting->places[rank], "%s", own_place().c_str());
  *comm = made;
  if (!made->meet(false)) return fail(ncclRemoteError, "a rank is gone");
  if (rank == 0) shm_unlink(id.internal);
  for (int a = 0; a < ranks; ++a) {
    for (int b = 0; b < a; ++b) {
      if (std::strcmp(meeting->places[a], meeting->places[b]) != 0) continue;
      return fail(ncclInvalidUsage, "Duplicate GPU detected : rank " + std::to_string(b) + " and rank " +
                                        std::to_string(a) + " both on " + meeting->places[a]);
    }
  }
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (!comm->meet(false)) return fail(ncclRemoteError, "a rank is gone");
  munmap(comm->meeting, sizeof(Meeting));
  delete comm;
  return ncclSuccess;
}

/// The memory stays, because work on the GPU's thread may still read it.
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->aborted = true;
  comm->meeting->broken = 1;
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  *result = comm->meeting->broken.load() != 0 ? ncclRemoteError : ncclSuccess;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclSuccess        ? "no error"
         : result == ncclInvalidUsage ? "invalid usage"
         : result == ncclRemoteError  ? "remote process exited or there was a network error"
                                      : "an error of the stand-in GPU's NCCL";
}
const char* ncclGetLastError(ncclComm_t) { return last_words.c_str(); }

ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  if (type != ncclFloat || op != ncclSum) return fail(ncclInvalidArgument, "only sums of fp32");
  if (cifar_mpi::stand_in::has_fault("nccl_graph") &&
      cifar_mpi::stand_in::Queues::get().capture_of(stream) != 0)
    return fail(ncclInvalidUsage, "no call can be captured");
  start_collective(stream, "ncclAllReduce", [=, call = comm->call("all-reduce", count, stream)] {
    auto* const sums = static_cast<float*>(to);
    comm->exchange(call, static_cast<const float*>(from), [&](std::size_t first, std::size_t piece) {
      for (std::size_t i = 0; i < piece; ++i) {
        const bool lost = i + 16 >= piece && cifar_mpi::stand_in::has_fault("sum");
        float sum = lost ? 0.0f : comm->piece_of(0)[i];
        for (int rank = 1; rank < comm->ranks; ++rank) sum += comm->piece_of(rank)[i];
        sums[first + i] = sum;
      }
    });
  });
  return ncclSuccess;
}

ncclResult_t ncclAllGather(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  if (type != ncclFloat) return fail(ncclInvalidArgument, "only fp32");
  const char* const algorithm = std::getenv("NCCL_ALGO");
  if (algorithm != nullptr && std::strcmp(algorithm, "Tree") == 0) {
    return fail(ncclInvalidUsage, "no tree can gather");
  }
  start_collective(stream, "ncclAllGather", [=, call = comm->call("all-gather", count, stream)] {
    auto* const all = static_cast<float*>(to);
    comm->exchange(call, static_cast<const float*>(from), [&](std::size_t first, std::size_t piece) {
      for (int rank = 0; rank < comm->ranks; ++rank) {
        std::memcpy(all + static_cast<std::size_t>(rank) * count + first, comm->piece_of(rank),
                    piece * sizeof(float));
      }
    });
  });
  return ncclSuccess;
}
