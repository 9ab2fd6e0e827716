#pragma once

#include <string>
#include <utility>
#include <vector>

#include "page/run.hpp"

/// Facts about a run as text.
namespace cifar_mpi::page {

using Facts = std::vector<std::pair<std::string, std::string>>;  ///< a name and a sentence

/// Progress, accuracy and speed; the first part of the text and of the page.
Facts key_facts(const Run& run);

/// The most important facts for tiles: a name and a figure.
Facts tiles_of(const Run& run);

/// Model, ranks and machine on one line; empty if they are unknown.
std::string headline(const Run& run);

/// The machine, and the provenance of the newest checkpoint.
Facts provenance_facts(const Run& run);

/// The existing files of a run directory, each with the command that opens it.
Facts files_of(const Run& run, const std::string& page);

}  // namespace cifar_mpi::page
