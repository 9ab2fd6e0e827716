#include <utility>

#include "cifar_mpi/engine/roofline.hpp"
#include "cuda/conv.hpp"
#include "cuda/group.hpp"
#include "cuda/lane.hpp"
#include "cuda/planner.hpp"
#include "cuda/relu.hpp"
#include "cuda/sum.hpp"

namespace cifar_mpi::cuda {
namespace {

class AffineGroup final : public engine::Group {
 public:
  AffineGroup(SharedPlan& shared, engine::Contract contract, const Affine& affine)
      : shared_(shared),
        contract_(std::move(contract)),
        affine_(affine),
        type_(shared.type()),
        kernels_(shared.kernels.add(contract_.name, affine)),
        first_counter_(shared.counter_words) {
    if (affine.biased) shared.counter_words += column_counters(affine.outputs);
  }

  const engine::Contract& contract() const override { return contract_; }
  /// Known once the kernels are planned: products add the biases, cuDNN does not.
  bool leaves_bias() const {
    return affine_.has_tail && kernels_.library_for(ConvDirection::forward) != nullptr;
  }
  engine::GroupTasks tasks(const Operands& operands, Arena& arena) const override;
  void to_logical(std::size_t part, std::span<const float> physical, std::span<float> logical) const override;
  void from_logical(std::size_t part, std::span<const float> logical,
                    std::span<float> physical) const override;

 private:
  /// Results of the forward pass that its backward pass reads.
  struct Kept {
    std::byte* weights = nullptr;  ///< for cuDNN
    std::byte* rotated = nullptr;  ///< for the data gradient as a product
    std::byte* patches = nullptr;  ///< of the input
  };

  std::size_t bytes(std::size_t values) const { return values * bytes_per(type_); }
  const std::string& name() const { return contract_.name; }
  Bytes x(const Operands& o) const { return {o.src[0], contract_.src[0].value.bytes}; }
  Bytes y(const Operands& o) const { return {o.dst, contract_.dst.value.bytes}; }
  Bytes grad_x(const Operands& o) const { return {o.grad_src[0], contract_.src[0].grad.bytes}; }
  Bytes grad_y(const Operands& o) const { return {o.grad_dst, contract_.dst.grad.bytes}; }
  /// Weights as products read them: the block itself, or its bf16 copy.
  Bytes weights_of(const Operands& o) const {
    if (type_ == ValueType::fp32) return bytes_of(o.params[0].master, affine_.weights_in_memory());
    return {o.params[0].copy, bytes(affine_.weights_in_memory())};
  }
  /// `task` is one of the three products; adds its least cost, and the workspace, whose content is scratch.
  Task product(Task task, const Operands& o, std::byte* space, std::size_t space_bytes) const {
    task.cost = {o.flops, engine::bytes_moved(task)};
    task.writes.push_back({space, space_bytes});
    return task;
  }

  void prepare(const Operands& o, Arena& arena, Kept& kept, std::vector<Task>& tasks) const;
  /// Whether the bias gradient is a row of the weight gradient: the windows have a spare column, no masking
  /// is needed, and the product does not round more than a sum would.
  bool sums_by_product(const Operands& o) const {
    return o.training && affine_.is_conv() && affine_.biased && affine_.row > affine_.inner &&
           kernels_.library_for(ConvDirection::weight_gradient) == nullptr && !o.mask_dst &&
           o.params[0].grad != nullptr && shared_.precision != engine::Precision::tf32;
  }
  Task library_forward(const Operands& o, const Kept& kept, Arena& arena) const;
  void product_forward(const Operands& o, Kept& kept, Arena& arena, std::vector<Task>& tasks) const;
  Task bias_gradient(const Operands& o, Arena& arena) const;
  Task patches(const Operands& o, Kept& kept, Arena& arena) const;
  void weight_gradient(const Operands& o, Kept& kept, Arena& arena, std::vector<Task>& tasks) const;
  void data_gradient(const Operands& o, const Kept& kept, Arena& arena, std::vector<Task>& tasks) const;

