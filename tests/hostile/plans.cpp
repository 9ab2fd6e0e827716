#include "hostile/files.hpp"

namespace cifar_mpi::test {

std::vector<Wanted> dataset_plan() {
  using Kind = Wanted::Kind;
  using Attribute = Wanted::Attribute;
  std::vector<Wanted> plan{{Kind::group,
                            "/",
                            {},
                            {},
                            {{"format", Attribute::Kind::text, "cifar_mpi dataset", 0},
                             {"format_version", Attribute::Kind::whole, {}, 1},
                             {"source", Attribute::Kind::text, "a stranger", 0}}}};
  for (const auto& [group, count] : {std::pair<std::string, std::uint64_t>{"/train", 40}, {"/test", 8}}) {
    plan.push_back({Kind::bytes, group + "/images", {count, 32, 32, 3}, {}, {}});
    plan.push_back({Kind::bytes, group + "/labels", {count}, {}, {}});
  }
  plan.push_back({Kind::text, "/test/files", {8}, std::vector<std::string>(8, "cat/1.png"), {}});
  plan.push_back({Kind::text, "/label_names", {3}, {"cat", "dog", "größer"}, {}});
  return plan;
}

std::vector<Wanted> checkpoint_plan() {
  using Kind = Wanted::Kind;
  using Attribute = Wanted::Attribute;
  const auto text = [](const char* name, const char* value) {
    return Attribute{name, Attribute::Kind::text, value, 0};
  };
  const auto whole = [](const char* name, std::int64_t value) {
    return Attribute{name, Attribute::Kind::whole, {}, value};
  };
  const auto real = [](const char* name) { return Attribute{name, Attribute::Kind::real, {}, 0}; };
  std::vector<Wanted> plan{{Kind::group,
                            "/",
                            {},
                            {},
                            {text("format", "cifar_mpi checkpoint"), whole("version", 3),
                             text("content_hash", "0123456789abcdef")}}};
  for (const std::string group : {"/model", "/ema"}) {
    for (const std::string layer : {"/conv1", "/conv2", "/local3"}) {
      plan.push_back({Kind::floats,
                      group + layer + "/weights",
                      {5, 5, 3, 8},
                      {},
                      {text("dims", "[height, width, in, out]")}});
      plan.push_back({Kind::floats, group + layer + "/biases", {8}, {}, {text("dims", "[out]")}});
    }
  }
  plan.push_back(
      {Kind::group,
       "/optimizer",
       {},
       {},
       {text("kind", "sgd"), whole("step", 4), text("meaning", "plain stochastic gradient descent"),
        real("eps"), real("muon-normalize")}});
  plan.push_back({Kind::group,
                  "/progress",
                  {},
                  {},
                  {whole("step", 4), real("epoch"), whole("samples_seen", 48), whole("seed", 1)}});
  plan.push_back({Kind::text, "/progress/identity", {2}, {"model = tutorial", "--lr = 0.1"}, {}});
  plan.push_back({Kind::text, "/progress/resolved", {2}, {"threads = 1", "ranks = 1"}, {}});
  plan.push_back(
      {Kind::group,
       "/provenance",
       {},
       {},
       {whole("ranks", 1), whole("global_batch", 12), real("learning_rate"), text("learning_rate_rule", "r"),
        text("precision", "fp32"), text("backend", "cpu"), text("kernels", "k"), text("git_revision", "g"),
        text("time", "t"), real("test_accuracy"), text("initialized_from", "a.h5, step 2")}});
  plan.push_back({Kind::text, "/provenance/configuration", {1}, {"steps = 4"}, {}});
  return plan;
}

}  // namespace cifar_mpi::test
