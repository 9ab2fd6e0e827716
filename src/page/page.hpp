#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "page/run.hpp"

namespace cifar_mpi::page {

/// Is within the first 512 bytes of every page.
inline constexpr std::string_view kPageMark = "<meta name=\"generator\" content=\"cifar_mpi_report\">";

/// The whole page, self-contained. `path` is where it will be written.
std::string page_html(const std::vector<Run>& runs, const std::string& path);

}  // namespace cifar_mpi::page
