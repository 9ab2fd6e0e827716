#include "comm/push_pull.hpp"

#include <algorithm>
#include <climits>
#include <cstring>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "comm/add.hpp"
#include "comm/message_memory.hpp"
#include "comm/mpi_check.hpp"

namespace cifar_mpi::comm {
namespace {

/// By what a message is known, so that none is taken for another.
enum Tag : int { kPush = 1, kParams, kFacts, kOrder };

int count_of(std::size_t items) {
  if (items <= INT_MAX) return static_cast<int>(items);
  throw Error(ErrorKind::usage, concat("a server's part of the parameters has ", items,
                                       " values, more than a message carries; give more --servers"));
}

}  // namespace

StepFacts::StepFacts(std::span<float> control, std::span<double> decay_sums)
    : control_(control),
      decay_sums_(decay_sums),
      memory_(allocate_message_memory(control.size_bytes() + decay_sums.size_bytes())) {}

void StepFacts::pack() {
  std::memcpy(memory_.data(), control_.data(), control_.size_bytes());
  std::memcpy(memory_.data() + control_.size_bytes(), decay_sums_.data(), decay_sums_.size_bytes());
}

void StepFacts::unpack() {
  std::memcpy(control_.data(), memory_.data(), control_.size_bytes());
  std::memcpy(decay_sums_.data(), memory_.data() + control_.size_bytes(), decay_sums_.size_bytes());
}

Push::Push(const ServerRanks& ranks, int server, std::span<const float> gradients)
    : peer_(ranks.rank_of_server(server)) {
  check(MPI_Send_init(gradients.data(), count_of(gradients.size()), MPI_FLOAT, peer_, kPush, ranks.comm,
                      send_.address()),
        "planning a push to a server", peer_);
}

void Push::start() { check(MPI_Start(send_.address()), "pushing to a server", peer_); }

bool Push::poll() {
  int done = 0;
  check(MPI_Test(send_.address(), &done, MPI_STATUS_IGNORE), "pushing to a server", peer_);
  return done != 0;
}

Pull::Pull(const ServerRanks& ranks, std::span<const ParamSpan> spans, std::span<float> params,
           StepFacts facts)
    : facts_(std::move(facts)) {
  for (int server = 0; server < ranks.servers; ++server) {
    const ParamSpan& span = spans[static_cast<std::size_t>(server)];
    const int peer = ranks.rank_of_server(server);
    check(MPI_Recv_init(params.data() + span.begin, count_of(span.end - span.begin), MPI_FLOAT, peer, kParams,
                        ranks.comm, receives_.add()),
          "planning an answer of a server", peer);
  }
  const std::span<std::byte> message = facts_.message();
  check(MPI_Recv_init(message.data(), count_of(message.size()), MPI_BYTE, ranks.rank_of_server(0), kFacts,
                      ranks.comm, receives_.add()),
        "planning an answer of a server", ranks.rank_of_server(0));
}

void Pull::start() { receives_.start_all("waiting for the servers"); }

bool Pull::poll() {
  if (!receives_.all_done("waiting for the servers")) return false;
  facts_.unpack();
  return true;
}

TakePushes::TakePushes(const ServerRanks& ranks, std::span<float> gradients, std::span<float> control)
    : ranks_(ranks),
      gradients_(gradients),
      arrivals_(
          allocate_message_memory(static_cast<std::size_t>(ranks.workers - 1) * gradients.size_bytes())),
      here_(static_cast<std::size_t>(ranks.workers)) {
  for (int worker = 0; worker < ranks.workers; ++worker) {
    const std::span<float> at = arrival(worker);
    check(
        MPI_Recv_init(at.data(), count_of(at.size()), MPI_FLOAT, worker, kPush, ranks.comm, receives_.add()),
        "planning the push of a worker", worker);
  }
  const int count = count_of(control.size());
  if (ranks.server() != 0) {
    check(MPI_Recv_init(control.data(), count, MPI_FLOAT, ranks.rank_of_server(0), kOrder, ranks.comm,
                        orders_.add()),
          "planning the word of the first server", ranks.rank_of_server(0));
    return;
  }
  for (int server = 1; server < ranks.servers; ++server) {
    const int peer = ranks.rank_of_server(server);
    check(MPI_Send_init(control.data(), count, MPI_FLOAT, peer, kOrder, ranks.comm, orders_.add()),
          "planning the word to a server", peer);
  }
}

std::span<float> TakePushes::arrival(int worker) const {
  if (worker == 0) return gradients_;
  const std::size_t floats = gradients_.size();
  return arrivals_.span<float>().subspan(static_cast<std::size_t>(worker - 1) * floats, floats);
}

void TakePushes::start() {
  std::fill(here_.begin(), here_.end(), false);
  added_ = 0;
  receives_.start_all("waiting for the pushes of the workers");
  ordered_ = ranks_.server() != 0;
  if (ordered_) orders_.start_all("waiting for the first server");
}

/// Of the workers in rank order, as far as they are here.
void TakePushes::add_arrived() {
  for (; added_ < ranks_.workers && here_[static_cast<std::size_t>(added_)]; ++added_) {
    if (added_ > 0) add(gradients_.data(), arrival(added_).data(), gradients_.size());
  }
}

bool TakePushes::poll() {
  receives_.each_done("waiting for the pushes of the workers",
                      [&](int worker) { here_[static_cast<std::size_t>(worker)] = true; });
  add_arrived();
  if (added_ < ranks_.workers) return false;
  if (!ordered_) orders_.start_all("handing the control block on");
  ordered_ = true;
  return orders_.all_done("handing the control block on");
}

Answer::Answer(const ServerRanks& ranks, std::span<const float> params, StepFacts* facts) : facts_(facts) {
  for (int worker = 0; worker < ranks.workers; ++worker) {
    check(MPI_Send_init(params.data(), count_of(params.size()), MPI_FLOAT, worker, kParams, ranks.comm,
                        sends_.add()),
          "planning an answer to a worker", worker);
    if (facts_ == nullptr) continue;
    const std::span<std::byte> message = facts_->message();
    check(MPI_Send_init(message.data(), count_of(message.size()), MPI_BYTE, worker, kFacts, ranks.comm,
                        sends_.add()),
          "planning an answer to a worker", worker);
  }
}

void Answer::start() {
  if (facts_ != nullptr) facts_->pack();
  sends_.start_all("answering the workers");
}

bool Answer::poll() { return sends_.all_done("answering the workers"); }

}  // namespace cifar_mpi::comm
