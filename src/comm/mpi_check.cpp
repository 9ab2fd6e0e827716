#include "comm/mpi_check.hpp"

#include <array>
#include <exception>
#include <string>
#include <string_view>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi::comm {

void fail(int status, const char* purpose, int peer, const char* file, int line) {
  std::array<char, MPI_MAX_ERROR_STRING> words{};
  int length = 0;
  if (MPI_Error_string(status, words.data(), &length) != MPI_SUCCESS) length = 0;
  const std::string_view path = file;
  const std::string_view name = path.substr(path.find_last_of('/') + 1);
  const std::string whom = peer == kNoPeer ? std::string() : concat(" (peer: rank ", peer, ")");
  const std::string_view what = length > 0 ? std::string_view(words.data(), static_cast<std::size_t>(length))
                                           : std::string_view("no description");
  throw Error(ErrorKind::comm, "MPI failed while ", purpose, whom, ": ", what, ", status ", status, " at ",
              name, ":", line,
              "; a rank or the network between the nodes was probably lost; see the first message of the "
              "other ranks");
}

Buffer allocate_message_memory(std::size_t bytes) {
  auto* const memory = new Buffer(allocate_host(bytes));
  return {memory->data(), bytes, [memory] {
            if (std::uncaught_exceptions() == 0) delete memory;
          }};
}

}  // namespace cifar_mpi::comm
