#include "cifar_mpi/comm/world.hpp"

#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <new>
#include <numeric>
#include <thread>

#include "cifar_mpi/base/clock.hpp"
#include "cifar_mpi/base/log.hpp"
#include "cifar_mpi/base/text.hpp"
#include "comm/cores.hpp"
#include "comm/exit_timer.hpp"
#include "comm/launch.hpp"
#include "comm/mpi_check.hpp"
#include "comm/node_peers.hpp"
#include "comm/numa.hpp"
#include "comm/world_access.hpp"

namespace cifar_mpi::comm {

struct World::State {
  std::optional<ExitTimer> start_limit;
  Communicator all;
  Communicator node;
  int rank = 0;
  int size = 1;
  int node_rank = 0;
  int node_size = 1;
  std::string host;
  std::vector<std::string> hosts;
  NodePeers peers;
  CoreShare cores;
  std::optional<double> quota;
  std::vector<CoreMask> masks;  ///< of the node's ranks
  bool at_home = false;         ///< kept to a part of the mask it was started with
  double since = steady_seconds();
  double busy_before = 0.0;                             ///< of the own mask
  std::thread::id thread = std::this_thread::get_id();  ///< the one that may call MPI
  int exceptions_at_start = std::uncaught_exceptions();
  bool vote_failed = false;  ///< the exception in flight, if any, is known to all ranks
  bool is_part = false;      ///< it is a part of the initial world
};

namespace {

/// MPI counts with int; longer arrays are sent in pieces.
constexpr std::size_t kPiece = std::size_t{1} << 30;

/// MPI_Finalize and MPI_Abort take milliseconds; if they take longer, they wait for lost ranks, or stdio
/// waits for a thread that hangs.
constexpr double kFinalize = 60.0;
constexpr double kAbort = 5.0;

const char* environment(const char* variable) { return std::getenv(variable); }

void start_mpi(int& argc, char**& argv) {
  int started = 0;
  check(MPI_Initialized(&started), "asking whether MPI runs");
  if (started != 0)
    throw Error(ErrorKind::internal, "a second World in one process: MPI can start only once");
  for (const Setting& setting : settings_before_init(environment, count_cores(affinity_mask()))) {
    setenv(setting.variable.data(), setting.value.data(), 0);
  }
  int provided = MPI_THREAD_SINGLE;
  check(MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided), "starting MPI");
  check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "setting the error handler");
}

Communicator duplicate(MPI_Comm original) {
  MPI_Comm copy = MPI_COMM_NULL;
  check(MPI_Comm_dup(original, &copy), "duplicating the communicator");
  check(MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN), "setting the error handler");
  return Communicator(copy);
}

Communicator split_by_node(MPI_Comm all, int rank) {
  MPI_Comm node = MPI_COMM_NULL;
  check(MPI_Comm_split_type(all, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node),
        "finding the ranks of this node");
  check(MPI_Comm_set_errhandler(node, MPI_ERRORS_RETURN), "setting the error handler");
  return Communicator(node);
}

/// The affinity mask of every rank of the node, by node rank, all of one length.
std::vector<CoreMask> gather_masks(MPI_Comm node, int node_size) {
  CoreMask mine = affinity_mask();
  int words = static_cast<int>(mine.size());
  check(MPI_Allreduce(MPI_IN_PLACE, &words, 1, MPI_INT, MPI_MAX, node), "comparing affinity masks");
  const std::size_t length = static_cast<std::size_t>(words);
  mine.resize(length, 0);
  CoreMask flat(length * static_cast<std::size_t>(node_size));
  check(MPI_Allgather(mine.data(), words, MPI_UINT64_T, flat.data(), words, MPI_UINT64_T, node),
        "gathering affinity masks");
  std::vector<CoreMask> masks;
  for (auto at = flat.begin(); at != flat.end(); at += words) masks.emplace_back(at, at + words);
  return masks;
}

