#pragma once

#include <string_view>

namespace cifar_mpi::page {

extern const std::string_view kStyle;   ///< page.css
extern const std::string_view kScript;  ///< page.js

}  // namespace cifar_mpi::page
