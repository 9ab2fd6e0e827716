#pragma once

#include <string>

#include "page/run.hpp"

/// Sections that show pictures. Empty where a run has not what they show.
namespace cifar_mpi::page {

/// The filters of the first convolution, of the averaged weights.
std::string filters_html(const Run& run);

/// Test images that were taken for another class.
std::string wrong_images_html(const Run& run);

/// Training images as the network sees them.
std::string input_images_html(const Run& run);

/// How many images of each class were taken for which.
std::string confusion_html(const Run& run);

}  // namespace cifar_mpi::page
