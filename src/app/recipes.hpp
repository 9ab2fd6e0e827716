#pragma once

#include <optional>
#include <string_view>

/// The files of jobs/recipes, which are part of the programs.
namespace cifar_mpi::app {

/// What a model brings as its own defaults, as a text of the form that --config reads.
struct Recipe {
  std::string_view name;  ///< "resnet20.toml", for messages
  std::string_view text;
};

/// Of a model by its name; nothing where it is trained with the defaults of the options.
std::optional<Recipe> recipe_of(std::string_view model);

}  // namespace cifar_mpi::app
