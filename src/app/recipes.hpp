#pragma once

#include <optional>
#include <string_view>

/// The files of jobs/recipes, compiled into the programs.
namespace cifar_mpi::app {

/// Options in the format of --config files: of a model its defaults.
struct Recipe {
  std::string_view name;  ///< "resnet20.toml", for messages
  std::string_view text;
};

/// The recipe of a name; null for a model that uses the defaults of the options, and for other names.
std::optional<Recipe> recipe_of(std::string_view name);

}  // namespace cifar_mpi::app
