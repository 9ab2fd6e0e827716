#pragma once

#include <string>
#include <vector>

#include "cifar_mpi/base/buffer.hpp"
#include "cifar_mpi/comm/world.hpp"
#include "cifar_mpi/data/augment.hpp"
#include "cifar_mpi/data/dataset.hpp"
#include "cifar_mpi/engine/backend.hpp"
#include "cifar_mpi/lower/tower.hpp"
#include "cifar_mpi/model/param_table.hpp"
#include "cifar_mpi/run/checkpoint.hpp"

namespace cifar_mpi::evaluation {

/// A model of the catalog, fitted to a dataset.
struct Network {
  model::NetSpec net;
  model::ParamTable params;
  data::AugmentSpec augment;  ///< from dataset images to the network's input
};

/// Throws Error{usage} for an unknown model or a `pad` that reaches beyond the mirrored image, and
/// Error{data} naming `path` if the images are smaller than the crop.
Network make_network(const std::string& model, const data::DatasetInfo& dataset,
                     const data::AugmentSpec& augment, const std::string& path);

/// Fills in mean and deviation of each channel of the training set, if the spec normalizes by them. Every
/// rank reads its part of the images; the sums are whole numbers, so the result does not depend on the number
/// of ranks. Collective; throws errors of reading as AgreedError.
void find_dataset_moments(data::AugmentSpec& augment, const data::DatasetFile& dataset,
                          const comm::World& world);

/// The moments as settings of a run: a checkpoint is evaluated with those it was trained with, on any
/// dataset. Empty if the spec does not normalize by them.
RunFingerprint moments_of(const data::AugmentSpec& augment);
/// Reads the moments from such settings; returns whether they are there. Throws Error{checkpoint} naming
/// `path` if they do not fit the number of channels.
bool take_moments(data::AugmentSpec& augment, const RunFingerprint& settings, const std::string& path);

/// Initial values of all parameters in logical order, a pure function of the seed.
std::vector<run::NamedTensor> initial_tensors(const model::ParamTable& params, std::uint64_t seed);

/// Replaces the initial values of parameters with ParamInit::whitening by the whitening filters of the first 5 000 training
/// images (of all, if there are fewer), as evaluation shows them to the network. Every rank reads these images, so all
/// ranks compute the same bits. Throws what reading throws.
void whiten(std::vector<run::NamedTensor>& tensors, const Network& network, const data::DatasetFile& dataset);

/// A flat block of `tower`'s layout in backend memory as logical tensors, and back.
std::vector<run::NamedTensor> export_block(engine::Backend& backend, const lower::Tower& tower,
                                           const model::ParamTable& params, const Buffer& block);
void import_block(engine::Backend& backend, const lower::Tower& tower,
                  const std::vector<run::NamedTensor>& tensors, const Buffer& block);

}  // namespace cifar_mpi::evaluation