/// Keeps this rank to its NUMA domains where nothing else has placed the ranks; whether it did.
bool stay_at_home(MPI_Comm node, int node_size, std::size_t mine, const CoreMask& allowed) {
  const std::vector<CoreMask> masks = gather_masks(node, node_size);
  const CoreMask home = home_mask(masks, mine, allowed, numa_domains());
  if (home == masks[mine]) return false;
  keep_to(home);
  return true;
}

std::string host_name() {
  std::array<char, MPI_MAX_PROCESSOR_NAME> name{};
  int length = 0;
  check(MPI_Get_processor_name(name.data(), &length), "asking for the host's name");
  return {name.data(), static_cast<std::size_t>(length)};
}

/// By rank.
std::vector<std::string> gather_texts(const std::string& mine, MPI_Comm comm, int ranks) {
  const int own = static_cast<int>(mine.size());
  std::vector<int> sizes(static_cast<std::size_t>(ranks)), places(sizes.size());
  check(MPI_Allgather(&own, 1, MPI_INT, sizes.data(), 1, MPI_INT, comm), "gathering lengths of texts");
  std::exclusive_scan(sizes.begin(), sizes.end(), places.begin(), 0);
  std::string all(static_cast<std::size_t>(places.back() + sizes.back()), ' ');
  check(MPI_Allgatherv(mine.data(), own, MPI_CHAR, all.data(), sizes.data(), places.data(), MPI_CHAR, comm),
        "gathering texts");
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < sizes.size(); ++rank)
    texts.push_back(
        all.substr(static_cast<std::size_t>(places[rank]), static_cast<std::size_t>(sizes[rank])));
  return texts;
}

void broadcast_bytes(std::span<std::byte> bytes, int root, MPI_Comm comm) {
  for (std::size_t at = 0; at < bytes.size(); at += kPiece) {
    const std::size_t piece = std::min(kPiece, bytes.size() - at);
    check(MPI_Bcast(bytes.data() + at, static_cast<int>(piece), MPI_BYTE, root, comm), "broadcasting", root);
  }
}

void broadcast_text(std::string& text, int root, MPI_Comm comm) {
  std::uint64_t size = text.size();
  broadcast_bytes(std::as_writable_bytes(std::span(&size, 1)), root, comm);
  text.resize(size);
  broadcast_bytes(std::as_writable_bytes(std::span(text)), root, comm);
}

/// The text on one line, for a sentence.
std::string shown(const std::string* value) {
  if (value == nullptr) return "missing";
  if (value->empty()) return "empty";
  std::string text = *value;
  std::ranges::replace(text, '\n', ' ');
  return text;
}

/// The name of the first item that differs; empty if none does.
std::string first_difference(const RunFingerprint& a, const RunFingerprint& b) {
  for (const auto& [item, value] : a) {
    const std::string* const other = find_item(b, item);
    if (other == nullptr || *other != value) return item;
  }
  for (const auto& [item, value] : b) {
    if (find_item(a, item) == nullptr) return item;
  }
  return {};
}

}  // namespace

World::World(int& argc, char**& argv, double limit_s) {
  const std::optional<Announcement> announced = announced_ranks(environment);
  auto state = std::make_unique<State>();
  if (limit_s > 0.0) {
    state->start_limit.emplace(limit_s, exit_code(ErrorKind::comm),
                               concat("cifar_mpi: MPI has not started on all ranks within ", limit_s,
                                      " s, one of them may be stopped; ending the job; start it again"));
  }
  start_mpi(argc, argv);
  check(MPI_Comm_size(MPI_COMM_WORLD, &state->size), "asking for the number of ranks");
  check(MPI_Comm_rank(MPI_COMM_WORLD, &state->rank), "asking for the rank");
  if (state->size == 1 && announced && announced->ranks > 1) {
    MPI_Finalize();
    throw Error(ErrorKind::launch, world_of_one_text(*announced, library()));
  }
  state->host = host_name();
  state->all = duplicate(MPI_COMM_WORLD);
  state->node = split_by_node(state->all.get(), state->rank);
  check(MPI_Comm_size(state->node.get(), &state->node_size), "asking for the node's number of ranks");
  check(MPI_Comm_rank(state->node.get(), &state->node_rank), "asking for the rank on the node");
  state->peers = NodePeers(state->node.get());
  state->hosts = gather_texts(state->host, state->all.get(), state->size);
  state->quota = cpu_quota();
  const auto mine = static_cast<std::size_t>(state->node_rank);
  const CoreMask allowed = allowed_mask();
  state->at_home = stay_at_home(state->node.get(), state->node_size, mine, allowed);
  state->masks = gather_masks(state->node.get(), state->node_size);
  state->cores = share_cores(state->masks, mine, allowed, state->quota);
  state->busy_before = busy_seconds(state->masks[mine]);
  state_ = std::move(state);
}

