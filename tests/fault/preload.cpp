#include <dlfcn.h>
#include <mpi.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

/// Loaded before everything else into the ranks of a test: makes one of them fail. FAULT is "WHAT:RANK:WHEN".
///
///   before-init:R:0     stops itself before MPI_Init_thread
///   after-init:R:0      stops itself right after it
///   asked:R:0           gets SIGUSR1, a request to stop, before MPI_Init_thread
///   exit:R:N            exits with code 3 and without a message when the file $FAULT_WATCH has N lines
///   mpi:R:N             MPI_Test fails when the file $FAULT_WATCH has N lines
///   before-rename:R:N   dies by SIGKILL before the N-th checkpoint gets its name
///   after-rename:R:N    the same, right after it
///   lock:R:0            waits forever just before it takes the lock of a run directory
///   slow:R:N            every call of oneDNN takes N milliseconds longer
///   slower:R:N          N % of a thread's time is lost, as on a processor with a lower clock: it spins in each call of oneDNN
///   hang:R:N            the N-th call of oneDNN does not return
///   bit:R:N             the last bit of a number flips in the weight gradient that the N-th such call of oneDNN wrote
///   clock:R:N           every N-th reading of the wall clock is of the year 2001, and the next is a day ahead
///
/// FAULT_PACE_MS=N slows all ranks: every call of oneDNN also sleeps N milliseconds.
namespace {

struct Fault {
  std::string what;
  int when = 0;
};

Fault wanted() {
  const char* const text = std::getenv("FAULT");
  const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
  if (text == nullptr || rank == nullptr) return {};
  const std::string all = text;
  const std::size_t first = all.find(':');
  const std::size_t second = all.find(':', first + 1);
  if (all.substr(first + 1, second - first - 1) != rank) return {};
  return {all.substr(0, first), std::atoi(all.c_str() + second + 1)};
}

const Fault& fault() {
  static const Fault value = wanted();
  return value;
}

int lines_in(const std::string& path) {
  std::ifstream file(path);
  return static_cast<int>(std::count(std::istreambuf_iterator<char>(file), {}, '\n'));
}

std::atomic<bool> mpi_fails{false};

[[gnu::constructor]] void watch_lines() {
  if (fault().what != "exit" && fault().what != "mpi") return;
  std::thread([path = std::string(std::getenv("FAULT_WATCH"))] {
    while (lines_in(path) < fault().when) usleep(1000);
    if (fault().what == "exit") _exit(3);
    mpi_fails = true;
  }).detach();
}

double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Spins for the lost share of the thread's processor time since its last return. A timer's signals would take time, too.
void lose_time() {
  static thread_local double returned = 0.0;
  const double begin = thread_seconds();
  const double lost = (begin - returned) * fault().when / (100.0 - fault().when);
  while (thread_seconds() < begin + lost) {
  }
  returned = thread_seconds();
}

/// CORES is "0 1" and NODE an index: all threads change to the next core together, ten times a second and at the same moments
/// on all emulated nodes. So nothing that slows one core of this machine down looks like a slow node.
[[gnu::constructor]] void exchange_cores() {
  const char* const listed = std::getenv("CORES");
  const char* const node = std::getenv("NODE");
  if (listed == nullptr || node == nullptr) return;
  std::istringstream text(listed);
  const std::vector<std::size_t> cores(std::istream_iterator<std::size_t>(text), {});
  if (cores.size() < 2) return;
  std::thread([cores, own = static_cast<std::size_t>(std::atoi(node))] {
    using std::chrono::steady_clock, std::chrono::milliseconds;
    constexpr milliseconds kTurn{100};
    for (;;) {
      const auto turn = steady_clock::now().time_since_epoch() / kTurn;
      cpu_set_t set;
      CPU_ZERO(&set);
      CPU_SET(cores[(own + static_cast<std::size_t>(turn)) % cores.size()], &set);
      for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task"))
        sched_setaffinity(std::atoi(thread.path().filename().c_str()), sizeof set, &set);
      std::this_thread::sleep_until(steady_clock::time_point((turn + 1) * kTurn));
    }
  }).detach();
}

}  // namespace

