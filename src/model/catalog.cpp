#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/model/net_spec.hpp"

namespace cifar_mpi::model {

// The models, one file each.
NetSpec tutorial(Extent image, int classes);
NetSpec resnet20(Extent image, int classes);
NetSpec resnet18(Extent image, int classes);
NetSpec fast94(Extent image, int classes);

namespace {

struct CatalogEntry {
  ModelInfo info;
  NetSpec (*make)(Extent image, int classes);
};

constexpr CatalogEntry kCatalog[] = {
    {{"tutorial", "the CNN of the TensorFlow CIFAR-10 tutorial: two convolutions, two hidden linear layers"},
     tutorial},
    {{"resnet20",
      "the residual network of He et al. for CIFAR: 20 layers, 16 to 64 channels, 0.27 M parameters"},
     resnet20},
    {{"resnet18", "ResNet-18 in its CIFAR form: 18 layers, 64 to 512 channels, 11.2 M parameters"}, resnet18},
    {{"fast94",
      "a network for 94 % on CIFAR-10 in nine epochs: whitened patches, six convolutions, 2.0 M parameters"},
     fast94},
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
  throw Error(ErrorKind::usage, "there is no model \"", name, "\"; choose one of: ", known);
}

}  // namespace cifar_mpi::model
