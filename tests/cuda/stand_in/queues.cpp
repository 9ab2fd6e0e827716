#include "cuda/stand_in/queues.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <thread>

#include "cuda/stand_in/block.hpp"
#include "cuda/stand_in/gpu.hpp"

namespace cifar_mpi::stand_in {
namespace {

/// How long memory stays accessible after the last work: protecting it between two copies would cost more
/// than the copies.
constexpr std::chrono::microseconds kStaysOpen{200};

/// The longest that work waits for the host to wait: other processes may wait for it.
constexpr std::chrono::milliseconds kHoldsBack{1};

/// How long a query that fails waits for a change.
constexpr std::chrono::microseconds kQueryPause{200};
/// Entries, on average, between two draws of the streams' ranks.
constexpr std::size_t kStaysAhead = 16;
constexpr std::size_t kRanks = std::size_t{1} << 20;

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// The nodes of `last` and all before them.
std::vector<bool> reached_from(const Nodes& nodes, std::vector<std::size_t> last) {
  std::vector<bool> reached(nodes.size(), false);
  while (!last.empty()) {
    const std::size_t node = last.back();
    last.pop_back();
    if (reached[node]) continue;
    reached[node] = true;
    last.insert(last.end(), nodes[node].after.begin(), nodes[node].after.end());
  }
  return reached;
}

}  // namespace

/// Lives until the process ends, like the driver: its thread may still hang in the work of a lost rank.
Queues& Queues::get() {
  static auto* const only = new Queues;
  return *only;
}

Queues::Queues() {
  std::thread([this] { work_off(); }).detach();
}

CUstream_st* Queues::make_stream() {
  const std::lock_guard lock(mutex_);
  streams_.push_back(new CUstream_st);
  return streams_.back();
}

/// Returns at once, like CUDA's; work in the stream is still done.
cudaError_t Queues::end_stream(CUstream_st* stream) {
  const std::lock_guard lock(mutex_);
  stream->ended = true;
  if (stream->items.empty()) remove(stream);
  return cudaSuccess;
}

void Queues::remove(CUstream_st* stream) {
  std::erase(streams_, stream);
  delete stream;
}

std::vector<CUstream_st*> Queues::able_streams() const {
  std::vector<CUstream_st*> able;
  for (CUstream_st* const stream : streams_) {
    if (stream->items.empty()) continue;
    const Item& item = stream->items.front();
    if (item.kind != Item::Kind::wait || item.moment == nullptr || item.moment->happened)
      able.push_back(stream);
  }
  return able;
}

/// One stream stays ahead for a while: with a new draw for each entry, none would ever lag far.
CUstream_st* Queues::choose(const std::vector<CUstream_st*>& able) {
  if (chance(kStaysAhead) == 0) {
    for (CUstream_st* const stream : streams_) stream->rank = chance(kRanks);
  }
  return *std::max_element(able.begin(), able.end(),
                           [](const auto* a, const auto* b) { return a->rank < b->rank; });
}

/// At random, nothing begins until the host waits for something, so that the host cannot rely on fast work.
void Queues::hold_back(std::unique_lock<std::mutex>& lock) {
  if (chance(2) == 0) return;
  wanted_.wait_for(lock, kHoldsBack, [&] { return waiting_ > 0 || asked_ || broken_ != cudaSuccess; });
}

void Queues::work_off() {
  std::unique_lock lock(mutex_);
  bool worked = false;
  for (;;) {
    if (!worked && !busy_ && !able_streams().empty()) hold_back(lock);
    worked = run_one(lock, false);
    if (worked) continue;
    asked_ = false;
    if (!open_) {
      wanted_.wait(lock);
      continue;
    }
    const std::uint64_t runs = runs_;
    const bool rested =
        wanted_.wait_for(lock, kStaysOpen) == std::cv_status::timeout && runs == runs_ && !busy_;
    if (rested && (able_streams().empty() || broken_ != cudaSuccess)) memory.open(open_ = false);
  }
}

/// Each replay draws one order of its nodes, so that some lag for long.
std::size_t Queues::next_node(Item& item) {
  const std::size_t nodes = item.done.size();
  while (item.ranks.size() < nodes) item.ranks.push_back(chance(kRanks));
  std::size_t next = nodes;
  for (std::size_t n = 0; n < nodes; ++n) {
    const auto& after = (*item.graph)[n].after;
    const bool able =
        !item.done[n] && std::all_of(after.begin(), after.end(), [&](auto a) { return item.done[a]; });
    if (able && (next == nodes || item.ranks[n] > item.ranks[next])) next = n;
  }
  return next;
}

/// Streams keep their place meanwhile, because only the thread that is busy removes entries.
bool Queues::run_one(std::unique_lock<std::mutex>& lock, bool on_host) {
  if (busy_ || broken_ != cudaSuccess) return false;
  const std::vector<CUstream_st*> able = able_streams();
  if (able.empty()) return false;
  CUstream_st* const stream = choose(able);
  Item& item = stream->items.front();
  const std::size_t node = next_node(item);
  const bool in_graph = node < item.done.size();
  const Work& work = in_graph ? (*item.graph)[node].work : item.work;
  if (on_host && work.waits) {
    wanted_.notify_one();
    return false;
  }
  if (work.run) run(work, lock);
  if (item.kind == Item::Kind::note) {
    item.moment->happened = true;
    item.moment->seconds = now_s();
  }
  if (in_graph) item.done[node] = true;
  if (std::find(item.done.begin(), item.done.end(), false) == item.done.end()) {
    stream->items.pop_front();
    if (stream->ended && stream->items.empty()) remove(stream);
  }
  changed_.notify_all();
  return true;
}

void Queues::run(const Work& work, std::unique_lock<std::mutex>& lock) {
  busy_ = true;
  ++runs_;
  if (!open_) {
    open_ = true;
    wanted_.notify_one();  // the GPU's thread is to close it
  }
  lock.unlock();
  memory.open(true);
  std::string wrong;
  try {
    work.run();
  } catch (const std::exception& error) {
    wrong = error.what();
  }
  lock.lock();
  busy_ = false;
  if (wrong.empty()) return;
  std::fprintf(stderr, "stand-in GPU: %s\n", wrong.c_str());
  broken_ = cudaErrorLaunchFailure;
}

/// Called after new entries. While memory is open, the GPU's thread looks for them by itself.
void Queues::wake() {
  if (!open_) wanted_.notify_one();
}

cudaError_t Queues::start(CUstream_st* stream, Work work) {
  const std::lock_guard lock(mutex_);
  if (broken_ != cudaSuccess) return broken_;
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;  // nothing may run on the default stream
  if (stream->capture != nullptr) {
    Nodes& nodes = stream->capture->nodes;
    nodes.push_back({std::move(work), stream->frontier, stream->priority});
    stream->frontier = {nodes.size() - 1};
    return cudaSuccess;
  }
  Item item;
  item.work = std::move(work);
  stream->items.push_back(std::move(item));
  wake();
  return cudaSuccess;
}

cudaError_t Queues::record(CUevent_st* event, CUstream_st* stream) {
  const std::lock_guard lock(mutex_);
  if (broken_ != cudaSuccess) return broken_;
  event->capture = stream->capture;
  event->frontier = stream->frontier;
  if (stream->capture != nullptr) return cudaSuccess;
  Item item;
  item.kind = Item::Kind::note;
  event->last = item.moment = std::make_shared<Moment>();
  stream->items.push_back(std::move(item));
  wake();
  return cudaSuccess;
}

cudaError_t Queues::joins(CUstream_st* stream, CUevent_st* event) {
  if (event->capture != capture_) return cudaErrorStreamCaptureIsolation;  // of another capture, or ended
  if (stream->capture == nullptr) {
    stream->capture = capture_;
    stream->frontier.clear();
  }
  for (const std::size_t node : event->frontier) {
    if (std::find(stream->frontier.begin(), stream->frontier.end(), node) == stream->frontier.end()) {
      stream->frontier.push_back(node);
    }
  }
  return cudaSuccess;
}

cudaError_t Queues::wait(CUstream_st* stream, CUevent_st* event) {
  const std::lock_guard lock(mutex_);
  if (broken_ != cudaSuccess) return broken_;
  if (event->capture != nullptr) {
    const cudaError_t status = joins(stream, event);
    if (status != cudaSuccess && capture_ != nullptr) capture_->broken = true;
    return status;
  }
  if (stream->capture != nullptr) {  // on work outside of the graph
    stream->capture->broken = true;
    return cudaErrorStreamCaptureIsolation;
  }
  Item item;
  item.kind = Item::Kind::wait;
  item.moment = event->last;
  stream->items.push_back(std::move(item));
  wake();
  return cudaSuccess;
}

template <class Done>
cudaError_t Queues::wait_until(std::unique_lock<std::mutex>& lock, Done done) {
  ++waiting_;
  while (broken_ == cudaSuccess && !done()) {
    if (!run_one(lock, true)) changed_.wait(lock);
  }
  --waiting_;
  return broken_;
}

cudaError_t Queues::finish(CUstream_st* stream) {
  if (const cudaError_t status = refuse_in_capture(); status != cudaSuccess) return status;
  std::unique_lock lock(mutex_);
  return wait_until(lock, [&] { return stream->items.empty(); });
}

bool Queues::all_empty() const {
  return std::all_of(streams_.begin(), streams_.end(),
                     [](const auto* stream) { return stream->items.empty(); });
}

bool Queues::idle() {
  const std::lock_guard lock(mutex_);
  return all_empty();
}

cudaError_t Queues::finish_all() {
  if (const cudaError_t status = refuse_in_capture(); status != cudaSuccess) return status;
  std::unique_lock lock(mutex_);
  return wait_until(lock, [&] { return all_empty(); });
}

cudaError_t Queues::query(CUevent_st* event) {
  if (const cudaError_t status = refuse_in_capture(); status != cudaSuccess) return status;
  std::unique_lock lock(mutex_);
  if (broken_ != cudaSuccess) return broken_;
  if (event->capture != nullptr) return cudaErrorCapturedEvent;
  const std::shared_ptr<Moment> last = event->last;
  if (last == nullptr || last->happened) return cudaSuccess;
  asked_ = true;
  if (run_one(lock, true)) return last->happened ? cudaSuccess : cudaErrorNotReady;
  // A host that asks again at once would take the processor from the GPU's thread and from other ranks.
  changed_.wait_for(lock, kQueryPause);
  return cudaErrorNotReady;
}

cudaError_t Queues::finish(CUevent_st* event) {
  if (const cudaError_t status = refuse_in_capture(); status != cudaSuccess) return status;
  std::unique_lock lock(mutex_);
  return wait_until(lock, [last = event->last] { return last == nullptr || last->happened; });
}

cudaError_t Queues::elapsed(float* milliseconds, CUevent_st* begin, CUevent_st* end) {
  const std::lock_guard lock(mutex_);
  for (const CUevent_st* event : {begin, end}) {
    if (!event->timed || event->last == nullptr) return cudaErrorInvalidResourceHandle;
    if (!event->last->happened) return cudaErrorNotReady;
  }
  *milliseconds = static_cast<float>(1e3 * (end->last->seconds - begin->last->seconds));
  return cudaSuccess;
}

cudaError_t Queues::begin_capture(CUstream_st* stream, cudaStreamCaptureMode mode) {
  const std::lock_guard lock(mutex_);
  if (capture_ != nullptr || stream == nullptr) return cudaErrorIllegalState;
  capture_ = std::make_shared<Capture>();
  capture_->origin = stream;
  capture_->id = ++captures_;
  // NCCL's threads may allocate memory at any moment, which breaks a capture in global mode
  capture_->broken = mode == cudaStreamCaptureModeGlobal;
  stream->capture = capture_;
  stream->frontier.clear();
  return cudaSuccess;
}

cudaError_t Queues::end_capture(CUstream_st* stream, CUgraph_st** graph) {
  const std::lock_guard lock(mutex_);
  *graph = nullptr;
  if (capture_ == nullptr || capture_->origin != stream) return cudaErrorStreamCaptureUnmatched;
  const std::shared_ptr<Capture> ended = std::move(capture_);
  capture_.reset();
  const std::vector<bool> joined = reached_from(ended->nodes, stream->frontier);
  for (CUstream_st* const other : streams_) {
    if (other->capture != ended) continue;
    other->capture.reset();
    other->frontier.clear();
  }
  if (ended->broken) return cudaErrorStreamCaptureInvalidated;
  if (std::find(joined.begin(), joined.end(), false) != joined.end()) return cudaErrorStreamCaptureUnjoined;
  *graph = new CUgraph_st{std::make_shared<const Nodes>(std::move(ended->nodes))};
  return cudaSuccess;
}

std::uint64_t Queues::capture_of(const CUstream_st* stream) {
  const std::lock_guard lock(mutex_);
  return stream != nullptr && stream->capture != nullptr ? stream->capture->id : 0;
}

cudaError_t Queues::launch(CUgraphExec_st* graph, CUstream_st* stream) {
  const std::lock_guard lock(mutex_);
  if (broken_ != cudaSuccess) return broken_;
  if (stream == nullptr || stream->capture != nullptr) return cudaErrorInvalidValue;
  Item item;
  item.kind = Item::Kind::graph;
  item.graph = graph->nodes;
  item.done.resize(graph->nodes->size(), false);
  if (graph->launches++ > 0 && has_fault("stale") && !item.done.empty()) item.done.front() = true;
  stream->items.push_back(std::move(item));
  wake();
  return cudaSuccess;
}

cudaError_t Queues::refuse_in_capture() {
  const std::lock_guard lock(mutex_);
  if (capture_ == nullptr) return cudaSuccess;
  capture_->broken = true;
  return cudaErrorStreamCaptureUnsupported;
}

cudaError_t Queues::fail(cudaError_t error) {
  const std::lock_guard lock(mutex_);
  if (error != cudaSuccess) last_ = error;
  return error;
}

cudaError_t Queues::last_error() {
  const std::lock_guard lock(mutex_);
  const cudaError_t error = broken_ != cudaSuccess ? broken_ : last_;
  last_ = cudaSuccess;
  return error;
}

}  // namespace cifar_mpi::stand_in
