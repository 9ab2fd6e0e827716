#include "app/program.hpp"
#include "app/train_options.hpp"
#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/base/text.hpp"
#include "cifar_mpi/evaluation/network.hpp"

namespace cifar_mpi::app {
namespace {

/// Source of the images' description; empty: CIFAR-10.
std::string dataset_of(const config::TrainConfig& config) {
  try {
    return find_dataset(config.data);
  } catch (const Error&) {
    if (!config.data.empty()) throw;
    return {};
  }
}

data::DatasetInfo cifar10() {
  data::DatasetInfo info;
  info.image = {32, 32, 3};
  info.label_names.resize(10);
  return info;
}

}  // namespace

std::string describe_model(const config::TrainConfig& config) {
  const std::string path = dataset_of(config);
  const data::DatasetInfo info = path.empty() ? cifar10() : data::DatasetFile(path).info();
  const evaluation::Network network = evaluation::make_network(
      config.model, info, config::augment_spec(config, info.image), path.empty() ? "CIFAR-10" : path);
  const std::string source =
      path.empty() ? "no dataset found, so for CIFAR-10's images" : concat("for ", path);
  const std::string image = to_string(info.image), input = to_string(network.net.input);
  return concat(model::summary(network.net), source, " of ", image,
                image == input ? "" : concat(", cropped to ", input), '\n');
}

}  // namespace cifar_mpi::app
