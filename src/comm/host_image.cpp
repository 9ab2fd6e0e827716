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

HostImage::HostImage(engine::Backend& device, const StepParts& parts) : device_(device) {
  device_parts_.control = parts.control;
  device_parts_.grads = parts.grads;
  device_parts_.params = parts.params;
  device_parts_.decay_sums = parts.decay_sums;
  device_parts_.step = parts.step;
  const std::size_t gradients = parts.control.size_bytes() + parts.grads.size_bytes();
  memory_ = device.allocate_pinned(lines_of(gradients) + lines_of(parts.params.size_bytes()) +
                                   lines_of(parts.decay_sums.size_bytes()) + lines_of(sizeof *parts.step));
  std::byte* at = memory_.data();
  // The gradients follow the control block, as on the device.
  const std::span<float> block =
      image_of(std::span(parts.control.data(), parts.control.size() + parts.grads.size()), at);
  host_.control = block.first(parts.control.size());
  host_.grads = block.subspan(parts.control.size());
  host_.params = image_of(parts.params, at);
  host_.decay_sums = image_of(parts.decay_sums, at);
  host_.step = image_of(std::span(parts.step, 1), at).data();
}

engine::Task HostImage::fetch(std::string name, std::span<float> host, std::span<float> device) const {
  return device_.copy_task(std::move(name), {copy(host, device)});
}

engine::Task HostImage::deliver(std::string name) const {
  return device_.copy_task(
      std::move(name), {copy(device_parts_.params, host_.params), copy(device_parts_.control, host_.control),
                        copy(device_parts_.decay_sums, host_.decay_sums),
                        copy(std::span(device_parts_.step, 1), std::span(host_.step, 1))});
}

}  // namespace cifar_mpi::comm
