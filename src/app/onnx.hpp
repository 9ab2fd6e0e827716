#pragma once

#include <string>
#include <vector>

#include "cifar_mpi/evaluation/network.hpp"
#include "cifar_mpi/run/checkpoint.hpp"

namespace cifar_mpi::app {

/// The network as a file of ONNX, operator set 13 (onnx.ai/onnx/operators). It contains its preprocessing:
///
///   input   images         [N, height, width, channels] uint8, as in the dataset
///   outputs logits         [N, classes] float32
///           probabilities  [N, classes] float32, their softmax
///
/// `tensors` are in the order of `network.params`; `properties` become the file's metadata. Linear layers are
/// convolutions that cover their whole input, so every value but the outputs is NCHW.
std::string onnx_model(const evaluation::Network& network, const std::vector<run::NamedTensor>& tensors,
                       const std::vector<std::pair<std::string, std::string>>& properties);
/// How each of these files begins.
std::string onnx_begin();

}  // namespace cifar_mpi::app