World::World(std::unique_ptr<State> state) : state_(std::move(state)) {}

std::unique_ptr<World> World::first(const World& world, int ranks) {
  auto state = std::make_unique<State>();
  state->is_part = true;
  state->all = WorldAccess::split(world, world.rank() < ranks ? 0 : -1);
  if (world.rank() >= ranks) return nullptr;
  state->rank = world.rank();
  state->size = ranks;
  state->host = world.host();
  state->hosts.assign(world.hosts().begin(), world.hosts().begin() + ranks);
  state->node = split_by_node(state->all.get(), state->rank);
  check(MPI_Comm_size(state->node.get(), &state->node_size), "asking for the node's number of ranks");
  check(MPI_Comm_rank(state->node.get(), &state->node_rank), "asking for the rank on the node");
  state->peers = NodePeers(state->node.get());
  state->cores = world.state_->cores;
  state->thread = world.state_->thread;
  return std::unique_ptr<World>(new World(std::move(state)));
}

World::~World() {
  if (state_->is_part) return;
  const bool unwinding = std::uncaught_exceptions() > state_->exceptions_at_start;
  if (unwinding && !state_->vote_failed && state_->size > 1) {
    // MPI_Finalize waits for all ranks, and the others do not know that this one is exiting.
    Log(state_->rank).every_rank("exits with an error that the other ranks do not know; ending all ranks");
    abort(exit_code(ErrorKind::internal));
  }
  state_->node = Communicator();
  state_->all = Communicator();
  const ExitTimer limit(kFinalize, exit_code(ErrorKind::comm),
                        concat("[rank ", state_->rank, "] MPI_Finalize has waited ", kFinalize,
                               " s for a missing rank; exiting without it"));
  MPI_Finalize();
}

void World::started() const { state_->start_limit.reset(); }

int World::rank() const { return state_->rank; }
int World::size() const { return state_->size; }
int World::node_rank() const { return state_->node_rank; }
int World::node_size() const { return state_->node_size; }
const std::string& World::host() const { return state_->host; }
const std::vector<std::string>& World::hosts() const { return state_->hosts; }
int World::fair_threads() const { return state_->cores.fair_threads; }
std::string World::cores_text() const {
  const CoreShare& share = state_->cores;
  std::string text = counted(share.cores, "core") + " in the affinity mask of a rank";
  if (state_->at_home) text += ", kept to its NUMA domain";
  if (share.sharers > 1) text += concat(", shared by ", share.sharers, " ranks");
  if (state_->quota)
    text += concat(", a CPU quota of ", *state_->quota, " for the ", counted(state_->node_size, "rank"),
                   " of the node");
  return text;
}

std::vector<std::string> World::place_lines() const {
  const std::string mine =
      place_text(state_->masks[static_cast<std::size_t>(state_->node_rank)], numa_domains());
  std::vector<std::string> places;
  for (const auto& bytes : collect(std::as_bytes(std::span(mine))))
    places.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return places.empty() ? places : comm::place_lines(state_->hosts, places);
}

