#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "page/run.hpp"

namespace cifar_mpi::page {

inline constexpr std::string_view kPageBegins =  ///< the beginning of every page
    "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
    "<meta name=\"generator\" content=\"cifar_mpi_report\">";

/// The whole page, self-contained. `path` is where it will be written.
std::string page_html(const std::vector<Run>& runs, const std::string& path);

extern const std::string_view kStyle;   ///< page.css, and a rule for each class of `place_class`
extern const std::string_view kScript;  ///< page.js

/// "sha256-…" in base64, of exactly these texts, for the page's Content-Security-Policy.
extern const std::string_view kStyleHash;
extern const std::string_view kScriptHash;

}  // namespace cifar_mpi::page
