#include "cifar_mpi/base/replaceable_file.hpp"

#include <span>

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/input_file.hpp"
#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi {

void require_replaceable(const std::string& path, std::string_view begins, const char* what,
                         const char* option) {
  const InputFile file(path);
  std::string head(begins.size(), '\0');
  if (file.size() == 0 || (file.read(std::as_writable_bytes(std::span(head))) && head == begins)) return;
  throw Error(ErrorKind::usage,
              concat(path, " exists and is ", what, "; give another name with ", option, ", or remove it"));
}

}  // namespace cifar_mpi