double World::cores_lost(int threads) const {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  const double own = static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  std::vector<double> all(static_cast<std::size_t>(state_->node_size));
  check(MPI_Allgather(&own, 1, MPI_DOUBLE, all.data(), 1, MPI_DOUBLE, state_->node.get()),
        "gathering the CPU time of the node's ranks");
  const CoreMask& mask = state_->masks[static_cast<std::size_t>(state_->node_rank)];
  double others = busy_seconds(mask) - state_->busy_before;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (have_common_cores(mask, state_->masks[rank])) others -= all[rank];
  }
  constexpr double kWorthIt = 0.5;
  const double cores = others / std::max(1e-3, steady_seconds() - state_->since);
  const bool lacks = state_->cores.cores - cores < threads * state_->cores.sharers - kWorthIt;
  return lacks && cores > kWorthIt ? cores : 0.0;
}

int World::unused_cores() const { return state_->cores.unused_cores; }
bool World::oversubscribed() const { return state_->cores.oversubscribed; }

std::string World::library() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> words{};
  int length = 0;
  check(MPI_Get_library_version(words.data(), &length), "asking for the version of the MPI library");
  // "Open MPI v4.1.4, package: …" and "MPICH Version:      4.0.2\nMPICH Release date: …": the first part is
  // enough.
  std::string text(words.data(), static_cast<std::size_t>(length));
  text.resize(std::min(text.size(), text.find_first_of(",\n")));
  std::ranges::replace(text, '\t', ' ');
  return text;
}

void World::agree(const std::optional<Error>& mine) const {
  if (!mine || state_->rank == 0) return vote(mine);
  vote(Error(mine->kind(), concat(mine->what(), " (on rank ", state_->rank, ", host ", state_->host, ")")));
}

void World::vote(const std::optional<Error>& mine) const {
  int failing = mine ? state_->rank : state_->size;
  check(MPI_Allreduce(MPI_IN_PLACE, &failing, 1, MPI_INT, MPI_MIN, state_->all.get()),
        "voting on the set-up");
  state_->vote_failed = failing < state_->size;
  if (!state_->vote_failed) return;
  int kind = mine ? exit_code(mine->kind()) : 0;
  std::string text = mine ? mine->what() : "";
  broadcast_bytes(std::as_writable_bytes(std::span(&kind, 1)), failing, state_->all.get());
  broadcast_text(text, failing, state_->all.get());
  throw AgreedError(static_cast<ErrorKind>(kind), text);
}

void World::require_equal(ErrorKind kind, const RunFingerprint& mine, std::string_view advice) const {
  RunFingerprint first = mine;
  broadcast(first);
  const std::string item = first_difference(first, mine);
  std::optional<Error> error;
  if (!item.empty()) {
    error.emplace(kind, item, " is ", shown(find_item(mine, item)), " on rank ", state_->rank, " (",
                  state_->host, "), but ", shown(find_item(first, item)), " on rank 0 (",
                  state_->hosts.front(), "); ", advice);
  }
  vote(error);
}

void World::together(const std::function<void()>& phase) const {
  std::optional<Error> mine;
  try {
    phase();
  } catch (const Error& error) {
    mine = error;
  } catch (const std::bad_alloc&) {
    mine.emplace(ErrorKind::device, "out of host memory; use a smaller batch, or fewer ranks on this node");
  } catch (const std::exception& error) {
    mine.emplace(ErrorKind::internal, error.what());
  }
  agree(mine);
}

void World::barrier() const { check(MPI_Barrier(state_->all.get()), "waiting at a barrier"); }

void World::sum(std::span<double> values) const {
  // Summed on one rank and copied from there: MPI only advises that an all-reduce gives the same bits
  // everywhere.
  for (std::size_t at = 0; at < values.size(); at += kPiece) {
    double* const piece = values.data() + at;
    const int count = static_cast<int>(std::min(kPiece, values.size() - at));
    const bool root = state_->rank == 0;
    check(MPI_Reduce(root ? MPI_IN_PLACE : piece, root ? piece : nullptr, count, MPI_DOUBLE, MPI_SUM, 0,
                     state_->all.get()),
          "summing", 0);
  }
  broadcast(std::as_writable_bytes(values));
}

