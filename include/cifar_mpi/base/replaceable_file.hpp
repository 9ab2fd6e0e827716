#pragma once

#include <string>
#include <string_view>

namespace cifar_mpi {

/// A result may only replace its like, because its option could name another file by mistake. Throws Error{usage} if the file
/// at `path` exists, is not empty and does not begin with `begins`; `what` completes "FILE exists and is".
void require_replaceable(const std::string& path, std::string_view begins, const char* what,
                         const char* option);

}  // namespace cifar_mpi
