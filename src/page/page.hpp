#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "page/run.hpp"

namespace cifar_mpi::page {

/// Stands among the first 512 bytes of every page.
inline constexpr std::string_view kPageMark = "<meta name=\"generator\" content=\"cifar_mpi_report\">";

/// The whole page. `path` is where it is going to lie. Needs nothing but itself.
std::string page_html(const std::vector<Run>& runs, const std::string& path);

}  // namespace cifar_mpi::page
