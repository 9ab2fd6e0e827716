#include "comm/serving.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "cifar_mpi/engine/layout.hpp"
#include "comm/add.hpp"
#include "comm/mpi_check.hpp"

namespace cifar_mpi::comm {

using engine::ControlLayout;

namespace {

constexpr const char* kWaiting = "waiting for the pushes of the workers";
constexpr const char* kOrdering = "sending an order to the servers";
constexpr const char* kAnswering = "answering the workers";

}  // namespace

Serving::Serving(const ServerRanks& ranks, const Arrays& arrays, const First& first, bool waits_for_all)
    : ranks_(ranks),
      arrays_(arrays),
      first_(first),
      waits_for_all_(waits_for_all),
      places_(
          allocate_message_memory(static_cast<std::size_t>(ranks.workers) * arrays.gradients.size_bytes())),
      order_memory_(allocate_message_memory(kOrderHead + 2 * static_cast<std::size_t>(ranks.workers) +
                                            arrays.control.size_bytes())),
      here_(static_cast<std::size_t>(ranks.workers)),
      sending_(here_.size()),
      answered_in_(here_.size()) {
  order_.taken.reserve(here_.size());
  order_.answered.reserve(here_.size());
  for (int worker = 0; worker < ranks.workers; ++worker) {
    const std::span<float> at = place_of(worker);
    const float* const params = waits_for_all ? arrays.params.data() : at.data();
    check(
        MPI_Recv_init(at.data(), count_of(at.size()), MPI_FLOAT, worker, kPush, ranks.comm, receives_.add()),
        "planning the push of a worker", worker);
    check(MPI_Send_init(params, count_of(arrays.params.size()), MPI_FLOAT, worker, kParams, ranks.comm,
                        answers_.add()),
          "planning an answer to a worker", worker);
  }
  if (is_first()) sent_facts_ = allocate_message_memory(here_.size() * first_.facts->message().size());
  for (int worker = 0; is_first() && worker < ranks.workers; ++worker) {
    const std::span<std::byte> message = facts_for(worker);
    check(MPI_Send_init(message.data(), count_of(message.size()), MPI_BYTE, worker, kFacts, ranks.comm,
                        answers_.add()),
          "planning an answer to a worker", worker);
  }
  const int bytes = count_of(order_memory_.size()), giver = ranks.rank_of_server(0);
  if (!is_first()) {
    check(MPI_Recv_init(order_memory_.data(), bytes, MPI_BYTE, giver, kOrder, ranks.comm, orders_.add()),
          "planning the orders of the first server", giver);
    return;
  }
  for (int server = 1; server < ranks.servers; ++server) {
    const int peer = ranks.rank_of_server(server);
    check(MPI_Send_init(order_memory_.data(), bytes, MPI_BYTE, peer, kOrder, ranks.comm, orders_.add()),
          "planning the orders to a server", peer);
  }
}

std::span<float> Serving::place_of(int worker) const {
  const std::size_t floats = arrays_.gradients.size();
  return places_.span<float>().subspan(static_cast<std::size_t>(worker) * floats, floats);
}

std::span<std::byte> Serving::facts_for(int worker) const {
  const std::size_t bytes = first_.facts->message().size();
  return sent_facts_.span<std::byte>().subspan(static_cast<std::size_t>(worker) * bytes, bytes);
}

void Serving::note_stop() {
  stops_ += 1.0;
  first_.policy->ask_to_meet();
}

/// A push that was under way at a meeting repeats the request that this meeting answers.
void Serving::note_save() {
  if (waits_for_all_ || order_.meets || meets_) return;
  saves_ += 1.0;
  first_.policy->ask_to_meet();
}

void Serving::listen(int worker) { receives_.start(worker, kWaiting); }

void Serving::take_arrivals() {
  receives_.each_done(kWaiting, [this](int worker) {
    here_[static_cast<std::size_t>(worker)] = true;
    if (!is_first()) return;
    if (place_of(worker)[ControlLayout::stop] > 0.0f) note_stop();
    if (place_of(worker)[ControlLayout::save] > 0.0f) note_save();
    first_.policy->arrived(worker);
  });
}

/// A worker may push again once its answer is sent, except at a meeting.
void Serving::note_sent() {
  answers_.each_done(kAnswering, [this](int message) {
    const int worker = message % ranks_.workers;
    const auto w = static_cast<std::size_t>(worker);
    if (--sending_[w] == 0 && !(meets_ && answered_in_[w] == round_)) listen(worker);
  });
}

bool Serving::all_sent() const {
  return std::ranges::all_of(sending_, [](int messages) { return messages == 0; });
}

/// At a meeting no receives are posted, so that none is left when a run ends there.
void Serving::start_round() {
  if (met_) {
    for (int worker = 0; worker < ranks_.workers; ++worker) listen(worker);
  }
  met_ = meets_ = false;
  in_round_ = true;
  phase_ = Phase::looking;
  if (!is_first()) orders_.start_all(kOrdering);
}

bool Serving::poll_round() {
  while (advance()) {
    if (phase_ != Phase::taking || !order_.updates) continue;
    if (!is_first()) sum();
    return true;
  }
  return false;
}

/// True after progress: to an order whose pushes are all here, or past one that updates nothing.
bool Serving::advance() {
  note_sent();
  take_arrivals();
  switch (phase_) {
    case Phase::looking:
      if (!look()) return false;
      phase_ = Phase::ordered;
      return true;
    case Phase::ordered:
      // Its messages must be sent before the next order is written.
      if (!orders_.all_done(kOrdering) || !all_here()) return false;
      phase_ = Phase::taking;
      return true;
    case Phase::taking:
      begin_answers();
      phase_ = Phase::answering;
      return true;
    case Phase::answering:
      if ((waits_for_all_ || meets_) && !all_sent()) return false;
      phase_ = Phase::looking;
      if (!is_first() && (in_round_ || (meets_ && !gathered()))) orders_.start_all(kOrdering);
      return true;
  }
  return false;
}

/// Whether there is an order.
bool Serving::look() {
  if (!is_first()) {
    if (!orders_.all_done(kOrdering)) return false;
    read_order();
    return true;
  }
  const PushOrder* const order = first_.policy->next();
  if (order == nullptr) return false;
  order_ = *order;
  if (order_.updates) sum();  // the others need the control block
  if (ranks_.servers > 1) {
    write_order();
    orders_.start_all(kOrdering);
  }
  return true;
}

void Serving::write_order() {
  const std::uint64_t head[2] = {(order_.updates ? 1u : 0u) + (order_.meets ? 2u : 0u), order_.staleness};
  std::memcpy(order_memory_.data(), head, sizeof head);
  const auto workers = static_cast<std::size_t>(ranks_.workers);
  std::fill_n(flags(), 2 * workers, std::byte{0});
  for (const int worker : order_.taken) flags()[worker] = std::byte{1};
  for (const int worker : order_.answered) flags()[ranks_.workers + worker] = std::byte{1};
  std::memcpy(flags() + 2 * workers, arrays_.control.data(), arrays_.control.size_bytes());
}

void Serving::read_order() {
  std::uint64_t head[2] = {};
  std::memcpy(head, order_memory_.data(), sizeof head);
  order_.updates = (head[0] & 1u) != 0;
  order_.meets = (head[0] & 2u) != 0;
  order_.staleness = head[1];
  order_.taken.clear();
  order_.answered.clear();
  for (int worker = 0; worker < ranks_.workers; ++worker) {
    if (flags()[worker] != std::byte{0}) order_.taken.push_back(worker);
    if (flags()[ranks_.workers + worker] != std::byte{0}) order_.answered.push_back(worker);
  }
  if (order_.updates)
    std::memcpy(arrays_.control.data(), flags() + 2 * static_cast<std::size_t>(ranks_.workers),
                arrays_.control.size_bytes());
}

bool Serving::all_here() const {
  return std::ranges::all_of(order_.taken,
                             [this](int worker) { return here_[static_cast<std::size_t>(worker)]; });
}

/// The pushes that were taken, in rank order.
void Serving::sum() {
  const std::span<float> total = arrays_.gradients;
  const std::span<float> first = place_of(order_.taken.front());
  if (order_.taken.size() == 1) {
    std::ranges::copy(first, total.begin());
  } else {
    add(total.data(), first.data(), place_of(order_.taken[1]).data(), total.size());
    for (std::size_t i = 2; i < order_.taken.size(); ++i)
      add(total.data(), place_of(order_.taken[i]).data(), total.size());
  }
  if (!is_first()) return;
  for (const int worker : order_.taken) first_.tally->count_applied(worker, order_.staleness);
  arrays_.control[ControlLayout::staleness] = static_cast<float>(order_.staleness);
  // Requests to stop or save are published at meetings, so that all ranks learn of them at the same version;
  // requests for traces only if all ranks make every step.
  arrays_.control[ControlLayout::stop] = order_.meets ? static_cast<float>(stops_) : 0.0f;
  if (order_.meets) stops_ = 0.0;
  if (waits_for_all_) return;
  arrays_.control[ControlLayout::trace] = 0.0f;
  arrays_.control[ControlLayout::save] = order_.meets ? static_cast<float>(std::exchange(saves_, 0.0)) : 0.0f;
}

void Serving::begin_answers() {
  for (const int worker : order_.taken) {
    here_[static_cast<std::size_t>(worker)] = false;
    if (!order_.updates && is_first()) first_.tally->count_dropped(worker);
  }
  for (const int worker : order_.answered) {
    const auto w = static_cast<std::size_t>(worker);
    answered_in_[w] = round_;
    sending_[w] = is_first() ? 2 : 1;
    if (!waits_for_all_) std::ranges::copy(arrays_.params, place_of(worker).begin());
    answers_.start(worker, kAnswering);
    if (!is_first()) continue;
    const std::span<const std::byte> facts = first_.facts->message();
    std::ranges::copy(facts, facts_for(worker).begin());
    answers_.start(ranks_.workers + worker, kAnswering);
  }
}

bool Serving::gathered() const {
  return std::ranges::all_of(answered_in_, [this](std::uint64_t r) { return r == round_; });
}

bool Serving::applied() const {
  return std::isfinite(arrays_.control[ControlLayout::loss_sum]) &&
         std::isfinite(std::accumulate(arrays_.decay_sums.begin(), arrays_.decay_sums.end(), 0.0));
}

void Serving::start_answers() {
  if (is_first()) first_.facts->pack();
  ++round_;
  in_round_ = false;
  meets_ = order_.meets || !applied();
  if (meets_ && is_first()) first_.policy->gather();
}

bool Serving::poll_answers() {
  while (phase_ != Phase::looking || (meets_ && !gathered())) {
    if (!advance()) return false;
  }
  met_ = meets_;
  return true;
}

}  // namespace cifar_mpi::comm
