#pragma once

#include <string>

#include "page/run.hpp"

/// Sections that show pictures. Empty if a run lacks the data.
namespace cifar_mpi::page {

/// The filters of the first convolution, of the averaged weights.
std::string filters_html(const Run& run);

/// Misclassified test images.
std::string wrong_images_html(const Run& run);

/// Training images after augmentation, as the network reads them.
std::string input_images_html(const Run& run);

/// The confusion matrix.
std::string confusion_html(const Run& run);

}  // namespace cifar_mpi::page