void World::gather(std::span<const std::byte> mine, std::span<std::byte> all) const {
  const int bytes = static_cast<int>(mine.size());
  check(MPI_Allgather(mine.data(), bytes, MPI_BYTE, all.data(), bytes, MPI_BYTE, state_->all.get()),
        "gathering");
}

std::vector<std::string> World::gather(const std::string& mine) const {
  return gather_texts(mine, state_->all.get(), state_->size);
}

bool World::any(bool mine) const {
  int found = mine ? 1 : 0;
  check(MPI_Allreduce(MPI_IN_PLACE, &found, 1, MPI_INT, MPI_MAX, state_->all.get()), "asking all ranks");
  return found != 0;
}

std::vector<std::vector<std::byte>> World::collect(std::span<const std::byte> mine) const {
  constexpr int kTag = 1;
  const MPI_Comm comm = state_->all.get();
  std::uint64_t size = mine.size();
  std::vector<std::uint64_t> sizes(rank() == 0 ? static_cast<std::size_t>(state_->size) : 0);
  check(MPI_Gather(&size, 1, MPI_UINT64_T, sizes.data(), 1, MPI_UINT64_T, 0, comm), "collecting", 0);
  if (rank() != 0) {
    for (std::size_t at = 0; at < mine.size(); at += kPiece) {
      const int piece = static_cast<int>(std::min(kPiece, mine.size() - at));
      check(MPI_Send(mine.data() + at, piece, MPI_BYTE, 0, kTag, comm), "collecting", 0);
    }
    return {};
  }
  std::vector<std::vector<std::byte>> all(sizes.size());
  all[0].assign(mine.begin(), mine.end());
  for (std::size_t from = 1; from < all.size(); ++from) {
    all[from].resize(sizes[from]);
    for (std::size_t at = 0; at < sizes[from]; at += kPiece) {
      const int piece = static_cast<int>(std::min(kPiece, sizes[from] - at));
      check(MPI_Recv(all[from].data() + at, piece, MPI_BYTE, static_cast<int>(from), kTag, comm,
                     MPI_STATUS_IGNORE),
            "collecting", static_cast<int>(from));
    }
  }
  return all;
}

void World::broadcast(std::span<std::byte> bytes) const { broadcast_bytes(bytes, 0, state_->all.get()); }

void World::broadcast(std::string& text) const { broadcast_text(text, 0, state_->all.get()); }

void World::broadcast(RunFingerprint& items) const {
  std::string text = pack(items);
  broadcast(text);
  items = unpack(text);
}

void World::abort(int code) const {
  const ExitTimer limit(kAbort, code, concat("[rank ", state_->rank, "] clean shutdown timed out; exiting"));
  std::fflush(nullptr);  // may wait for a thread inside stdio
  // Other threads may not call MPI; the launcher ends the other ranks when this one has exited.
  if (std::this_thread::get_id() == state_->thread) {
    // A world of one exits cleanly, without MPI's error banner.
    state_->size > 1 || state_->is_part ? MPI_Abort(MPI_COMM_WORLD, code) : MPI_Finalize();
  }
  std::_Exit(code);
}

MPI_Comm WorldAccess::all(const World& world) { return world.state_->all.get(); }
const NodePeers& WorldAccess::peers(const World& world) { return world.state_->peers; }
MPI_Comm WorldAccess::node(const World& world) { return world.state_->node.get(); }
Communicator WorldAccess::duplicate(const World& world) { return comm::duplicate(all(world)); }
Communicator WorldAccess::split(const World& world, int group) {
  MPI_Comm part = MPI_COMM_NULL;
  check(MPI_Comm_split(all(world), group < 0 ? MPI_UNDEFINED : group, world.rank(), &part),
        "splitting the ranks into groups");
  if (part != MPI_COMM_NULL)
    check(MPI_Comm_set_errhandler(part, MPI_ERRORS_RETURN), "setting the error handler");
  return Communicator(part);
}

}  // namespace cifar_mpi::comm
