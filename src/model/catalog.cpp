#include "model/catalog.hpp"

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/model/net_spec.hpp"

namespace cifar_mpi::model {
namespace {

struct CatalogEntry {
  ModelInfo info;
  ModelFunction make;
};

constexpr CatalogEntry kCatalog[] = {
    {{"tutorial", "the CNN of the TensorFlow CIFAR-10 tutorial: two convolutions, two hidden linear layers"},
     tutorial},
};

}  // namespace

std::vector<ModelInfo> catalog() {
  std::vector<ModelInfo> models;
  for (const CatalogEntry& entry : kCatalog) models.push_back(entry.info);
  return models;
}

NetSpec make_model(std::string_view name, Extent input, int classes) {
  std::string known;
  for (const CatalogEntry& entry : kCatalog) {
    if (entry.info.name == name) return entry.make(input, classes);
    known += concat(known.empty() ? "" : ", ", entry.info.name);
  }
  throw Error(ErrorKind::usage, concat("there is no model \"", name, "\"; choose one of: ", known));
}

}  // namespace cifar_mpi::model