extern "C" int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  if (fault().what == "before-init") raise(SIGSTOP);
  if (fault().what == "asked") raise(SIGUSR1);
  const int status = PMPI_Init_thread(argc, argv, required, provided);
  if (fault().what == "after-init") raise(SIGSTOP);
  return status;
}

extern "C" int MPI_Test(MPI_Request* request, int* flag, MPI_Status* status) {
  if (mpi_fails) return MPI_ERR_OTHER;
  return PMPI_Test(request, flag, status);
}

/// dnnl_exec_arg_t, so that no header of oneDNN is needed.
struct DnnlArgument {
  int name;
  void* memory;
};

/// oneDNN's function of that name, which is in memory only where a program uses oneDNN.
int get_data_handle(const void* memory, void** handle) {
  static auto* const real =
      reinterpret_cast<int (*)(const void*, void**)>(dlsym(RTLD_DEFAULT, "dnnl_memory_get_data_handle"));
  return real == nullptr ? -1 : real(memory, handle);
}

/// Inside a task.
extern "C" int dnnl_primitive_execute(const void* primitive, void* stream, int count,
                                      const DnnlArgument* arguments) {
  static auto* const real = reinterpret_cast<int (*)(const void*, void*, int, const DnnlArgument*)>(
      dlsym(RTLD_NEXT, "dnnl_primitive_execute"));
  static const char* const pace_ms = std::getenv("FAULT_PACE_MS");
  static int calls = 0;
  if (pace_ms != nullptr) usleep(static_cast<useconds_t>(std::atoi(pace_ms)) * 1000);
  if (fault().what == "slow") usleep(static_cast<useconds_t>(fault().when) * 1000);
  if (fault().what == "hang" && ++calls == fault().when) {
    for (;;) pause();
  }
  const int status = real(primitive, stream, count, arguments);
  if (fault().what == "slower") lose_time();
  constexpr int kWeightGradient = 161;
  static int gradients = 0;
  for (int i = 0; fault().what == "bit" && i < count; ++i) {
    void* values = nullptr;
    if (arguments[i].name == kWeightGradient && ++gradients == fault().when &&
        get_data_handle(arguments[i].memory, &values) == 0)
      *static_cast<unsigned char*>(values) ^= 1;
  }
  return status;
}

extern "C" int clock_gettime(clockid_t clock, timespec* now) noexcept {
  static std::atomic<int> looks{0};
  static auto* const real =
      reinterpret_cast<int (*)(clockid_t, timespec*)>(dlsym(RTLD_NEXT, "clock_gettime"));
  const int status = real(clock, now);
  if (clock != CLOCK_REALTIME || fault().what != "clock") return status;
  const int look = ++looks % fault().when;
  if (look == 0) now->tv_sec = 1000000000;
  if (look == 1) now->tv_sec += 86400;
  return status;
}

extern "C" int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  static int checkpoints = 0;
  using Call = int (*)(int, const char*, int, const char*);
  static auto* const real = reinterpret_cast<Call>(dlsym(RTLD_NEXT, "renameat"));
  const bool counts = std::strncmp(to, "step_", 5) == 0 && ++checkpoints == fault().when;
  if (counts && fault().what == "before-rename") raise(SIGKILL);
  const int status = real(from_folder, from, to_folder, to);
  if (counts && fault().what == "after-rename") raise(SIGKILL);
  return status;
}

extern "C" int linkat(int from_folder, const char* from, int to_folder, const char* to, int flags) noexcept {
  using Call = int (*)(int, const char*, int, const char*, int);
  static auto* const real = reinterpret_cast<Call>(dlsym(RTLD_NEXT, "linkat"));
  while (fault().what == "lock" && std::strcmp(to, "lock") == 0) pause();
  return real(from_folder, from, to_folder, to, flags);
}
