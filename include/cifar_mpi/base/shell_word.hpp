#pragma once

#include <string>

namespace cifar_mpi {

/// One word of a shell command.
std::string shell_word(const std::string& text);

}  // namespace cifar_mpi
