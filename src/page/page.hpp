#pragma once

#include <string>
#include <vector>

#include "page/run.hpp"

namespace cifar_mpi::page {

/// The whole page. `path` is where it is going to lie. Needs nothing but itself.
std::string page_html(const std::vector<Run>& runs, const std::string& path);

}  // namespace cifar_mpi::page
