#include "comm/host_image.hpp"

#include <utility>

namespace cifar_mpi::comm {
namespace {

/// Where arrays begin.
constexpr std::size_t kLine = 64;

std::size_t lines_of(std::size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

/// Reserves space for an array and advances `at` past it.
template <class T>
std::span<T> image_of(std::span<T> array, std::byte*& at) {
  auto* const begin = reinterpret_cast<T*>(at);
  at += lines_of(array.size_bytes());
  return {begin, array.size()};
}

template <class T>
engine::CopyBinding copy(std::span<T> dst, std::span<T> src) {
  const std::span<const std::byte> from = std::as_bytes(src);
  return {std::as_writable_bytes(dst).data(), from.data(), from.size()};
}

}  // namespace

HostImage::HostImage(engine::Backend& device, const GradientBlock& block, const StepState& state)
    : device_(device),
      device_control_(block.control()),
      device_state_(state),
      block_(device.allocate_pinned(block.all().size_bytes()), block.control().size()),
      memory_(device.allocate_pinned(lines_of(state.params.size_bytes()) +
                                     lines_of(state.decay_sums.size_bytes()) +
                                     lines_of(sizeof *state.step))) {
  std::byte* at = memory_.data();
  state_.params = image_of(state.params, at);
  state_.decay_sums = image_of(state.decay_sums, at);
  state_.step = image_of(std::span(state.step, 1), at).data();
}

engine::Task HostImage::fetch(std::string name, std::span<float> host, std::span<float> device) const {
  return device_.copy_task(std::move(name), {copy(host, device)});
}

engine::Task HostImage::deliver(std::string name) const {
  return device_.copy_task(
      std::move(name), {copy(device_state_.params, state_.params), copy(device_control_, block_.control()),
                        copy(device_state_.decay_sums, state_.decay_sums),
                        copy(std::span(device_state_.step, 1), std::span(state_.step, 1))});
}

}  // namespace cifar_mpi::comm
