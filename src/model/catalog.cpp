#include "model/catalog.hpp"

#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/model/net_spec.hpp"

namespace cifar_mpi::model {
namespace {

struct CatalogEntry {
  std::string_view name;
  ModelFunction layers;
};

constexpr CatalogEntry kCatalog[] = {
    {"tutorial", tutorial},
};

}  // namespace

std::vector<std::string_view> catalog() {
  std::vector<std::string_view> names;
  for (const CatalogEntry& entry : kCatalog) names.push_back(entry.name);
  return names;
}

NetSpec make_model(std::string_view name, Extent input, int classes) {
  std::string known;
  for (const CatalogEntry& entry : kCatalog) {
    if (entry.name == name) return make_net(std::string(name), input, classes, entry.layers(input, classes));
    known += concat(known.empty() ? "" : ", ", entry.name);
  }
  throw Error(ErrorKind::usage, concat("there is no model \"", name, "\"; choose one of: ", known));
}

}  // namespace cifar_mpi::model
