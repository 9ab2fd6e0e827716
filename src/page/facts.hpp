#pragma once

#include <string>
#include <utility>
#include <vector>

#include "page/run.hpp"

/// What is known of a run in words.
namespace cifar_mpi::page {

using Facts = std::vector<std::pair<std::string, std::string>>;  ///< a name and a sentence

/// How far it is, how good and how fast: what the text begins with, and the page.
Facts key_facts(const Run& run);

/// The most important of it in few words, for tiles: a name and a figure.
Facts tiles_of(const Run& run);

/// Model, ranks and machine on one line; empty when nothing is known of them.
std::string headline(const Run& run);

/// The machine, and where the newest checkpoint came from.
Facts provenance_facts(const Run& run);

/// The files of a run directory that are there, with the command that opens each.
Facts files_of(const Run& run, const std::string& page);

}  // namespace cifar_mpi::page
