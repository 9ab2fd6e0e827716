#include "cifar_mpi/base/error.hpp"
#include "cifar_mpi/cuda/backend.hpp"

namespace cifar_mpi::cuda {

std::string describe() { return "absent (built without CUDA)"; }

std::string unusable() { return "built without CUDA"; }

bool has_gpu() { return false; }

std::string nvls_note(bool) { return {}; }

std::string identity(const engine::BackendOptions& options) {
  static_cast<void>(make_backend(options));
  return {};
}

std::unique_ptr<engine::Backend> make_backend(const engine::BackendOptions&) {
  throw Error(ErrorKind::device, "--device cuda: this binary was built without CUDA; use --device cpu");
}

comm::Platform make_platform(const engine::BackendOptions& options) { return {make_backend(options), {}}; }

double measure_peak_flops(engine::Precision, double) { throw Error(ErrorKind::device, unusable()); }

double measure_copy_rate(double) { throw Error(ErrorKind::device, unusable()); }

engine::RooflineLimits measure_limits(engine::Precision) { throw Error(ErrorKind::device, unusable()); }

}  // namespace cifar_mpi::cuda
