#pragma once

/// Local response normalization of one pixel; runs on the host and on the device.
namespace cifar_mpi::cuda {

struct LrnRule {
  int radius = 0;
  float bias = 1.0f;
  float alpha = 0.0f;
  float beta = 0.5f;
};

/// bias + alpha · Σ x², over the channels nearest to `c`; `read(c)` returns x.
template <class Read>
constexpr float lrn_base(const LrnRule& rule, int channels, int c, Read read) {
  const int first = c > rule.radius ? c - rule.radius : 0;
  const int last = c + rule.radius < channels ? c + rule.radius : channels - 1;
  float sum = 0.0f;
  for (int i = first; i <= last; ++i) {
    const float x = read(i);
    sum += x * x;
  }
  return rule.bias + rule.alpha * sum;
}

/// base^(−beta); for three quarters, as in the tutorial, by two roots. `Math` has sqrt, rsqrt (1/√x), divide
/// and pow.
template <class Math>
constexpr float lrn_scale(const LrnRule& rule, float base, Math math) {
  if (rule.beta == 0.75f) {
    const float inverse = math.rsqrt(base);
    return inverse * math.sqrt(inverse);
  }
  return math.pow(base, -rule.beta);
}

/// Contributions of a channel to the gradients of its neighbours and to its own; see lrn_gradient.
struct LrnTerms {
  float direct = 0.0f;  ///< grad_y · scale
  float share = 0.0f;
};
template <class Read, class Math>
constexpr LrnTerms lrn_terms(const LrnRule& rule, int channels, int c, float grad_y, Read read, Math math) {
  const float base = lrn_base(rule, channels, c, read);
  const float direct = grad_y * lrn_scale(rule, base, math);
  return {direct, math.divide(direct * read(c), base)};
}

/// y = x · scale gives grad_x[c] = grad_y[c] · scale[c] − 2·alpha·beta · x[c] · Σ share[j] over the same
/// channels j, with share[j] = grad_y[j] · x[j] · scale[j] / base[j].
template <class Share>
constexpr float lrn_gradient(const LrnRule& rule, int channels, int c, float x, float direct, Share share) {
  const int first = c > rule.radius ? c - rule.radius : 0;
  const int last = c + rule.radius < channels ? c + rule.radius : channels - 1;
  float sum = 0.0f;
  for (int i = first; i <= last; ++i) sum += share(i);
  return direct - 2.0f * rule.alpha * rule.beta * x * sum;
}

}  // namespace cifar_mpi::cuda
