#include "comm/push_pull.hpp"

#include <algorithm>
#include <climits>
#include <utility>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "comm/mpi_check.hpp"

namespace cifar_mpi::comm {

int count_of(std::size_t items) {
  if (items <= INT_MAX) return static_cast<int>(items);
  throw Error(ErrorKind::usage, "a server's part of the parameters has ", items,
              " values, too many for one message; give more --servers");
}

StepFacts::StepFacts(std::vector<std::span<std::byte>> arrays) : arrays_(std::move(arrays)) {
  std::size_t bytes = 0;
  for (const std::span<std::byte>& array : arrays_) bytes += array.size();
  memory_ = allocate_message_memory(bytes);
}

void StepFacts::pack() {
  std::byte* to = memory_.data();
  for (const std::span<std::byte>& array : arrays_) to = std::ranges::copy(array, to).out;
}

void StepFacts::unpack() {
  const std::byte* from = memory_.data();
  for (const std::span<std::byte>& array : arrays_) {
    std::copy_n(from, array.size(), array.begin());
    from += array.size();
  }
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

}  // namespace cifar_mpi::comm