  SharedPlan& shared_;
  engine::Contract contract_;
  Affine affine_;
  ValueType type_;
  const AffineKernels& kernels_;
  int first_counter_;
};

void AffineGroup::to_logical(std::size_t, std::span<const float> physical, std::span<float> logical) const {
  const auto columns = static_cast<std::size_t>(affine_.columns);
  const auto pitch = static_cast<std::size_t>(affine_.outputs);
  for (std::size_t row = 0; row < logical.size() / columns; ++row)
    std::copy_n(&physical[row * pitch], columns, &logical[row * columns]);
}

void AffineGroup::from_logical(std::size_t, std::span<const float> logical, std::span<float> physical) const {
  const auto columns = static_cast<std::size_t>(affine_.columns);
  const auto pitch = static_cast<std::size_t>(affine_.outputs);
  std::ranges::fill(physical, 0.0f);
  for (std::size_t row = 0; row < logical.size() / columns; ++row)
    std::copy_n(&logical[row * columns], columns, &physical[row * pitch]);
}

engine::GroupTasks AffineGroup::tasks(const Operands& o, Arena& arena) const {
  engine::GroupTasks tasks;
  Kept kept;
  prepare(o, arena, kept, tasks.prepare);
  if (kernels_.library_for(ConvDirection::forward) != nullptr) {
    tasks.forward.push_back(library_forward(o, kept, arena));
  } else {
    product_forward(o, kept, arena, tasks.forward);
  }
  // If the bias gradient also masks what the other two read, it comes first; else it and the weight gradient
  // run beside the data gradient and what follows it.
  if (o.params[0].grad != nullptr) {
    if (affine_.biased && !sums_by_product(o)) tasks.backward.push_back(bias_gradient(o, arena));
    weight_gradient(o, kept, arena, tasks.backward);
  }
  if (o.grad_src[0] != nullptr) data_gradient(o, kept, arena, tasks.backward);
  return tasks;
}

void AffineGroup::prepare(const Operands& o, Arena& arena, Kept& kept, std::vector<Task>& tasks) const {
  if (!affine_.is_conv()) return;
  const float* const master = o.params[0].master;
  const Bytes read = bytes_of(master, affine_.weights());
  const bool turns_back = o.grad_src[0] != nullptr;
  const bool library_back = kernels_.library_for(ConvDirection::data_gradient) != nullptr;
  if (kernels_.library_for(ConvDirection::forward) != nullptr || (turns_back && library_back)) {
    kept.weights = arena.take(bytes(affine_.weights()));
    tasks.push_back({name() + " weights",
                     {read},
                     {{kept.weights, bytes(affine_.weights())}},
                     [=, to = kept.weights, type = type_, rows = affine_.inner, columns = affine_.outputs](
                         Lane& lane) { transpose_weights(stream_of(lane), master, to, type, rows, columns); },
                     {},
                     true});
  }
  if (turns_back && !library_back) {
    const RotatedWeights shape{affine_.kernel, affine_.in.channels, affine_.outputs,
                               affine_.backward_patches(shared_.batch).row};
    const std::size_t size = bytes(static_cast<std::size_t>(shape.row) * static_cast<std::size_t>(shape.in));
    kept.rotated = arena.take(size);
    tasks.push_back({name() + " turn",
                     {read},
                     {{kept.rotated, size}},
                     [=, to = kept.rotated, type = type_](Lane& lane) {
                       rotate_weights(stream_of(lane), shape, master, to, type);
                     },
                     {},
                     true});
  }
}

Task AffineGroup::library_forward(const Operands& o, const Kept& kept, Arena& arena) const {
  const LibraryConv* const conv = kernels_.library_for(ConvDirection::forward);
  std::byte* const space = arena.take(conv->workspace_bytes());
  const bool adds = affine_.biased && !leaves_bias();
  const float* const biases = adds ? o.params[1].master : nullptr;
  const auto outputs = static_cast<std::size_t>(adds ? affine_.outputs : 0);
  return product(
      {name() + " forward",
       {x(o), {kept.weights, bytes(affine_.weights())}, bytes_of(biases, outputs)},
       {y(o)},
       [=, from = o.src[0], to = o.dst, copy = kept.weights, type = type_, rows = affine_.rows(shared_.batch),
        columns = affine_.outputs, relu = affine_.relu](Lane& lane) {
         check(conv->forward(stream_of(lane), from, copy, to, space), "starting a convolution");
         if (biases != nullptr) add_bias(stream_of(lane), type, to, biases, rows, columns, relu);
       },
       {}},
      o, space, conv->workspace_bytes());
}

Task AffineGroup::patches(const Operands& o, Kept& kept, Arena& arena) const {
  const std::size_t size = kernels_.forward.bytes_a();
  kept.patches = arena.take(size);
  Im2colShape shape = affine_.forward_patches(shared_.batch);
  shape.ones = sums_by_product(o);
  return {name() + " patches",
          {x(o)},
          {{kept.patches, size}},
          [shape, type = type_, from = o.src[0], to = kept.patches](Lane& lane) {
            im2col(stream_of(lane), shape, type, from, to);
          },
          {}};
}

void AffineGroup::product_forward(const Operands& o, Kept& kept, Arena& arena,
                                  std::vector<Task>& tasks) const {
  const Matmul* const matmul = &kernels_.forward;
  Bytes rows = x(o);
  if (affine_.is_conv()) {
    tasks.push_back(patches(o, kept, arena));
    rows = tasks.back().writes.front();
  }
  Bytes bias;
  if (affine_.biased) {
    const auto outputs = static_cast<std::size_t>(affine_.outputs);
    const bool narrow = type_of(contract_.dst.value) == ValueType::bf16;
    bias = narrow ? Bytes{o.params[1].copy, bytes(outputs)} : bytes_of(o.params[1].master, outputs);
  }
  const Bytes weights = weights_of(o);
  std::byte* const space = arena.take(matmul->workspace_bytes());
  tasks.push_back(product({name() + " forward",
                           {rows, weights, bias},
                           {y(o)},
                           [=, to = o.dst](Lane& lane) {
                             matmul->run(stream_of(lane), rows.begin, weights.begin, to, bias.begin, space);
                           },
                           {}},
                          o, space, matmul->workspace_bytes()));
}

Task AffineGroup::bias_gradient(const Operands& o, Arena& arena) const {
  const auto outputs = static_cast<std::size_t>(affine_.outputs);
  const ColumnChunks chunks = column_chunks(affine_.rows(shared_.batch));
  const std::size_t partials = static_cast<std::size_t>(chunks.chunks) * outputs;
  ColumnSum work;
  work.type = type_;
  work.rows = affine_.rows(shared_.batch);
  work.columns = affine_.outputs;
  work.grad = o.grad_dst;
  work.y = o.mask_dst ? o.dst : nullptr;
  work.sums = o.params[1].grad;
  work.partials = arena.take_array<float>(partials);
  work.counters = shared_.counters.as<unsigned>() + first_counter_;
  Task task{name() + " bias gradient",
            {grad_y(o)},
            {bytes_of(work.sums, outputs), bytes_of(work.partials, partials),
             bytes_of(work.counters, static_cast<std::size_t>(column_counters(affine_.outputs)))},
            [work](Lane& lane) { sum_columns(stream_of(lane), work); },
            {},
            !o.mask_dst};
  task.cost.bytes = static_cast<double>(grad_y(o).size);  // the sums are small
  if (o.mask_dst) {
    task.reads.push_back(y(o));
    task.writes.push_back(grad_y(o));
    task.cost.bytes += static_cast<double>(y(o).size + grad_y(o).size);
  }
  return task;
}

void AffineGroup::weight_gradient(const Operands& o, Kept& kept, Arena& arena,
                                  std::vector<Task>& tasks) const {
  float* const to = o.params[0].grad;
  const bool concurrent = o.grad_src[0] != nullptr;  // else there is nothing to run beside
  if (const LibraryConv* const conv = kernels_.library_for(ConvDirection::weight_gradient)) {
    std::byte* const copy = arena.take(bytes(affine_.weights()));
    std::byte* const space = arena.take(conv->workspace_bytes());
    tasks.push_back(product({name() + " weight gradient",
                             {x(o), grad_y(o)},
                             {bytes_of(to, affine_.weights()), {copy, bytes(affine_.weights())}},
                             [=, from = o.src[0], grad = o.grad_dst, type = type_, rows = affine_.inner,
                              columns = affine_.outputs](Lane& lane) {
                               check(conv->weight_gradient(stream_of(lane), from, grad, copy, space),
                                     "starting a weight gradient");
                               transpose_gradient(stream_of(lane), copy, type, to, rows, columns);
                             },
                             {},
                             concurrent},
                            o, space, conv->workspace_bytes()));
    return;
  }
  if (affine_.is_conv() && kept.patches == nullptr) {  // cuDNN computes the forward pass without them
    tasks.push_back(patches(o, kept, arena));
    tasks.back().concurrent = concurrent;
  }
  const Matmul* const matmul = &kernels_.weight_gradient;
  const Bytes rows = affine_.is_conv() ? Bytes{kept.patches, matmul->bytes_a()} : x(o);
  std::byte* const space = arena.take(matmul->workspace_bytes());
  float* const biases = sums_by_product(o) ? o.params[1].grad : nullptr;
  const int outputs = affine_.outputs;
  tasks.push_back(product({name() + " weight gradient",
                           {rows, grad_y(o)},
                           {bytes_of(to, affine_.weights_in_memory()),
                            bytes_of(biases, static_cast<std::size_t>(biases != nullptr ? outputs : 0))},
                           [=, grad = o.grad_dst, row = to + affine_.weights()](Lane& lane) {
                             matmul->run(stream_of(lane), rows.begin, grad, to, nullptr, space);
                             if (biases != nullptr) move_values(stream_of(lane), row, biases, outputs);
                           },
                           {},
                           concurrent},
                          o, space, matmul->workspace_bytes()));
}

void AffineGroup::data_gradient(const Operands& o, const Kept& kept, Arena& arena,
                                std::vector<Task>& tasks) const {
  const std::string full = name() + " data gradient";
  if (const LibraryConv* const conv = kernels_.library_for(ConvDirection::data_gradient)) {
    std::byte* const space = arena.take(conv->workspace_bytes());
    tasks.push_back(product({full,
                             {grad_y(o), {kept.weights, bytes(affine_.weights())}},
                             {grad_x(o)},
                             [=, copy = kept.weights, grad = o.grad_dst, to = o.grad_src[0]](Lane& lane) {
                               check(conv->data_gradient(stream_of(lane), copy, grad, to, space),
                                     "starting a data gradient");
                             },
                             {}},
                            o, space, conv->workspace_bytes()));
    return;
  }
  const Matmul* const matmul = &*kernels_.data_gradient;
  Bytes a = grad_y(o), b = weights_of(o);
  if (affine_.is_conv()) {
    std::byte* const patches = arena.take(matmul->bytes_a());
    a = {patches, matmul->bytes_a()};
    b = {kept.rotated, matmul->bytes_b()};
    tasks.push_back({name() + " gradient patches",
                     {grad_y(o)},
                     {a},
                     [shape = affine_.backward_patches(shared_.batch), type = type_, from = o.grad_dst,
                      patches](Lane& lane) { im2col(stream_of(lane), shape, type, from, patches); },
                     {}});
  }
  std::byte* const space = arena.take(matmul->workspace_bytes());
  tasks.push_back(product({full,
                           {a, b},
                           {grad_x(o)},
                           [=, to = o.grad_src[0]](Lane& lane) {
                             matmul->run(stream_of(lane), a.begin, b.begin, to, nullptr, space);
                           },
                           {}},
                          o, space, matmul->workspace_bytes()));
}

}  // namespace

std::unique_ptr<engine::Group> make_affine_group(SharedPlan& shared, engine::Contract contract,
                                                 const Affine& affine, std::unique_ptr<engine::Group> tail) {
  auto layer = std::make_unique<AffineGroup>(shared, std::move(contract), affine);
  if (!tail) return layer;
  const AffineGroup* const made = layer.get();
  return join_tail(std::move(layer), std::move(tail), [made] { return made->leaves_bias(); });
}

}  // namespace cifar_mpi::cuda
