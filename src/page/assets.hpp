#pragma once

#include <string_view>

namespace cifar_mpi::page {

extern const std::string_view kStyle;   ///< page.css, and a rule for each class of `place_class`
extern const std::string_view kScript;  ///< page.js

/// "sha256-…" in base64, of exactly these texts, for the page's Content-Security-Policy.
extern const std::string_view kStyleHash;
extern const std::string_view kScriptHash;

}  // namespace cifar_mpi::page
