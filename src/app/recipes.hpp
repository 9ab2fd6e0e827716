#pragma once

#include <optional>
#include <string_view>

/// The files of jobs/recipes, compiled into the programs.
namespace cifar_mpi::app {

/// The defaults of a model, in the format of --config files.
struct Recipe {
  std::string_view name;  ///< "resnet20.toml", for messages
  std::string_view text;
};

/// The recipe of a model; null if the model uses the defaults of the options.
std::optional<Recipe> recipe_of(std::string_view model);

}  // namespace cifar_mpi::app
