#include "cifar_mpi/base/log.hpp"

#include <string>

#include "cifar_mpi/base/text.hpp"

namespace cifar_mpi {
namespace {

void write_line(std::FILE* out, std::string line) {
  line += '\n';
  std::fwrite(line.data(), 1, line.size(), out);
  std::fflush(out);
}

}  // namespace

void Log::info(std::string_view line) const {
  if (rank_ == 0) write_line(out_, std::string(line));
}

void Log::warn(std::string_view line) const {
  if (rank_ == 0) write_line(stderr, concat("warning: ", line));
}

void Log::every_rank(std::string_view line) const { write_line(stderr, concat("[rank ", rank_, "] ", line)); }

}  // namespace cifar_mpi
